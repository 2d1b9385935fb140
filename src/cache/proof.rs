//! Proves that the definition by which PostgreSQL is read is still that of the database.
//!
//! While the tiers are fresh, passes prove it: they compare the fingerprints of all resources. Otherwise a request that
//! reads past the tiers has the fingerprint of its resource compared over a connection that reads documents, unless that
//! was done lately enough for it. One comparison at a time serves all requests that wait. Where the fingerprint differs,
//! requests wait for the feed to find the new definition.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::cache::{Cache, Demand, LookupError};
use crate::clock::Boottime;
use crate::resource::{Resource, ResourceId};
use crate::source::SourceError;

/// How requests compare the definition of a resource with the database.
pub(super) struct DefinitionProof {
    /// Held while a request compares.
    comparing: tokio::sync::Mutex<()>,
    /// Changes with the definition.
    defined: watch::Sender<()>,
}

/// From when on a definition has to be that of the database.
#[derive(Clone, Copy)]
enum Since {
    /// As fresh tiers know it.
    Fresh(Boottime),
    /// As a strict read that arrived then needs it.
    Arrival(Boottime),
}

impl DefinitionProof {
    pub(super) fn new() -> Self {
        Self {
            comparing: tokio::sync::Mutex::default(),
            defined: watch::channel(()).0,
        }
    }

    /// The resource has another definition, or none any more.
    pub(super) fn note_defined(&self) {
        self.defined.send_replace(());
    }
}

impl Cache {
    /// The definition by which a read with this `demand` is parsed. It is compared with the database if PostgreSQL may be
    /// asked for it.
    ///
    /// # Errors
    /// [`LookupError::NotReady`] without a definition; [`SourceError::Altered`] if it is not that of the database, and the
    /// feed does not find the new one within `request_timeout`; the error of the comparison.
    pub async fn definition(
        &self,
        resource: ResourceId,
        demand: &Demand,
    ) -> Result<Arc<Resource>, LookupError> {
        if demand.strict.is_some() {
            // The pass may prove it.
            self.is_settled(resource, demand).await;
        } else if self.freshness.serves_stale() {
            return self.resource(resource);
        }
        if demand.only_if_cached {
            return self.resource(resource);
        }
        self.proven(resource, Boottime::now(), demand.arrived())
            .await
    }

    /// The definition of the resource, which was that of the database at a moment within `max_staleness` before the read
    /// `began`; for a strict one, since it `arrived`.
    ///
    /// # Errors
    /// [`SourceError::Altered`] if it is not, and the feed does not find the new one within `request_timeout`; the error
    /// of the comparison.
    pub async fn proven(
        &self,
        resource: ResourceId,
        began: Boottime,
        arrived: Option<Boottime>,
    ) -> Result<Arc<Resource>, LookupError> {
        let since = match arrived {
            Some(arrived) => Since::Arrival(arrived),
            None => Since::Fresh(began.before(self.freshness.max_staleness())),
        };
        let definition = self.resource(resource)?;
        if self.is_proven(resource, &definition, since) {
            return Ok(definition);
        }
        let waited = Boottime::now().since(began);
        let left = self.request_timeout.saturating_sub(waited);
        let proving = self.prove(resource, since, began);
        timeout(left, proving).await.unwrap_or_else(|_| {
            let reason = "the feed has not read the new definition yet".to_owned();
            Err(SourceError::Altered(reason).into())
        })
    }

    /// Whether `definition` was that of the database at a moment that is not before `since`.
    fn is_proven(&self, resource: ResourceId, definition: &Arc<Resource>, since: Since) -> bool {
        let cached = self.cached(resource);
        let (Since::Fresh(moment) | Since::Arrival(moment)) = since;
        let fingerprint = definition.fingerprint.as_ref();
        if fingerprint.is_some_and(|known| known.compared_at.load(Ordering::SeqCst) >= moment.0) {
            return true;
        }
        // A pass that finds another fingerprint distrusts the resource before it moves either.
        let passed_at = match since {
            Since::Fresh(_) => self.freshness.fresh_at(),
            Since::Arrival(_) => self.freshness.verified_at(),
        };
        passed_at >= moment && cached.is_trusted() && self.is_current(resource, definition)
    }

    fn is_current(&self, resource: ResourceId, definition: &Arc<Resource>) -> bool {
        let current = self.current(resource);
        current
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, definition))
    }

    /// Compares until the definition is proven.
    async fn prove(
        &self,
        resource: ResourceId,
        since: Since,
        began: Boottime,
    ) -> Result<Arc<Resource>, LookupError> {
        let proof = &self.cached(resource).proof;
        let mut defined = proof.defined.subscribe();
        loop {
            defined.mark_unchanged();
            {
                let _comparing = proof.comparing.lock().await;
                let definition = self.resource(resource)?;
                if self.is_proven(resource, &definition, since)
                    || self.is_same(resource, &definition, began).await?
                {
                    return Ok(definition);
                }
            }
            // Only the feed reads definitions, and its next pass would begin with the next poll.
            let passes = self.strict_passes();
            let _asked = passes.wait();
            // The sender lives as long as the cache.
            let _closed = defined.changed().await;
        }
    }

    /// Compares the fingerprint of `definition` with that of the database.
    async fn is_same(
        &self,
        resource: ResourceId,
        definition: &Arc<Resource>,
        began: Boottime,
    ) -> Result<bool, LookupError> {
        let Some(fingerprint) = &definition.fingerprint else {
            return Ok(true);
        };
        let now = Boottime::now();
        let reading = self.loader.fingerprint(definition, fingerprint);
        let found = self.wait_within_limits(resource, began, reading).await??;
        let is_same = fingerprint.is_same(&found);
        if is_same {
            fingerprint.compared_at.fetch_max(now.0, Ordering::SeqCst);
        }
        Ok(is_same)
    }
}
