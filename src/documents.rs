//! Documents as every protocol offers them: read one, read many, list, write.
//!
//! This module is between the protocols and the cache. Arguments and results are typed, and independent of any protocol. A
//! protocol parses a request, calls one of these operations, and maps [`LookupError`] and [`WriteError`] in one place. Keys
//! have to be canonical by the definition that [`Documents::current`] or [`Documents::resource`] has returned.
//!
//! `wanted` decides which documents a request sees, and which one an alias leads to.

pub mod lookups;
mod wanted;

use std::sync::Arc;
use std::time::Duration;

use crate::cache::document::Document;
use crate::cache::encoding::Encoding;
use crate::cache::{Answer, Cache, CurrentResource, Demand, LookupError};
use crate::clock::Boottime;
use crate::documents::lookups::{Lookups, TextKind, Window};
pub use crate::documents::wanted::DocumentName;
use crate::documents::wanted::Wanted;
use crate::metrics::Metrics;
pub use crate::resource::Scope;
use crate::resource::page::Page;
use crate::resource::{Resource, ResourceId};
use crate::source::SourceError;
use crate::source::token::Token;
use crate::source::writes::{
    BulkPermit, BulkTransaction, Write, WriteEffect, WriteError, Writes, Written,
};

const INSERT: &str = "insert";

/// The operations on documents.
#[derive(Clone)]
pub struct Documents {
    cache: Arc<Cache>,
    writes: Arc<Writes>,
    metrics: Arc<Metrics>,
}

/// The keys of one page of a list.
#[derive(Debug, Default)]
pub struct PageKeys {
    /// Canonical, in order.
    pub keys: Vec<String>,
    /// Whether another page follows.
    pub follows: bool,
}

impl Documents {
    /// Documents of `cache`, written by `writes` and counted in `metrics`.
    pub fn new(cache: Arc<Cache>, writes: Arc<Writes>, metrics: Arc<Metrics>) -> Self {
        Self {
            cache,
            writes,
            metrics,
        }
    }

    /// The resource of this name.
    #[inline]
    pub fn id_of(&self, name: &str) -> Option<ResourceId> {
        self.cache.id_of(name)
    }

    /// The names of the resources, in the order of their ids.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.cache.names()
    }

    /// The resource as it matches the database now; empty if it is not ready.
    #[inline]
    pub fn current(&self, id: ResourceId) -> CurrentResource {
        self.cache.current(id)
    }

    /// As [`Documents::current`], for a longer time.
    ///
    /// # Errors
    /// [`LookupError::NotReady`] if the resource does not match the database, or was not compared with it yet.
    pub fn resource(&self, id: ResourceId) -> Result<Arc<Resource>, LookupError> {
        self.cache.resource(id)
    }

    /// The definition by which a read with this `demand` is parsed: see [`Cache::definition`].
    ///
    /// # Errors
    /// See [`LookupError`].
    pub async fn definition(
        &self,
        id: ResourceId,
        demand: &Demand,
    ) -> Result<Arc<Resource>, LookupError> {
        self.cache.definition(id, demand).await
    }

    /// The definition that the database has had since this call, for a request that `began` earlier.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub async fn compared(
        &self,
        id: ResourceId,
        began: Boottime,
    ) -> Result<Arc<Resource>, LookupError> {
        self.cache.proven(id, began, Some(Boottime::now())).await
    }

    /// The document called `name`, if memory has it in the `scope` and is fresh at the time `now`.
    #[inline]
    pub fn try_memory(
        &self,
        id: ResourceId,
        name: DocumentName<'_>,
        scope: &Scope<'_>,
        now: Boottime,
    ) -> Option<Answer> {
        let wanted = Wanted {
            id,
            name,
            demand: Demand::none(),
            scope,
            until: None,
        };
        self.wanted_from_memory(&wanted, now)
    }

    /// The document called `name` in the `scope`, with what `demand` asks for, from the fastest tier that has it.
    ///
    /// # Errors
    /// See [`LookupError`]; never for a missing document.
    pub async fn read(
        &self,
        id: ResourceId,
        name: DocumentName<'_>,
        demand: &Demand,
        scope: &Scope<'_>,
    ) -> Result<Answer, LookupError> {
        let now = Boottime::now();
        if demand.is_none()
            && let Some(answer) = self.try_memory(id, name, scope, now)
        {
            return Ok(answer);
        }
        self.read_missed(id, name, demand, scope, now).await
    }

    /// As [`Documents::read`], after [`Documents::try_memory`] has returned `None` at the time `now`, or with a demand.
    ///
    /// # Errors
    /// See [`LookupError`]; never for a missing document.
    pub async fn read_missed(
        &self,
        id: ResourceId,
        name: DocumentName<'_>,
        demand: &Demand,
        scope: &Scope<'_>,
        now: Boottime,
    ) -> Result<Answer, LookupError> {
        match (name, scope) {
            (DocumentName::Key(key), Scope::All) if demand.is_none() => {
                self.cache.lookup_missed(id, key, now, None).await
            }
            (DocumentName::Key(key), Scope::All) => {
                self.cache.lookup_after(id, key, demand, None).await
            }
            _ => {
                let wanted = Wanted {
                    id,
                    name,
                    demand,
                    scope,
                    until: None,
                };
                self.read_wanted(&wanted).await
            }
        }
    }

    /// Looks up documents by `texts`, in their order, as [`Documents::read`] does: some at a time, so that a caller can end
    /// when those that it has reach `bytes_max`.
    pub fn read_many<'r>(
        &'r self,
        id: ResourceId,
        texts: &'r [String],
        kind: TextKind,
        demand: &'r Demand,
        scope: &'r Scope<'r>,
        bytes_max: usize,
    ) -> Lookups<'r> {
        Lookups {
            documents: self,
            id,
            texts,
            kind,
            demand,
            scope,
            bytes_max,
            began: Boottime::now(),
            window: Window::default(),
        }
    }

    /// The keys of one page of a list of the documents in the `scope`.
    ///
    /// They come from PostgreSQL, so they are as new as the request. Their documents are as new as single ones: one that
    /// was deleted in between, or that a tier does not know yet, is absent.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub async fn list(
        &self,
        id: ResourceId,
        mut page: Page,
        demand: &Demand,
        scope: &Scope<'_>,
    ) -> Result<PageKeys, LookupError> {
        if demand.only_if_cached {
            return Err(LookupError::NotCached);
        }
        page.owner = match scope {
            Scope::All => None,
            Scope::Own(None) => return Ok(PageKeys::default()),
            Scope::Own(Some(owner)) => Some(owner.as_ref().to_owned()),
        };
        let limit = page.limit;
        // One more key shows whether a page follows.
        page.limit += 1;
        let mut keys = self.cache.keys(id, page, demand).await?;
        let follows = keys.len() > limit;
        keys.truncate(limit);
        Ok(PageKeys { keys, follows })
    }

    /// Keeps an encoding of `document` with it: see [`Cache::keep_encoded`].
    pub fn keep_encoded(
        &self,
        id: ResourceId,
        document: &Document,
        encoding: Encoding,
        encoded: &[u8],
    ) -> Document {
        self.cache.keep_encoded(id, document, encoding, encoded)
    }

    /// Whether a request with the scope `writer` may write any document. It is asked before the body is read, so that nothing
    /// of it is said.
    ///
    /// # Errors
    /// [`WriteError::NoClaim`] if it can create none, and [`WriteError::Absent`] for others, which none can be its own.
    pub fn check_writer(writer: &Scope<'_>, is_insert: bool) -> Result<(), WriteError> {
        match (writer, is_insert) {
            (Scope::Own(None), true) => Err(WriteError::NoClaim),
            (Scope::Own(None), false) => Err(WriteError::Absent),
            _ => Ok(()),
        }
    }

    /// Writes a document, and waits until this node has applied the change, so that later reads see it.
    ///
    /// # Errors
    /// Nothing was written, except that after [`WriteError::Unknown`] and [`WriteError::CommitDeadline`] it may have been.
    pub async fn write(&self, write: Write) -> Result<Written, WriteError> {
        let began = Boottime::now();
        let outcome = self.writes.write(write, self.request_timeout()).await;
        if let Ok(written) = &outcome {
            if written.repeated.is_none() {
                self.count_written(operation(written.effect), 1);
            }
            self.cache.catch_up(&written.token).await;
        }
        let took = Boottime::now().since(began);
        let durations = &self.metrics.source.write_duration;
        durations.observe(took.as_secs_f64());
        outcome
    }

    fn count_written(&self, operation: &str, documents: u64) {
        let written = &self.metrics.source.documents_written;
        written.with_label_values(&[operation]).inc_by(documents);
    }

    /// A permit to insert many documents, until it is dropped.
    ///
    /// # Errors
    /// [`SourceError::Overloaded`] if as many requests have a permit as there are connections for bulk writes.
    pub fn bulk_permit(&self) -> Result<BulkPermit, SourceError> {
        self.writes.bulk_permit()
    }

    /// The most requests that have a permit to insert many documents at a time.
    pub fn bulk_max(&self) -> usize {
        self.writes.bulk_max()
    }

    /// Begins a transaction that inserts documents of `resource` in the scope `writer`, and returns those in `reader`;
    /// [`Documents::commit`] ends it.
    ///
    /// # Errors
    /// PostgreSQL can't be used.
    pub async fn insert_many(
        &self,
        resource: Arc<Resource>,
        writer: Scope<'static>,
        reader: Scope<'static>,
    ) -> Result<BulkTransaction<'_>, WriteError> {
        let scopes = (writer, reader);
        self.writes
            .begin_bulk(resource, scopes, self.request_timeout())
            .await
    }

    /// Commits, and waits until this node has applied the change. Returns the transaction's token; `None` if nothing was
    /// inserted.
    ///
    /// # Errors
    /// Nothing was written, except that after [`WriteError::Unknown`] it may have been.
    pub async fn commit(&self, bulk: BulkTransaction<'_>) -> Result<Option<Token>, WriteError> {
        let documents = bulk.documents();
        let token = bulk.commit().await?;
        self.count_written(INSERT, documents);
        if let Some(token) = &token {
            self.cache.catch_up(token).await;
        }
        Ok(token)
    }

    /// The longest time that a request waits for PostgreSQL.
    pub fn request_timeout(&self) -> Duration {
        self.cache.request_timeout()
    }

    /// The longest body of a document in bytes.
    pub fn document_bytes_max(&self) -> usize {
        self.writes.document_bytes_max()
    }

    /// Whether a write may have an `Idempotency-Key`.
    pub fn keeps_answers(&self) -> bool {
        self.writes.keeps_answers()
    }
}

/// The value of the metrics' label `operation`.
fn operation(effect: WriteEffect) -> &'static str {
    match effect {
        WriteEffect::Created | WriteEffect::Moved => INSERT,
        WriteEffect::Replaced | WriteEffect::Kept => "update",
        WriteEffect::Deleted => "delete",
    }
}
