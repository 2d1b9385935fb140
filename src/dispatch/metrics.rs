//! The metrics of `larder dispatch`.

use prometheus::process_collector::ProcessCollector;
use prometheus::{
    Encoder, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

/// The results of rows.
const RESULTS: [&str; 5] = ["delivered", "failed", "dead", "stuck", "changed"];

/// The metrics of one process.
#[derive(Debug)]
pub struct DispatchMetrics {
    registry: Registry,
    /// `larder_dispatch_rows_total{dispatch,result}`: rows by what an attempt came to: `delivered`, `failed` (it is tried
    /// again), `dead` (no attempt is left), `stuck` (it can't be rescheduled), `changed` (the application has moved or deleted
    /// the row meanwhile).
    pub rows: IntCounterVec,
    /// `larder_dispatch_requests_total{dispatch,status}`: requests to the sink by the status of the response, else `timeout`
    /// or `error`.
    pub requests: IntCounterVec,
    /// `larder_dispatch_request_duration_seconds{dispatch}`: from a request to its response.
    pub request_duration: HistogramVec,
    /// `larder_dispatch_errors_total{dispatch}`: errors of PostgreSQL, each of which ended the work on a slot.
    pub errors: IntCounterVec,
    /// `larder_dispatch_lag_seconds{dispatch}`: how long the oldest due row had been due at the last look at its slot.
    pub lag: GaugeVec,
    /// `larder_dispatch_slots{dispatch}`: slots that this process works on.
    pub slots: IntGaugeVec,
    /// `larder_dispatch_paused{dispatch}`: 1 while it is paused.
    pub paused: IntGaugeVec,
}

impl DispatchMetrics {
    /// Registers all metrics.
    ///
    /// # Errors
    /// Only if two metrics had one name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        registry.register(Box::new(ProcessCollector::for_self()))?;
        let name = |name: &str| format!("larder_dispatch_{name}");
        let counters = |of: &str, help: &str, labels: &[&str]| {
            let counters = IntCounterVec::new(Opts::new(name(of), help), labels)?;
            registry
                .register(Box::new(counters.clone()))
                .map(|()| counters)
        };
        let gauges = |of: &str, help: &str| {
            let gauges = IntGaugeVec::new(Opts::new(name(of), help), &["dispatch"])?;
            registry.register(Box::new(gauges.clone())).map(|()| gauges)
        };
        let lag = Opts::new(name("lag_seconds"), "How long the oldest row has been due.");
        let lag = GaugeVec::new(lag, &["dispatch"])?;
        registry.register(Box::new(lag.clone()))?;
        let buckets = vec![
            0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0,
        ];
        let duration =
            HistogramOpts::new(name("request_duration_seconds"), "Time until the response.");
        let duration = HistogramVec::new(duration.buckets(buckets), &["dispatch"])?;
        registry.register(Box::new(duration.clone()))?;
        Ok(Self {
            rows: counters("rows_total", "Rows by result.", &["dispatch", "result"])?,
            requests: counters(
                "requests_total",
                "Requests by status.",
                &["dispatch", "status"],
            )?,
            request_duration: duration,
            errors: counters("errors_total", "Errors of PostgreSQL.", &["dispatch"])?,
            lag,
            slots: gauges("slots", "Slots that this process works on.")?,
            paused: gauges("paused", "Whether it is paused.")?,
            registry,
        })
    }

    /// Shows the metrics of a dispatch from now on.
    pub(super) fn begin(&self, dispatch: &str) {
        for result in RESULTS {
            let _at_zero = self.rows.with_label_values(&[dispatch, result]);
        }
        let _at_zero = self.errors.with_label_values(&[dispatch]);
        self.lag.with_label_values(&[dispatch]).set(0.0);
        self.slots.with_label_values(&[dispatch]).set(0);
        self.paused.with_label_values(&[dispatch]).set(0);
    }

    /// Renders the metrics in Prometheus's text format.
    ///
    /// # Errors
    /// If a metric can't be written.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}
