//! Documents in front of PostgreSQL: lookup, fill and invalidation over both tiers.
//!
//! The rules that keep answers true:
//!
//! - *Raise before drop.* A pass raises a key's generation, then removes the key from memory, then queues its drop for
//!   the disk, then queues its mark. It moves position and `fresh_at` last.
//! - *Generation before read.* A load notes the key's generation before its statement is sent. The document is
//!   installed only if the generation is still the same while the key's slot in memory is locked. The disk writer
//!   checks again.
//! - *Clean before disk.* The disk tier answers for a key only when all drops of its stripe have been applied. Its
//!   answer is promoted to memory only if the generation is still the same.
//! - *Fresh or not at all.* Tiers answer only within `max_staleness` of the start of the last pass that compared the
//!   fingerprints, on the boot-time clock. After that PostgreSQL answers, unless `on_loss = "serve-stale"`.
//! - *Only rows decide.* If triggers are missing, or row security makes a document depend on more than its rows, no tier
//!   keeps it.
//!
//! This module knows neither HTTP nor SQL. Its main parts:
//!
//! - `lookup`, `lease`, `fill`: a request reads a document; on a miss one load serves all requests for the key.
//! - `demand`: what a request asks for beyond bounded staleness.
//! - `unreadable`: documents that PostgreSQL can't return.
//! - `invalidation`, `generation`, `freshness`: events of the feed make entries invalid and tiers fresh.
//! - `proof`: the definition by which PostgreSQL is read.
//! - `memory`, `document`, `encoding`, `eviction`, `ghosts`: the memory tier.
//! - `disk_tier`, `orders`, `writer`, `disk`, `resumption`: the disk tier, its queues and threads, and its use after a
//!   restart.
//! - `audit`: a check of hits. `status`, `explanation`, `recent`: what the admin address shows.

pub mod audit;
mod demand;
pub mod disk;
mod disk_tier;
pub mod document;
pub mod encoding;
mod eviction;
mod explanation;
mod fill;
mod freshness;
pub mod generation;
mod ghosts;
mod invalidation;
mod lease;
mod lookup;
pub mod memory;
mod orders;
mod proof;
mod recent;
mod resumption;
mod status;
#[cfg(test)]
mod tests;
mod unreadable;
mod writer;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwapOption, Guard};
use tokio::sync::watch;

use crate::cache::audit::{AuditConfig, Auditor};
pub use crate::cache::demand::{Demand, Strict};
use crate::cache::disk::DiskConfig;
use crate::cache::disk_tier::DiskTier;
pub(crate) use crate::cache::disk_tier::lookups::LOOKUP_TIMEOUT;
use crate::cache::document::Found;
pub use crate::cache::explanation::{EntryStatus, Explanation};
use crate::cache::freshness::Freshness;
use crate::cache::generation::Versions;
use crate::cache::lease::Leases;
use crate::cache::memory::{Memory, MemoryConfig};
use crate::cache::proof::DefinitionProof;
use crate::cache::recent::Recent;
pub use crate::cache::recent::{
    Extent, InvalidationCause, LastInvalidation, RecentEvents, RecentInvalidation, SlowLoad,
};
use crate::cache::resumption::{Resumption, offer_mark};
pub use crate::cache::status::{
    CacheSample, DefinitionChange, FeedStatus, ResourceStatus, SourceStatus, Status, TierStatus,
};
use crate::cache::unreadable::Unreadable;
use crate::clock::Boottime;
use crate::feed::OnLoss;
use crate::feed::position::Persisted;
use crate::feed::strict::StrictPasses;
use crate::metrics::Metrics;
use crate::resource::definition::Tiers;
use crate::resource::{Resource, ResourceId};
use crate::source::SourceError;
use crate::source::loader::{Access, Loader};

/// The settings of a cache.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// Names and tiers of the resources. A [`ResourceId`] is an index into this list.
    pub resources: Vec<(String, Tiers)>,
    /// The memory tier.
    pub memory: MemoryConfig,
    /// The disk tier. It is started if at least one resource uses it.
    pub disk: DiskConfig,
    /// How long ago the last pass that compared the fingerprints may have begun for the tiers to be fresh.
    pub max_staleness: Duration,
    /// What is answered while the tiers are not fresh.
    pub on_loss: OnLoss,
    /// How long a request waits for a document, at most.
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
    /// PostgreSQL, because no tier had it.
    Miss {
        /// Whether a tier has it now.
        stored: bool,
        /// Whether another request had started the load.
        collapsed: bool,
    },
    /// PostgreSQL, because the tiers were not fresh.
    Bypass {
        /// Whether another request had started the load.
        collapsed: bool,
    },
    /// PostgreSQL, because documents of the resource may change without a trace ([`Resource::uncached`]).
    Uncached {
        /// Whether another request had started the load.
        collapsed: bool,
    },
    /// PostgreSQL, because the tiers had not caught up with a token of the request.
    Token {
        /// Whether another request had started the load.
        collapsed: bool,
    },
    /// A tier that was not fresh.
    Stale {
        /// The time since the start of the last pass that compared the fingerprints.
        age: Duration,
    },
    /// Not told: the request sees no document, and must not learn whether there is one.
    Undisclosed,
}

/// The current definition of a resource, if it fits the database.
pub type CurrentResource = Guard<Option<Arc<Resource>>>;

/// The result of a lookup.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The document, or that there is none.
    pub found: Found,
    /// Where it came from.
    pub provenance: Provenance,
}

/// Why a lookup failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LookupError {
    /// The resource has not been matched to the database, or no longer fits it.
    #[error("the resource is not ready: {0}")]
    NotReady(String),
    /// No tier has it, and the request wants no statement.
    #[error("no tier has the document")]
    NotCached,
    /// PostgreSQL could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// It took longer than `request_timeout`.
    #[error("the request took longer than request_timeout")]
    Deadline,
}

impl LookupError {
    /// Whether PostgreSQL can't return this document, or it is too long. Other documents are not affected.
    pub(crate) fn is_of_one_document(&self) -> bool {
        matches!(self, Self::Source(error) if error.is_of_one_document())
    }
}

/// One resource's part of the cache.
struct CachedResource {
    name: String,
    tiers: Tiers,
    /// The current definition, if it fits the database.
    current: ArcSwapOption<Resource>,
    /// The definition has been checked, and no change of it has been found since.
    trusted: AtomicBool,
    /// A [`Boottime`]: when it was last trusted no more.
    distrusted_at: AtomicU64,
    /// No tier keeps its documents, because triggers are missing or row security depends on more than rows
    /// ([`Resource::uncached`]).
    uncached: AtomicBool,
    /// Larder's role may not read it, as the last request that asked for its definition found.
    refused: AtomicBool,
    /// It does not fit the database.
    unfit: AtomicBool,
    /// Why there is no current definition.
    reason: Mutex<String>,
    /// The prefix of its keys on disk.
    prefix: AtomicU64,
    fingerprint: Mutex<String>,
    proof: DefinitionProof,
    /// A [`Boottime`]: when a definition replaced another one.
    changed_at: AtomicU64,
    hits_memory: AtomicU64,
    hits_disk: AtomicU64,
    /// Lookups that PostgreSQL answered since the tiers were not fresh or do not keep it.
    bypassed: AtomicU64,
    /// Lookups that memory did not answer.
    misses_memory: AtomicU64,
}

/// Both tiers, and the protocol that keeps them true.
pub struct Cache {
    resources: Vec<CachedResource>,
    versions: Arc<Versions>,
    memory: Memory,
    disk: Option<DiskTier>,
    unreadable: Unreadable,
    leases: Arc<Leases>,
    loader: Loader,
    metrics: Arc<Metrics>,
    freshness: Freshness,
    request_timeout: Duration,
    auditor: Auditor,
    /// Held from raising generations until their drops are queued. A drop makes its stripe clean up to its generation,
    /// so drops must be queued in the order of their generations.
    invalidating: Mutex<()>,
    resumption: Resumption,
    /// larder is about to end: it is not ready any more, and serves all the same.
    is_stopping: AtomicBool,
    recent: Recent,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cache {
    /// Starts the tiers. The disk tier opens its files in the background.
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
        let start = || {
            let (config, versions) = (config.disk.clone(), Arc::clone(&versions));
            DiskTier::start(config, versions, Arc::clone(&metrics), move |mark| {
                opened.send_replace(Some(mark));
            })
        };
        let disk = uses_disk.then(start).transpose()?;
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
            unreadable: Unreadable::new(count),
            leases: Arc::default(),
            loader,
            metrics,
            freshness: Freshness::new(config.max_staleness, config.on_loss),
            request_timeout: config.request_timeout,
            auditor: Auditor::new(&config.audit),
            invalidating: Mutex::default(),
            resumption: Resumption::new(),
            is_stopping: AtomicBool::new(false),
            recent: Recent::new(count),
        }
    }

    /// The names of the resources, in the order of the configuration.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.resources.iter().map(|cached| cached.name.as_str())
    }

    /// The resource of this name.
    pub fn id_of(&self, name: &str) -> Option<ResourceId> {
        let mut resources = self.enumerate();
        resources.find_map(|(resource, cached)| (cached.name == name).then_some(resource))
    }

    /// All resources with their IDs, in order.
    fn enumerate(&self) -> impl Iterator<Item = (ResourceId, &CachedResource)> {
        ResourceId::in_order().zip(&self.resources)
    }

    fn cached(&self, resource: ResourceId) -> &CachedResource {
        &self.resources[resource.index()]
    }

    /// The current definition of the resource.
    ///
    /// # Errors
    /// [`LookupError::NotReady`] if it does not fit the database, has not been checked yet, or may not be read.
    pub fn resource(&self, resource: ResourceId) -> Result<Arc<Resource>, LookupError> {
        let cached = self.cached(resource);
        if let Access::Refused(reason) = self.loader.access(resource) {
            cached.refused.store(true, Ordering::Relaxed);
            return Err(LookupError::NotReady(reason));
        }
        if cached.refused.load(Ordering::Relaxed) {
            cached.refused.store(false, Ordering::Relaxed);
        }
        let current = cached.current.load_full();
        current.ok_or_else(|| self.not_ready(resource))
    }

    /// The current definition of the resource, if it fits the database. The guard must not be held for long.
    #[inline]
    pub fn current(&self, resource: ResourceId) -> CurrentResource {
        self.cached(resource).current.load()
    }

    fn not_ready(&self, resource: ResourceId) -> LookupError {
        LookupError::NotReady(lock(&self.cached(resource).reason).clone())
    }

    /// The passes that strict reads wait for, for the feed.
    pub fn strict_passes(&self) -> Arc<StrictPasses> {
        Arc::clone(&self.freshness.passes)
    }

    /// The position that everything on disk reflects, from which on the feed keeps the change log.
    pub fn persisted(&self) -> Option<watch::Receiver<Persisted>> {
        self.disk.as_ref().map(DiskTier::persisted)
    }

    /// Whether tiers may answer for the resource at the moment `now`.
    fn is_fresh(&self, cached: &CachedResource, now: Boottime) -> bool {
        cached.is_kept() && self.freshness.is_fresh(now)
    }

    /// Ends the loader and the disk tier, after the disk tier has written what is queued.
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
            refused: AtomicBool::new(false),
            distrusted_at: AtomicU64::new(Boottime::NEVER.0),
            uncached: AtomicBool::new(false),
            unfit: AtomicBool::new(false),
            reason: Mutex::new("the database has not been reached yet".into()),
            prefix: AtomicU64::new(0),
            fingerprint: Mutex::default(),
            proof: DefinitionProof::new(),
            changed_at: AtomicU64::new(Boottime::NEVER.0),
            hits_memory: AtomicU64::new(0),
            hits_disk: AtomicU64::new(0),
            bypassed: AtomicU64::new(0),
            misses_memory: AtomicU64::new(0),
        }
    }

    /// Whether tiers keep its documents.
    fn is_kept(&self) -> bool {
        self.is_trusted() && !self.is_uncached() && !self.refused.load(Ordering::Relaxed)
    }

    /// Whether it uses a tier.
    fn has_tier(&self) -> bool {
        self.tiers.memory || self.tiers.disk
    }

    fn is_trusted(&self) -> bool {
        self.trusted.load(Ordering::SeqCst)
    }

    fn is_uncached(&self) -> bool {
        self.uncached.load(Ordering::SeqCst)
    }

    /// The number of lookups so far.
    fn lookups(&self) -> u64 {
        let hits = self.hits_memory.load(Ordering::Relaxed);
        hits + self.misses_memory.load(Ordering::Relaxed)
    }
}
