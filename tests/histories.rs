//! Random schemas, settings and histories: after each step every document is what plain selects return, within
//! `max_staleness`, and no statement of a user fails that succeeds without larder.
//!
//! `plan` draws tables, resources and hostile settings; `step` draws the steps, which `rows`, `definitions`, `policies`
//! and `replication` define; `client` runs them; `history` runs a whole history, on a database with larder and on its
//! twin without; `oracle` reads what documents must be, and `comparison` compares.
//!
//! `LARDER_CASES=2000` draws more of them, `LARDER_HISTORY=7` repeats one by its seed, and
//! `LARDER_HISTORIES_WITHOUT=attach,policy` leaves out kinds of steps and traits of plans: `step::KINDS` and
//! `plan::TRAITS` name them.

mod client;
mod comparison;
mod definitions;
mod history;
mod hostile_settings;
mod oracle;
mod plan;
mod policies;
mod replication;
mod rows;
mod step;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::harness::cluster::TestCluster;
use crate::histories::history::HistoryResult;
use crate::histories::plan::TRAITS;
use crate::histories::step::KINDS;

/// By default.
const HISTORIES: u64 = 16;
const AT_ONCE: usize = 6;
/// Failures that are printed in full.
const REPORTED_MAX: usize = 3;

/// The words of an environment variable.
fn words(variable: &str) -> Vec<String> {
    let value = std::env::var_os(variable).unwrap_or_default();
    let value = value.into_string().unwrap();
    let words = value.split(',').map(|word| word.trim().to_owned());
    words.filter(|word| !word.is_empty()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_document_is_stale_after_random_histories() {
    // A statement that PostgreSQL does not know fails without larder, too, so the history goes on without it.
    TestCluster::has(15, "merge");
    let without = Arc::new(words("LARDER_HISTORIES_WITHOUT"));
    for name in without.iter() {
        assert!(
            TRAITS.contains(&name.as_str()) || KINDS.iter().any(|kind| kind.name == name),
            "no kind of step is called {name}"
        );
    }
    let count = words("LARDER_CASES")
        .first()
        .map_or(HISTORIES, |count| count.parse().unwrap());
    let seeds: Vec<u64> = match words("LARDER_HISTORY") {
        seeds if !seeds.is_empty() => seeds.iter().map(|seed| seed.parse().unwrap()).collect(),
        _ => (1..=count).collect(),
    };
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut histories = JoinSet::new();
    for seed in seeds.clone() {
        let (turns, without) = (Arc::clone(&turns), Arc::clone(&without));
        histories.spawn(async move {
            let _turn = turns.acquire_owned().await.unwrap();
            history::run(seed, &without).await
        });
    }
    let outcomes = histories.join_all().await;
    let report = report(&outcomes);
    eprintln!("{report}");
    assert!(
        outcomes.iter().all(|outcome| outcome.failure.is_none()),
        "{report}"
    );
}

/// Numbers by kind of step, and the first failures.
fn report(outcomes: &[HistoryResult]) -> String {
    let mut kinds: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for kind in outcomes.iter().flat_map(|outcome| &outcome.steps) {
        kinds.entry(kind).or_default().0 += 1;
    }
    let failures: Vec<_> = outcomes
        .iter()
        .filter_map(|outcome| outcome.failure.as_ref())
        .collect();
    for (kind, _) in &failures {
        kinds.entry(kind).or_default().1 += 1;
    }
    let reads: u64 = outcomes.iter().map(|outcome| outcome.reads).sum();
    let mut report = String::new();
    for (_, failure) in failures.iter().take(REPORTED_MAX) {
        writeln!(report, "{failure}\n").unwrap();
    }
    for (_, failure) in &failures {
        writeln!(report, "{}", failure.lines().next().unwrap_or_default()).unwrap();
    }
    writeln!(
        report,
        "{} of {} histories failed, {reads} reads",
        failures.len(),
        outcomes.len()
    )
    .unwrap();
    for (kind, (done, failed)) in kinds {
        writeln!(
            report,
            "{kind}: {done} steps, {failed} histories failed after one"
        )
        .unwrap();
    }
    report
}
