//! Documents as every protocol offers them: read one, read many, list, write.
//!
//! Between the protocols and the cache: arguments and results are typed, and no protocol is known here. A protocol takes
//! a request apart, calls one of these operations, and maps [`LookupError`] and [`WriteError`] once. Keys are canonical,
//! by the definition of the resource that [`Documents::current`] or [`Documents::resource`] gave.

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
use crate::source::writes::{Bulk, BulkPermit, Write, WriteError, Writes, Written};

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
    /// The last key of the page where another page follows.
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

    /// The resource as it fits the database now; empty where it does not, or not yet.
    #[inline]
    pub fn current(&self, id: ResourceId) -> CurrentResource {
        self.cache.current(id)
    }

    /// As [`Documents::current`], to be kept for longer.
    ///
    /// # Errors
    /// [`LookupError::NotReady`] where the resource does not fit the database, or not yet.
    pub fn resource(&self, id: ResourceId) -> Result<Arc<Resource>, LookupError> {
        self.cache.resource(id)
    }

    /// The document of `key`, if memory has it and may answer at the moment `now`.
    #[inline]
    pub fn try_memory(&self, id: ResourceId, key: &str, now: Boottime) -> Option<Answer> {
        self.cache.try_memory(id, key, now)
    }

    /// The document of `key`, at least as new as the transactions of `tokens`, out of the fastest tier that has it.
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

    /// As [`Documents::read`] after [`Documents::try_memory`] had no answer at the moment `now`.
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

    /// The documents of `keys`, in their order, as [`Documents::read`] reads them; `None` for one that UTF-8 can't carry,
    /// which alone is an error: it must not withhold the others, and it is not missing. What memory has needs no future.
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
                    Err(error) if error.is_of_encoding() => {
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
    /// PostgreSQL says which keys there are, so a page is as new as the request; its documents come out of the fastest
    /// tier that has them, as new as single ones. One that a tier knows to be gone, or not to be there yet, is returned
    /// as absent.
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
        // One more says whether a page follows.
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

    /// Keeps one more encoding of `document` beside it: see [`Cache::keep_encoded`].
    pub fn keep_encoded(
        &self,
        id: ResourceId,
        document: &Document,
        encoding: Encoding,
        encoded: &[u8],
    ) -> Document {
        self.cache.keep_encoded(id, document, encoding, encoded)
    }

    /// Writes a document, and waits until this node has applied that: a read after the answer sees it.
    ///
    /// # Errors
    /// Why nothing was written; after [`WriteError::Unknown`] and [`WriteError::Deadline`] it may have been.
    pub async fn write(&self, write: Write) -> Result<Written, WriteError> {
        let written = timeout(self.request_timeout(), self.writes.write(write)).await;
        let written = written.unwrap_or(Err(WriteError::Deadline))?;
        self.cache.catch_up(&written.token).await;
        Ok(written)
    }

    /// The right to insert many documents, until it is dropped.
    ///
    /// # Errors
    /// [`SourceError::Overloaded`] where as many requests do so already as there are connections for.
    pub fn bulk_permit(&self) -> Result<BulkPermit, SourceError> {
        self.writes.bulk_permit()
    }

    /// Begins a transaction that inserts documents of `resource`, to be ended by [`Documents::commit`].
    ///
    /// # Errors
    /// Why PostgreSQL can't be written to.
    pub async fn insert_many(&self, resource: Arc<Resource>) -> Result<Bulk<'_>, WriteError> {
        self.writes.bulk(resource, self.request_timeout()).await
    }

    /// Commits, and waits until this node has applied that. The transaction; `None` where nothing was inserted.
    ///
    /// # Errors
    /// Why nothing was written; after [`WriteError::Unknown`] it may have been.
    pub async fn commit(&self, bulk: Bulk<'_>) -> Result<Option<Token>, WriteError> {
        let token = bulk.commit().await?;
        if let Some(token) = &token {
            self.cache.catch_up(token).await;
        }
        Ok(token)
    }

    /// The longest wait of a request.
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
