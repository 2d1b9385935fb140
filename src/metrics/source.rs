//! What is read from PostgreSQL, and what is written to it.

use prometheus::{Histogram, HistogramOpts, IntCounterVec, Opts, Registry};

use crate::metrics::registered;

const OPERATIONS: [&str; 3] = ["insert", "update", "delete"];

/// The metrics of loads and writes.
#[derive(Debug)]
pub struct SourceMetrics {
    /// `larder_source_batch_keys`: keys in one statement.
    pub batch_keys: Histogram,
    /// `larder_load_duration_seconds`: from the request for one document to its arrival from PostgreSQL, with the time that
    /// its key has waited; failed loads, too.
    pub load_duration: Histogram,
    /// `larder_write_duration_seconds`: from the write of one document until this node has applied it, with the time that it
    /// has waited for a connection; failed writes, too.
    pub write_duration: Histogram,
    /// `larder_documents_written_total{operation}`: documents of committed writes; `operation` is `insert`, `update` or
    /// `delete`.
    pub documents_written: IntCounterVec,
}

impl SourceMetrics {
    /// Registers all of them.
    ///
    /// # Errors
    /// Only if two metrics had one name.
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let histogram = |name: &str, help: &str, buckets: Vec<f64>| {
            let options = HistogramOpts::new(name, help).buckets(buckets);
            registered(registry, Histogram::with_opts(options))
        };
        // From 0.1 ms to about 13 s, since `request_timeout` is 10 s by default.
        let seconds = || prometheus::exponential_buckets(0.000_1, 2.0, 18);
        let written = Opts::new("larder_documents_written_total", "Documents written.");
        let documents_written = IntCounterVec::new(written, &["operation"]);
        let metrics = Self {
            batch_keys: histogram(
                "larder_source_batch_keys",
                "Keys in one statement.",
                prometheus::exponential_buckets(1.0, 2.0, 9)?,
            )?,
            load_duration: histogram(
                "larder_load_duration_seconds",
                "Seconds from the request for a document until PostgreSQL has answered.",
                seconds()?,
            )?,
            write_duration: histogram(
                "larder_write_duration_seconds",
                "Seconds from the write of a document until this node has applied it.",
                seconds()?,
            )?,
            documents_written: registered(registry, documents_written)?,
        };
        for operation in OPERATIONS {
            metrics.documents_written.with_label_values(&[operation]);
        }
        Ok(metrics)
    }
}
