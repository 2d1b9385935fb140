//! `loadtest lag`: from a commit to the first read that shows it, at several rates of commits, beside full read load.

use std::path::PathBuf;
use std::time::Duration;

use crate::checks::stale;
use crate::checks::stale::report::print_violations;
use crate::harness::testbed::{Testbed, TestbedConfig};
use crate::workload::record::RunPhase;

const COMMITS_PER_SECOND: [f64; 3] = [30.0, 100.0, 500.0];
/// The goals for the 99th percentile, with the bell and by polling alone.
const GOALS: [(bool, Duration); 2] = [
    (true, Duration::from_millis(15)),
    (false, Duration::from_millis(75)),
];
/// All documents fit: the lag is measured on hits that an invalidation ends.
const MEMORY_BYTES: u64 = 64 << 20;
const WARM_UP: Duration = Duration::from_secs(3);

/// Where this is 1, each backend of PostgreSQL, as a session of its own, weighs as much as all of larder and its load
/// together (sched(7), "The autogroup feature"); in control groups, as services run, it has no effect.
const AUTOGROUP: &str = "/proc/sys/kernel/sched_autogroup_enabled";

/// Whether the goals were reached.
pub(crate) async fn run(seconds: u64, binary: PathBuf, seed: u64) -> anyhow::Result<bool> {
    if std::fs::read_to_string(AUTOGROUP).is_ok_and(|enabled| enabled.trim() == "1") {
        println!("{AUTOGROUP} is 1: larder waits longer for a busy processor than a service would");
    }
    println!(
        "{:<8} {:>9} {:>10} {:>8} {:>10} {:>10} {:>10} {:>8}",
        "via", "commits/s", "reads/s", "probes", "p50", "p99", "max", "goal"
    );
    let mut reached = true;
    for (notify, goal) in GOALS {
        for commits_per_second in COMMITS_PER_SECOND {
            let config = TestbedConfig {
                notify,
                proxied: false,
                memory_bytes: MEMORY_BYTES,
                commits_per_second,
                ..stale::config(binary.clone(), seed)
            };
            reached &= measure(&config, Duration::from_secs(seconds), goal).await?;
        }
    }
    Ok(reached)
}

async fn measure(
    config: &TestbedConfig,
    duration: Duration,
    goal: Duration,
) -> anyhow::Result<bool> {
    let mut testbed = Testbed::start(config).await?;
    testbed.load(config)?;
    testbed.run_phase(RunPhase::Settling, WARM_UP).await;
    let (reads, commits) = (testbed.record.reads(), testbed.record.commits());
    testbed.run_phase(RunPhase::Quiet, duration).await;
    // Counts are far below 2^52, so the casts are exact.
    let per_second = |count: u64| count as f64 / duration.as_secs_f64();
    let reads = per_second(testbed.record.reads() - reads);
    let commits = per_second(testbed.record.commits() - commits);
    testbed.record.enter(RunPhase::Settling);
    let lags = testbed.measured(config).await?.lags;
    print_violations(&testbed.record, &[]);
    let p99 = lags.quantile(0.99);
    let reached = p99 <= goal && lags.count() > 0 && testbed.record.violations() == 0;
    println!(
        "{:<8} {commits:>9.0} {reads:>10.0} {:>8} {:>10.2?} {:>10.2?} {:>10.2?} {:>8.0?}{}",
        if config.notify { "bell" } else { "polling" },
        lags.count(),
        lags.quantile(0.5),
        p99,
        lags.max(),
        goal,
        if reached { "" } else { "  FAILED" },
    );
    testbed.shutdown().await?;
    Ok(reached)
}
