//! From PostgreSQL into the tiers: one load for all who wait for a key, kept where nothing has overtaken it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;

use crate::cache::document::{Document, Found};
use crate::cache::encoding::Encoding;
use crate::cache::lease::{Grant, Lease, Outcome, Waiter};
use crate::cache::orders::Put;
#[cfg(test)]
use crate::cache::tests::gate::{Point, reach};
use crate::cache::{Answer, Cache, LookupError, Provenance};
use crate::clock::Boottime;
use crate::resource::page::Page;
use crate::resource::{Resource, ResourceId};
use crate::source::SourceError;
use crate::source::loader::{Keep, Load, Loaded};

/// How often a waiting request asks itself whether PostgreSQL can still be hoped for.
const PATIENCE: Duration = Duration::from_millis(250);

/// How long a request waits for PostgreSQL while the feed has lost it.
const UNREACHABLE_WAIT: Duration = Duration::from_millis(750);

/// Why PostgreSQL is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// No tier has the document.
    Miss,
    /// The tiers can't be trusted.
    Bypass,
    /// No tier keeps documents of the resource.
    Uncached,
    /// The tiers have not caught up with the request's token.
    Ahead,
}

impl Cache {
    pub(super) async fn load(
        self: &Arc<Self>,
        index: ResourceId,
        key: Arc<str>,
        why: Why,
    ) -> Result<Answer, LookupError> {
        // A statement that was sent before the request may not see what its token stands for. Where no tier keeps the
        // document, generations don't tell either whether it has changed since.
        let max_age = match why {
            Why::Miss | Why::Bypass => self.freshness.max_staleness(),
            Why::Uncached | Why::Ahead => Duration::ZERO,
        };
        let began = Boottime::now();
        loop {
            #[cfg(test)]
            reach(Point::Load);
            let stripe = self.versions.stripe(index, &key);
            let version = self.versions.version(index, stripe);
            // After the version: a definition that is replaced later takes the epoch of the version along.
            let resource = self.resource(index)?;
            #[cfg(test)]
            reach(Point::Noted);
            let granted = self.leases.grant(index, &key, version, max_age);
            let (mut waiter, collapsed) = match granted {
                Grant::Lead(lease, waiter) => {
                    self.send(lease, resource, began);
                    (waiter, false)
                }
                Grant::Wait(waiter) => (waiter, true),
            };
            // A leader that went without an outcome leaves the lead to whoever waits.
            if let Some(outcome) = self.wait(index, &mut waiter, began).await? {
                let found = outcome.found?;
                let provenance = match why {
                    Why::Miss => Provenance::Miss {
                        stored: outcome.stored,
                        collapsed,
                    },
                    Why::Bypass => Provenance::Bypass { collapsed },
                    Why::Uncached => Provenance::Uncached { collapsed },
                    Why::Ahead => Provenance::Ahead { collapsed },
                };
                return Ok(Answer { found, provenance });
            }
        }
    }

    /// Hands the load to the loader; the lease goes along and fills the tiers when the document comes.
    fn send(self: &Arc<Self>, lease: Lease, resource: Arc<Resource>, asked_at: Boottime) {
        let cache = Arc::clone(self);
        let key = Arc::clone(lease.key());
        let sent_at = lease.sent_at();
        self.loader.load(Load {
            resource,
            key,
            asked_at,
            sent_at,
            done: Box::new(move |loaded, keep| match keep {
                Keep::Yes => cache.fill(lease, loaded),
                Keep::No => Cache::pass_on(lease, loaded),
            }),
        });
    }

    /// Waits for a load within bounds. `None` if it ended without an outcome.
    async fn wait(
        &self,
        index: ResourceId,
        waiter: &mut Waiter,
        began: Boottime,
    ) -> Result<Option<Outcome>, LookupError> {
        let outcome = self.within_bounds(index, began, waiter.outcome()).await?;
        if outcome.is_none() && Boottime::now().since(began) > self.request_timeout {
            return Err(LookupError::Deadline);
        }
        Ok(outcome)
    }

    /// The canonical keys of a page, as PostgreSQL has them now.
    ///
    /// Waits as [`Cache::lookup`] does.
    /// # Errors
    /// See [`LookupError`].
    pub async fn keys(&self, index: ResourceId, page: Page) -> Result<Vec<String>, LookupError> {
        let reading = self.loader.keys(self.resource(index)?, page);
        let keys = self.within_bounds(index, Boottime::now(), reading).await?;
        Ok(keys?)
    }

    /// What PostgreSQL's `answer` comes to, within the time that a request may take, and less where the feed has lost
    /// PostgreSQL.
    async fn within_bounds<T>(
        &self,
        index: ResourceId,
        began: Boottime,
        answer: impl Future<Output = T>,
    ) -> Result<T, LookupError> {
        let mut answer = pin!(answer);
        loop {
            if let Ok(answered) = tokio::time::timeout(PATIENCE, &mut answer).await {
                return Ok(answered);
            }
            let now = Boottime::now();
            let waited = now.since(began);
            if waited >= self.request_timeout {
                return Err(LookupError::Deadline);
            }
            // A feed that has lost PostgreSQL is the sign that this load may have lost it too.
            if !self.freshness.is_fresh(now) && waited >= UNREACHABLE_WAIT {
                tracing::debug!("gave up waiting for {}", self.cached(index).name);
                return Err(SourceError::Unavailable("it does not answer".into()).into());
            }
        }
    }

    /// Keeps the body of `document` in one more encoding beside it, where memory has that very document; an empty
    /// text says that it would not be smaller. Returns the document with it.
    pub fn keep_encoded(
        &self,
        index: ResourceId,
        document: &Document,
        encoding: Encoding,
        encoded: &[u8],
    ) -> Document {
        let larger = document.with_encoded(encoding, encoded);
        if self.cached(index).tiers.memory {
            self.memory
                .replace(index, document, larger.clone(), &self.versions);
        }
        larger
    }

    /// Keeps a document in memory that came from nowhere: for benches, which have no PostgreSQL.
    #[doc(hidden)]
    pub fn keep(&self, index: ResourceId, key: &str, body: &[u8]) {
        let stripe = self.versions.stripe(index, key);
        let version = self.versions.version(index, stripe);
        let found = Some(Document::new(key, version.epoch, body));
        self.memory
            .install_if_current(index, key, found, &self.versions, version);
    }

    /// Ends a load whose document no tier may keep: answers all who wait.
    fn pass_on(lease: Lease, loaded: Loaded) {
        let epoch = lease.version().epoch;
        let found = loaded.map(|body| body.map(|body| Document::new(lease.key(), epoch, &body)));
        lease.complete(Outcome {
            found,
            stored: false,
        });
    }

    /// Ends a load: keeps the document where nothing has overtaken it, and answers all who wait.
    pub(super) fn fill(&self, lease: Lease, loaded: Loaded) {
        let body = match loaded {
            Ok(body) => body,
            Err(error) => {
                lease.complete(Outcome {
                    found: Err(error),
                    stored: false,
                });
                return;
            }
        };
        let index = lease.resource();
        let cached = self.cached(index);
        let version = lease.version();
        let document = |body: Bytes| Document::new(lease.key(), version.epoch, &body);
        let found: Found = body.map(document);
        let stripe = self.versions.stripe(index, lease.key());
        let stands = || self.versions.is_current(index, stripe, version);
        let mut stored = false;
        if cached.is_kept() {
            if cached.tiers.memory {
                stored = self.memory.install_if_current(
                    index,
                    lease.key(),
                    found.clone(),
                    &self.versions,
                    version,
                );
            }
            #[cfg(test)]
            reach(Point::Installed);
            if let Some(disk) = self.disk.as_ref().filter(|_| cached.tiers.disk && stands()) {
                #[cfg(test)]
                reach(Point::Putting);
                stored |= disk.queue_put(Put {
                    resource: index,
                    prefix: cached.prefix.load(Ordering::SeqCst),
                    stripe,
                    version,
                    key: Arc::clone(lease.key()),
                    found: found.clone(),
                });
            }
        }
        if !stands() {
            self.metrics.fills_void.inc();
        }
        #[cfg(test)]
        reach(Point::Ending);
        lease.complete(Outcome {
            found: Ok(found),
            stored,
        });
    }
}
