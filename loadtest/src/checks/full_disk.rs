//! `loadtest full-disk`: the disk tier's file system is full for a while. Does any read fail, and is the tier back?

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::time::Instant;

use crate::checks::faults::disk::{back_in_use, fill, mount_small, unmount_small};
use crate::checks::restarts::warm_up;
use crate::checks::stale;
use crate::checks::stale::report::print_violations;
use crate::harness::testbed::{Testbed, TestbedConfig};
use crate::workload::counters::ratio;
use crate::workload::record::RunPhase;

/// So little that the disk tier has to answer.
const MEMORY_BYTES: u64 = 16 << 10;
/// The least share of the reads before and after that disk must answer.
const DISK_SHARE_MIN: f64 = 0.95;
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
const CHURN: Duration = Duration::from_secs(3);

/// Whether no read failed or was stale, and disk answered before and after.
pub(crate) async fn run(full: Duration, binary: PathBuf, seed: u64) -> anyhow::Result<bool> {
    let config = TestbedConfig {
        memory_bytes: MEMORY_BYTES,
        ..stale::config(binary, seed)
    };
    println!("seed {seed}; the disk tier's file system full for {full:?}");
    let mut testbed = Testbed::start(&config).await?;
    if let Some(reason) = mount_small(&mut testbed).await? {
        bail!("a small file system can't be mounted: {reason}");
    }
    let before = warm_share(&testbed).await?;
    testbed.load(&config)?;
    testbed.run_phase(RunPhase::Quiet, CHURN).await;
    let filling = fill(&testbed)?;
    let ends = Instant::now() + full;
    let mut noticed = false;
    while Instant::now() < ends {
        testbed.run_phase(RunPhase::Quiet, CHECK_INTERVAL).await;
        noticed |= !testbed.larder.ready_disk().await;
    }
    fs::remove_file(&filling)?;
    let back = back_in_use(&testbed).await?;
    testbed.run_phase(RunPhase::Quiet, CHURN).await;
    let quiet = testbed
        .measured(&config)
        .await?
        .counters
        .phase(RunPhase::Quiet);
    stale::close(&testbed).await?;
    let after = warm_share(&testbed).await?;
    print_violations(&testbed.record, &[]);
    let failed = quiet.total() - quiet.answered();
    println!(
        "{} reads checked, {} stale or made up, {failed} of {} failed; the tier was back {back:.2?} after space was; \
         of the documents, disk answered {before:.3} before and {after:.3} after",
        testbed.record.reads(),
        testbed.record.violations(),
        quiet.total(),
    );
    if !noticed {
        println!("FAILED: the tier was in use all the time, which proves nothing");
    }
    let held = noticed
        && testbed.record.violations() == 0
        && failed == 0
        && before >= DISK_SHARE_MIN
        && after >= DISK_SHARE_MIN;
    unmount_small(&mut testbed).await?;
    testbed.shutdown().await.context("the end")?;
    Ok(held)
}

/// The share of all documents that disk answers after time to store them. No writer runs meanwhile.
async fn warm_share(testbed: &Testbed) -> anyhow::Result<f64> {
    testbed.record.enter(RunPhase::Settling);
    warm_up(testbed).await?;
    let swept = stale::close(testbed).await?;
    Ok(ratio(swept.disk, swept.answers))
}
