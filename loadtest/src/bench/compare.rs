//! `loadtest compare`: larder and others by turns in one run, on one core each, and their ratios.

mod contender;
mod contest;
mod outcome;

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use indicatif::{ProgressBar, ProgressStyle};

use crate::bench::compare::contest::Contest;
use crate::bench::compare::outcome::Outcome;
use crate::cli::CompareArgs;
use crate::report::results::{Folder, Provenance};

/// Of each contender, before anything is noted.
const WARM_UP_SECONDS: u64 = 1;

/// Whether all requests were answered well.
///
/// When `stop` is, what has been measured until then is told.
pub(crate) async fn run(
    args: &CompareArgs,
    binary: PathBuf,
    seed: u64,
    stop: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<bool> {
    println!("seed {seed}; starting PostgreSQL and all that is compared");
    let mut outcome = Outcome::new(args, Provenance::now().await);
    let mut contest = Contest::set(args, binary, seed, &mut outcome.provenance).await?;
    outcome.pairs = contest.pairs();
    let measured = tokio::select! {
        measured = rounds(args, &mut contest, &mut outcome, seed) => measured,
        stopped = stop => stopped,
    };
    contest.strike().await?;
    if outcome.is_empty() {
        return measured.map(|()| false);
    }
    let folder = Folder::create(
        &args.trial.results,
        args.trial.name.as_deref().unwrap_or("compare"),
    )?;
    folder.write("compare.json", &serde_json::to_string_pretty(&outcome)?)?;
    folder.write("README.md", &outcome.readme())?;
    println!("{}", outcome.table());
    println!("kept in {}", folder.path().display());
    measured?;
    Ok(outcome.is_good())
}

async fn rounds(
    args: &CompareArgs,
    contest: &mut Contest,
    outcome: &mut Outcome,
    seed: u64,
) -> anyhow::Result<()> {
    let contenders = contest.contenders.len();
    let turns = args.connections.len() * args.rounds * contenders;
    let progress = ProgressBar::new(turns as u64).with_style(ProgressStyle::with_template(
        "{elapsed_precise} [{bar:30}] {pos}/{len} {msg}, {eta} left",
    )?);
    progress.enable_steady_tick(Duration::from_secs(1));
    for number in 0..contenders {
        progress.set_message(format!("warming {}", contest.contenders[number].name));
        let connections = args.connections.first().copied().unwrap_or(1);
        contest
            .measure(number, connections, WARM_UP_SECONDS, seed)
            .await?;
    }
    progress.reset();
    for connections in &args.connections {
        for round in 0..args.rounds {
            for turn in 0..contenders {
                // Everybody is first once, so that what comes before favours nobody.
                let number = (turn + round) % contenders;
                progress.set_message(format!(
                    "{} with {connections}",
                    contest.contenders[number].name
                ));
                let seed = seed.wrapping_add(round as u64 + 1);
                let mut sample = contest
                    .measure(number, *connections, args.seconds, seed)
                    .await?;
                ensure!(
                    sample.measured.requests > 0,
                    "{} answered nothing in {} s; opening {connections} connections may take longer",
                    contest.contenders[number].name,
                    args.seconds
                );
                sample.round = round;
                outcome.note(sample, &contest.commands);
                progress.inc(1);
            }
        }
    }
    progress.finish_and_clear();
    contest.check().await
}
