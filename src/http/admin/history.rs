//! `GET /history`: what larder has done in each second of the last 15 minutes.
//!
//! A task takes the samples off the request path, from counters that are there anyway. What a sample counts is the
//! difference to the sample before.

use std::collections::VecDeque;
use std::mem::size_of;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus::core::Collector;
use prometheus::proto::Histogram;
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};

use crate::cache::{Cache, CacheSample};
use crate::clock::Boottime;
use crate::http::admin::faults::{FaultLog, Rates};
use crate::metrics::Metrics;

/// Time between two samples.
const INTERVAL: Duration = Duration::from_secs(1);
/// Samples that are kept: those of 15 minutes.
const SAMPLES_MAX: usize = 900;
/// After so many samples, what costs more is looked at: files of the disk tier, and what is wrong.
const SAMPLES_PER_LOOK: u32 = 5;
/// The samples that tell how often requests fail now.
const RECENT_SAMPLES: usize = 60;

/// What all samples hold, at most.
const HELD_BYTES_MAX: usize = 512 << 10;
const _: () = assert!(size_of::<Sample>() * SAMPLES_MAX <= HELD_BYTES_MAX);

/// Where responses come from: memory, disk, PostgreSQL, and neither.
const PLACES: usize = 4;

/// The samples, and what is wrong.
pub struct History {
    samples: Mutex<VecDeque<Sample>>,
    /// What was found wrong, and since when.
    pub(super) faults: FaultLog,
}

/// One second.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    /// Milliseconds since 1970, by a clock that only goes forward.
    at: u64,
    /// Per second.
    requests: [f64; PLACES],
    /// In microseconds.
    p50: [Option<u32>; PLACES],
    p99: [Option<u32>; PLACES],
    /// Of all lookups; `None` without any.
    hit_ratio: Option<f32>,
    /// The 99th percentile, in microseconds.
    invalidation_lag: Option<u32>,
    /// Per second.
    invalidations: f64,
    server_errors: f64,
    too_many_requests: f64,
    memory_bytes: u64,
    disk_bytes: u64,
    waiting_keys: u32,
}

/// A list with an item for each sample, by the place that responses came from.
#[derive(Debug, Default, Serialize)]
struct ByPlace<T> {
    memory: Vec<T>,
    disk: Vec<T>,
    postgres: Vec<T>,
    other: Vec<T>,
}

impl<T: Copy> ByPlace<T> {
    fn push(&mut self, [memory, disk, postgres, other]: [T; PLACES]) {
        self.memory.push(memory);
        self.disk.push(disk);
        self.postgres.push(postgres);
        self.other.push(other);
    }
}

/// The response to `GET /history`: lists with an item for each sample, oldest first.
#[derive(Debug, Default, Serialize)]
pub(super) struct HistoryPage {
    interval_seconds: u64,
    at: Vec<u64>,
    requests: ByPlace<f64>,
    p50_microseconds: ByPlace<Option<u32>>,
    p99_microseconds: ByPlace<Option<u32>>,
    hit_ratio: Vec<Option<f64>>,
    invalidation_lag_microseconds: Vec<Option<u32>>,
    invalidations: Vec<f64>,
    server_errors: Vec<f64>,
    too_many_requests: Vec<f64>,
    memory_bytes: Vec<u64>,
    disk_bytes: Vec<u64>,
    waiting_keys: Vec<u32>,
}

impl History {
    /// Begins to take samples of `cache` and `metrics`, until one of the cache and the returned history is dropped.
    pub fn start(cache: &Arc<Cache>, metrics: Arc<Metrics>) -> Arc<Self> {
        let history = Arc::new(Self {
            samples: Mutex::new(VecDeque::with_capacity(SAMPLES_MAX)),
            faults: FaultLog::default(),
        });
        let (kept, cache) = (Arc::downgrade(&history), Arc::downgrade(cache));
        tokio::spawn(take_samples(kept, cache, metrics));
        history
    }

    fn samples(&self) -> MutexGuard<'_, VecDeque<Sample>> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, sample: Sample) {
        let mut samples = self.samples();
        if samples.len() == SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    /// The samples that were taken after `after`, in milliseconds since 1970.
    pub(super) fn page(&self, after: u64) -> HistoryPage {
        let mut page = HistoryPage {
            interval_seconds: INTERVAL.as_secs(),
            ..HistoryPage::default()
        };
        for sample in self.samples().iter().filter(|sample| sample.at > after) {
            page.at.push(sample.at);
            page.requests.push(sample.requests);
            page.p50_microseconds.push(sample.p50);
            page.p99_microseconds.push(sample.p99);
            let ratio = sample.hit_ratio.map(|ratio| rounded(ratio.into()));
            page.hit_ratio.push(ratio);
            let lag = sample.invalidation_lag;
            page.invalidation_lag_microseconds.push(lag);
            page.invalidations.push(sample.invalidations);
            page.server_errors.push(sample.server_errors);
            page.too_many_requests.push(sample.too_many_requests);
            page.memory_bytes.push(sample.memory_bytes);
            page.disk_bytes.push(sample.disk_bytes);
            page.waiting_keys.push(sample.waiting_keys);
        }
        page
    }

    /// How many requests were answered, and failed, in the last minute.
    pub(super) fn rates(&self) -> Rates {
        let mut rates = Rates::default();
        for sample in self.samples().iter().rev().take(RECENT_SAMPLES) {
            rates.requests += sample.requests.iter().sum::<f64>();
            rates.server_errors += sample.server_errors;
            rates.too_many_requests += sample.too_many_requests;
        }
        rates
    }
}

/// Takes a sample each second.
async fn take_samples(history: Weak<History>, cache: Weak<Cache>, metrics: Arc<Metrics>) {
    let mut ticks = interval(INTERVAL);
    // After the machine was suspended, nothing is to be sampled many times.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let clock = WallClock::new();
    let mut before: Option<Totals> = None;
    let (mut disk_bytes, mut number) = (0, 0_u32);
    // Neither is held while nothing is done, so that both can be dropped.
    while let (Some(history), Some(cache)) = (history.upgrade(), cache.upgrade()) {
        let now = Totals::read(&cache, &metrics);
        if number.is_multiple_of(SAMPLES_PER_LOOK) {
            disk_bytes = look(&history, &cache).await;
        }
        number = number.wrapping_add(1);
        if let Some(before) = &before {
            let at = clock.milliseconds(now.at);
            history.push(now.since(before, at, disk_bytes));
        }
        before = Some(now);
        drop((history, cache));
        ticks.tick().await;
    }
}

/// Notes what is wrong. Returns the bytes on disk.
async fn look(history: &Arc<History>, cache: &Arc<Cache>) -> u64 {
    let (history, cache) = (Arc::clone(history), Arc::clone(cache));
    let looking = tokio::task::spawn_blocking(move || {
        let status = cache.status();
        history.faults.observe(&status, history.rates());
        status.disk.map_or(0, |disk| disk.bytes)
    });
    looking.await.unwrap_or_default()
}

/// Moments as milliseconds since 1970, of a clock that was right once and then only goes forward.
struct WallClock {
    started: Boottime,
    started_at: Duration,
}

impl WallClock {
    fn new() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            started: Boottime::now(),
            started_at: since_1970.unwrap_or_default(),
        }
    }

    fn milliseconds(&self, at: Boottime) -> u64 {
        let at = self.started_at.saturating_add(at.since(self.started));
        u64::try_from(at.as_millis()).unwrap_or(u64::MAX)
    }
}

/// The counters at one moment.
struct Totals {
    at: Boottime,
    cache: CacheSample,
    requests: [Buckets; PLACES],
    invalidation_lag: Buckets,
    server_errors: u64,
    too_many_requests: u64,
}

impl Totals {
    fn read(cache: &Cache, metrics: &Metrics) -> Self {
        let mut requests: [Buckets; PLACES] = Default::default();
        for family in metrics.request_duration.collect() {
            for metric in family.get_metric() {
                let mut labels = metric.get_label().iter();
                let detail = labels.find(|label| label.name() == "detail");
                let [memory, disk, postgres, other] = &mut requests;
                let place = match detail.map_or("", |detail| detail.value()) {
                    "memory" => memory,
                    "disk" => disk,
                    "postgres" | "feed" | "uncached" | "token" => postgres,
                    _ => other,
                };
                place.add(metric.get_histogram());
            }
        }
        let mut invalidation_lag = Buckets::default();
        for family in metrics.invalidation_lag.collect() {
            for metric in family.get_metric() {
                invalidation_lag.add(metric.get_histogram());
            }
        }
        Self {
            at: Boottime::now(),
            cache: cache.sample(),
            requests,
            invalidation_lag,
            server_errors: metrics.failures.server_errors(),
            too_many_requests: metrics.failures.too_many_requests()
                + metrics.requests_refused.get(),
        }
    }

    /// What has happened since `before`.
    fn since(&self, before: &Self, at: u64, disk_bytes: u64) -> Sample {
        let seconds = self.at.since(before.at).as_secs_f64().max(f64::EPSILON);
        // Counters stay far below 2^53.
        let rate = |now: u64, before: u64| rounded(now.saturating_sub(before) as f64 / seconds);
        let mut sample = Sample {
            at,
            invalidations: rate(self.cache.invalidations, before.cache.invalidations),
            server_errors: rate(self.server_errors, before.server_errors),
            too_many_requests: rate(self.too_many_requests, before.too_many_requests),
            invalidation_lag: self
                .invalidation_lag
                .since(&before.invalidation_lag)
                .quantile(0.99),
            memory_bytes: self.cache.memory_bytes,
            disk_bytes,
            waiting_keys: u32::try_from(self.cache.waiting_keys).unwrap_or(u32::MAX),
            ..Sample::default()
        };
        let places = self.requests.iter().zip(&before.requests);
        let sampled = sample.requests.iter_mut().zip(&mut sample.p50);
        for (((requests, p50), p99), (now, before)) in sampled.zip(&mut sample.p99).zip(places) {
            let between = now.since(before);
            *requests = rate(between.total, 0);
            *p50 = between.quantile(0.5);
            *p99 = between.quantile(0.99);
        }
        let lookups = self.cache.lookups.saturating_sub(before.cache.lookups);
        let hits = self.cache.hits.saturating_sub(before.cache.hits);
        // A hit may be counted before its lookup.
        let ratio = (hits as f64 / lookups as f64).min(1.0);
        sample.hit_ratio = (lookups > 0).then_some(ratio as f32);
        sample
    }
}

/// A histogram: how many values were at most each bound, and how many there were in all.
#[derive(Clone, Debug, Default)]
struct Buckets {
    bounds: Vec<f64>,
    counts: Vec<u64>,
    total: u64,
}

impl Buckets {
    /// Adds a histogram with the same bounds as those before.
    fn add(&mut self, histogram: &Histogram) {
        let buckets = histogram.get_bucket();
        if self.bounds.is_empty() {
            self.bounds = buckets.iter().map(|bucket| bucket.upper_bound()).collect();
            self.counts = vec![0; buckets.len()];
        }
        for (count, bucket) in self.counts.iter_mut().zip(buckets) {
            *count += bucket.cumulative_count();
        }
        self.total += histogram.get_sample_count();
    }

    fn since(&self, before: &Self) -> Self {
        let earlier = before.counts.iter().chain(std::iter::repeat(&0));
        let counts = self.counts.iter().zip(earlier);
        Self {
            bounds: self.bounds.clone(),
            counts: counts
                .map(|(now, before)| now.saturating_sub(*before))
                .collect(),
            total: self.total.saturating_sub(before.total),
        }
    }

    /// The value in microseconds that this part of the values does not exceed, as Prometheus estimates it: evenly spread
    /// within a bucket. `None` without values.
    fn quantile(&self, part: f64) -> Option<u32> {
        if self.total == 0 {
            return None;
        }
        let rank = part * self.total as f64;
        let (mut bound_before, mut count_before) = (0.0, 0.0);
        for (&bound, &count) in self.bounds.iter().zip(&self.counts) {
            let count = count as f64;
            if count >= rank && count > count_before {
                let share = (rank - count_before) / (count - count_before);
                return Some(microseconds(bound_before + (bound - bound_before) * share));
            }
            (bound_before, count_before) = (bound, count);
        }
        // Longer than the last bound.
        Some(microseconds(bound_before))
    }
}

fn microseconds(seconds: f64) -> u32 {
    // The last bound is some seconds.
    (seconds * 1e6).round() as u32
}

/// Short in JSON.
fn rounded(value: f64) -> f64 {
    let places = if value < 10.0 { 1_000.0 } else { 1.0 };
    (value * places).round() / places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(counts: &[u64], total: u64) -> Buckets {
        Buckets {
            bounds: vec![0.001, 0.002, 0.004],
            counts: counts.to_vec(),
            total,
        }
    }

    #[test]
    fn quantiles_are_spread_within_buckets() {
        for (counts, total, part, expected) in [
            (&[0, 0, 0][..], 0, 0.5, None),
            (&[4, 4, 4], 4, 0.5, Some(500)),
            (&[0, 4, 4], 4, 0.5, Some(1_500)),
            (&[2, 4, 4], 4, 0.5, Some(1_000)),
            (&[0, 0, 10], 10, 0.99, Some(3_980)),
            (&[0, 0, 1], 10, 0.99, Some(4_000)),
        ] {
            let quantile = buckets(counts, total).quantile(part);
            assert_eq!(quantile, expected, "{counts:?} {part}");
        }
    }

    #[test]
    fn what_was_counted_before_is_not_counted_again() {
        let (before, now) = (buckets(&[5, 5, 5], 5), buckets(&[5, 9, 9], 9));
        assert_eq!(now.since(&before).total, 4);
        assert_eq!(now.since(&before).quantile(0.5), Some(1_500));
        assert_eq!(now.since(&Buckets::default()).total, 9);
    }

    #[test]
    fn samples_are_bounded_and_asked_for_after_a_moment() {
        let history = History {
            samples: Mutex::default(),
            faults: FaultLog::default(),
        };
        for at in 1..=1_000 {
            history.push(Sample {
                at,
                server_errors: 1.0,
                requests: [1.0, 0.0, 2.0, 0.0],
                ..Sample::default()
            });
        }
        let page = history.page(0);
        assert_eq!(page.at.len(), SAMPLES_MAX);
        assert_eq!(page.requests.postgres.len(), SAMPLES_MAX);
        assert_eq!((page.at[0], page.at[899]), (101, 1_000));
        assert_eq!(history.page(998).at, [999, 1_000]);
        assert!(history.page(1_000).at.is_empty());
        let rates = history.rates();
        assert_eq!((rates.requests, rates.server_errors), (180.0, 60.0));
    }
}
