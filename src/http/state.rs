//! What the handlers of the public address share.

use std::sync::Arc;

use axum::http::StatusCode;
use prometheus::{Histogram, IntCounter};

use crate::cache::Provenance;
use crate::clock::Boottime;
use crate::documents::Documents;
use crate::http::answers::{AnswersConfig, AnswersMemory};
use crate::http::auth::Auth;
use crate::http::bodies::{BATCH_BYTES_MAX, BodiesMemory};
use crate::http::decoding::decoder::DECODER_BYTES_MAX;
use crate::http::in_progress::InProgress;
use crate::http::read::cache_headers::{CacheHeaders, detail};
use crate::metrics::Metrics;
use crate::resource::ResourceId;
use crate::server::ClientCounts;

/// The documents, the counters of their responses, and the headers for caches.
#[derive(Clone)]
pub(super) struct HttpState {
    pub(super) documents: Documents,
    pub(super) answers: AnswersMemory,
    /// `None`: requests need no credential.
    pub(super) auth: Option<Arc<Auth>>,
    pub(super) bodies: BodiesMemory,
    pub(super) in_progress: InProgress,
    /// The bulk writes of each client.
    pub(super) bulk_clients: ClientCounts,
    metrics: Arc<Metrics>,
    /// By resource.
    hits: Arc<[HitCounters]>,
    /// The durations of responses from memory.
    hit_duration: Histogram,
    /// By resource.
    cache_headers: Arc<[CacheHeaders]>,
}

/// Counters of a resource's responses from memory. To look up a counter by its labels takes longer than to count.
struct HitCounters {
    found: IntCounter,
    not_modified: IntCounter,
    absent: IntCounter,
}

impl HitCounters {
    fn new(metrics: &Metrics, name: &str) -> Self {
        let counter = |status: StatusCode| {
            let labels = [name, detail(Provenance::Memory), status.as_str()];
            metrics.requests.with_label_values(&labels)
        };
        Self {
            found: counter(StatusCode::OK),
            not_modified: counter(StatusCode::NOT_MODIFIED),
            absent: counter(StatusCode::NOT_FOUND),
        }
    }

    fn of(&self, status: StatusCode) -> &IntCounter {
        match status {
            StatusCode::NOT_MODIFIED => &self.not_modified,
            StatusCode::NOT_FOUND => &self.absent,
            _ => &self.found,
        }
    }
}

impl HttpState {
    pub(super) fn new(
        documents: Documents,
        answers: &AnswersConfig,
        bodies_bytes_max: u64,
        metrics: Arc<Metrics>,
        cache_headers: Vec<CacheHeaders>,
        auth: Option<Arc<Auth>>,
    ) -> Self {
        let body_bytes_max =
            documents.document_bytes_max().max(BATCH_BYTES_MAX) + DECODER_BYTES_MAX;
        let names = documents.names();
        let hits = names.map(|name| HitCounters::new(&metrics, name)).collect();
        let durations = &metrics.request_duration;
        let hit_duration = durations.with_label_values(&[detail(Provenance::Memory)]);
        Self {
            documents,
            answers: AnswersMemory::new(answers, metrics.answers_dropped.clone()),
            auth,
            bodies: BodiesMemory::new(bodies_bytes_max, body_bytes_max),
            metrics,
            hits,
            hit_duration,
            cache_headers: cache_headers.into(),
            bulk_clients: ClientCounts::default(),
            in_progress: InProgress::new(),
        }
    }

    /// The headers for caches of `resource`. Each resource has some.
    #[inline]
    pub(super) fn cache_headers(&self, resource: ResourceId) -> Option<&CacheHeaders> {
        self.cache_headers.get(resource.index())
    }

    /// Counts a response from memory to a request that began at `began`.
    #[inline]
    pub(super) fn count_hit(&self, resource: ResourceId, status: StatusCode, began: Boottime) {
        if let Some(hits) = self.hits.get(resource.index()) {
            hits.of(status).inc();
        }
        observe(&self.hit_duration, began);
    }

    /// Counts any other response; `resource` is the one that the request names, if it names one.
    pub(super) fn count(
        &self,
        resource: Option<ResourceId>,
        detail: &str,
        status: StatusCode,
        began: Boottime,
    ) {
        // Only configured names become labels: clients must not be able to add any.
        let label = resource.and_then(|resource| self.documents.names().nth(resource.index()));
        let labels = [label.unwrap_or_default(), detail, status.as_str()];
        self.metrics.requests.with_label_values(&labels).inc();
        self.metrics
            .failures
            .note(label.unwrap_or_default(), status.as_u16());
        let durations = &self.metrics.request_duration;
        observe(&durations.with_label_values(&[detail]), began);
    }
}

#[inline]
fn observe(durations: &Histogram, began: Boottime) {
    let took = Boottime::now().since(began);
    durations.observe(took.as_secs_f64());
}
