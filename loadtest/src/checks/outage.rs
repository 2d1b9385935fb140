//! `loadtest outage`: PostgreSQL is out of larder's reach for long, and documents go on changing.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use larder::clock::Boottime;

use crate::checks::stale;
use crate::checks::stale::report::tell_offences;
use crate::harness::proxy::Weather;
use crate::harness::stage::{Stage, StageConfig};
use crate::workload::record::Phase;

const WARM_UP: Duration = Duration::from_secs(10);
const LOOK_PAUSE: Duration = Duration::from_secs(1);
const READY_MAX: Duration = Duration::from_secs(1);
/// Of the memory before, so much may be in use meanwhile: requests that wait and what the allocator keeps of them.
const GROWTH_MAX: f64 = 1.25;

/// Whether nothing was stale, memory stayed within bounds, and larder was ready soon after.
pub(crate) async fn run(away: Duration, binary: PathBuf, seed: u64) -> anyhow::Result<bool> {
    let config: StageConfig = stale::config(binary, seed);
    println!("seed {seed}; PostgreSQL out of reach for {away:?}");
    let mut stage = Stage::set(&config).await?;
    stage.load(&config)?;
    stage.stay(Phase::Quiet, WARM_UP).await;
    stage.record.enter(Phase::Settling);
    let before = stage.larder.resident_bytes()?;
    let began = Boottime::now();
    stage.feed.set(Weather::Cut);
    stage.loader.set(Weather::Cut);
    let mut most = before;
    while Boottime::now().since(began) < away {
        tokio::time::sleep(LOOK_PAUSE).await;
        most = most.max(stage.larder.resident_bytes()?);
    }
    let ready = stage.mend().await?;
    stage.stay(Phase::Quiet, WARM_UP).await;
    let measured = stage.measured(&config).await?;
    let swept = stale::close(&stage).await?;
    tell_offences(&stage.record, &[]);
    let meanwhile = measured.tally.phase(Phase::Settling);
    // Both are far below 2^52, so the casts are exact.
    let growth = most as f64 / before as f64;
    println!(
        "{} reads checked, {} stale or made up; meanwhile {} requests, {} answered; ready {ready:.2?} after its return; \
         resident memory at most {growth:.2} of the {} MiB before; afterwards {} of {} documents answered",
        stage.record.reads(),
        stage.record.offences(),
        meanwhile.total(),
        meanwhile.answered(),
        before >> 20,
        swept.answers,
        stage.record.keys(),
    );
    let held = stage.record.offences() == 0
        && ready <= READY_MAX
        && growth <= GROWTH_MAX
        && swept.unanswered == 0;
    stage.strike().await.context("the end")?;
    Ok(held)
}
