//! Documents as every protocol offers them: read one, read many, list, write.
//!
//! This module is between the protocols and the cache. Arguments and results are typed, and independent of any protocol. A
//! protocol parses a request, calls one of these operations, and maps [`LookupError`] and [`WriteError`] in one place. Keys
//! have to be canonical by the definition that [`Documents::current`] or [`Documents::resource`] has returned.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use crate::cache::document::Document;
use crate::cache::encoding::Encoding;
use crate::cache::{Answer, Cache, CurrentResource, LookupError};
use crate::clock::Boottime;
use crate::resource::page::Page;
use crate::resource::{Resource, ResourceId};
use crate::source::SourceError;
use crate::source::token::Token;
use crate::source::writes::{BulkPermit, BulkTransaction, Write, WriteError, Writes, Written};

/// The operations on documents.
#[derive(Clone)]
pub struct Documents {
    cache: Arc<Cache>,
    writes: Arc<Writes>,
}

/// A page of a list.
#[derive(Debug)]
pub struct Listed {
    /// In the order of the keys.
    pub answers: Vec<Answer>,
    /// The last key of the page, if another page follows.
    pub continues_after: Option<String>,
}

impl Documents {
    /// Documents of `cache`, written by `writes`.
    pub fn new(cache: Arc<Cache>, writes: Arc<Writes>) -> Self {
        Self { cache, writes }
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

    /// The document of `key`, if memory has it and is fresh at the time `now`.
    #[inline]
    pub fn try_memory(&self, id: ResourceId, key: &str, now: Boottime) -> Option<Answer> {
        self.cache.try_memory(id, key, now)
    }

    /// The document of `key`, at least as new as the transactions of `tokens`, from the fastest tier that has it.
    ///
    /// # Errors
    /// See [`LookupError`]; never for a missing document.
    pub async fn read(
        &self,
        id: ResourceId,
        key: &str,
        tokens: &[Token],
    ) -> Result<Answer, LookupError> {
        match tokens {
            [] => self.cache.lookup(id, key).await,
            tokens => self.cache.lookup_after(id, key, tokens).await,
        }
    }

    /// As [`Documents::read`], after [`Documents::try_memory`] has returned `None` at the time `now`.
    ///
    /// # Errors
    /// See [`LookupError`]; never for a missing document.
    pub async fn read_missed(
        &self,
        id: ResourceId,
        key: &str,
        now: Boottime,
    ) -> Result<Answer, LookupError> {
        self.cache.lookup_missed(id, key, now).await
    }

    /// The documents of `keys`, in their order, as [`Documents::read`] reads them. The result is `None` for a document that
    /// can't be converted to UTF-8: it exists, and must not prevent the others from being returned. Documents in memory
    /// need no future.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub async fn read_many(
        &self,
        id: ResourceId,
        keys: &[String],
        tokens: &[Token],
    ) -> Result<Vec<Option<Answer>>, LookupError> {
        let now = Boottime::now();
        let in_memory = |key: &String| match tokens {
            [] => self.try_memory(id, key, now),
            _ => None,
        };
        let mut answers: Vec<Option<Answer>> = keys.iter().map(in_memory).collect();
        let open = answers.iter_mut().zip(keys);
        let lookups = open
            .filter(|(answer, _)| answer.is_none())
            .map(async |(answer, key)| {
                let found = match tokens {
                    [] => self.read_missed(id, key, now).await,
                    tokens => self.read(id, key, tokens).await,
                };
                match found {
                    Ok(found) => *answer = Some(found),
                    Err(error) if error.is_encoding_error() => {
                        tracing::warn!(
                            "a document can't be converted to UTF-8 and is left out: {error}"
                        );
                    }
                    Err(error) => return Err(error),
                }
                Ok(())
            });
        let looked_up: Result<(), LookupError> = join_all(lookups).await.into_iter().collect();
        looked_up?;
        Ok(answers)
    }

    /// One page of a list.
    ///
    /// The keys come from PostgreSQL, so they are as new as the request. The documents come from the fastest tier that has
    /// them, and are as new as single ones. A document that was deleted in between, or that a tier does not know yet, is
    /// returned as absent.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub async fn list(
        &self,
        id: ResourceId,
        mut page: Page,
        tokens: &[Token],
    ) -> Result<Listed, LookupError> {
        let limit = page.limit;
        // One more key shows whether a page follows.
        page.limit += 1;
        let mut keys = self.cache.keys(id, page).await?;
        let follows = keys.len() > limit;
        keys.truncate(limit);
        let answers = self.read_many(id, &keys, tokens).await?;
        Ok(Listed {
            answers: answers.into_iter().flatten().collect(),
            continues_after: keys.pop().filter(|_| follows),
        })
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

    /// Writes a document, and waits until this node has applied the change, so that later reads see it.
    ///
    /// # Errors
    /// Nothing was written, except that after [`WriteError::Unknown`] and [`WriteError::Deadline`] it may have been.
    pub async fn write(&self, write: Write) -> Result<Written, WriteError> {
        let written = timeout(self.request_timeout(), self.writes.write(write)).await;
        let written = written.unwrap_or(Err(WriteError::Deadline))?;
        self.cache.catch_up(&written.token).await;
        Ok(written)
    }

    /// A permit to insert many documents, until it is dropped.
    ///
    /// # Errors
    /// [`SourceError::Overloaded`] if as many requests have a permit as there are connections for bulk writes.
    pub fn bulk_permit(&self) -> Result<BulkPermit, SourceError> {
        self.writes.bulk_permit()
    }

    /// Begins a transaction that inserts documents of `resource`; [`Documents::commit`] ends it.
    ///
    /// # Errors
    /// PostgreSQL can't be used.
    pub async fn insert_many(
        &self,
        resource: Arc<Resource>,
    ) -> Result<BulkTransaction<'_>, WriteError> {
        self.writes
            .begin_bulk(resource, self.request_timeout())
            .await
    }

    /// Commits, and waits until this node has applied the change. Returns the transaction's token; `None` if nothing was
    /// inserted.
    ///
    /// # Errors
    /// Nothing was written, except that after [`WriteError::Unknown`] it may have been.
    pub async fn commit(&self, bulk: BulkTransaction<'_>) -> Result<Option<Token>, WriteError> {
        let token = bulk.commit().await?;
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
