//! The state of larder in numbers, as it is at each scrape.

use prometheus::{Gauge, IntGauge, IntGaugeVec, Opts, Registry};

use crate::metrics::registered;

/// The gauges, by what they tell.
#[derive(Debug)]
pub struct Gauges {
    /// `larder_ready`: 1 if `/readyz` is 200, else 0.
    pub ready: IntGauge,
    /// `larder_resource_ready{resource}`: 1 if the resource fits the database and its changes are seen, else 0.
    pub resource_ready: IntGaugeVec,
    /// `larder_feed_age_seconds`: since the start of the last completed pass; -1 before the first one.
    pub feed_age: Gauge,
    /// `larder_source_waiting_keys`: keys that wait for PostgreSQL.
    pub source_waiting_keys: IntGauge,
    /// `larder_change_log_rows`: rows of `larder.change`, estimated; -1 if that is not known.
    pub change_log_rows: IntGauge,
    /// `larder_change_log_bytes`: bytes of `larder.change`.
    pub change_log_bytes: IntGauge,
    /// `larder_change_log_blocker_age_seconds`: the age of the oldest open transaction, for which rows of the log are kept;
    /// 0 without one.
    pub change_log_blocker_age: Gauge,
    /// `larder_tier_bytes{tier}`: bytes that a tier holds: documents, keys and overhead.
    pub tier_bytes: IntGaugeVec,
    /// `larder_tier_entries{tier}`: entries in a tier.
    pub tier_entries: IntGaugeVec,
    /// `larder_tier_max_bytes{tier}`: the most bytes that a tier may hold.
    pub tier_max_bytes: IntGaugeVec,
    /// `larder_source_connections{pool,state}`: connections to PostgreSQL, but for the feed's. `pool`: `read`, `write` or
    /// `bulk_write`; `state`: `used` or `idle`.
    pub source_connections: IntGaugeVec,
    /// `larder_connections`: open connections of clients, to both addresses.
    pub connections: IntGauge,
    /// `larder_tls_certificate_expiry_timestamp_seconds`: the end of the certificate in force. It has no labels, but without
    /// TLS it has no value either.
    pub certificate_expiry: IntGaugeVec,
}

impl Gauges {
    /// Registers all of them.
    ///
    /// # Errors
    /// Only if two metrics had one name.
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            let gauges = IntGaugeVec::new(Opts::new(name, help), labels);
            registered(registry, gauges)
        };
        let gauge = |name: &str, help: &str| registered(registry, IntGauge::new(name, help));
        let seconds_gauge = |name: &str, help: &str| registered(registry, Gauge::new(name, help));
        Ok(Self {
            ready: gauge("larder_ready", "Whether /readyz is 200.")?,
            resource_ready: gauges(
                "larder_resource_ready",
                "Whether a resource fits the database and its changes are seen.",
                &["resource"],
            )?,
            feed_age: seconds_gauge(
                "larder_feed_age_seconds",
                "Seconds since the start of the last completed pass; -1 before the first.",
            )?,
            source_waiting_keys: gauge(
                "larder_source_waiting_keys",
                "Keys that wait for PostgreSQL.",
            )?,
            change_log_rows: gauge(
                "larder_change_log_rows",
                "Rows of the change log, estimated; -1 if not known.",
            )?,
            change_log_bytes: gauge("larder_change_log_bytes", "Bytes of the change log.")?,
            change_log_blocker_age: seconds_gauge(
                "larder_change_log_blocker_age_seconds",
                "Age of the oldest open transaction, for which the change log is kept; 0 without one.",
            )?,
            tier_bytes: gauges("larder_tier_bytes", "Bytes that a tier holds.", &["tier"])?,
            tier_entries: gauges("larder_tier_entries", "Entries in a tier.", &["tier"])?,
            tier_max_bytes: gauges("larder_tier_max_bytes", "Most bytes of a tier.", &["tier"])?,
            source_connections: gauges(
                "larder_source_connections",
                "Connections to PostgreSQL, but for those of the feed.",
                &["pool", "state"],
            )?,
            connections: gauge("larder_connections", "Open connections of clients.")?,
            certificate_expiry: gauges(
                "larder_tls_certificate_expiry_timestamp_seconds",
                "When the certificate in force expires.",
                &[],
            )?,
        })
    }
}
