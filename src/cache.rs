//! Documents in front of PostgreSQL: lookup, fill and invalidation over both tiers.
//!
//! The rules that keep answers true (their names are used throughout this module):
//!
//! - *Bump before drop.* A pass raises a key's generation, then takes the key out of memory, then queues its drop on
//!   the way to disk, then the pass's mark; position and `fresh_at` come last.
//! - *Generation before read.* A load notes the key's generation before its statement is sent. It is installed only
//!   under the lock of the key's place in memory and only if the generation still stands; the disk writer checks again.
//! - *Clean before disk.* The disk tier answers for a key only when all drops of its stripe have been applied, and what
//!   it answers is promoted to memory only if the generation has stood since.
//! - *Fresh or not at all.* Tiers answer only within `max_staleness` of the start of the last completed pass, on the
//!   boot-time clock; else PostgreSQL does.
//! - *Decided by rows.* Where a policy of row security makes a document depend on more than its rows, no tier keeps it.
//!
//! Knows no HTTP and no SQL. What keeps documents is in `memory` and `disk`.

pub mod audit;
pub mod disk;
pub mod document;
pub mod encoding;
mod eviction;
mod fill;
mod follow;
mod freshness;
pub mod generation;
mod ghosts;
mod lease;
mod lookup;
pub mod memory;
mod orders;
mod queue;
mod resumption;
mod status;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwapOption, Guard};
use tokio::sync::watch;

use crate::cache::audit::{AuditConfig, Auditor};
use crate::cache::disk::DiskConfig;
use crate::cache::document::Found;
use crate::cache::freshness::Freshness;
use crate::cache::generation::Versions;
use crate::cache::lease::Leases;
use crate::cache::memory::{Memory, MemoryConfig};
use crate::cache::queue::DiskTier;
use crate::cache::resumption::{Resumption, offer_mark};
pub use crate::cache::status::{Explanation, FeedStatus, Kept, ResourceStatus, Status, TierStatus};
use crate::clock::Boottime;
use crate::feed::OnLoss;
use crate::feed::position::Persisted;
use crate::metrics::Metrics;
use crate::resource::definition::Tiers;
use crate::resource::{Resource, ResourceId};
use crate::source::SourceError;
use crate::source::loader::Loader;

/// What a cache is made of.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// Names and tiers of the resources; their place in this list is what a [`ResourceId`] counts.
    pub resources: Vec<(String, Tiers)>,
    /// The memory tier.
    pub memory: MemoryConfig,
    /// The disk tier; used if some resource uses it.
    pub disk: DiskConfig,
    /// Knowledge older than this is not trusted.
    pub max_staleness: Duration,
    /// What is answered without trust.
    pub on_loss: OnLoss,
    /// The longest wait for a document.
    pub request_timeout: Duration,
    /// The self-audit.
    pub audit: AuditConfig,
}

/// Where an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// The memory tier.
    Memory,
    /// The disk tier.
    Disk,
    /// PostgreSQL, since no tier had it.
    Miss {
        /// A tier keeps it now.
        stored: bool,
        /// Another request asked.
        collapsed: bool,
    },
    /// PostgreSQL, since the tiers could not be trusted.
    Bypass {
        /// Another request asked.
        collapsed: bool,
    },
    /// PostgreSQL, since row security may show other rows at any time ([`Resource::uncached`]).
    Uncached {
        /// Another request asked.
        collapsed: bool,
    },
    /// PostgreSQL, since the tiers had not caught up with the token of the request.
    Ahead {
        /// Another request asked.
        collapsed: bool,
    },
    /// A tier that could not be trusted; how old its knowledge is.
    Stale {
        /// Since the start of the last completed pass.
        age: Duration,
    },
}

/// A resource as it fits the database at a moment, if it does.
pub type CurrentResource = Guard<Option<Arc<Resource>>>;

/// An answered lookup.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The document, or that there is none.
    pub found: Found,
    /// Where it came from.
    pub provenance: Provenance,
}

/// Why a lookup has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LookupError {
    /// The resource has not been matched to the database, or no longer fits it.
    #[error("the resource is not ready: {0}")]
    NotReady(String),
    /// PostgreSQL gave none.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// `request_timeout` is over.
    #[error("the deadline of the request is over")]
    Deadline,
}

impl LookupError {
    /// Whether UTF-8 can't carry the document: no other one is concerned.
    pub(crate) fn is_of_encoding(&self) -> bool {
        matches!(self, Self::Source(error) if error.is_of_encoding())
    }
}

/// One resource's part of the cache.
struct CachedResource {
    name: String,
    tiers: Tiers,
    /// The resource as it fits the database now; none where it does not.
    current: ArcSwapOption<Resource>,
    /// What freshness rests on has been checked and stands.
    trusted: AtomicBool,
    /// No tier keeps its documents, since they may change without a change of their rows ([`Resource::uncached`]).
    uncached: AtomicBool,
    /// It does not fit the database.
    unfit: AtomicBool,
    /// Why there is no current resource.
    reason: Mutex<String>,
    /// Stands before the keys of its entries on disk.
    prefix: AtomicU64,
    fingerprint: Mutex<String>,
    hits_memory: AtomicU64,
    hits_disk: AtomicU64,
    /// LookupBatch that memory did not answer.
    passed_memory: AtomicU64,
}

/// Both tiers, and what keeps them true.
pub struct Cache {
    resources: Vec<CachedResource>,
    versions: Arc<Versions>,
    memory: Memory,
    disk: Option<DiskTier>,
    leases: Arc<Leases>,
    loader: Loader,
    metrics: Arc<Metrics>,
    freshness: Freshness,
    request_timeout: Duration,
    auditor: Auditor,
    /// Held from raising generations until their drops are queued: a stripe is clean up to its last drop's generation,
    /// so drops must be queued in the order of their generations.
    invalidating: Mutex<()>,
    resumption: Resumption,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cache {
    /// Starts the tiers; the disk tier opens beside it.
    ///
    /// # Errors
    /// If the disk tier's threads can't be started.
    pub fn start(
        config: CacheConfig,
        loader: Loader,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<Arc<Self>> {
        let count = config.resources.len();
        let uses_disk = config.resources.iter().any(|(_, tiers)| tiers.disk);
        let versions = Arc::new(Versions::new(count));
        let (opened, found_on_disk) = watch::channel(None);
        let disk = if uses_disk {
            let found = move |mark| {
                opened.send_replace(Some(mark));
            };
            Some(DiskTier::start(
                config.disk.clone(),
                Arc::clone(&versions),
                Arc::clone(&metrics),
                found,
            )?)
        } else {
            None
        };
        let cache = Arc::new(Self::assemble(config, versions, disk, loader, metrics));
        tokio::spawn(offer_mark(Arc::downgrade(&cache), found_on_disk));
        Ok(cache)
    }

    fn assemble(
        config: CacheConfig,
        versions: Arc<Versions>,
        disk: Option<DiskTier>,
        loader: Loader,
        metrics: Arc<Metrics>,
    ) -> Self {
        let count = config.resources.len();
        Self {
            resources: config
                .resources
                .into_iter()
                .map(CachedResource::new)
                .collect(),
            memory: Memory::new(&config.memory, count),
            versions,
            disk,
            leases: Arc::default(),
            loader,
            metrics,
            freshness: Freshness::new(config.max_staleness, config.on_loss),
            request_timeout: config.request_timeout,
            auditor: Auditor::new(&config.audit),
            invalidating: Mutex::default(),
            resumption: Resumption::new(),
        }
    }

    /// The names of the resources, in the order of the configuration.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.resources.iter().map(|cached| cached.name.as_str())
    }

    /// The resource of this name.
    pub fn id_of(&self, name: &str) -> Option<ResourceId> {
        let mut resources = self.numbered();
        resources.find_map(|(resource, cached)| (cached.name == name).then_some(resource))
    }

    /// All resources in order.
    fn numbered(&self) -> impl Iterator<Item = (ResourceId, &CachedResource)> {
        ResourceId::in_order().zip(&self.resources)
    }

    fn cached(&self, resource: ResourceId) -> &CachedResource {
        &self.resources[resource.index()]
    }

    /// The resource as it fits the database now.
    ///
    /// # Errors
    /// [`LookupError::NotReady`] where it does not, or not yet.
    pub fn resource(&self, resource: ResourceId) -> Result<Arc<Resource>, LookupError> {
        let current = self.cached(resource).current.load_full();
        current.ok_or_else(|| self.not_ready(resource))
    }

    /// The resource as it fits the database now; empty where it does not, or not yet. Not to be kept for long.
    #[inline]
    pub fn current(&self, resource: ResourceId) -> CurrentResource {
        self.cached(resource).current.load()
    }

    fn not_ready(&self, resource: ResourceId) -> LookupError {
        LookupError::NotReady(lock(&self.cached(resource).reason).clone())
    }

    /// The position that everything on disk reflects; of use to the feed, which keeps the log for it.
    pub fn persisted(&self) -> Option<watch::Receiver<Persisted>> {
        self.disk.as_ref().map(DiskTier::persisted)
    }

    /// Whether tiers may answer for the resource at the moment `now`.
    fn is_fresh(&self, cached: &CachedResource, now: Boottime) -> bool {
        cached.is_kept() && self.freshness.is_fresh(now)
    }

    /// Ends the loader and writes what waits for the disk.
    pub async fn stop(&self) {
        self.auditor.stop();
        self.loader.stop().await;
        if let Some(disk) = &self.disk {
            disk.stop().await;
        }
    }
}

impl CachedResource {
    fn new((name, tiers): (String, Tiers)) -> Self {
        Self {
            name,
            tiers,
            current: ArcSwapOption::empty(),
            trusted: AtomicBool::new(false),
            uncached: AtomicBool::new(false),
            unfit: AtomicBool::new(false),
            reason: Mutex::new("the database has not been reached yet".into()),
            prefix: AtomicU64::new(0),
            fingerprint: Mutex::default(),
            hits_memory: AtomicU64::new(0),
            hits_disk: AtomicU64::new(0),
            passed_memory: AtomicU64::new(0),
        }
    }

    /// Whether tiers keep its documents, and answer with them while the feed is followed.
    fn is_kept(&self) -> bool {
        self.trusted.load(Ordering::SeqCst) && !self.is_uncached()
    }

    fn is_uncached(&self) -> bool {
        self.uncached.load(Ordering::SeqCst)
    }

    /// LookupBatch so far.
    fn lookups(&self) -> u64 {
        let hits = self.hits_memory.load(Ordering::Relaxed);
        hits + self.passed_memory.load(Ordering::Relaxed)
    }
}
