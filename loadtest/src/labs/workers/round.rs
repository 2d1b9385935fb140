//! The loop of the workers: match, send, update, rest, each time with the next time zone.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::labs::workers::store::{Match, Place, Store};
use crate::labs::workers::subscriber::{Buffer, Columns, Population, Slot};

/// The parameters that vary, by their names on the command line. Those of send and rest are in milliseconds.
pub(super) const PARAMETERS: &str = "rows workers time-zones batch send rest iterations";

/// With so many rows, a slot has several batches, which are due again later; and two workers read them into memory.
pub(super) const LARGE_ROWS: u32 = 10_000_000;

/// What a loop is run with.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Setting {
    /// The parameter in which it differs from the first setting.
    pub(super) name: String,
    /// Of [`PARAMETERS`].
    pub(super) values: [u32; 7],
    /// How far an update moves the due moment. One that takes longer has failed: its rows would be due again.
    pub(super) update_s: u32,
}

impl Setting {
    /// Creates one with the update time of the original experiment.
    pub(super) fn of(values: [u32; 7]) -> Self {
        let update_s = if values[0] < LARGE_ROWS { 50 } else { 450 };
        let name = format!("rows {}", values[0]);
        Self {
            name,
            values,
            update_s,
        }
    }

    pub(super) fn rows(&self) -> u32 {
        self.values[0]
    }

    pub(super) fn population(&self, seed: u64) -> Population {
        let [_, workers, time_zones, ..] = self.values;
        Population {
            workers,
            time_zones,
            ..Population::of(seed)
        }
    }

    /// Rows of a match at most.
    pub(super) fn batch(&self) -> Option<u32> {
        Some(self.values[3])
    }
}

/// What workers did: milliseconds of the matches and updates that did not fail, and why others failed.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) match_ms: Vec<f64>,
    pub(super) update_ms: Vec<f64>,
    pub(super) documents: usize,
    pub(super) failures: Vec<String>,
    /// From the first match to the end of the last rest.
    pub(super) seconds: f64,
}

pub(super) fn mean(times: &[f64]) -> f64 {
    // Counts are far below 2^52, so the cast is exact.
    times.iter().sum::<f64>() / times.len().max(1) as f64
}

/// Adds to a line of a table how many times are below the first bound, below the second one, and longer; and the least,
/// greatest and mean one.
pub(super) fn summary(line: &mut Value, what: &str, times: &[f64], [low, high]: [u32; 2]) {
    let below = |bound: u32| times.iter().filter(|time| **time < bound.into()).count();
    line[format!("{what} 0-{low}")] = below(low).into();
    line[format!("{what} {low}-{high}")] = (below(high) - below(low)).into();
    line[format!("{what} {high}+")] = (times.len() - below(high)).into();
    line[format!("{what} min")] = json!(times.iter().copied().reduce(f64::min));
    line[format!("{what} max")] = json!(times.iter().copied().reduce(f64::max));
    line[format!("{what} mean")] = mean(times).into();
}

/// Runs a loop. Matches and updates are of the moment `fixed`, in seconds since 1970, or of the clock.
pub(super) async fn run(place: &Place, setting: &Setting, fixed: Option<u32>) -> Result<Tally> {
    let mut stores = Vec::new();
    for worker in 0..setting.values[1] {
        let mut store = place.open().await?;
        // Nothing is due at that moment; the store reads what it keeps of the worker's rows.
        let query = Match::new(Slot(worker, 0), 0, None, Columns::Short);
        store.find(query, &mut Buffer::default()).await?;
        stores.push(store);
    }
    let (mut tasks, mut all, began) = (JoinSet::new(), Tally::default(), Instant::now());
    for (worker, store) in (0..).zip(stores) {
        tasks.spawn(work(place.clone(), store, worker, setting.clone(), fixed));
    }
    while let Some(ended) = tasks.join_next().await {
        let tally = ended??;
        all.match_ms.extend(tally.match_ms);
        all.update_ms.extend(tally.update_ms);
        all.documents += tally.documents;
        all.failures.extend(tally.failures);
    }
    all.seconds = began.elapsed().as_secs_f64();
    Ok(all)
}

async fn work(
    place: Place,
    mut store: Box<dyn Store>,
    worker: u32,
    setting: Setting,
    fixed: Option<u32>,
) -> Result<Tally> {
    let (mut tally, mut buffer) = (Tally::default(), Buffer::default());
    let [_, _, time_zones, _, _, rest_ms, iterations] = setting.values;
    for iteration in 0..iterations {
        let slot = Slot(worker, iteration % time_zones);
        let iterated = iterate(&mut *store, slot, &setting, fixed, &mut buffer, &mut tally).await;
        if let Err(error) = iterated {
            tally.failures.push(format!("{error:#}"));
            // The answer to a question that took too long may still come on the old connection.
            store = place.open().await?;
        }
        sleep(Duration::from_millis(rest_ms.into())).await;
    }
    Ok(tally)
}

async fn iterate(
    store: &mut dyn Store,
    slot: Slot,
    setting: &Setting,
    fixed: Option<u32>,
    buffer: &mut Buffer,
    tally: &mut Tally,
) -> Result<()> {
    let time_max = Duration::from_secs(setting.update_s.into());
    buffer.clear();
    let query = Match::new(slot, now(fixed)?, setting.batch(), Columns::Short);
    let began = Instant::now();
    let found = timeout(time_max, store.find(query, buffer)).await;
    found.context("a match took too long")?.context("a match")?;
    tally.match_ms.push(began.elapsed().as_secs_f64() * 1e3);
    let ids = buffer.ids();
    tally.documents += ids.len();
    sleep(Duration::from_millis(setting.values[4].into())).await;
    if ids.is_empty() {
        return Ok(());
    }
    let due = now(fixed)? + setting.update_s;
    let began = Instant::now();
    let moved = timeout(time_max, store.move_due(slot, &ids, due)).await;
    let moved = moved.context("an update took too long")?;
    let (moved, count) = (moved.context("an update")?, ids.len());
    ensure!(moved == count, "an update changed {moved} of {count} rows");
    tally.update_ms.push(began.elapsed().as_secs_f64() * 1e3);
    Ok(())
}

fn now(fixed: Option<u32>) -> Result<u32> {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(fixed.unwrap_or(clock.as_secs().try_into()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::labs::workers::agreement::tests::MemoryStore;
    use crate::labs::workers::store::StoreKind;
    use crate::labs::workers::subscriber::FILLED;

    #[test]
    fn times_are_counted_by_their_bins() {
        let (mut line, times) = (json!({}), [149.0, 150.0, 249.0, 250.0, 1_002.0]);
        summary(&mut line, "match", &times, [150, 250]);
        let expected = json!({
            "match 0-150": 1, "match 150-250": 2, "match 250+": 2,
            "match min": 149.0, "match max": 1_002.0, "match mean": 360.0
        });
        assert_eq!(line, expected);
    }

    #[tokio::test]
    async fn each_iteration_takes_the_next_time_zone() {
        let setting = Setting::of([10_000, 20, 24, 1_000, 0, 0, 26]);
        let (kind, addresses) = (StoreKind::Native, Vec::new());
        let place = Place { kind, addresses };
        let rows = Population::of(1).subscribers(0..10_000);
        let count = rows.iter().filter(|row| row.slot().0 == 1).count();
        let store = Box::new(MemoryStore(rows, 0));
        let tally = work(place, store, 1, setting, Some(FILLED)).await.unwrap();
        // Of 24 time zones, the last two iterations find what the first two have moved: nothing is due.
        assert_eq!((tally.documents, tally.failures.len()), (count, 0));
        assert_eq!((tally.match_ms.len(), tally.update_ms.len()), (26, 24));
    }
}
