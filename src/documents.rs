//! Documents as every protocol offers them: read one, read many, list, write.
//!
//! This module is between the protocols and the cache. Arguments and results are typed, and independent of any protocol. A
//! protocol parses a request, calls one of these operations, and maps [`LookupError`] and [`WriteError`] in one place. Keys
//! have to be canonical by the definition that [`Documents::current`] or [`Documents::resource`] has returned.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::timeout;

use crate::cache::document::Document;
use crate::cache::encoding::Encoding;
use crate::cache::{Answer, Cache, CurrentResource, LookupError};
use crate::clock::Boottime;
pub use crate::resource::Scope;
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

/// The keys of one page of a list.
#[derive(Debug)]
pub struct PageKeys {
    /// Canonical, in order.
    pub keys: Vec<String>,
    /// Whether another page follows.
    pub follows: bool,
}

/// So many documents of memory are looked up at once, which takes about 100 µs: the worker that does it serves others, too.
const MEMORY_AT_ONCE: usize = 128;

/// Lookups of many documents: see [`Documents::read_many`].
pub struct Lookups<'r> {
    documents: &'r Documents,
    id: ResourceId,
    /// Those that were not looked up yet.
    keys: &'r [String],
    tokens: &'r [Token],
    bytes_max: usize,
    began: Boottime,
    window: Window,
}

/// How many documents are read from PostgreSQL at the same time for one request: as many as fit into
/// 16 MiB, if they are as long as those before. So few long documents and many short ones are in memory. If they are
/// longer, [`Lookups::next`] returns those that fit, and one more.
#[derive(Debug, Default)]
pub struct Window {
    documents: usize,
    bytes: usize,
}

impl Window {
    const FIRST: usize = 8;
    const BYTES: usize = 16 << 20;

    /// The number of documents to read next.
    pub fn size(&self) -> usize {
        match self.bytes.checked_div(self.documents) {
            None => Self::FIRST,
            Some(mean) => (Self::BYTES / mean.max(1)).clamp(1, 1_000),
        }
    }

    /// Notes a document that was read.
    pub fn add(&mut self, bytes: usize) {
        self.documents += 1;
        self.bytes += bytes;
    }
}

impl<'r> Lookups<'r> {
    /// The number of keys that were not looked up yet.
    pub fn left(&self) -> usize {
        self.keys.len()
    }

    /// The next keys with their documents; `None` after the last one. A repeated key is looked up once. There is no answer
    /// for a document that is too long or that PostgreSQL can't return: it must not prevent the others from being
    /// returned. Documents in memory need no future.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub async fn next(
        &mut self,
    ) -> Result<Option<(&'r [String], Vec<Option<Answer>>)>, LookupError> {
        if self.keys.is_empty() {
            return Ok(None);
        }
        let window = self.window.size();
        let mut answers: Vec<Option<Answer>> = Vec::new();
        let mut first_places = HashMap::with_capacity(self.keys.len().min(MEMORY_AT_ONCE));
        let mut repeated = Vec::new();
        let mut missed = Vec::new();
        let (mut in_memory, mut bytes) = (0, 0);
        for (place, key) in self.keys.iter().enumerate() {
            if missed.len() >= window || in_memory >= MEMORY_AT_ONCE || bytes > self.bytes_max {
                break;
            }
            let first = *first_places.entry(key).or_insert(place);
            let answer = if first < place {
                repeated.push((place, first));
                None
            } else {
                let found = match self.tokens {
                    [] => self.documents.try_memory(self.id, key, self.began),
                    _ => None,
                };
                match found {
                    Some(_) => in_memory += 1,
                    None => missed.push((place, key)),
                }
                found
            };
            bytes += length(&answer);
            answers.push(answer);
        }
        // One limit for all windows of a request.
        let waited = Boottime::now().since(self.began);
        let left = self.documents.request_timeout().saturating_sub(waited);
        let found = timeout(left, self.lookup_all(&missed)).await;
        let found = found.map_err(|_| LookupError::Deadline)??;
        if let Some((place, _)) = missed.get(found.len()) {
            answers.truncate(*place);
        }
        for ((place, _), found) in missed.iter().zip(found) {
            self.window.add(length(&found));
            answers[*place] = found;
        }
        for (place, first) in repeated {
            if place < answers.len() {
                answers[place] = answers[first].clone();
            }
        }
        let (looked_up, rest) = self.keys.split_at(answers.len());
        self.keys = rest;
        Ok(Some((looked_up, answers)))
    }

    /// Looks up the keys of `missed` at the same time. Returns their answers in order: all, or the first ones if these have
    /// more than [`Window::BYTES`]. Answers beyond are dropped while others are awaited.
    async fn lookup_all(
        &self,
        missed: &[(usize, &String)],
    ) -> Result<Vec<Option<Answer>>, LookupError> {
        let mut lookups: FuturesUnordered<_> = missed
            .iter()
            .enumerate()
            .map(|(number, (_, key))| async move { (number, self.lookup(key).await) })
            .collect();
        let mut found: Vec<Option<Option<Answer>>> = vec![None; missed.len()];
        let (mut ready, mut bytes) = (0, 0);
        while ready < found.len()
            && let Some((number, answer)) = lookups.next().await
        {
            let Some(slot) = found.get_mut(number) else {
                continue;
            };
            let answer = answer?;
            bytes += length(&answer);
            *slot = Some(answer);
            while found.get(ready).is_some_and(Option::is_some) {
                ready += 1;
            }
            while bytes > Window::BYTES && ready < found.len() {
                let dropped = match found.iter().rposition(Option::is_some) {
                    Some(last) if last > ready => last,
                    _ if ready > 0 => ready,
                    // The first one is not there yet.
                    _ => break,
                };
                let last = found.get_mut(dropped).and_then(Option::take);
                bytes -= last.as_ref().map_or(0, length);
                found.truncate(dropped);
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// Reads a document that memory does not have.
    async fn lookup(&self, key: &str) -> Result<Option<Answer>, LookupError> {
        let Documents { cache, .. } = self.documents;
        let until = Some(self.began.after(cache.request_timeout()));
        let found = match self.tokens {
            [] => cache.lookup_missed(self.id, key, self.began, until).await,
            tokens => cache.lookup_after(self.id, key, tokens, until).await,
        };
        match found {
            Ok(answer) => Ok(Some(answer)),
            // The cache has logged it.
            Err(error) if error.is_of_one_document() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The length of the document, if there is one.
fn length(answer: &Option<Answer>) -> usize {
    let found = answer.as_ref().and_then(|answer| answer.found.as_ref());
    found.map_or(0, |document| document.body().len())
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
            [] => self.cache.lookup(id, key, None).await,
            tokens => self.cache.lookup_after(id, key, tokens, None).await,
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
        self.cache.lookup_missed(id, key, now, None).await
    }

    /// Looks up the documents of `keys`, in their order, as [`Documents::read`] does: some at a time, so that a caller
    /// can end when those that it has reach `bytes_max`.
    pub fn read_many<'r>(
        &'r self,
        id: ResourceId,
        keys: &'r [String],
        tokens: &'r [Token],
        bytes_max: usize,
    ) -> Lookups<'r> {
        Lookups {
            documents: self,
            id,
            keys,
            tokens,
            bytes_max,
            began: Boottime::now(),
            window: Window::default(),
        }
    }

    /// The keys of one page of a list.
    ///
    /// They come from PostgreSQL, so they are as new as the request. Their documents are as new as single ones: one that
    /// was deleted in between, or that a tier does not know yet, is absent.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub async fn list(&self, id: ResourceId, mut page: Page) -> Result<PageKeys, LookupError> {
        let limit = page.limit;
        // One more key shows whether a page follows.
        page.limit += 1;
        let mut keys = self.cache.keys(id, page).await?;
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
        let written = self.writes.write(write, self.request_timeout()).await?;
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
