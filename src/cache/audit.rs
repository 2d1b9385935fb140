//! The self-audit: a share of all hits is read again from PostgreSQL, beside serving, and compared.
//!
//! A difference alone proves nothing, since the document may have changed after it was served. What proves that the
//! entry is bad: a statement read something else, then a pass began and was applied, and yet nothing has been
//! invalidated in the key's stripe since before the hit. That pass and those before it have seen every transaction that
//! the statement saw. So the one that makes the difference was applied before the hit, and the entry outlived that or
//! came after it; or it never reached the key at all.
//!
//! Version and position are noted before the tiers are asked, and only while no invalidation is being applied: a pass
//! raises a generation before it drops the key, and a hit between the two is legal. Whatever else moves a version (a
//! purge, a new definition, another key of the stripe) hides a stale entry from one audit and never makes one up. What
//! is compared are digests of the bytes, as in entity tags; that there is no document is one more thing to compare.
//!
//! The audit reads through the loader without leases: no request joins it, and it fills no tier. It gives way: few
//! audits at a time, none while keys wait for PostgreSQL or after a slow answer, and none while the tiers are not
//! fresh.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::cache::document::digest;
use crate::cache::generation::Version;
use crate::cache::{Answer, Cache, Provenance};
use crate::clock::Boottime;
use crate::feed::position::Position;
use crate::resource::ResourceId;
use crate::source::loader::{Keep, Load, SentAt};

/// Audits under way, and keys that may wait for PostgreSQL when one begins.
const AUDITS_MAX: usize = 16;

/// A slower answer of PostgreSQL pauses the audit.
const SLOW: Duration = Duration::from_millis(100);

/// The audit pauses this many times as long as a slow answer took, so that it is never much of PostgreSQL's work.
const PAUSE_FACTOR: u32 = 5;

/// Pause between two looks whether a pass has been applied; passes are `poll_interval` apart.
const PASS_PAUSE: Duration = Duration::from_millis(10);

/// How much is audited.
#[derive(Clone, Debug)]
pub struct AuditConfig {
    /// The share of hits that are read again, from 0 to 1.
    pub sample: f64,
}

/// Decides what is audited, and how much at a time.
pub(super) struct Auditor {
    /// Of all numbers, those below are sampled.
    below: u64,
    places: Arc<Semaphore>,
    /// No audit begins before.
    paused_until: AtomicU64,
}

impl Auditor {
    pub(super) fn new(config: &AuditConfig) -> Self {
        Self {
            // Saturates; 1.0 leaves out one number of 2^64.
            below: (config.sample * 2.0_f64.powi(64)) as u64,
            places: Arc::new(Semaphore::new(AUDITS_MAX)),
            paused_until: AtomicU64::new(0),
        }
    }

    /// Whether the lookup of this number is to be audited, should it be a hit.
    pub(super) fn samples(&self, number: u64) -> bool {
        self.below > 0 && scattered(number) < self.below
    }

    /// A place among the audits under way, if there is one.
    fn place(&self) -> Option<OwnedSemaphorePermit> {
        if Boottime::now().0 < self.paused_until.load(Ordering::Relaxed) {
            return None;
        }
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    /// Notes how long PostgreSQL took; where that is long, no audit begins for a while.
    fn answered_after(&self, took: Duration) {
        if took > SLOW {
            let pause = took.saturating_mul(PAUSE_FACTOR).as_nanos();
            let pause = u64::try_from(pause).unwrap_or(u64::MAX);
            let until = Boottime::now().0.saturating_add(pause);
            self.paused_until.fetch_max(until, Ordering::Relaxed);
        }
    }

    /// No audit begins any more; those under way end without a verdict.
    pub(super) fn stop(&self) {
        self.places.close();
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014) over
/// a counter: any share of successive numbers is spread evenly and keeps step with no pattern of requests.
fn scattered(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What was true before the tiers were asked.
pub(super) struct Audit {
    resource: ResourceId,
    key: Arc<str>,
    version: Version,
    position: Option<Position>,
    /// Given back when the audit ends.
    _place: OwnedSemaphorePermit,
}

/// What an audit showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// PostgreSQL has the same document.
    Same,
    /// Nothing says that it had not changed only after it was served.
    Changed,
    /// The tier holds what a transaction that was applied has overtaken.
    Stale,
    /// PostgreSQL or the feed gave no answer that would allow a verdict.
    Unknown,
}

impl Verdict {
    /// The label of metrics.
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
    /// Notes what the audit of a hit that is yet to come has to know. `None` where none can be made now.
    pub(super) fn note(&self, resource: ResourceId, key: &str) -> Option<Audit> {
        if self.loader.waiting() > AUDITS_MAX {
            return None;
        }
        let place = self.auditor.place()?;
        let stripe = self.versions.stripe(resource, key);
        // Held by whoever invalidates: what has raised the version by now has dropped its keys as well.
        let _idle = self.invalidating.try_lock().ok()?;
        Some(Audit {
            resource,
            key: Arc::from(key),
            version: self.versions.version(resource, stripe),
            position: self.freshness.position(),
            _place: place,
        })
    }

    /// Audits what a tier has answered, in a task of its own.
    pub(super) fn audit(self: &Arc<Self>, noted: Option<Audit>, answer: &Answer) {
        let Some(audit) = noted else {
            return self.count_audit("skipped");
        };
        let tier = match answer.provenance {
            Provenance::Memory => "memory",
            Provenance::Disk => "disk",
            Provenance::Miss { .. }
            | Provenance::Bypass { .. }
            | Provenance::Uncached { .. }
            | Provenance::Ahead { .. }
            | Provenance::Stale { .. } => return,
        };
        let served = answer.found.as_ref().map(|document| document.digest());
        let cache = Arc::clone(self);
        tokio::spawn(async move {
            let verdict = cache.judge(&audit, served).await;
            if verdict == Verdict::Stale {
                cache.end_stale(&audit, tier);
            }
            cache.count_audit(verdict.as_str());
        });
    }

    fn count_audit(&self, outcome: &str) {
        self.metrics.audits.with_label_values(&[outcome]).inc();
    }

    async fn judge(&self, audit: &Audit, served: Option<[u8; 16]>) -> Verdict {
        let Some(read) = self.read_again(audit).await else {
            return Verdict::Unknown;
        };
        // A pass that begins from here on sees all that the statement saw.
        let read_at = Boottime::now();
        if read == served {
            return Verdict::Same;
        }
        if !self.is_passed(read_at).await {
            return Verdict::Unknown;
        }
        let stripe = self.versions.stripe(audit.resource, &audit.key);
        if self.versions.version(audit.resource, stripe) == audit.version {
            Verdict::Stale
        } else {
            Verdict::Changed
        }
    }

    /// The digest of the document that PostgreSQL has now, or that there is none; `None` without an answer.
    async fn read_again(&self, audit: &Audit) -> Option<Option<[u8; 16]>> {
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
            sent_at: SentAt::default(),
            done: Box::new(move |loaded, keep| {
                // The audit waits until the loader drops this. What no tier may hold says nothing of what one holds.
                let _ended = done.send(loaded.map(|body| (keep == Keep::Yes).then_some(body)));
            }),
        });
        let loaded = loaded.await;
        self.auditor.answered_after(Boottime::now().since(began));
        let body = loaded.ok()?.ok()??;
        Some(body.map(|body| digest(&body)))
    }

    /// Waits until a pass that began after `moment` is applied. False if the tiers cease to be fresh before.
    async fn is_passed(&self, moment: Boottime) -> bool {
        loop {
            if self.freshness.fresh_at() > moment {
                return true;
            }
            let behind = !self.freshness.is_fresh(Boottime::now());
            if behind || self.auditor.places.is_closed() {
                return false;
            }
            tokio::time::sleep(PASS_PAUSE).await;
        }
    }

    /// Drops the entry, then tells of it.
    fn end_stale(&self, audit: &Audit, tier: &str) {
        self.drop_document(audit.resource, &audit.key, "audit");
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
    fn the_share_is_sampled_and_spread() {
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
    fn places_are_bounded_and_come_back() {
        let auditor = auditor(1.0);
        let held: Vec<_> = (0..AUDITS_MAX).map(|_| auditor.place()).collect();
        assert!(held.iter().all(Option::is_some));
        assert!(auditor.place().is_none());
        drop(held);
        assert!(auditor.place().is_some());
        auditor.stop();
        assert!(auditor.place().is_none());
    }

    #[test]
    fn a_slow_answer_pauses_the_audit() {
        let auditor = auditor(1.0);
        auditor.answered_after(SLOW);
        assert!(auditor.place().is_some());
        auditor.answered_after(Duration::from_secs(60));
        assert!(auditor.place().is_none());
        let until = Boottime(auditor.paused_until.load(Ordering::Relaxed));
        let pause = until.since(Boottime::now());
        assert!(pause > Duration::from_secs(290) && pause <= Duration::from_secs(300));
    }
}
