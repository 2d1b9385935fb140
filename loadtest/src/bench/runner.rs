//! Runs a benchmark: rounds of turns, whose order changes from round to round, and the folder of figures.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::timeout;

use crate::bench::benchmark::{Benchmark, RunArgs, Setup, Turn};
use crate::harness::progress;
use crate::report::benchmark_report::{BenchmarkReport, Group, Measurement};
use crate::report::results::{Folder, RunEnvironment};

/// Starting all servers and filling their tiers.
const PREPARE_MAX: Duration = Duration::from_secs(1_800);
/// A turn, besides the seconds for which it measures: connecting, warming up, filling.
const TURN_MAX: Duration = Duration::from_secs(300);
const VERIFY_MAX: Duration = Duration::from_secs(300);

/// Whether all requests were answered well and the servers did what was measured.
///
/// When `stop` ends first, what has been measured until then is kept.
pub(crate) async fn run<B: Benchmark>(
    args: &B::Args,
    binary: PathBuf,
    seed: u64,
    stop: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<bool> {
    println!("seed {seed}; starting PostgreSQL and all that is measured");
    let mut environment = RunEnvironment::now().await;
    let setup = Setup {
        binary: &binary,
        seed,
    };
    environment.binary("larder", &binary)?;
    let prepared = timeout(PREPARE_MAX, B::prepare(args, setup, &mut environment)).await;
    let mut benchmark = prepared.context("starting and filling takes too long")??;
    let (groups, run_args) = (benchmark.groups(), B::run_args(args));
    let conditions = format!(
        "{} {} rounds of turns of {} s.",
        benchmark.conditions(),
        run_args.rounds,
        run_args.seconds
    );
    let mut report = BenchmarkReport::new(B::NAME, environment, conditions, groups.clone());
    let measured = tokio::select! {
        measured = rounds(run_args, &mut benchmark, &groups, &mut report) => measured,
        stopped = stop => stopped,
    };
    benchmark.shutdown().await?;
    if report.is_empty() {
        measured?;
        bail!("nothing can be measured. {}", report.conditions);
    }
    let folder = &run_args.folder;
    let name = folder.name.as_deref().unwrap_or(B::NAME);
    let folder = Folder::create(&folder.results, name)?;
    let figures = serde_json::to_string_pretty(&report)?;
    folder.write(&format!("{}.json", B::NAME), &figures)?;
    folder.write("README.md", &report.readme())?;
    println!("{}", report.table());
    println!("kept in {}", folder.path().display());
    measured?;
    Ok(report.is_good())
}

async fn rounds<B: Benchmark>(
    args: &RunArgs,
    benchmark: &mut B,
    groups: &[Group],
    report: &mut BenchmarkReport,
) -> anyhow::Result<()> {
    let cases: usize = groups.iter().map(|group| group.cases.len()).sum();
    let progress = ProgressBar::new((args.rounds * cases) as u64).with_style(
        ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {pos}/{len} {msg}, {eta} left")?,
    );
    progress::show(&progress);
    let turn_max = TURN_MAX + Duration::from_secs(args.seconds);
    for round in 0..args.rounds {
        for (place, group) in groups.iter().enumerate() {
            for number in order(group.cases.len(), round) {
                let case = &group.cases[number];
                let name = format!("{}: {case}", group.name);
                progress.set_message(name.clone());
                let turn = benchmark.turn(Turn {
                    group: place,
                    case: number,
                    round,
                    seconds: args.seconds,
                });
                let measurement = timeout(turn_max, turn).await;
                let mut measurement = measurement
                    .with_context(|| format!("{name}: no end after {turn_max:?}"))?
                    .with_context(|| name.clone())?;
                if let Some(command) = measurement.command.take() {
                    report.environment.command(command);
                }
                report.note(Measurement {
                    group: place,
                    case: case.clone(),
                    round,
                    ..measurement
                });
                progress.inc(1);
            }
        }
    }
    progress::start()?;
    let verified = timeout(VERIFY_MAX, benchmark.verify()).await;
    verified.context("checking takes too long")?
}

/// The order of so many cases in a round: each comes first equally often, and as often after a case as before it, so
/// that what a turn leaves behind favours none.
fn order(cases: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..cases).collect();
    order.rotate_left(round / 2 % cases.max(1));
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_case_has_a_better_place() {
        for cases in 1..6 {
            let rounds: Vec<Vec<usize>> = (0..2 * cases).map(|round| order(cases, round)).collect();
            for case in 0..cases {
                let first = rounds.iter().filter(|round| round[0] == case);
                assert_eq!(first.count(), 2, "{rounds:?}");
            }
            let before = |one: usize, other: usize| {
                let is_before = |round: &&Vec<usize>| {
                    let place = |case| round.iter().position(|at| *at == case);
                    place(one) < place(other)
                };
                rounds.iter().filter(is_before).count()
            };
            for (one, other) in (1..cases).map(|case| (case - 1, case)) {
                assert_eq!(before(one, other), before(other, one), "{rounds:?}");
            }
        }
        assert!(order(0, 3).is_empty());
    }
}
