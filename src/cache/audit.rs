//! The audit: for a sample of the hits, the document is read again from PostgreSQL, in a task of its own, and compared.
//!
//! A difference alone proves nothing, because the document may have changed after it was served. An entry is proved
//! stale in three steps: a statement reads something else; then a pass begins and is applied; and the version of the
//! key is still the one from before the hit. The passes up to that one have read every transaction that the statement
//! saw. So the transaction that makes the difference either was applied before the hit, and the entry should not have
//! been there, or was not mapped to the key.
//!
//! Version and position are noted before the lookup, and only while no invalidation is being applied: a pass raises a
//! generation before it drops the key, and a hit between these steps is correct. Anything else that changes a version
//! (a purge, a new definition, another key of the stripe) can hide a stale entry from one audit, but can't make a
//! correct entry look stale. Digests of the documents are compared, as in entity tags, and their kept values; absences are
//! compared, too.
//!
//! The audit reads through the loader without a lease: no request joins it, and it fills no tier. It yields to
//! requests: few audits run at a time, and none while many keys wait for PostgreSQL, after a slow answer, or while the
//! tiers are not fresh.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::cache::document::{Document, digest};
use crate::cache::generation::Version;
use crate::cache::recent::InvalidationCause;
use crate::cache::{Answer, Cache, Provenance};
use crate::clock::Boottime;
use crate::feed::position::Position;
use crate::resource::ResourceId;
use crate::source::loader::{Keep, Load, SentAt};

/// Audits at a time, at most. An audit also begins only if at most so many keys wait for PostgreSQL.
const AUDITS_MAX: usize = 16;

/// If PostgreSQL takes longer to answer, the audit pauses.
const SLOW: Duration = Duration::from_millis(100);

/// The length of such a pause, as a multiple of the time that the answer took.
const PAUSE_FACTOR: u32 = 5;

/// How often the audit checks whether a pass has been applied; passes are `poll_interval` apart.
const PASS_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Settings of the audit.
#[derive(Clone, Debug)]
pub struct AuditConfig {
    /// The share of hits that are read again, from 0 to 1.
    pub sample: f64,
}

/// Chooses the lookups that are audited, and limits the audits at a time.
pub(super) struct Auditor {
    /// A lookup is chosen if its scattered number is below.
    threshold: u64,
    permits: Arc<Semaphore>,
    /// A [`Boottime`], before which no audit begins.
    paused_until: AtomicU64,
}

impl Auditor {
    pub(super) fn new(config: &AuditConfig) -> Self {
        Self {
            // The cast saturates, so a sample of 1.0 leaves out one number of 2^64.
            threshold: (config.sample * 2.0_f64.powi(64)) as u64,
            permits: Arc::new(Semaphore::new(AUDITS_MAX)),
            paused_until: AtomicU64::new(0),
        }
    }

    /// Whether the lookup of this number is audited if it is a hit.
    pub(super) fn samples(&self, number: u64) -> bool {
        self.threshold > 0 && scattered(number) < self.threshold
    }

    /// A permit for an audit, if one may begin now.
    fn permit(&self) -> Option<OwnedSemaphorePermit> {
        if Boottime::now().0 < self.paused_until.load(Ordering::Relaxed) {
            return None;
        }
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }

    /// Begins a pause if PostgreSQL took long to answer.
    fn record_latency(&self, took: Duration) {
        if took > SLOW {
            let pause = took.saturating_mul(PAUSE_FACTOR).as_nanos();
            let pause = u64::try_from(pause).unwrap_or(u64::MAX);
            let until = Boottime::now().0.saturating_add(pause);
            self.paused_until.fetch_max(until, Ordering::Relaxed);
        }
    }

    /// Lets no audit begin any more, and those that wait for a pass end without a result.
    pub(super) fn stop(&self) {
        self.permits.close();
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). For
/// successive numbers, the sample is spread evenly and independent of patterns in the requests.
fn scattered(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What an audit needs to know from before the lookup.
pub(super) struct Audit {
    resource: ResourceId,
    key: Arc<str>,
    version: Version,
    position: Option<Position>,
    /// Released when the audit ends.
    _permit: OwnedSemaphorePermit,
}

/// What is compared of a document.
#[derive(PartialEq, Eq)]
struct Content {
    /// Of the body.
    digest: [u8; 16],
    kept: Box<[u8]>,
}

impl Content {
    fn of(document: &Document) -> Self {
        Self {
            digest: document.digest(),
            kept: document.kept().as_bytes().into(),
        }
    }
}

/// The result of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AuditResult {
    /// PostgreSQL has the same document.
    Same,
    /// The document is another, but may have changed after it was served.
    Changed,
    /// The entry is proved stale.
    Stale,
    /// PostgreSQL did not answer, or no pass was applied in time.
    Unknown,
}

impl AuditResult {
    /// Its label in the metric.
    fn as_str(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Changed => "changed",
            Self::Stale => "stale",
            Self::Unknown => "unknown",
        }
    }
}

impl Cache {
    /// Notes what an audit needs to know before the lookup. `None` if no audit may begin now.
    pub(super) fn prepare_audit(&self, resource: ResourceId, key: &str) -> Option<Audit> {
        if self.loader.waiting_keys() > AUDITS_MAX {
            return None;
        }
        let permit = self.auditor.permit()?;
        let stripe = self.versions.stripe(resource, key);
        // If no invalidation is under way, every key whose generation was raised has also been dropped.
        let _idle = self.invalidating.try_lock().ok()?;
        Some(Audit {
            resource,
            key: Arc::from(key),
            version: self.versions.version(resource, stripe),
            position: self.freshness.position(),
            _permit: permit,
        })
    }

    /// Audits the answer of a tier, in a task of its own. `None` counts an audit that could not be made.
    pub(super) fn audit(self: &Arc<Self>, prepared: Option<Audit>, answer: &Answer) {
        let Some(audit) = prepared else {
            return self.count_audit("skipped");
        };
        let tier = match answer.provenance {
            Provenance::Memory => "memory",
            Provenance::Disk => "disk",
            Provenance::Miss { .. }
            | Provenance::Bypass { .. }
            | Provenance::Uncached { .. }
            | Provenance::Token { .. }
            | Provenance::Stale { .. }
            | Provenance::Undisclosed => return,
        };
        let served = answer.found.as_ref().map(Content::of);
        let cache = Arc::clone(self);
        tokio::spawn(async move {
            let result = cache.compare(&audit, served).await;
            if result == AuditResult::Stale {
                cache.drop_stale(&audit, tier);
            }
            cache.count_audit(result.as_str());
        });
    }

    fn count_audit(&self, result: &str) {
        self.metrics.audits.with_label_values(&[result]).inc();
    }

    /// Compares the document that was served with PostgreSQL's.
    async fn compare(&self, audit: &Audit, served: Option<Content>) -> AuditResult {
        let Some(read) = self.read_again(audit).await else {
            return AuditResult::Unknown;
        };
        // A pass that begins after this moment reads all that the statement saw.
        let read_at = Boottime::now();
        if read == served {
            return AuditResult::Same;
        }
        if !self.wait_for_pass_after(read_at).await {
            return AuditResult::Unknown;
        }
        let stripe = self.versions.stripe(audit.resource, &audit.key);
        if self
            .versions
            .is_current(audit.resource, stripe, audit.version)
        {
            AuditResult::Stale
        } else {
            AuditResult::Changed
        }
    }

    /// The document in PostgreSQL, `Some(None)` for an absence; `None` if PostgreSQL did not answer.
    async fn read_again(&self, audit: &Audit) -> Option<Option<Content>> {
        let cached = self.cached(audit.resource);
        let began = Boottime::now();
        if !self.is_fresh(cached, began) {
            return None;
        }
        let resource = cached.current.load_full()?;
        let (done, loaded) = oneshot::channel();
        self.loader.load(Load {
            resource,
            key: Arc::clone(&audit.key),
            asked_at: began,
            until: None,
            sent_at: SentAt::default(),
            done: Box::new(move |loaded, keep| {
                // A document that no tier may keep can't be compared with that of a tier.
                let _sent = done.send(loaded.map(|found| (keep == Keep::Yes).then_some(found)));
            }),
        });
        let loaded = loaded.await;
        self.auditor.record_latency(Boottime::now().since(began));
        let found = loaded.ok()?.ok()??;
        Some(found.map(|document| Content {
            digest: digest(&document.body()),
            kept: document.kept().as_bytes().into(),
        }))
    }

    /// Waits until a pass that began after `moment` has been applied. Returns false if the tiers cease to be fresh
    /// before.
    async fn wait_for_pass_after(&self, moment: Boottime) -> bool {
        loop {
            if self.freshness.fresh_at() > moment {
                return true;
            }
            let behind = !self.freshness.is_fresh(Boottime::now());
            if behind || self.auditor.permits.is_closed() {
                return false;
            }
            tokio::time::sleep(PASS_CHECK_INTERVAL).await;
        }
    }

    /// Drops the entry and reports it.
    fn drop_stale(&self, audit: &Audit, tier: &str) {
        self.drop_document(audit.resource, &audit.key, InvalidationCause::Audit);
        self.metrics.audit_stale.inc();
        let now = self.freshness.position();
        let text = |position: &Option<Position>| position.as_ref().map(ToString::to_string);
        tracing::error!(
            resource = self.cached(audit.resource).name,
            key = &*audit.key,
            tier,
            served_at = text(&audit.position),
            now_at = text(&now),
            "the audit found a stale document, which is a bug of larder; dropped it"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auditor(sample: f64) -> Auditor {
        Auditor::new(&AuditConfig { sample })
    }

    #[test]
    fn the_sample_is_spread_evenly() {
        let sampled = |sample: f64, numbers: std::ops::Range<u64>| {
            let auditor = auditor(sample);
            numbers.filter(|&number| auditor.samples(number)).count()
        };
        assert_eq!(sampled(0.0, 0..100_000), 0);
        assert_eq!(sampled(1.0, 0..100_000), 100_000);
        for hundred_thousand in 0..10 {
            let begin = hundred_thousand * 100_000;
            let count = sampled(0.001, begin..begin + 100_000);
            assert!((60..140).contains(&count), "{count} of 100,000");
        }
        // A pattern of requests, such as every tenth for one key, gets its share.
        let auditor = auditor(0.01);
        let tenths = (0..1_000_000).step_by(10);
        let count = tenths.filter(|&number| auditor.samples(number)).count();
        assert!((800..1_200).contains(&count), "{count} of 100,000");
    }

    #[test]
    fn audits_at_a_time_are_limited() {
        let auditor = auditor(1.0);
        let held: Vec<_> = (0..AUDITS_MAX).map(|_| auditor.permit()).collect();
        assert!(held.iter().all(Option::is_some));
        assert!(auditor.permit().is_none());
        drop(held);
        assert!(auditor.permit().is_some());
        auditor.stop();
        assert!(auditor.permit().is_none());
    }

    #[test]
    fn a_slow_answer_pauses_the_audit() {
        let auditor = auditor(1.0);
        auditor.record_latency(SLOW);
        assert!(auditor.permit().is_some());
        auditor.record_latency(Duration::from_secs(60));
        assert!(auditor.permit().is_none());
        let until = Boottime(auditor.paused_until.load(Ordering::Relaxed));
        let pause = until.since(Boottime::now());
        assert!(pause > Duration::from_secs(290) && pause <= Duration::from_secs(300));
    }
}
