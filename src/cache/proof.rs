//! Proves that the definition by which PostgreSQL is read is still that of the database.
//!
//! While the tiers are fresh, passes prove it: they compare the fingerprints of all resources. Otherwise a request that
//! reads past the tiers has the fingerprint of its resource compared over a connection that reads documents, unless that
//! was done lately enough for it. One comparison at a time serves all requests that wait. Where the fingerprint differs,
//! requests wait for the feed to find the new definition.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;
use tokio::time::timeout;

use crate::cache::{Cache, LookupError, lock};
use crate::clock::Boottime;
use crate::feed::definition::of_tables;
use crate::resource::{Resource, ResourceId};

/// When the definition of a resource was last compared by a request.
pub(super) struct DefinitionProof {
    /// A [`Boottime`]: the definition was that of the database after this moment.
    compared_at: AtomicU64,
    /// Held while a request compares.
    comparing: tokio::sync::Mutex<()>,
    /// Changes with the definition.
    defined: watch::Sender<()>,
}

impl DefinitionProof {
    pub(super) fn new() -> Self {
        Self {
            compared_at: AtomicU64::new(Boottime::NEVER.0),
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
    /// The definition of the resource, which was that of the database at a moment within `max_staleness` before `began`.
    ///
    /// # Errors
    /// [`LookupError::NotReady`] if it is not, and the feed does not find the new one within `request_timeout`; the error
    /// of the comparison.
    pub(super) async fn proven(
        &self,
        resource: ResourceId,
        began: Boottime,
    ) -> Result<Arc<Resource>, LookupError> {
        let since = began.before(self.freshness.max_staleness());
        let definition = self.resource(resource)?;
        if self.is_proven(resource, &definition, since) {
            return Ok(definition);
        }
        let waited = Boottime::now().since(began);
        let left = self.request_timeout.saturating_sub(waited);
        let proving = self.prove(resource, since, began);
        timeout(left, proving).await.unwrap_or_else(|_| {
            let reason = "its tables have changed, and the feed has not read their definition yet";
            Err(LookupError::NotReady(reason.into()))
        })
    }

    /// Whether `definition` was that of the database at a moment that is not before `since`.
    fn is_proven(&self, resource: ResourceId, definition: &Arc<Resource>, since: Boottime) -> bool {
        let cached = self.cached(resource);
        if cached.proof.compared_at.load(Ordering::SeqCst) >= since.0 {
            return true;
        }
        // A pass that finds another fingerprint distrusts the resource before it moves `fresh_at`.
        let is_fresh = self.freshness.fresh_at() >= since && cached.is_trusted();
        is_fresh && self.is_current(resource, definition)
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
        since: Boottime,
        began: Boottime,
    ) -> Result<Arc<Resource>, LookupError> {
        let proof = &self.cached(resource).proof;
        let mut defined = proof.defined.subscribe();
        loop {
            defined.mark_unchanged();
            let is_same = {
                let _comparing = proof.comparing.lock().await;
                let definition = self.resource(resource)?;
                if self.is_proven(resource, &definition, since) {
                    return Ok(definition);
                }
                self.compare(resource, &definition, began).await?
            };
            if !is_same {
                // The sender lives as long as the cache.
                let _closed = defined.changed().await;
            }
        }
    }

    /// Compares the fingerprint of `definition` with that of the database.
    async fn compare(
        &self,
        resource: ResourceId,
        definition: &Arc<Resource>,
        began: Boottime,
    ) -> Result<bool, LookupError> {
        let cached = self.cached(resource);
        let now = Boottime::now();
        let known = lock(&cached.fingerprint).clone();
        let is_same = match lock(&cached.query).clone() {
            None => true,
            Some(query) => {
                let reading = self.loader.fingerprint(definition, query);
                let found = self.wait_within_limits(resource, began, reading).await??;
                of_tables(&found) == of_tables(&known)
            }
        };
        // Another definition may have come before its fingerprint was taken.
        let is_same = is_same && self.is_current(resource, definition);
        if is_same {
            cached.proof.compared_at.fetch_max(now.0, Ordering::SeqCst);
        }
        Ok(is_same)
    }
}
