//! Proves that the definition by which PostgreSQL is read is still that of the database.
//!
//! While the tiers are fresh, passes prove it: they compare the fingerprints of all resources. Otherwise a request that
//! reads past the tiers has the fingerprint of its resource compared over a connection that reads documents, unless that
//! was done lately enough for it. One comparison at a time serves all requests that wait. Where the fingerprint differs,
//! requests wait for the feed to find the new definition.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::time::timeout;

use crate::cache::{Cache, Demand, LookupError, lock};
use crate::clock::Boottime;
use crate::feed::definition::of_tables;
use crate::resource::{Resource, ResourceId};
use crate::source::SourceError;
use crate::source::loader::FingerprintQuery;

/// When the definition of a resource was last compared by a request.
pub(super) struct DefinitionProof {
    /// A [`Boottime`]: the definition was that of the database after this moment.
    compared_at: AtomicU64,
    /// Held while a request compares.
    comparing: tokio::sync::Mutex<()>,
    /// The last definition; `None` in tests without PostgreSQL.
    known: Mutex<Option<KnownDefinition>>,
    /// Changes with the definition.
    defined: watch::Sender<()>,
}

/// A definition with the fingerprint that belongs to it.
#[derive(Clone)]
struct KnownDefinition {
    definition: Arc<Resource>,
    fingerprint: String,
    query: FingerprintQuery,
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
            compared_at: AtomicU64::new(Boottime::NEVER.0),
            comparing: tokio::sync::Mutex::default(),
            known: Mutex::default(),
            defined: watch::channel(()).0,
        }
    }

    /// A definition begins to be used.
    pub(super) fn define(
        &self,
        definition: &Arc<Resource>,
        fingerprint: &str,
        query: Option<FingerprintQuery>,
    ) {
        *lock(&self.known) = query.map(|query| KnownDefinition {
            definition: Arc::clone(definition),
            fingerprint: fingerprint.to_owned(),
            query,
        });
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
    pub(super) async fn proven(
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
        if cached.proof.compared_at.load(Ordering::SeqCst) >= moment.0 {
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
            let is_same = {
                let _comparing = proof.comparing.lock().await;
                let definition = self.resource(resource)?;
                if self.is_proven(resource, &definition, since) {
                    return Ok(definition);
                }
                self.compare_fingerprint(resource, &definition, began)
                    .await?
            };
            if !is_same {
                // The sender lives as long as the cache.
                let _closed = defined.changed().await;
            }
        }
    }

    /// Compares the fingerprint of `definition` with that of the database.
    async fn compare_fingerprint(
        &self,
        resource: ResourceId,
        definition: &Arc<Resource>,
        began: Boottime,
    ) -> Result<bool, LookupError> {
        let cached = self.cached(resource);
        let now = Boottime::now();
        let known = lock(&cached.proof.known).clone();
        let is_same = match known {
            None => true,
            // A newer one.
            Some(known) if !Arc::ptr_eq(&known.definition, definition) => false,
            Some(known) => {
                let reading = self.loader.fingerprint(definition, known.query);
                let found = self.wait_within_limits(resource, began, reading).await??;
                of_tables(&found) == of_tables(&known.fingerprint)
            }
        };
        if is_same {
            cached.proof.compared_at.fetch_max(now.0, Ordering::SeqCst);
        }
        Ok(is_same)
    }
}
