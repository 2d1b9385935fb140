//! From the tiers, in their order: what a request reads, or why PostgreSQL has to be asked.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::cache::audit::Audit;
use crate::cache::document::Found;
use crate::cache::fill::Why;
#[cfg(test)]
use crate::cache::tests::gate::{Point, reach};
use crate::cache::{Answer, Cache, CachedResource, LookupError, Provenance};
use crate::clock::Boottime;
use crate::resource::ResourceId;
use crate::source::token::Token;

/// How long a request waits for its token: two polls, by default.
const TOKEN_WAIT: Duration = Duration::from_millis(100);

impl Cache {
    /// The document of `key`, a canonical text, if memory has it and may answer at the moment `now`.
    #[inline]
    pub fn try_memory(
        self: &Arc<Self>,
        resource: ResourceId,
        key: &str,
        now: Boottime,
    ) -> Option<Answer> {
        if self.is_fresh(self.cached(resource), now) {
            self.fresh_from_memory(resource, key)
        } else {
            None
        }
    }

    /// What memory has, which is known to be fresh.
    #[inline]
    fn fresh_from_memory(self: &Arc<Self>, resource: ResourceId, key: &str) -> Option<Answer> {
        if !self.cached(resource).tiers.memory {
            return None;
        }
        let noted = self.sample(resource, key);
        let found = self.lookup_memory(resource, key)?;
        let answer = Answer {
            found,
            provenance: Provenance::Memory,
        };
        if let Some(noted) = noted {
            self.audit(noted, &answer);
        }
        Some(answer)
    }

    /// For a lookup that is to be audited: what its audit has to know, if one can be made now.
    fn sample(&self, resource: ResourceId, key: &str) -> Option<Option<Audit>> {
        let number = self.cached(resource).lookups();
        self.auditor
            .samples(number)
            .then(|| self.note(resource, key))
    }

    fn lookup_memory(&self, resource: ResourceId, key: &str) -> Option<Found> {
        let cached = self.cached(resource);
        #[cfg(test)]
        reach(Point::Memory);
        let found = self
            .memory
            .get(resource, key, self.versions.epoch(resource))?;
        cached.hits_memory.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    /// Reads the document of `key`, a canonical text, out of the fastest tier that has it.
    ///
    /// Waits at most `request_timeout`, and less than a second while PostgreSQL is out of reach. Cancel safe: the load
    /// goes on without the request.
    ///
    /// # Errors
    /// See [`LookupError`]; never for a missing document.
    pub async fn lookup(
        self: &Arc<Self>,
        resource: ResourceId,
        key: &str,
    ) -> Result<Answer, LookupError> {
        let now = Boottime::now();
        // Freshness is decided once.
        let fresh = self.is_fresh(self.cached(resource), now);
        if fresh && let Some(answer) = self.fresh_from_memory(resource, key) {
            return Ok(answer);
        }
        self.lookup_below(resource, key, now, fresh).await
    }

    /// As [`Cache::lookup`] after [`Cache::try_memory`] had no answer at the moment `now`: memory is asked again only for
    /// a stale one.
    ///
    /// # Errors
    /// See [`LookupError`]; never for a missing document.
    pub async fn lookup_missed(
        self: &Arc<Self>,
        resource: ResourceId,
        key: &str,
        now: Boottime,
    ) -> Result<Answer, LookupError> {
        let fresh = self.is_fresh(self.cached(resource), now);
        self.lookup_below(resource, key, now, fresh).await
    }

    /// A stale answer of memory, or else what disk and PostgreSQL have.
    async fn lookup_below(
        self: &Arc<Self>,
        resource: ResourceId,
        key: &str,
        now: Boottime,
        fresh: bool,
    ) -> Result<Answer, LookupError> {
        let cached = self.cached(resource);
        let mut stale = None;
        if !fresh && self.serves_stale(cached) && !cached.is_uncached() {
            let age = now.since(self.freshness.fresh_at());
            stale = Some(Provenance::Stale { age });
        }
        if let Some(provenance) = stale
            && cached.tiers.memory
            && let Some(found) = self.lookup_memory(resource, key)
        {
            return Ok(Answer { found, provenance });
        }
        let noted = if fresh {
            self.sample(resource, key)
        } else {
            None
        };
        cached.passed_memory.fetch_add(1, Ordering::Relaxed);
        if (fresh || stale.is_some())
            && let Some(found) = self.lookup_disk(resource, key).await
        {
            let provenance = stale.unwrap_or(Provenance::Disk);
            let answer = Answer { found, provenance };
            if let Some(noted) = noted {
                self.audit(noted, &answer);
            }
            return Ok(answer);
        }
        let why = match fresh {
            true => Why::Miss,
            false if cached.is_uncached() => Why::Uncached,
            false => Why::Bypass,
        };
        self.load(resource, Arc::from(key), why).await
    }

    /// As [`Cache::lookup`], of a document at least as new as the transactions of `tokens`, which have committed.
    ///
    /// Waits for the feed to catch up with them for at most a tenth of a second; then PostgreSQL answers.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub async fn lookup_after(
        self: &Arc<Self>,
        resource: ResourceId,
        key: &str,
        tokens: &[Token],
    ) -> Result<Answer, LookupError> {
        if self.freshness.covers_within(tokens, TOKEN_WAIT).await {
            return self.lookup(resource, key).await;
        }
        self.cached(resource)
            .passed_memory
            .fetch_add(1, Ordering::Relaxed);
        self.load(resource, Arc::from(key), Why::Ahead).await
    }

    /// Waits until what the transaction of `token` did, which has committed, has been applied here.
    ///
    /// At most `max_staleness`, and that is as good: the last pass that does not cover it began before it committed,
    /// so by then no tier answers with what it knew before. With `on_loss = "serve-stale"` one does, and says so. And
    /// at most `request_timeout`: where that is shorter, a read may need the token to see the write.
    pub async fn catch_up(&self, token: &Token) {
        let limit = self.freshness.max_staleness().min(self.request_timeout);
        self.freshness.catch_up(token, limit).await;
    }

    /// The longest wait of a request.
    pub fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    fn serves_stale(&self, cached: &CachedResource) -> bool {
        self.freshness.serves_stale() && cached.current.load().is_some()
    }

    /// The document of `key`, if disk has it and what it has is clean; kept in memory from now on.
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
        let found = disk
            .get(cached.prefix.load(Ordering::SeqCst), &key, version.epoch)
            .await?
            .found;
        if cached.tiers.memory {
            self.memory
                .install_if_current(resource, &key, found.clone(), &self.versions, version);
        }
        cached.hits_disk.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }
}
