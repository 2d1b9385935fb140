//! `loadtest outage`: PostgreSQL is out of larder's reach for long, and documents go on changing.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use larder::clock::Boottime;
use testkit::fault_proxy::NetworkFault;

use crate::checks::stale;
use crate::checks::stale::report::print_violations;
use crate::harness::testbed::{Testbed, TestbedConfig};
use crate::workload::record::RunPhase;

const WARM_UP: Duration = Duration::from_secs(10);
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const READY_MAX: Duration = Duration::from_secs(1);
/// The largest ratio of memory during the outage to that before: for waiting requests and freed memory that the
/// allocator keeps.
const GROWTH_MAX: f64 = 1.25;

/// Whether nothing was stale, memory stayed within bounds, and larder was ready soon after.
pub(crate) async fn run(away: Duration, binary: PathBuf, seed: u64) -> anyhow::Result<bool> {
    let config: TestbedConfig = stale::config(binary, seed);
    println!("seed {seed}; PostgreSQL out of reach for {away:?}");
    let mut testbed = Testbed::start(&config).await?;
    testbed.load(&config)?;
    testbed.run_phase(RunPhase::Quiet, WARM_UP).await;
    testbed.record.enter(RunPhase::Settling);
    let before = testbed.larder.resident_bytes()?;
    let began = Boottime::now();
    testbed.feed.set(NetworkFault::Cut);
    testbed.loader.set(NetworkFault::Cut);
    let mut most = before;
    while Boottime::now().since(began) < away {
        tokio::time::sleep(CHECK_INTERVAL).await;
        most = most.max(testbed.larder.resident_bytes()?);
    }
    let ready = testbed.recover().await?;
    testbed.run_phase(RunPhase::Quiet, WARM_UP).await;
    let measured = testbed.measured(&config).await?;
    let swept = stale::close(&testbed).await?;
    print_violations(&testbed.record, &[]);
    let meanwhile = measured.counters.phase(RunPhase::Settling);
    // Both are far below 2^52, so the casts are exact.
    let growth = most as f64 / before as f64;
    println!(
        "{} reads checked, {} stale or made up; meanwhile {} requests, {} answered; ready {ready:.2?} after its return; \
         resident memory at most {growth:.2} of the {} MiB before; afterwards {} of {} documents answered",
        testbed.record.reads(),
        testbed.record.violations(),
        meanwhile.total(),
        meanwhile.answered(),
        before >> 20,
        swept.answers,
        testbed.record.keys(),
    );
    let held = testbed.record.violations() == 0
        && ready <= READY_MAX
        && growth <= GROWTH_MAX
        && swept.unanswered == 0;
    testbed.shutdown().await.context("the end")?;
    Ok(held)
}
