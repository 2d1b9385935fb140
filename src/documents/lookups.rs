//! Lookups of many documents for one request, some at a time.

use std::collections::HashMap;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::timeout;

use crate::cache::{Answer, Demand, LookupError};
use crate::clock::Boottime;
use crate::documents::Documents;
use crate::documents::wanted::{DocumentName, Found, Wanted};
use crate::resource::{ResourceId, Scope};

/// So many documents of memory are looked up at once, which takes about 100 µs: the worker that does it serves others, too.
const MEMORY_AT_ONCE: usize = 128;

/// Lookups of many documents: see [`Documents::read_many`].
pub struct Lookups<'r> {
    pub(super) documents: &'r Documents,
    pub(super) id: ResourceId,
    /// Those that were not looked up yet.
    pub(super) texts: &'r [String],
    pub(super) kind: TextKind,
    pub(super) demand: &'r Demand,
    pub(super) scope: &'r Scope<'r>,
    pub(super) bytes_max: usize,
    pub(super) began: Boottime,
    pub(super) window: Window,
}

/// What the texts of lookups are. They are canonical.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextKind {
    /// Keys.
    Keys,
    /// Keys of a page, so their documents were in the scope when PostgreSQL made it.
    KeysOfPage,
    /// Those of the alias with this number.
    Alias(usize),
}

impl TextKind {
    fn alias(self) -> Option<usize> {
        match self {
            Self::Keys | Self::KeysOfPage => None,
            Self::Alias(alias) => Some(alias),
        }
    }
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
    /// The number of texts that were not looked up yet.
    pub fn left(&self) -> usize {
        self.texts.len()
    }

    /// The next texts with their documents; `None` after the last one. A repeated text is looked up once. There is no answer
    /// for a document that is too long or that PostgreSQL can't return: it must not prevent the others from being
    /// returned. Documents in memory need no future.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub async fn next(
        &mut self,
    ) -> Result<Option<(&'r [String], Vec<Option<Answer>>)>, LookupError> {
        if self.texts.is_empty() {
            return Ok(None);
        }
        let window = self.window.size();
        let memory_at = self.memory_at().await;
        let mut answers: Vec<Option<Answer>> = Vec::new();
        let mut first_places = HashMap::with_capacity(self.texts.len().min(MEMORY_AT_ONCE));
        let mut repeated = Vec::new();
        let mut missed = Vec::new();
        let (mut in_memory, mut bytes) = (0, 0);
        for (place, key) in self.texts.iter().enumerate() {
            if missed.len() >= window || in_memory >= MEMORY_AT_ONCE || bytes > self.bytes_max {
                break;
            }
            let first = *first_places.entry(key).or_insert(place);
            let answer = if first < place {
                repeated.push((place, first));
                None
            } else {
                let wanted = self.wanted(key);
                let found = memory_at.and_then(|at| self.documents.wanted_from_memory(&wanted, at));
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
        let lookups = async {
            let found = self.find(&missed).await;
            self.lookup_all(&missed, found).await
        };
        let found = timeout(left, lookups).await;
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
        let (looked_up, rest) = self.texts.split_at(answers.len());
        self.texts = rest;
        Ok(Some((looked_up, answers)))
    }

    /// The moment at which memory is asked; `None` while the tiers lack what the request demands.
    async fn memory_at(&self) -> Option<Boottime> {
        if self.demand.is_none() {
            return Some(self.began);
        }
        let cache = &self.documents.cache;
        let is_settled = cache.is_settled(self.id, self.demand).await;
        is_settled.then(Boottime::now)
    }

    fn wanted<'w>(&'w self, text: &'w str) -> Wanted<'w> {
        Wanted {
            id: self.id,
            name: DocumentName::new(self.kind.alias(), text),
            demand: self.demand,
            scope: self.scope,
            until: Some(self.began.after(self.documents.request_timeout())),
        }
    }

    /// What PostgreSQL says of the documents of `missed`, if it has to be asked; `None` for those that can be read at once.
    async fn find(&self, missed: &[(usize, &String)]) -> Vec<Option<Found>> {
        let texts = missed.iter().map(|(_, text)| *text);
        if self.kind == TextKind::KeysOfPage {
            return texts.map(|key| Some(Ok(Some(key.clone())))).collect();
        }
        let alias = self.kind.alias();
        let is_asked = |text: &String| match alias {
            None => self.scope.is_restricted(),
            Some(_) => !self.documents.is_hinted(&self.wanted(text)),
        };
        let is_asked: Vec<bool> = texts.clone().map(is_asked).collect();
        let asked = texts.zip(&is_asked).filter(|(_, is_asked)| **is_asked);
        let asked: Vec<String> = asked.map(|(text, _)| text.clone()).collect();
        if asked.is_empty() || self.demand.only_if_cached {
            return vec![None; missed.len()];
        }
        let documents = self.documents;
        let found = documents.find(self.id, alias, asked, self.demand, self.scope);
        let mut found = found.await.into_iter();
        let of = |is_asked: bool| is_asked.then(|| found.next().unwrap_or(Ok(None)));
        is_asked.into_iter().map(of).collect()
    }

    /// Looks up the documents of `missed` at the same time. Returns their answers in order: all, or the first ones if these have
    /// more than [`Window::BYTES`]. Answers beyond are dropped while others are awaited.
    async fn lookup_all(
        &self,
        missed: &[(usize, &String)],
        found: Vec<Option<Found>>,
    ) -> Result<Vec<Option<Answer>>, LookupError> {
        let mut lookups: FuturesUnordered<_> =
            missed
                .iter()
                .zip(found)
                .enumerate()
                .map(|(number, ((_, text), found))| async move {
                    (number, self.lookup(text, found).await)
                })
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
    async fn lookup(
        &self,
        text: &str,
        found: Option<Found>,
    ) -> Result<Option<Answer>, LookupError> {
        let documents = self.documents;
        let (id, cache) = (self.id, &documents.cache);
        let wanted = self.wanted(text);
        let until = wanted.until;
        let found = match (wanted.name, self.scope, found) {
            (DocumentName::Key(key), Scope::All, _) if self.demand.is_none() => {
                cache.lookup_missed(id, key, self.began, until).await
            }
            (DocumentName::Key(key), Scope::All, _) => {
                cache.lookup_after(id, key, self.demand, until).await
            }
            (_, _, Some(found)) => documents.read_found(&wanted, found).await,
            (_, _, None) => documents.read_wanted(&wanted).await,
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
