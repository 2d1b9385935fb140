//! The state of the cache, as the admin address shows it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus::IntCounter;
use serde::Serialize;

use crate::cache::recent::RecentEvents;
use crate::cache::{Cache, CachedResource, lock};
use crate::clock::Boottime;
use crate::feed::backlog::Backlog;
use crate::resource::ResourceId;
use crate::source::connections::PoolStatus;
use crate::source::loader::Access;

/// `GET /status`.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// By resource, in the order of the configuration.
    pub resources: Vec<ResourceStatus>,
    /// The memory tier.
    pub memory: TierStatus,
    /// The disk tier; `None` if no resource uses it.
    pub disk: Option<TierStatus>,
    /// The feed.
    pub feed: FeedStatus,
    /// Keys that wait for PostgreSQL.
    pub source_waiting_keys: usize,
    /// The connections to PostgreSQL over which documents are read and written.
    pub source: SourceStatus,
    /// The resource whose definition has changed last; `None` if none has since the start.
    pub definition_changed: Option<DefinitionChange>,
    /// Hits that the audit has proved stale since the start.
    pub audit_stale: u64,
}

/// A change of a resource's definition while larder runs.
#[derive(Clone, Debug, Serialize)]
pub struct DefinitionChange {
    /// The resource.
    pub resource: String,
    /// How long ago.
    pub seconds_ago: f64,
}

/// What a sample of `/history` needs of the cache. To read it costs little.
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheSample {
    /// Lookups since the start.
    pub lookups: u64,
    /// Those that a tier has answered.
    pub hits: u64,
    /// Invalidations since the start.
    pub invalidations: u64,
    /// Bytes in memory.
    pub memory_bytes: u64,
    /// Keys that wait for PostgreSQL.
    pub waiting_keys: usize,
}

/// Whether documents can be read from PostgreSQL and written to it.
#[derive(Clone, Debug, Serialize)]
pub struct SourceStatus {
    /// Why documents can't be read; `None` if they can.
    pub reads_lost: Option<String>,
    /// Why documents can't be written; `None` if they can, or if no resource is writable.
    pub writes_lost: Option<String>,
    /// The connections, by what they are for.
    pub connections: Vec<PoolStatus>,
}

/// One resource's part of the status.
#[derive(Clone, Debug, Serialize)]
pub struct ResourceStatus {
    /// Its name.
    pub name: String,
    /// It fits the database, larder's role may read it, and the feed follows its changes.
    pub ready: bool,
    /// Why it does not fit the database, or which privilege larder's role lacks. It is not served then.
    pub unfit: Option<String>,
    /// Why no tier keeps its documents, which are read from PostgreSQL each time.
    pub uncached: Option<String>,
    /// Lookups since the start of larder.
    pub lookups: u64,
    /// Lookups that memory answered.
    pub hits_memory: u64,
    /// Lookups that the disk tier answered.
    pub hits_disk: u64,
    /// Entries in memory.
    pub memory_entries: u64,
    /// The columns of its key; `None` if it does not fit the database.
    pub key: Option<Vec<String>>,
    /// Lookups that PostgreSQL answered, because the tiers were not fresh or do not keep the resource.
    pub bypassed: u64,
    /// Responses with status 429, since the start of larder.
    pub too_many_requests: u64,
    /// Responses with a status from 500.
    pub server_errors: u64,
}

/// One tier's part of the status.
#[derive(Clone, Debug, Serialize)]
pub struct TierStatus {
    /// Whether it answers lookups.
    pub in_use: bool,
    /// Entries that it holds.
    pub entries: u64,
    /// Bytes that it holds.
    pub bytes: u64,
    /// The most bytes that it may hold.
    pub bytes_max: u64,
    /// Lookups that it has answered since the start of larder.
    pub hits: u64,
}

/// The feed's part of the status.
#[derive(Clone, Debug, Serialize)]
pub struct FeedStatus {
    /// The transactions in this snapshot have been applied.
    pub position: Option<String>,
    /// The time since the start of the last completed pass.
    pub age_seconds: Option<f64>,
    /// Whether the last pass that compared the fingerprints is recent enough for tiers to answer.
    pub fresh: bool,
    /// Why the database can't be followed; `None` since a pass succeeded.
    pub lost: Option<String>,
    /// The length of the change log when it was last measured, some seconds ago.
    pub log: Option<Backlog>,
}

impl Cache {
    /// The status of resources, tiers and feed. Reads the file system: not for async workers.
    pub fn status(&self) -> Status {
        let failures = self.metrics.failures.by_resource();
        let resources: Vec<ResourceStatus> = self
            .enumerate()
            .map(|(resource, cached)| {
                let failures = failures.get(&cached.name).copied().unwrap_or_default();
                ResourceStatus {
                    name: cached.name.clone(),
                    ready: self.is_ready(resource, cached),
                    unfit: self.why_unfit(resource, cached),
                    uncached: cached.why_uncached(),
                    lookups: cached.lookups(),
                    hits_memory: cached.hits_memory.load(Ordering::Relaxed),
                    hits_disk: cached.hits_disk.load(Ordering::Relaxed),
                    memory_entries: self.memory.entries_of(resource),
                    key: cached.key_columns(),
                    bypassed: cached.bypassed.load(Ordering::Relaxed),
                    too_many_requests: failures.too_many_requests,
                    server_errors: failures.server_errors,
                }
            })
            .collect();
        let memory = TierStatus {
            in_use: self.resources.iter().any(|cached| cached.tiers.memory),
            entries: resources
                .iter()
                .map(|resource| resource.memory_entries)
                .sum(),
            bytes: self.memory.bytes(),
            bytes_max: self.memory.bytes_max(),
            hits: resources.iter().map(|resource| resource.hits_memory).sum(),
        };
        let disk = self.disk.as_ref().map(|disk| {
            let (bytes, entries) = disk.size();
            let hits = resources.iter().map(|resource| resource.hits_disk).sum();
            TierStatus {
                in_use: disk.is_in_use(),
                entries,
                bytes,
                bytes_max: disk.bytes_max(),
                hits,
            }
        });
        Status {
            resources,
            memory,
            disk,
            feed: self.feed_status(),
            source_waiting_keys: self.loader.waiting_keys(),
            source: self.source_status(),
            definition_changed: self.definition_changed(),
            audit_stale: self.metrics.audit_stale.get(),
        }
    }

    fn definition_changed(&self) -> Option<DefinitionChange> {
        let changed_at =
            |cached: &CachedResource| Boottime(cached.changed_at.load(Ordering::Relaxed));
        let last = self
            .resources
            .iter()
            .max_by_key(|cached| changed_at(cached))?;
        let at = changed_at(last);
        (at != Boottime::NEVER).then(|| DefinitionChange {
            resource: last.name.clone(),
            seconds_ago: Boottime::now().since(at).as_secs_f64(),
        })
    }

    /// What a sample of `/history` needs.
    pub fn sample(&self) -> CacheSample {
        self.recent.forget_old_loads();
        let mut sample = CacheSample {
            invalidations: self.recent.invalidations(),
            memory_bytes: self.memory.bytes(),
            waiting_keys: self.loader.waiting_keys(),
            ..CacheSample::default()
        };
        for cached in &self.resources {
            sample.lookups += cached.lookups();
            sample.hits += cached.hits_memory.load(Ordering::Relaxed);
            sample.hits += cached.hits_disk.load(Ordering::Relaxed);
        }
        sample
    }

    /// The last invalidations and the slowest loads.
    pub fn recent(&self) -> RecentEvents {
        self.recent
            .events(|resource| self.cached(resource).name.clone())
    }

    fn source_status(&self) -> SourceStatus {
        let connections = self.loader.connections();
        SourceStatus {
            reads_lost: connections.reads_unavailable(),
            writes_lost: connections.writes_unavailable(),
            connections: connections.pools(),
        }
    }

    fn feed_status(&self) -> FeedStatus {
        let feed = self.freshness.feed();
        let since = |pass_began_at| Boottime::now().since(pass_began_at).as_secs_f64();
        FeedStatus {
            position: feed.position.as_ref().map(ToString::to_string),
            lost: feed.lost.clone(),
            log: feed.backlog.clone(),
            age_seconds: feed.pass_began_at.map(since),
            fresh: self.freshness.is_fresh(Boottime::now()),
        }
    }

    /// How long ago `fresh_at` is; `None` before the first pass, and if it is ahead of the clock.
    fn feed_age(&self) -> Option<Duration> {
        let fresh_at = self.freshness.fresh_at();
        let now = Boottime::now();
        (fresh_at != Boottime::NEVER && fresh_at <= now).then(|| now.since(fresh_at))
    }

    /// The number of resources that do not fit the database, or that larder's role may not read.
    pub fn unfit(&self) -> usize {
        let resources = self.enumerate();
        let unfit = resources.filter(|(resource, cached)| self.is_unfit(*resource, cached));
        unfit.count()
    }

    /// Whether the resource fits the database, its changes are followed, and its documents may be read.
    fn is_ready(&self, resource: ResourceId, cached: &CachedResource) -> bool {
        cached.is_trusted() && self.loader.access(resource) == Access::Granted
    }

    fn is_unfit(&self, resource: ResourceId, cached: &CachedResource) -> bool {
        self.why_unfit(resource, cached).is_some()
    }

    /// Why the resource does not fit the database, or may not be read.
    fn why_unfit(&self, resource: ResourceId, cached: &CachedResource) -> Option<String> {
        cached
            .why_unfit()
            .or_else(|| match self.loader.access(resource) {
                Access::Refused(reason) => Some(reason),
                Access::Granted | Access::Unknown => None,
            })
    }

    /// Why the resource is not ready, after its name: it does not fit the database, may not be read, or is being checked.
    fn why_unready(&self, resource: ResourceId, cached: &CachedResource) -> Option<String> {
        let reason = cached
            .why_unready()
            .or_else(|| match self.loader.access(resource) {
                Access::Granted => None,
                Access::Refused(reason) => Some(reason),
                Access::Unknown => {
                    Some("whether larder's role may read it is being checked".to_owned())
                }
            });
        Some(format!("resource {}: {}", cached.name, reason?))
    }

    /// The resources that do not fit the database, are being checked or are not cached, each with the reason.
    pub fn unready_resources(&self) -> Vec<String> {
        let resources = self.enumerate();
        let reasons = resources.filter_map(|(resource, cached)| {
            let uncached = || {
                Some(format!(
                    "resource {}: {}",
                    cached.name,
                    cached.why_uncached()?
                ))
            };
            self.why_unready(resource, cached).or_else(uncached)
        });
        reasons.collect()
    }

    /// From now on larder is not ready, so that load balancers send it no more requests.
    pub fn announce_stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
    }

    /// Why larder is not ready: it is stopping, the feed is behind or has not checked the resources since the start, none of
    /// them is served, or documents can't be read or written. `None` if it is ready.
    pub fn unready_reason(&self) -> Option<String> {
        if self.is_stopping.load(Ordering::SeqCst) {
            return Some("larder is stopping".to_owned());
        }
        let age = self.feed_age();
        let behind = !self.freshness.is_fresh(Boottime::now());
        if let Some(reason) = self.freshness.feed().lost.as_ref().filter(|_| behind) {
            return Some(format!("the database can't be followed: {reason}"));
        }
        // A resource that is checked again leaves the others served. At the start, all are checked before the first pass.
        let pass_began_at = self.freshness.feed().pass_began_at;
        let is_any_served = self.enumerate().any(|(resource, cached)| {
            cached.is_served(pass_began_at) && !self.is_unfit(resource, cached)
        });
        if let Some(reason) = self.untrusted_reason().filter(|_| !is_any_served) {
            return Some(reason);
        }
        match age {
            None => Some("the feed has not completed a pass yet".into()),
            Some(age) if behind => Some(format!("the feed is {:.1} s behind", age.as_secs_f64())),
            Some(_) => {
                let lost = self.source_status().unready_reason();
                lost.or_else(|| self.unchecked_reason())
            }
        }
    }

    /// Why the first resource is not trusted that is not; those that do not fit, or may not be read, count if all others
    /// are such, too.
    fn untrusted_reason(&self) -> Option<String> {
        let is_any_fit = self.unfit() < self.resources.len();
        let mut resources = self.enumerate();
        resources.find_map(|(resource, cached)| {
            let is_left_out = is_any_fit && self.is_unfit(resource, cached);
            let reason = self.why_unready(resource, cached);
            reason.filter(|_| !is_left_out)
        })
    }

    /// That it is not known yet whether larder's role may read a resource.
    fn unchecked_reason(&self) -> Option<String> {
        let mut resources = self.enumerate();
        let unchecked = resources.find(|(id, _)| self.loader.access(*id) == Access::Unknown);
        unchecked.and_then(|(resource, cached)| self.why_unready(resource, cached))
    }

    /// Whether the disk tier answers lookups; true also if there is no disk tier.
    pub fn disk_in_use(&self) -> bool {
        self.disk.as_ref().is_none_or(|disk| disk.is_in_use())
    }

    /// Sets the gauges, and raises the counters of what the tiers count, for a scrape of the metrics.
    pub fn observe(&self) {
        let status = self.status();
        self.set_gauges(&status);
        let _observing = lock(&self.metrics.observing);
        raise_to(&self.metrics.evictions, self.memory.evictions());
        for resource in &status.resources {
            let hits = resource.hits_memory + resource.hits_disk;
            for (outcome, count) in [
                ("memory", resource.hits_memory),
                ("disk", resource.hits_disk),
                ("miss", resource.lookups.saturating_sub(hits)),
            ] {
                let labels = [&*resource.name, outcome];
                raise_to(&self.metrics.lookups.with_label_values(&labels), count);
            }
        }
    }

    fn set_gauges(&self, status: &Status) {
        let gauges = &self.metrics.gauges;
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let memory = ("memory", &status.memory);
        let disk = status.disk.iter().map(|disk| ("disk", disk));
        for (name, tier) in std::iter::once(memory).chain(disk) {
            let bytes = gauges.tier_bytes.with_label_values(&[name]);
            bytes.set(number(tier.bytes));
            let bytes_max = gauges.tier_max_bytes.with_label_values(&[name]);
            bytes_max.set(number(tier.bytes_max));
            let entries = gauges.tier_entries.with_label_values(&[name]);
            entries.set(number(tier.entries));
        }
        for pool in &status.source.connections {
            for (state, count) in [("used", pool.used), ("idle", pool.idle)] {
                let gauge = &gauges.source_connections;
                let gauge = gauge.with_label_values(&[pool.pool, state]);
                gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
        for resource in &status.resources {
            let ready = gauges.resource_ready.with_label_values(&[&resource.name]);
            ready.set(i64::from(resource.ready));
        }
        gauges.ready.set(i64::from(self.unready_reason().is_none()));
        let waiting = u64::try_from(status.source_waiting_keys).unwrap_or(u64::MAX);
        gauges.source_waiting_keys.set(number(waiting));
        gauges.feed_age.set(status.feed.age_seconds.unwrap_or(-1.0));
        if let Some(log) = &status.feed.log {
            gauges.change_log_bytes.set(log.bytes);
            gauges.change_log_rows.set(log.rows_estimated.unwrap_or(-1));
            let oldest = log.oldest_transaction.as_ref();
            let age = oldest.map_or(0.0, |transaction| transaction.age_seconds);
            gauges.change_log_blocker_age.set(age);
        }
    }
}

/// Raises a counter to what was counted elsewhere.
fn raise_to(counter: &IntCounter, count: u64) {
    counter.inc_by(count.saturating_sub(counter.get()));
}

impl SourceStatus {
    fn unready_reason(self) -> Option<String> {
        let reads = self
            .reads_lost
            .map(|reason| format!("documents can't be read from PostgreSQL: {reason}"));
        let writes = || {
            let reason = self.writes_lost?;
            Some(format!(
                "documents can't be written to PostgreSQL: {reason}"
            ))
        };
        reads.or_else(writes)
    }
}

impl CachedResource {
    fn is_unfit(&self) -> bool {
        self.unfit.load(Ordering::SeqCst)
    }

    /// Whether it is trusted, or is being checked again, which takes a moment: until then PostgreSQL answers. A pass
    /// begins only after that check. If the resource is still not trusted then, its tables may have been dropped.
    fn is_served(&self, pass_began_at: Option<Boottime>) -> bool {
        let distrusted_at = Boottime(self.distrusted_at.load(Ordering::Relaxed));
        let is_being_checked = pass_began_at.is_some_and(|began_at| began_at <= distrusted_at);
        self.is_trusted() || (is_being_checked && self.current.load().is_some())
    }

    /// Why it does not fit the database.
    fn why_unfit(&self) -> Option<String> {
        self.is_unfit().then(|| lock(&self.reason).clone())
    }

    /// Why it is not ready: it does not fit the database, or is being checked.
    fn why_unready(&self) -> Option<String> {
        let reason = if self.current.load().is_none() {
            lock(&self.reason).clone()
        } else if self.is_trusted() {
            return None;
        } else {
            "its tables and triggers are being checked".to_owned()
        };
        Some(reason)
    }

    /// The columns of its key, by the current definition.
    fn key_columns(&self) -> Option<Vec<String>> {
        let current = self.current.load();
        let columns = current.as_ref()?.key.columns.iter();
        Some(columns.map(|column| column.name.clone()).collect())
    }

    /// Why no tier keeps its documents, by the current definition.
    pub(super) fn why_uncached(&self) -> Option<String> {
        let current = self.current.load();
        current.as_ref()?.uncached.clone()
    }
}
