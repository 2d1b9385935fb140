//! `loadtest kills` and `loadtest corruption`: what larder makes of its disk tier after an end that was none of its
//! own.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::checks::faults::disk::{copy, damage, files};
use crate::checks::stale;
use crate::checks::stale::report::tell_offences;
use crate::harness::stage::readers::{Swept, sweep};
use crate::harness::stage::{Stage, StageConfig};
use crate::workload::PLOTS;
use crate::workload::record::Phase;
use crate::workload::tally::{Durations, Way, ratio};

const READY_MAX: Duration = Duration::from_secs(2);
/// Of the documents, so many must be on disk before the first kill.
const WARM_SHARE: f64 = 0.95;
const WARM_ROUNDS_MAX: u32 = 60;
/// Longer than a batch of the disk tier lingers.
const LINGER: Duration = Duration::from_millis(500);
/// Churn between a restart and the next kill, at most.
const CHURN_MILLIS_MAX: u64 = 800;
/// Documents change while larder is away, at most so long.
const AWAY_MILLIS_MAX: u64 = 200;
const PROGRESS_STEPS: u32 = 20;

/// Before the files are damaged.
const CHURN: Duration = Duration::from_secs(15);
/// Every so manieth start is one without a mutation.
const CONTROL_STEP: u32 = 10;
/// Of a control's reads.
const CONTROL_DISK_SHARE_MIN: f64 = 0.99;
/// Of the documents, read after each start.
const SAMPLE: usize = 1_000;

/// Whether every restart was ready in time, and nothing was stale or corrupt.
pub(crate) async fn kills(
    count: u32,
    documents: u32,
    binary: PathBuf,
    seed: u64,
) -> anyhow::Result<bool> {
    let plots = u32::try_from(PLOTS + 1).unwrap_or(u32::MAX);
    let config = StageConfig {
        keys_per_plot: documents.div_ceil(plots),
        ..stale::config(binary, seed)
    };
    println!("seed {seed}; {documents} documents");
    let mut stage = Stage::set(&config).await?;
    warm_up(&stage).await?;
    stage.load(&config)?;
    let mut readiness = Durations::new()?;
    let mut late = 0;
    for number in 1..=count {
        let churn = stage.rng.u64(..CHURN_MILLIS_MAX);
        stage.stay(Phase::Quiet, Duration::from_millis(churn)).await;
        stage.record.enter(Phase::Settling);
        stage.larder.kill().await?;
        let away = stage.rng.u64(..AWAY_MILLIS_MAX);
        tokio::time::sleep(Duration::from_millis(away)).await;
        let ready = stage.larder.start_ready().await?;
        readiness.note(ready);
        late += u32::from(ready > READY_MAX);
        if number % count.div_ceil(PROGRESS_STEPS) == 0 {
            println!(
                "{number} kills, {} reads, {} stale or corrupt, ready after at most {:.2?}",
                stage.record.reads(),
                stage.record.offences(),
                readiness.max()
            );
        }
    }
    let entries = stage.larder.disk_entries().await?;
    let quiet = stage.measured(&config).await?.tally.phase(Phase::Quiet);
    tell_offences(&stage.record, &[]);
    println!(
        "{count} kills; ready p50 {:.2?}, p99 {:.2?}, max {:.2?}, {late} later than {READY_MAX:?}; \
         {} reads checked, {} stale or corrupt; between kills disk answered {:.3}, memory {:.3}; {entries} entries on disk",
        readiness.quantile(0.5),
        readiness.quantile(0.99),
        readiness.max(),
        stage.record.reads(),
        stage.record.offences(),
        quiet.share(quiet.of(Way::Disk)),
        quiet.share(quiet.of(Way::Memory)),
    );
    let held = late == 0 && stage.record.offences() == 0;
    stage.strike().await?;
    Ok(held)
}

/// Reads documents until nearly all of them are on disk.
pub(crate) async fn warm_up(stage: &Stage) -> anyhow::Result<()> {
    let keys = stage.record.keys();
    for _ in 0..WARM_ROUNDS_MAX {
        sweep(&stage.record, stage.larder.config.listen, 1..=keys).await?;
        tokio::time::sleep(LINGER).await;
        let entries = stage.larder.disk_entries().await?;
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
    let mut stage = Stage::set(&config).await?;
    warm_up(&stage).await?;
    // Where every document is on disk in one version only, files that come back with an older one show nothing.
    stage.load(&config)?;
    stage.stay(Phase::Settling, CHURN).await;
    stage.measured(&config).await?;
    stale::close(&stage).await?;
    tokio::time::sleep(LINGER).await;
    stage.larder.terminate().await?;
    let (disk, pristine) = (
        stage.larder.disk(),
        stage.workplace.directory().join("pristine"),
    );
    copy(&disk, &pristine)?;
    let (mut mutated, mut controls) = (Swept::default(), Swept::default());
    let mut poor_controls = 0;
    let (mut number, mut mutations) = (0, 0);
    while mutations < count {
        let control = number % CONTROL_STEP == 0;
        number += 1;
        fs::remove_dir_all(&disk)?;
        copy(&pristine, &disk)?;
        if !control {
            mutate(&mut stage)?;
            mutations += 1;
        }
        stage.larder.start_ready().await?;
        let sample = sample(&mut stage);
        let swept = sweep(&stage.record, stage.larder.config.listen, sample).await?;
        stage.larder.kill().await?;
        let sum = if control { &mut controls } else { &mut mutated };
        sum.add(swept);
        let poor = ratio(swept.disk, swept.answers) < CONTROL_DISK_SHARE_MIN;
        poor_controls += u32::from(control && poor);
        if number % (count.div_ceil(PROGRESS_STEPS)) == 0 {
            println!(
                "{number} starts, {} reads, {} wrong",
                mutated.answers + controls.answers,
                stage.record.offences()
            );
        }
    }
    stage.larder.start_ready().await?;
    tell_offences(&stage.record, &[]);
    let unanswered = mutated.unanswered + controls.unanswered;
    println!(
        "{mutations} mutations: {} reads, {:.3} of them answered by disk; controls: {} reads, {:.4} by disk, \
         {poor_controls} below {CONTROL_DISK_SHARE_MIN}; {} wrong answers, {unanswered} without one",
        mutated.answers,
        ratio(mutated.disk, mutated.answers),
        controls.answers,
        ratio(controls.disk, controls.answers),
        stage.record.offences(),
    );
    let held = stage.record.offences() == 0 && poor_controls == 0 && unanswered == 0;
    stage.strike().await?;
    Ok(held)
}

/// Damages one file of the disk tier, or exchanges two.
fn mutate(stage: &mut Stage) -> anyhow::Result<()> {
    let files = files(&stage.larder.disk())?;
    ensure!(!files.is_empty(), "the disk tier has no files");
    let some = |rng: &mut fastrand::Rng| files[rng.usize(..files.len())].clone();
    if stage.rng.u32(..5) == 0 {
        let (one, other) = (some(&mut stage.rng), some(&mut stage.rng));
        let aside = one.with_extension("aside");
        fs::rename(&one, &aside)?;
        if one != other {
            fs::rename(&other, &one)?;
        }
        fs::rename(&aside, &other)?;
        return Ok(());
    }
    // Most of what there is to damage is in the largest.
    let largest = files.last().context("the disk tier has no files")?.clone();
    let chosen = match stage.rng.u32(..3) {
        0 => some(&mut stage.rng),
        _ => largest.clone(),
    };
    let empty = fs::metadata(&chosen)?.len() == 0;
    damage(if empty { &largest } else { &chosen }, &mut stage.rng)
}

fn sample(stage: &mut Stage) -> Vec<u32> {
    let keys = 1..=stage.record.keys();
    stage.rng.choose_multiple(keys, SAMPLE)
}
