//! Lookups: memory, then disk, then a load from PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::cache::audit::Audit;
use crate::cache::document::{Document, Found};
use crate::cache::fill::LoadReason;
use crate::cache::memory::HintName;
#[cfg(test)]
use crate::cache::tests::gate::{Point, reach};
use crate::cache::{Answer, Cache, CachedResource, Demand, LookupError, Provenance};
use crate::clock::Boottime;
use crate::resource::ResourceId;
use crate::source::SourceError;
use crate::source::token::Token;

/// A key that an alias led to.
pub struct Hint(Document);

impl Hint {
    /// The canonical text of the key.
    pub fn key(&self) -> &str {
        std::str::from_utf8(self.0.body()).unwrap_or_default()
    }
}

impl Cache {
    /// The document of `key`, a canonical text, if memory has it, is fresh at the moment `now`, and `admits` it. An absence
    /// has no kept values.
    #[inline]
    pub fn try_memory(
        self: &Arc<Self>,
        resource: ResourceId,
        key: &str,
        now: Boottime,
        admits: impl Fn(&Document) -> bool,
    ) -> Option<Answer> {
        if self.is_fresh(self.cached(resource), now) {
            self.fresh_from_memory(resource, key, admits)
        } else {
            None
        }
    }

    /// The document of `key`, if memory has it. The caller has checked that the tiers are fresh.
    #[inline]
    fn fresh_from_memory(
        self: &Arc<Self>,
        resource: ResourceId,
        key: &str,
        admits: impl Fn(&Document) -> bool,
    ) -> Option<Answer> {
        if !self.cached(resource).tiers.memory {
            return None;
        }
        let prepared = self.sample_for_audit(resource, key);
        let found = self.lookup_memory(resource, key, admits)?;
        let answer = Answer {
            found,
            provenance: Provenance::Memory,
        };
        if let Some(prepared) = prepared {
            self.audit(prepared, &answer);
        }
        Some(answer)
    }

    /// The key of the document that an alias led to when it was last looked for. It may lead elsewhere since: only the
    /// document proves it.
    pub fn hint(&self, resource: ResourceId, name: HintName<'_>) -> Option<Hint> {
        let epoch = self.versions.epoch(resource);
        self.memory.hint(resource, name, epoch).map(Hint)
    }

    /// The document that the hint `name` leads to, if memory has it, is fresh at the moment `now`, and `admits` it, which proves
    /// that the alias leads to it.
    #[inline]
    pub fn try_hinted(
        self: &Arc<Self>,
        resource: ResourceId,
        name: HintName<'_>,
        now: Boottime,
        admits: impl Fn(&Document) -> bool,
    ) -> Option<Answer> {
        let cached = self.cached(resource);
        if !cached.tiers.memory || !self.is_fresh(cached, now) {
            return None;
        }
        if self.auditor.samples(cached.lookups()) {
            let hint = self.hint(resource, name)?;
            return self.fresh_from_memory(resource, hint.key(), admits);
        }
        let epoch = self.versions.epoch(resource);
        let found = self.memory.get_hinted(resource, name, epoch, admits)?;
        cached.hits_memory.fetch_add(1, Ordering::Relaxed);
        Some(Answer {
            found,
            provenance: Provenance::Memory,
        })
    }

    /// Keeps a hint that leads to the document of `key`, if the resource uses memory.
    pub fn keep_hint(&self, resource: ResourceId, name: HintName<'_>, key: &str) {
        if self.cached(resource).tiers.memory {
            self.memory.keep_hint(resource, name, key, &self.versions);
        }
    }

    /// Chooses some lookups for the audit. Returns `Some` for these, with what the audit needs; `Some(None)` if it
    /// can't be made now.
    fn sample_for_audit(&self, resource: ResourceId, key: &str) -> Option<Option<Audit>> {
        let number = self.cached(resource).lookups();
        self.auditor
            .samples(number)
            .then(|| self.prepare_audit(resource, key))
    }

    fn lookup_memory(
        &self,
        resource: ResourceId,
        key: &str,
        admits: impl Fn(&Document) -> bool,
    ) -> Option<Found> {
        let cached = self.cached(resource);
        #[cfg(test)]
        reach(Point::Memory);
        let found = self
            .memory
            .get(resource, key, self.versions.epoch(resource), admits)?;
        cached.hits_memory.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    /// Reads the document of `key`, a canonical text, from the fastest tier that has it.
    ///
    /// Waits at most `request_timeout`, and less than a second while PostgreSQL can't be reached. Cancel safe: a load
    /// goes on without the request. `until`: see [`Load::until`](crate::source::loader::Load::until).
    ///
    /// # Errors
    /// See [`LookupError`]; never for a missing document.
    pub async fn lookup(
        self: &Arc<Self>,
        resource: ResourceId,
        key: &str,
        until: Option<Boottime>,
    ) -> Result<Answer, LookupError> {
        let now = Boottime::now();
        // Checked once, so that all steps of the lookup agree.
        let is_fresh = self.is_fresh(self.cached(resource), now);
        if is_fresh && let Some(answer) = self.fresh_from_memory(resource, key, |_| true) {
            return Ok(answer);
        }
        self.lookup_below(resource, key, now, is_fresh, Demand::none(), until)
            .await
    }

    /// As [`Cache::lookup`], after [`Cache::try_memory`] returned `None` at the moment `now`. Asks memory again only
    /// for a stale document.
    ///
    /// # Errors
    /// See [`LookupError`]; never for a missing document.
    pub async fn lookup_missed(
        self: &Arc<Self>,
        resource: ResourceId,
        key: &str,
        now: Boottime,
        until: Option<Boottime>,
    ) -> Result<Answer, LookupError> {
        let is_fresh = self.is_fresh(self.cached(resource), now);
        self.lookup_below(resource, key, now, is_fresh, Demand::none(), until)
            .await
    }

    /// The rest of a lookup, after memory had no fresh document: a stale document from memory if that is allowed, what is
    /// remembered of an unreadable document, the disk tier, PostgreSQL. The tiers have what `demand` asks for.
    async fn lookup_below(
        self: &Arc<Self>,
        resource: ResourceId,
        key: &str,
        now: Boottime,
        is_fresh: bool,
        demand: &Demand,
        until: Option<Boottime>,
    ) -> Result<Answer, LookupError> {
        let cached = self.cached(resource);
        let stale = self.stale(cached, now, is_fresh, demand);
        if let Some(provenance) = stale
            && cached.tiers.memory
            && let Some(found) = self.lookup_memory(resource, key, |_| true)
        {
            return Ok(Answer { found, provenance });
        }
        let prepared = if is_fresh {
            self.sample_for_audit(resource, key)
        } else {
            None
        };
        cached.misses_memory.fetch_add(1, Ordering::Relaxed);
        if is_fresh
            && cached.has_tier()
            && let Some(error) = self.unreadable.get(resource, key, &self.versions)
            // Requested alone, it has more time.
            && (until.is_some() || !matches!(error, SourceError::SlowDocument))
        {
            return Err(error.into());
        }
        if (is_fresh || stale.is_some())
            && let Some(found) = self.lookup_disk(resource, key).await
        {
            let provenance = stale.unwrap_or(Provenance::Disk);
            let answer = Answer { found, provenance };
            if let Some(prepared) = prepared {
                self.audit(prepared, &answer);
            }
            return Ok(answer);
        }
        let reason = if is_fresh {
            LoadReason::Miss
        } else {
            cached.bypass_reason()
        };
        self.load_for(resource, key, reason, demand, until).await
    }

    /// Loads the document of `key`, unless the request wants no statement.
    async fn load_for(
        self: &Arc<Self>,
        resource: ResourceId,
        key: &str,
        reason: LoadReason,
        demand: &Demand,
        until: Option<Boottime>,
    ) -> Result<Answer, LookupError> {
        if demand.only_if_cached {
            return Err(LookupError::NotCached);
        }
        if matches!(reason, LoadReason::Bypass | LoadReason::Uncached) {
            let bypassed = &self.cached(resource).bypassed;
            bypassed.fetch_add(1, Ordering::Relaxed);
        }
        self.load(resource, Arc::from(key), reason, demand, until)
            .await
    }

    /// As [`Cache::lookup`], for a document that has what `demand` asks for.
    ///
    /// Waits at most 100 ms for the feed to catch up with that, and then loads from PostgreSQL.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub async fn lookup_after(
        self: &Arc<Self>,
        resource: ResourceId,
        key: &str,
        demand: &Demand,
        until: Option<Boottime>,
    ) -> Result<Answer, LookupError> {
        let Err(reason) = self.settle(resource, demand).await else {
            let now = Boottime::now();
            let is_fresh = self.is_fresh(self.cached(resource), now);
            if is_fresh && let Some(answer) = self.fresh_from_memory(resource, key, |_| true) {
                return Ok(answer);
            }
            let below = self.lookup_below(resource, key, now, is_fresh, demand, until);
            return below.await;
        };
        let cached = self.cached(resource);
        cached.misses_memory.fetch_add(1, Ordering::Relaxed);
        self.load_for(resource, key, reason, demand, until).await
    }

    /// Waits until the feed has applied the committed transaction of `token`, at most `max_staleness` and
    /// `request_timeout`.
    ///
    /// After `max_staleness` no tier answers with older documents either, because the last pass that does not cover the
    /// transaction began before it committed. The exception is `on_loss = "serve-stale"`, which marks them as stale. If
    /// `request_timeout` is shorter, a read may need the token to see the write.
    pub async fn catch_up(&self, token: &Token) {
        let limit = self.freshness.max_staleness().min(self.request_timeout);
        self.freshness.catch_up(token, limit).await;
    }

    /// The time that a request may wait for a document.
    pub fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// The document of `key` from a tier that may answer now, without asking PostgreSQL, if the tiers have what `demand`
    /// asks for. Waits for that at most 100 ms.
    pub async fn lookup_tiers(
        self: &Arc<Self>,
        resource: ResourceId,
        key: &str,
        demand: &Demand,
    ) -> Option<Answer> {
        self.settle(resource, demand).await.ok()?;
        let cached = self.cached(resource);
        let now = Boottime::now();
        let is_fresh = self.is_fresh(cached, now);
        let stale = self.stale(cached, now, is_fresh, demand);
        if !is_fresh && stale.is_none() {
            return None;
        }
        let in_memory = || self.lookup_memory(resource, key, |_| true);
        let (found, tier) = match cached.tiers.memory.then(in_memory).flatten() {
            Some(found) => (found, Provenance::Memory),
            None => (self.lookup_disk(resource, key).await?, Provenance::Disk),
        };
        let provenance = stale.unwrap_or(tier);
        Some(Answer { found, provenance })
    }

    /// The provenance of what a tier answers at the moment `now`, if it `is_fresh` no more and may answer. A strict read
    /// gets nothing stale.
    fn stale(
        &self,
        cached: &CachedResource,
        now: Boottime,
        is_fresh: bool,
        demand: &Demand,
    ) -> Option<Provenance> {
        let serves_stale = !is_fresh && demand.strict.is_none() && self.serves_stale(cached);
        serves_stale.then(|| Provenance::Stale {
            age: now.since(self.freshness.fresh_at()),
        })
    }

    /// Whether the tiers answer for the resource also while they are not fresh.
    fn serves_stale(&self, cached: &CachedResource) -> bool {
        self.freshness.serves_stale() && cached.current.load().is_some() && !cached.is_uncached()
    }

    /// The document of `key`, if the disk tier has it and its stripe is clean. Promotes it to memory.
    async fn lookup_disk(&self, resource: ResourceId, key: &str) -> Option<Found> {
        let cached = self.cached(resource);
        let disk = self
            .disk
            .as_ref()
            .filter(|disk| cached.tiers.disk && disk.is_in_use())?;
        #[cfg(test)]
        reach(Point::Clean);
        let stripe = self.versions.stripe(resource, key);
        let version = self.versions.clean_version(resource, stripe)?;
        let key: Arc<str> = Arc::from(key);
        let entry = disk
            .get(cached.prefix.load(Ordering::SeqCst), &key, version.epoch)
            .await?;
        let found = entry.found;
        if cached.tiers.memory {
            self.memory
                .install_if_current(resource, &key, found.clone(), &self.versions, version);
        }
        if entry.is_aging && cached.is_kept() {
            // If the queue is full, it is written again at a later read, or is lost with its segment.
            self.queue_put(disk, resource, version, &key, &found);
        }
        cached.hits_disk.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }
}
