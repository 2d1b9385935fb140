//! One document that a request wants, by its key or by an alias, in its scope. Here alone it is decided what a request sees
//! that is restricted to the documents of one owner: a document of another owner is absent in every respect.
//!
//! *Owners.* Memory answers at once with a document of the owner. Everything else is decided by PostgreSQL: one statement
//! finds which of the wanted documents the owner has now. Without it, whether a tier knows of a document, and what
//! PostgreSQL does for it, would tell foreign documents from absent ones, by the time that it takes or while PostgreSQL is
//! down. The documents that the statement finds are read as for everyone. A tier may have an older one of another owner,
//! which is read again from PostgreSQL.
//!
//! *Aliases.* Memory has hints, which lead from an alias to a key, for each owner apart, and the document at the key proves by
//! its kept values that the alias leads to it. Without a hint PostgreSQL is asked for the key. If the document does not prove the alias, it has
//! changed meanwhile: one statement then reads the document by the alias, and no tier keeps that. That an alias leads to no
//! document is not remembered.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::cache::document::Document;
use crate::cache::memory::HintName;
use crate::cache::{Answer, Demand, LOOKUP_TIMEOUT, LookupError, Provenance};
use crate::clock::Boottime;
use crate::documents::Documents;
use crate::resource::find::Find;
use crate::resource::{ResourceId, Scope};

/// If PostgreSQL does not say whether a document is the owner's, and no tier has one of the owner, the error is returned
/// so long after. A lookup on disk takes less, so the time does not tell whether the disk tier has the document.
const UNDECIDED_PAUSE: Duration = LOOKUP_TIMEOUT.saturating_add(Duration::from_millis(50));

/// What a request names a document by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentName<'n> {
    /// The canonical text of its key.
    Key(&'n str),
    /// An alias's place in [`Resource::by`](crate::resource::Resource::by), and its canonical text.
    Alias(usize, &'n str),
}

impl<'n> DocumentName<'n> {
    /// `text` as a key, or as a text of the alias with this number.
    pub(super) fn new(alias: Option<usize>, text: &'n str) -> Self {
        match alias {
            None => Self::Key(text),
            Some(alias) => Self::Alias(alias, text),
        }
    }

    /// The number of the alias, if it is one, and the text.
    fn parts(self) -> (Option<usize>, &'n str) {
        match self {
            Self::Key(text) => (None, text),
            Self::Alias(alias, text) => (Some(alias), text),
        }
    }
}

/// A document that a request wants.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'w> {
    pub(super) id: ResourceId,
    pub(super) name: DocumentName<'w>,
    pub(super) demand: &'w Demand,
    pub(super) scope: &'w Scope<'w>,
    /// See [`Load::until`](crate::source::loader::Load::until).
    pub(super) until: Option<Boottime>,
}

/// What PostgreSQL has said of a document that is wanted: its key, or that there is none in the scope.
pub(super) type Found = Result<Option<String>, LookupError>;

impl Wanted<'_> {
    /// Whether `document`, which may be a remembered absence, is in the scope and has the alias.
    #[inline]
    pub(super) fn admits(&self, document: &Document) -> bool {
        let is_in_scope = match self.scope {
            Scope::All => true,
            scope => scope.contains(document.kept().owner()),
        };
        is_in_scope
            && match self.name {
                DocumentName::Key(_) => true,
                DocumentName::Alias(alias, text) => {
                    document.kept().alias(alias) == Some(text.as_bytes())
                }
            }
    }

    /// Whether it is the document that was found.
    fn admits_answer(&self, answer: &Answer) -> bool {
        let found = answer.found.as_ref();
        found.is_some_and(|document| self.admits(document))
    }

    /// That there is no such document. What a restricted request does not see is always answered the same, whatever the
    /// tiers and PostgreSQL have.
    fn absent(&self) -> Answer {
        let provenance = if self.scope.is_restricted() {
            Provenance::Undisclosed
        } else {
            Provenance::Miss {
                stored: false,
                collapsed: false,
            }
        };
        Answer {
            found: None,
            provenance,
        }
    }

    fn find(&self) -> Find {
        let (alias, text) = self.name.parts();
        Find {
            alias,
            texts: vec![text.to_owned()],
            owner: self.scope.claim().map(str::to_owned),
        }
    }

    /// The hint that may lead to it.
    fn hint_name(&self) -> Option<HintName<'_>> {
        match self.name {
            DocumentName::Alias(alias, text) if *self.scope != Scope::Own(None) => Some(HintName {
                alias,
                owner: self.scope.claim(),
                text,
            }),
            _ => None,
        }
    }

    /// The same, if the document is read where the hint leads to. For a restricted request PostgreSQL decides first.
    fn believed_hint(&self) -> Option<HintName<'_>> {
        self.hint_name().filter(|name| name.owner.is_none())
    }
}

impl Documents {
    /// The document, if memory has it and is fresh at the time `now`.
    #[inline]
    pub(super) fn wanted_from_memory(&self, wanted: &Wanted<'_>, now: Boottime) -> Option<Answer> {
        let admits = |document: &Document| wanted.admits(document);
        let id = wanted.id;
        match wanted.name {
            DocumentName::Key(key) => self.cache.try_memory(id, key, now, admits),
            DocumentName::Alias(..) => {
                let hint = wanted.hint_name()?;
                self.cache.try_hinted(id, hint, now, admits)
            }
        }
    }

    /// Reads a document that PostgreSQL has to decide about: in a restricted scope, or by an alias. Without a demand memory
    /// was asked before.
    pub(super) async fn read_wanted(&self, wanted: &Wanted<'_>) -> Result<Answer, LookupError> {
        let demand = wanted.demand;
        if !demand.is_none()
            && self.cache.is_settled(wanted.id, demand).await
            && let Some(answer) = self.wanted_from_memory(wanted, Boottime::now())
        {
            return Ok(answer);
        }
        // Of others' documents not even the time that a lookup on disk takes may tell.
        if demand.only_if_cached && wanted.scope.is_restricted() {
            return Err(LookupError::NotCached);
        }
        if let Some(answer) = self.read_hinted(wanted).await? {
            return Ok(answer);
        }
        if demand.only_if_cached {
            return Err(LookupError::NotCached);
        }
        let began = Boottime::now();
        let (alias, text) = wanted.name.parts();
        let texts = vec![text.to_owned()];
        let found = self.find(wanted.id, alias, texts, wanted.demand, wanted.scope);
        let found = found.await.pop().unwrap_or(Ok(None));
        let taken = Boottime::now().since(began);
        // Without PostgreSQL it does not take long, but the time may be over.
        let left = self.request_timeout().saturating_sub(taken);
        let reading = self.read_found(wanted, found);
        let read = timeout(left.max(2 * UNDECIDED_PAUSE), reading).await;
        read.unwrap_or(Err(LookupError::Deadline))
    }

    /// Reads the document that a hint leads to; `None` if there is no hint or if the document does not prove the alias.
    async fn read_hinted(&self, wanted: &Wanted<'_>) -> Result<Option<Answer>, LookupError> {
        let name = wanted.believed_hint();
        let hint = name.and_then(|name| self.cache.hint(wanted.id, name));
        let Some(hint) = hint else {
            return Ok(None);
        };
        match self.read_key(wanted, hint.key()).await {
            Ok(answer) => Ok(Some(answer).filter(|answer| wanted.admits_answer(answer))),
            // Perhaps the alias leads to another document now.
            Err(error) if error.is_of_one_document() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether it is read where a hint leads to.
    pub(super) fn is_hinted(&self, wanted: &Wanted<'_>) -> bool {
        let name = wanted.believed_hint();
        name.is_some_and(|name| self.cache.hint(wanted.id, name).is_some())
    }

    /// Asks PostgreSQL by one statement which documents `texts`, which differ, lead to in the `scope`.
    pub(super) async fn find(
        &self,
        id: ResourceId,
        alias: Option<usize>,
        texts: Vec<String>,
        demand: &Demand,
        scope: &Scope<'_>,
    ) -> Vec<Found> {
        let count = texts.len();
        if *scope == Scope::Own(None) {
            return vec![Ok(None); count];
        }
        let find = Find {
            alias,
            texts,
            owner: scope.claim().map(str::to_owned),
        };
        match self.cache.find(id, &find, demand).await {
            Ok(found) => found.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); count],
        }
    }

    /// Reads a document of which PostgreSQL has said, if it could, where it is.
    pub(super) async fn read_found(
        &self,
        wanted: &Wanted<'_>,
        found: Found,
    ) -> Result<Answer, LookupError> {
        let key = match found {
            Ok(None) => return Ok(wanted.absent()),
            Ok(Some(key)) => key,
            Err(error) => return self.read_undecided(wanted, error).await,
        };
        let Wanted {
            id, demand, until, ..
        } = *wanted;
        if let Some(name) = wanted.hint_name() {
            self.cache.keep_hint(id, name, &key);
        }
        let answer = self.read_key(wanted, &key).await?;
        if wanted.admits_answer(&answer) {
            return Ok(answer);
        }
        let answer = match wanted.name {
            DocumentName::Key(_) => self.cache.load_anew(id, &key, demand, until).await?,
            DocumentName::Alias(..) => self.cache.read_found(id, &wanted.find(), demand).await?,
        };
        // It may have changed since the first statement.
        let answer = Some(answer).filter(|answer| wanted.admits_answer(answer));
        Ok(answer.unwrap_or_else(|| wanted.absent()))
    }

    /// Reads a document that PostgreSQL could not decide about because of `error`: a restricted request gets one of its own
    /// from the tiers.
    async fn read_undecided(
        &self,
        wanted: &Wanted<'_>,
        error: LookupError,
    ) -> Result<Answer, LookupError> {
        if !wanted.scope.is_restricted() {
            return Err(error);
        }
        let Wanted { id, demand, .. } = *wanted;
        let pause = sleep(UNDECIDED_PAUSE);
        let key = match wanted.name {
            DocumentName::Key(key) => Some(key.to_owned()),
            DocumentName::Alias(..) => {
                let hint = wanted.hint_name();
                let hint = hint.and_then(|name| self.cache.hint(id, name));
                hint.map(|hint| hint.key().to_owned())
            }
        };
        let answer = match key {
            Some(key) => self.cache.lookup_tiers(id, &key, demand).await,
            None => None,
        };
        match answer.filter(|answer| wanted.admits_answer(answer)) {
            Some(answer) => Ok(answer),
            None => {
                pause.await;
                Err(error)
            }
        }
    }

    /// Reads the document of `key` as for everyone.
    async fn read_key(&self, wanted: &Wanted<'_>, key: &str) -> Result<Answer, LookupError> {
        let Wanted {
            id, demand, until, ..
        } = *wanted;
        if demand.is_none() {
            return self.cache.lookup(id, key, until).await;
        }
        self.cache.lookup_after(id, key, demand, until).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pause begins before the lookup, which then has to be handed to the reading thread and its result taken.
    #[test]
    fn the_pause_hides_the_longest_lookup_on_disk() {
        let margin = UNDECIDED_PAUSE.saturating_sub(LOOKUP_TIMEOUT);
        assert!(margin >= Duration::from_millis(25), "{margin:?}");
    }
}
