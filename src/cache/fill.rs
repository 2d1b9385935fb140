//! Loads from PostgreSQL: one for all requests that wait for a key, stored in the tiers if nothing has overtaken it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::cache::disk_tier::DiskTier;
use crate::cache::document::{Document, Found};
use crate::cache::encoding::Encoding;
use crate::cache::generation::Version;
use crate::cache::lease::{Grant, Lease, LoadOutcome, Waiter};
use crate::cache::orders::Put;
use crate::cache::recent::EndedLoad;
#[cfg(test)]
use crate::cache::tests::gate::{Point, reach};
use crate::cache::{Answer, Cache, Demand, LookupError, Provenance};
use crate::clock::Boottime;
use crate::resource::find::Find;
use crate::resource::page::Page;
use crate::resource::{Resource, ResourceId};
use crate::source::SourceError;
use crate::source::loader::{Keep, Load, Loaded, LoadedDocument};

/// How often a waiting request checks whether the feed has lost PostgreSQL.
const RECHECK_INTERVAL: Duration = Duration::from_millis(250);

/// How long a request waits for PostgreSQL while the feed has lost it, at most.
const UNREACHABLE_WAIT: Duration = Duration::from_millis(750);

/// A read that finds its tables altered, or loses a deadlock, is repeated after a pause, each twice as long as the one
/// before: in all 630 ms. Until the feed knew a new definition, reads failed for up to 145 ms (2026-11-25).
const REPEAT_PAUSE_MIN: Duration = Duration::from_millis(10);
const REPEATS_MAX: u32 = 6;

/// Why a document is loaded from PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadReason {
    /// No tier has the document.
    Miss,
    /// The tiers are not fresh.
    Bypass,
    /// No tier keeps documents of the resource.
    Uncached,
    /// The tiers have not caught up with the request's token.
    Token,
    /// PostgreSQL has told the request what the tiers do not know yet.
    Ahead,
}

impl Cache {
    /// Loads the document of `key`, or waits for a load of it that is under way. `until`: see [`Load::until`].
    pub(super) async fn load(
        self: &Arc<Self>,
        resource: ResourceId,
        key: Arc<str>,
        reason: LoadReason,
        demand: &Demand,
        until: Option<Boottime>,
    ) -> Result<Answer, LookupError> {
        let began = Boottime::now();
        let mut repeats = 0;
        loop {
            #[cfg(test)]
            reach(Point::Load);
            let stripe = self.versions.stripe(resource, &key);
            let version = self.versions.version(resource, stripe);
            // After the version, so that a later change of the definition also makes the version outdated.
            let definition = self.proven(resource, began, demand.arrived()).await?;
            #[cfg(test)]
            reach(Point::Noted);
            // A statement that was sent before the request may not see the transaction of its token, nor what PostgreSQL
            // has told it. If no tier keeps the document, passes leave its resource out, and versions don't show whether
            // it has changed since; nor do they show it to a strict read for which no pass has been applied.
            let now = Boottime::now();
            let sent_since = match (reason, demand.arrived()) {
                (LoadReason::Token | LoadReason::Ahead, _) => now,
                (LoadReason::Bypass | LoadReason::Uncached, Some(arrived)) => arrived,
                _ if !self.cached(resource).is_kept() => now,
                _ => now.before(self.freshness.max_staleness()),
            };
            let granted = self.leases.grant(resource, &key, version, sent_since);
            let (mut waiter, collapsed) = match granted {
                Grant::Lead(lease, waiter) => {
                    self.send(lease, definition, began, until);
                    (waiter, false)
                }
                Grant::Wait(waiter) => (waiter, true),
            };
            // If the load ended without an outcome, the next waiter leads.
            if let Some(outcome) = self.wait(resource, &mut waiter, began).await? {
                let found = match outcome.found {
                    // The load that it joined was one of a request for many documents.
                    Err(SourceError::SlowDocument) if until.is_none() && repeats < REPEATS_MAX => {
                        repeats += 1;
                        continue;
                    }
                    Err(error)
                        if self
                            .pause_before_repeat(resource, &error, &mut repeats, began)
                            .await =>
                    {
                        continue;
                    }
                    found => found?,
                };
                let provenance = match reason {
                    LoadReason::Miss => Provenance::Miss {
                        stored: outcome.stored,
                        collapsed,
                    },
                    LoadReason::Bypass | LoadReason::Ahead => Provenance::Bypass { collapsed },
                    LoadReason::Uncached => Provenance::Uncached { collapsed },
                    LoadReason::Token => Provenance::Token { collapsed },
                };
                return Ok(Answer { found, provenance });
            }
        }
    }

    /// Gives a load to the loader. The lease goes with it, and fills the tiers when the load ends.
    fn send(
        self: &Arc<Self>,
        lease: Lease,
        resource: Arc<Resource>,
        asked_at: Boottime,
        until: Option<Boottime>,
    ) {
        let cache = Arc::clone(self);
        let key = Arc::clone(lease.key());
        let sent_at = lease.sent_at();
        let sent = sent_at.clone();
        self.loader.load(Load {
            resource,
            key,
            asked_at,
            until,
            sent_at,
            done: Box::new(move |loaded, keep| {
                let ended_at = Boottime::now();
                let durations = &cache.metrics.source.load_duration;
                let took = ended_at.since(asked_at);
                durations.observe(took.as_secs_f64());
                if let Some(disk) = cache.disk.as_ref().filter(|_| loaded.is_ok()) {
                    disk.note_load(took);
                }
                cache.recent.note_load(&EndedLoad {
                    resource: lease.resource(),
                    key: lease.key(),
                    asked_at,
                    sent_at: sent.get(),
                    ended_at,
                    loaded: &loaded,
                });
                cache.fill(lease, loaded, keep);
            }),
        });
    }

    /// Waits for a load, within the limits. `None` if it ended without an outcome.
    async fn wait(
        &self,
        resource: ResourceId,
        waiter: &mut Waiter,
        began: Boottime,
    ) -> Result<Option<LoadOutcome>, LookupError> {
        let outcome = self
            .wait_within_limits(resource, began, waiter.outcome())
            .await?;
        if outcome.is_none() && Boottime::now().since(began) > self.request_timeout {
            return Err(LookupError::Deadline);
        }
        Ok(outcome)
    }

    /// Loads the document of `key` by a statement that is sent from now on, whatever the tiers have.
    ///
    /// # Errors
    /// See [`LookupError`]; never for a missing document.
    pub async fn load_anew(
        self: &Arc<Self>,
        resource: ResourceId,
        key: &str,
        demand: &Demand,
        until: Option<Boottime>,
    ) -> Result<Answer, LookupError> {
        self.load(resource, Arc::from(key), LoadReason::Ahead, demand, until)
            .await
    }

    /// The keys of the documents that are looked for, in the order of the texts, as PostgreSQL has them now.
    ///
    /// Waits as [`Cache::lookup`] does.
    /// # Errors
    /// See [`LookupError`].
    pub async fn find(
        &self,
        resource: ResourceId,
        find: &Find,
        demand: &Demand,
    ) -> Result<Vec<Option<String>>, LookupError> {
        let began = Boottime::now();
        let mut repeats = 0;
        loop {
            let definition = self.proven(resource, began, demand.arrived()).await?;
            let finding = self.loader.find(definition, find.clone());
            match self.wait_within_limits(resource, began, finding).await? {
                Err(error)
                    if self
                        .pause_before_repeat(resource, &error, &mut repeats, began)
                        .await => {}
                found => return Ok(found?),
            }
        }
    }

    /// The document of the only text that is looked for, as PostgreSQL has it now. No tier keeps it.
    ///
    /// Waits as [`Cache::lookup`] does.
    /// # Errors
    /// See [`LookupError`].
    pub async fn read_found(
        &self,
        resource: ResourceId,
        find: &Find,
        demand: &Demand,
    ) -> Result<Answer, LookupError> {
        let began = Boottime::now();
        let mut repeats = 0;
        let found = loop {
            let definition = self.proven(resource, began, demand.arrived()).await?;
            let reading = self.loader.read_found(definition, find.clone());
            match self.wait_within_limits(resource, began, reading).await? {
                Err(error)
                    if self
                        .pause_before_repeat(resource, &error, &mut repeats, began)
                        .await => {}
                found => break found?,
            }
        };
        let epoch = self.versions.epoch(resource);
        let document = |(key, loaded): (String, LoadedDocument)| {
            Document::with_kept(&key, epoch, loaded.kept(), &loaded.body())
        };
        Ok(Answer {
            found: found.map(document),
            provenance: Provenance::Bypass { collapsed: false },
        })
    }

    /// The canonical keys of a page, read from PostgreSQL.
    ///
    /// Waits as [`Cache::lookup`] does.
    /// # Errors
    /// See [`LookupError`].
    pub async fn keys(
        &self,
        resource: ResourceId,
        page: Page,
        demand: &Demand,
    ) -> Result<Vec<String>, LookupError> {
        let began = Boottime::now();
        let mut repeats = 0;
        loop {
            let definition = self.proven(resource, began, demand.arrived()).await?;
            let reading = self.loader.read_page(definition, page.clone());
            match self.wait_within_limits(resource, began, reading).await? {
                Err(error)
                    if self
                        .pause_before_repeat(resource, &error, &mut repeats, began)
                        .await => {}
                keys => return Ok(keys?),
            }
        }
    }

    /// Pauses before a read that failed with `error` is repeated, perhaps under another definition of the resource.
    /// Returns false, without a pause, if it must not be repeated.
    async fn pause_before_repeat(
        &self,
        resource: ResourceId,
        error: &SourceError,
        repeats: &mut u32,
        began: Boottime,
    ) -> bool {
        if error.is_privilege_error() {
            self.loader.note_refusal(resource, error);
        }
        let pause = REPEAT_PAUSE_MIN * (1 << *repeats);
        let is_repeated = (error.is_altered() || error.is_conflict())
            && *repeats < REPEATS_MAX
            && Boottime::now().since(began) + pause < self.request_timeout;
        if is_repeated {
            *repeats += 1;
            tokio::time::sleep(pause).await;
        }
        is_repeated
    }

    /// Waits for an answer of PostgreSQL: at most `request_timeout`, and at most [`UNREACHABLE_WAIT`] while the feed
    /// has lost PostgreSQL.
    pub(super) async fn wait_within_limits<T>(
        &self,
        resource: ResourceId,
        began: Boottime,
        answer: impl Future<Output = T>,
    ) -> Result<T, LookupError> {
        let mut answer = pin!(answer);
        loop {
            if let Ok(answered) = tokio::time::timeout(RECHECK_INTERVAL, &mut answer).await {
                return Ok(answered);
            }
            let now = Boottime::now();
            let waited = now.since(began);
            if waited >= self.request_timeout {
                return Err(LookupError::Deadline);
            }
            // If the feed has lost PostgreSQL, this load probably has, too.
            if !self.freshness.is_fresh(now) && waited >= UNREACHABLE_WAIT {
                tracing::debug!("gave up waiting for {}", self.cached(resource).name);
                return Err(SourceError::Unavailable("it does not answer".into()).into());
            }
        }
    }

    /// Adds the body in one more encoding to `document`, and replaces the document in memory if it is still there. An
    /// empty `encoded` says that it would not be smaller. Returns the document with the encoding.
    pub fn keep_encoded(
        &self,
        resource: ResourceId,
        document: &Document,
        encoding: Encoding,
        encoded: &[u8],
    ) -> Document {
        let larger = document.with_encoded(encoding, encoded);
        if self.cached(resource).tiers.memory {
            self.memory
                .replace(resource, document, larger.clone(), &self.versions);
        }
        larger
    }

    /// Installs a document in memory, for benches without PostgreSQL.
    #[doc(hidden)]
    pub fn keep(&self, resource: ResourceId, key: &str, body: &[u8]) {
        let stripe = self.versions.stripe(resource, key);
        let version = self.versions.version(resource, stripe);
        let found = Some(Document::new(key, version.epoch, body));
        self.memory
            .install_if_current(resource, key, found, &self.versions, version);
    }

    /// Ends a load: stores what was loaded, if it may be kept and nothing has overtaken it, and gives it to all
    /// waiters.
    pub(super) fn fill(&self, lease: Lease, loaded: Loaded, keep: Keep) {
        let epoch = lease.version().epoch;
        let document = |loaded: LoadedDocument| {
            Document::with_kept(lease.key(), epoch, loaded.kept(), &loaded.body())
        };
        let found = loaded.map(|found| found.map(document));
        let stored = match &found {
            Ok(found) if keep == Keep::Yes => self.store(&lease, found),
            Err(error) if error.is_of_one_document() => {
                self.note_unreadable(&lease, error, keep);
                false
            }
            _ => false,
        };
        lease.complete(LoadOutcome { found, stored });
    }

    /// Remembers that a document can't be read, if that may be kept, and logs it.
    fn note_unreadable(&self, lease: &Lease, error: &SourceError, keep: Keep) {
        let (resource, key) = (lease.resource(), lease.key());
        let noted = keep == Keep::No || {
            let error = error.clone();
            self.unreadable.note(resource, key, lease.version(), error)
        };
        if noted {
            let name = &self.cached(resource).name;
            let until = match error {
                SourceError::DocumentTimeout => "for now, and is tried again after growing pauses",
                SourceError::SlowDocument => "with others for now",
                _ => "until it changes",
            };
            tracing::warn!("the document {name}/{key} can't be read {until}: {error}");
        }
    }

    /// Installs what was loaded in memory, and queues it for the disk. Returns whether a tier has it.
    fn store(&self, lease: &Lease, found: &Found) -> bool {
        let (resource, key, version) = (lease.resource(), lease.key(), lease.version());
        let cached = self.cached(resource);
        let stripe = self.versions.stripe(resource, key);
        let is_current = || self.versions.is_current(resource, stripe, version);
        let mut stored = false;
        if cached.is_kept() {
            if cached.tiers.memory {
                let (found, versions) = (found.clone(), &self.versions);
                stored = self
                    .memory
                    .install_if_current(resource, key, found, versions, version);
            }
            #[cfg(test)]
            reach(Point::Installed);
            if let Some(disk) = self.disk.as_ref()
                && cached.tiers.disk
                && is_current()
            {
                #[cfg(test)]
                reach(Point::Putting);
                stored |= self.queue_put(disk, resource, version, key, found);
            }
        }
        if !is_current() {
            self.metrics.fills_void.inc();
        }
        #[cfg(test)]
        reach(Point::Ending);
        stored
    }

    /// Queues what was found at `version` for the disk. Returns false if too much is queued already.
    pub(super) fn queue_put(
        &self,
        disk: &DiskTier,
        resource: ResourceId,
        version: Version,
        key: &Arc<str>,
        found: &Found,
    ) -> bool {
        disk.queue_put(Put {
            resource,
            prefix: self.cached(resource).prefix.load(Ordering::SeqCst),
            stripe: self.versions.stripe(resource, key),
            version,
            key: Arc::clone(key),
            found: found.clone(),
        })
    }
}
