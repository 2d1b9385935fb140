//! Every metric, with its unit and labels. Keys are never labels: their number has no bound.

pub mod gauges;
pub mod source;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts,
    Registry, TextEncoder,
};

use crate::metrics::gauges::Gauges;
use crate::metrics::source::SourceMetrics;

/// The values of `detail`, but for `auth`, whose requests have no duration.
const DETAILS: [&str; 8] = [
    "memory", "disk", "postgres", "feed", "uncached", "token", "stale", "request",
];

/// The values of `detail` and `status` that begin at 0 for each resource: what requests usually get, and errors, for which
/// one watches. All pairs would be hundreds of series for a resource.
const ANSWERS: [(&str, &[&str]); 8] = [
    ("memory", &["200", "304", "404"]),
    ("disk", &["200", "304", "404"]),
    (
        "postgres",
        &[
            "200", "201", "204", "304", "404", "409", "500", "503", "504",
        ],
    ),
    ("feed", &["200", "304", "404"]),
    ("uncached", &["200", "304", "404"]),
    ("token", &["200"]),
    ("stale", &["200"]),
    ("request", &["400", "404"]),
];

/// The same for requests that name no resource.
const ANSWERS_WITHOUT_RESOURCE: [(&str, &[&str]); 2] =
    [("request", &["400", "404"]), ("auth", &["401", "403"])];

const LOOKUPS: [&str; 3] = ["memory", "disk", "miss"];
const VIA: [&str; 4] = ["bell", "poll", "purge", "audit"];
const CLOSED: [&str; 6] = [
    "connections",
    "connections_per_address",
    "descriptors",
    "header",
    "idle",
    "write",
];
const OUTCOMES: [&str; 5] = ["same", "changed", "stale", "unknown", "skipped"];

/// The metrics of one larder.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Held while counters are raised to what was counted elsewhere. Two scrapes at a time would count it twice.
    pub observing: Mutex<()>,
    /// The failed ones of `requests`, in sum.
    pub failures: Failures,
    /// `larder_requests_total{resource,detail,status}`: answered requests by resource, by where the answer came from,
    /// and by HTTP status.
    pub requests: IntCounterVec,
    /// `larder_request_duration_seconds{detail}`: from the parsed request to its ready answer, by where that came from.
    pub request_duration: HistogramVec,
    /// `larder_connections_closed_total{reason}`: connections that larder closed, or refused, by the limit that they
    /// reached: `connections`, `connections_per_address`, `descriptors`, `header`, `idle`, `write`.
    pub connections_closed: IntCounterVec,
    /// `larder_requests_refused_total`: requests that exceed the rate limit.
    pub requests_refused: IntCounter,
    /// `larder_access_log_dropped_total`: lines that the access log has dropped, since its queue was full or a write failed.
    pub access_log_dropped: IntCounter,
    /// Gauges, which are set at each scrape.
    pub gauges: Gauges,
    /// `larder_lookups_total{resource,outcome}`: lookups of documents by what they found: a hit in `memory` or on `disk`, or
    /// a `miss`. A request for many documents is as many lookups.
    pub lookups: IntCounterVec,
    /// `larder_evictions_total`: entries that were evicted from memory.
    pub evictions: IntCounter,
    /// `larder_invalidations_total{resource,via}`: invalidated keys, ranges or resources; `via` is `bell`, `poll`,
    /// `purge` or `audit`.
    pub invalidations: IntCounterVec,
    /// `larder_invalidation_lag_seconds`: from the bell until the changes are applied; for a pass that no bell started, from
    /// the pass before it.
    pub invalidation_lag: Histogram,
    /// `larder_feed_gaps_total`: times that the feed lost a connection or its bell.
    pub feed_gaps: IntCounter,
    /// `larder_strict_reads_total{answer}`: requests that reflect all that had committed when they arrived; `answer` is `pass`
    /// if the tiers may answer, since a pass was applied, else `postgres`.
    pub strict_reads: IntCounterVec,
    /// `larder_strict_wait_seconds`: how long they waited for a pass.
    pub strict_wait: Histogram,
    /// `larder_fills_void_total`: documents not stored because a change overtook them.
    pub fills_void: IntCounter,
    /// `larder_audits_total{outcome}`: sampled hits. `same`: PostgreSQL has the same document; `changed`: the document has
    /// changed within `max_staleness`; `stale`: the hit was stale; `unknown`: PostgreSQL or the feed did not answer, so
    /// nothing is known; `skipped`: not read again because of load, or because a pass was being applied.
    pub audits: IntCounterVec,
    /// `larder_audit_stale_total`: hits that the audit has proved stale. A value other than 0 is a bug.
    pub audit_stale: IntCounter,
    /// `larder_answers_dropped_total`: answers with many documents whose clients did not read them while others needed
    /// their memory.
    pub answers_dropped: IntCounter,
    /// What is read from PostgreSQL and written to it.
    pub source: SourceMetrics,
    /// `larder_disk_batch_entries`: entries in one write to disk.
    pub disk_batch_entries: Histogram,
    /// `larder_disk_errors_total`: times that the disk tier was turned off, or could not be opened.
    pub disk_errors: IntCounter,
}

impl Metrics {
    /// Registers all metrics.
    ///
    /// # Errors
    /// Only if two metrics had one name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str| registered(&registry, IntCounter::new(name, help));
        let counters = |name: &str, help: &str, labels: &[&str]| {
            registered(&registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let histogram = |name: &str, help: &str, buckets: Vec<f64>| {
            let options = HistogramOpts::new(name, help).buckets(buckets);
            registered(&registry, Histogram::with_opts(options))
        };
        registry.register(Box::new(ProcessCollector::for_self()))?;
        registered(&registry, build_info())?;
        let metrics = Self {
            gauges: Gauges::new(&registry)?,
            failures: Failures::default(),
            requests: counters(
                "larder_requests_total",
                "Answered requests by resource, place the answer came from, and status.",
                &["resource", "detail", "status"],
            )?,
            request_duration: registered(&registry, request_duration())?,
            connections_closed: counters(
                "larder_connections_closed_total",
                "Connections closed or refused, by the limit that they reached.",
                &["reason"],
            )?,
            requests_refused: counter("larder_requests_refused_total", "Requests over the limit.")?,
            access_log_dropped: counter("larder_access_log_dropped_total", "Lines not written.")?,
            lookups: counters(
                "larder_lookups_total",
                "Lookups of documents by the tier that had it.",
                &["resource", "outcome"],
            )?,
            evictions: counter("larder_evictions_total", "Entries evicted from memory.")?,
            invalidations: counters(
                "larder_invalidations_total",
                "Keys or whole resources invalidated.",
                &["resource", "via"],
            )?,
            invalidation_lag: histogram(
                "larder_invalidation_lag_seconds",
                "Seconds from the bell (for a poll: from the pass before) until a change was applied.",
                hit_seconds()?,
            )?,
            feed_gaps: counter("larder_feed_gaps_total", "Connections that the feed lost.")?,
            strict_reads: registered(&registry, strict_reads())?,
            strict_wait: registered(&registry, strict_wait())?,
            fills_void: counter(
                "larder_fills_void_total",
                "Documents that a change overtook.",
            )?,
            audits: counters(
                "larder_audits_total",
                "Sampled hits by what reading them again from PostgreSQL showed.",
                &["outcome"],
            )?,
            audit_stale: counter("larder_audit_stale_total", "Hits proved stale: must be 0.")?,
            answers_dropped: counter("larder_answers_dropped_total", "Answers not read in time.")?,
            source: SourceMetrics::new(&registry)?,
            disk_batch_entries: histogram(
                "larder_disk_batch_entries",
                "Entries in one write to disk.",
                prometheus::exponential_buckets(1.0, 4.0, 8)?,
            )?,
            disk_errors: counter("larder_disk_errors_total", "Errors of the disk tier.")?,
            observing: Mutex::default(),
            registry,
        };
        metrics.begin();
        Ok(metrics)
    }

    /// Begins what has labels at 0: a series that begins with 1 has no rate before it is 2.
    fn begin(&self) {
        for reason in CLOSED {
            self.connections_closed.with_label_values(&[reason]);
        }
        for outcome in OUTCOMES {
            self.audits.with_label_values(&[outcome]);
        }
        for detail in DETAILS {
            self.request_duration.with_label_values(&[detail]);
        }
        for answer in ["pass", "postgres"] {
            self.strict_reads.with_label_values(&[answer]);
        }
        self.begin_answers("", &ANSWERS_WITHOUT_RESOURCE);
    }

    /// Begins the counters of the resource of this name at 0.
    pub fn begin_resource(&self, name: &str) {
        self.begin_answers(name, &ANSWERS);
        for outcome in LOOKUPS {
            self.lookups.with_label_values(&[name, outcome]);
        }
        for via in VIA {
            self.invalidations.with_label_values(&[name, via]);
        }
    }

    fn begin_answers(&self, resource: &str, answers: &[(&str, &[&str])]) {
        for (detail, statuses) in answers {
            for status in *statuses {
                let labels = [resource, *detail, *status];
                self.requests.with_label_values(&labels);
            }
        }
    }

    /// Everything in Prometheus's text format.
    ///
    /// # Errors
    /// Only if a metric breaks the format's rules.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// From 10 µs, a memory hit, to about 5 s.
fn hit_seconds() -> Result<Vec<f64>, prometheus::Error> {
    prometheus::exponential_buckets(0.000_01, 2.0, 20)
}

fn strict_reads() -> Result<IntCounterVec, prometheus::Error> {
    let name = "larder_strict_reads_total";
    let help =
        "Strict reads: those for which a pass was applied, and those that PostgreSQL answers.";
    IntCounterVec::new(Opts::new(name, help), &["answer"])
}

fn strict_wait() -> Result<Histogram, prometheus::Error> {
    let name = "larder_strict_wait_seconds";
    let help = "Seconds that strict reads waited for a pass.";
    Histogram::with_opts(HistogramOpts::new(name, help).buckets(hit_seconds()?))
}

fn request_duration() -> Result<HistogramVec, prometheus::Error> {
    let name = "larder_request_duration_seconds";
    let help = "Seconds from the parsed request to its ready answer, by place that came from.";
    let options = HistogramOpts::new(name, help).buckets(hit_seconds()?);
    HistogramVec::new(options, &["detail"])
}

/// Failed requests, in sum and by resource. To add up the counters of all resources takes too long for every second.
#[derive(Debug, Default)]
pub struct Failures {
    server_errors: AtomicU64,
    too_many_requests: AtomicU64,
    resources: Mutex<HashMap<String, ResourceFailures>>,
}

/// Failed requests that name a resource.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResourceFailures {
    /// Responses with a status from 500.
    pub server_errors: u64,
    /// Responses with status 429.
    pub too_many_requests: u64,
}

impl Failures {
    /// Notes the status of a response that is counted in [`Metrics::requests`]; `resource` is empty if the request names
    /// none.
    pub fn note(&self, resource: &str, status: u16) {
        let (total, is_refused) = match status {
            429 => (&self.too_many_requests, true),
            500.. => (&self.server_errors, false),
            _ => return,
        };
        total.fetch_add(1, Ordering::Relaxed);
        let mut resources = self.resources();
        let failures = match resources.get_mut(resource) {
            Some(failures) => failures,
            None => resources.entry(resource.to_owned()).or_default(),
        };
        if is_refused {
            failures.too_many_requests += 1;
        } else {
            failures.server_errors += 1;
        }
    }

    fn resources(&self) -> MutexGuard<'_, HashMap<String, ResourceFailures>> {
        self.resources
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of each resource that has some, by its name.
    pub fn by_resource(&self) -> HashMap<String, ResourceFailures> {
        self.resources().clone()
    }

    /// Responses with a status from 500.
    pub fn server_errors(&self) -> u64 {
        self.server_errors.load(Ordering::Relaxed)
    }

    /// Responses with status 429, without those of the rate limit.
    pub fn too_many_requests(&self) -> u64 {
        self.too_many_requests.load(Ordering::Relaxed)
    }
}

/// `larder_build_info{version,commit}`: always 1. The commit is that of `LARDER_COMMIT` in the environment of the build.
fn build_info() -> Result<IntGauge, prometheus::Error> {
    let commit = option_env!("LARDER_COMMIT").unwrap_or("unknown");
    let options = Opts::new("larder_build_info", "The version of larder.")
        .const_label("version", env!("CARGO_PKG_VERSION"))
        .const_label("commit", commit);
    let info = IntGauge::with_opts(options)?;
    info.set(1);
    Ok(info)
}

fn registered<C: Collector + Clone + 'static>(
    registry: &Registry,
    metric: Result<C, prometheus::Error>,
) -> Result<C, prometheus::Error> {
    let metric = metric?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}
