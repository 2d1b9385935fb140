//! `loadtest kills` and `loadtest corruption`: how larder uses its disk tier after SIGKILL or damage.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::checks::faults::disk::{copy, damage, files};
use crate::checks::stale;
use crate::checks::stale::report::print_violations;
use crate::harness::progress;
use crate::harness::testbed::readers::{SweepCounts, sweep};
use crate::harness::testbed::{Testbed, TestbedConfig};
use crate::workload::PLOTS;
use crate::workload::counters::{Durations, ReadResult, ratio};
use crate::workload::record::RunPhase;

const READY_MAX: Duration = Duration::from_secs(2);
/// The share of the documents that must be on disk before the first kill.
const WARM_SHARE: f64 = 0.95;
const WARM_ROUNDS_MAX: u32 = 60;
/// Longer than a batch of the disk tier lingers.
const LINGER: Duration = Duration::from_millis(500);
/// The longest time of changes between a restart and the next kill.
const CHURN_MILLIS_MAX: u64 = 800;
/// The longest time that documents change while larder is stopped.
const AWAY_MILLIS_MAX: u64 = 200;
const PROGRESS_STEPS: u32 = 20;

/// Before the files are damaged.
const CHURN: Duration = Duration::from_secs(15);
/// One start in so many is a control, without a mutation.
const CONTROL_STEP: u32 = 10;
/// The least share of a control's reads that disk must answer.
const CONTROL_DISK_SHARE_MIN: f64 = 0.99;
/// Documents that are read after each start.
const SAMPLE: usize = 1_000;

/// Whether every restart was ready in time, and nothing was stale or corrupt.
pub(crate) async fn kills(
    count: u32,
    documents: u32,
    binary: PathBuf,
    seed: u64,
) -> anyhow::Result<bool> {
    let plots = u32::try_from(PLOTS + 1).unwrap_or(u32::MAX);
    let config = TestbedConfig {
        keys_per_plot: documents.div_ceil(plots),
        ..stale::config(binary, seed)
    };
    println!("seed {seed}; {documents} documents");
    let mut testbed = Testbed::start(&config).await?;
    warm_up(&testbed).await?;
    testbed.load(&config)?;
    let mut readiness = Durations::new()?;
    let mut late = 0;
    for number in 1..=count {
        progress::note(number, count, "kills");
        let churn = testbed.rng.u64(..CHURN_MILLIS_MAX);
        testbed
            .run_phase(RunPhase::Quiet, Duration::from_millis(churn))
            .await;
        testbed.record.enter(RunPhase::Settling);
        testbed.larder.kill().await?;
        let away = testbed.rng.u64(..AWAY_MILLIS_MAX);
        tokio::time::sleep(Duration::from_millis(away)).await;
        let ready = testbed.larder.start_ready().await?;
        readiness.note(ready);
        late += u32::from(ready > READY_MAX);
        if number % count.div_ceil(PROGRESS_STEPS) == 0 {
            println!(
                "{number} kills, {} reads, {} stale or corrupt, ready after at most {:.2?}",
                testbed.record.reads(),
                testbed.record.violations(),
                readiness.max()
            );
        }
    }
    let entries = testbed.larder.disk_entries().await?;
    let quiet = testbed
        .measured(&config)
        .await?
        .counters
        .phase(RunPhase::Quiet);
    print_violations(&testbed.record, &[]);
    println!(
        "{count} kills; ready p50 {:.2?}, p99 {:.2?}, max {:.2?}, {late} later than {READY_MAX:?}; \
         {} reads checked, {} stale or corrupt; between kills disk answered {:.3}, memory {:.3}; {entries} entries on disk",
        readiness.quantile(0.5),
        readiness.quantile(0.99),
        readiness.max(),
        testbed.record.reads(),
        testbed.record.violations(),
        quiet.share(quiet.of(ReadResult::Disk)),
        quiet.share(quiet.of(ReadResult::Memory)),
    );
    let held = late == 0 && testbed.record.violations() == 0;
    testbed.shutdown().await?;
    Ok(held)
}

/// Reads documents until nearly all of them are on disk.
pub(crate) async fn warm_up(testbed: &Testbed) -> anyhow::Result<()> {
    let keys = testbed.record.keys();
    for _ in 0..WARM_ROUNDS_MAX {
        sweep(&testbed.record, testbed.larder.config.listen, 1..=keys).await?;
        tokio::time::sleep(LINGER).await;
        let entries = testbed.larder.disk_entries().await?;
        println!("{entries} documents on disk");
        if ratio(entries, u64::from(keys)) >= WARM_SHARE {
            return Ok(());
        }
    }
    anyhow::bail!("the disk tier does not get warm")
}

/// Whether no wrong byte was served, and controls were answered by disk.
pub(crate) async fn corruption(count: u32, binary: PathBuf, seed: u64) -> anyhow::Result<bool> {
    let config = stale::config(binary, seed);
    println!("seed {seed}");
    let mut testbed = Testbed::start(&config).await?;
    warm_up(&testbed).await?;
    // Several versions of documents have to be on disk, or older files would show nothing.
    testbed.load(&config)?;
    testbed.run_phase(RunPhase::Settling, CHURN).await;
    testbed.measured(&config).await?;
    stale::close(&testbed).await?;
    tokio::time::sleep(LINGER).await;
    testbed.larder.terminate().await?;
    let (disk, pristine) = (
        testbed.larder.disk(),
        testbed.run_directory.directory().join("pristine"),
    );
    copy(&disk, &pristine)?;
    let (mut mutated, mut controls) = (SweepCounts::default(), SweepCounts::default());
    let mut poor_controls = 0;
    let (mut number, mut mutations) = (0, 0);
    while mutations < count {
        progress::note(mutations, count, "mutations");
        let control = number % CONTROL_STEP == 0;
        number += 1;
        fs::remove_dir_all(&disk)?;
        copy(&pristine, &disk)?;
        if !control {
            mutate(&mut testbed)?;
            mutations += 1;
        }
        testbed.larder.start_ready().await?;
        let sample = sample(&mut testbed);
        let swept = sweep(&testbed.record, testbed.larder.config.listen, sample).await?;
        testbed.larder.kill().await?;
        let sum = if control { &mut controls } else { &mut mutated };
        sum.add(swept);
        let poor = ratio(swept.disk, swept.answers) < CONTROL_DISK_SHARE_MIN;
        poor_controls += u32::from(control && poor);
        if number % (count.div_ceil(PROGRESS_STEPS)) == 0 {
            println!(
                "{number} starts, {} reads, {} wrong",
                mutated.answers + controls.answers,
                testbed.record.violations()
            );
        }
    }
    testbed.larder.start_ready().await?;
    print_violations(&testbed.record, &[]);
    let unanswered = mutated.unanswered + controls.unanswered;
    println!(
        "{mutations} mutations: {} reads, {:.3} of them answered by disk; controls: {} reads, {:.4} by disk, \
         {poor_controls} below {CONTROL_DISK_SHARE_MIN}; {} wrong answers, {unanswered} without one",
        mutated.answers,
        ratio(mutated.disk, mutated.answers),
        controls.answers,
        ratio(controls.disk, controls.answers),
        testbed.record.violations(),
    );
    let held = testbed.record.violations() == 0 && poor_controls == 0 && unanswered == 0;
    testbed.shutdown().await?;
    Ok(held)
}

/// Damages one file of the disk tier, or swaps two.
fn mutate(testbed: &mut Testbed) -> anyhow::Result<()> {
    let files = files(&testbed.larder.disk())?;
    ensure!(!files.is_empty(), "the disk tier has no files");
    let some = |rng: &mut fastrand::Rng| files[rng.usize(..files.len())].clone();
    if testbed.rng.u32(..5) == 0 {
        let (one, other) = (some(&mut testbed.rng), some(&mut testbed.rng));
        let aside = one.with_extension("aside");
        fs::rename(&one, &aside)?;
        if one != other {
            fs::rename(&other, &one)?;
        }
        fs::rename(&aside, &other)?;
        return Ok(());
    }
    // The largest file has most of the data.
    let largest = files.last().context("the disk tier has no files")?.clone();
    let chosen = match testbed.rng.u32(..3) {
        0 => some(&mut testbed.rng),
        _ => largest.clone(),
    };
    let empty = fs::metadata(&chosen)?.len() == 0;
    damage(if empty { &largest } else { &chosen }, &mut testbed.rng)
}

fn sample(testbed: &mut Testbed) -> Vec<u32> {
    let keys = 1..=testbed.record.keys();
    testbed.rng.choose_multiple(keys, SAMPLE)
}
