//! Which documents a request may read or write. Here alone it is decided what a request sees that is restricted to
//! the documents of one owner: a document of another owner is absent in every respect.
//!
//! Memory answers at once with a document of the owner. Everything else is decided by PostgreSQL: one statement finds
//! which of the wanted documents the owner has now. Without it, whether a tier knows of a document, and what PostgreSQL
//! does for it, would tell foreign documents from absent ones, by the time that it takes or while PostgreSQL is down.
//! The documents that the statement finds are read as for everyone. A tier may have an older one of another owner, which
//! is read again from PostgreSQL.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::cache::document::Document;
use crate::cache::{Answer, LookupError, Provenance};
use crate::clock::Boottime;
use crate::documents::Documents;
use crate::resource::find::Find;
use crate::resource::{ResourceId, Scope};
use crate::source::token::Token;

/// If PostgreSQL does not say whether a document is the owner's, and no tier has one of the owner, the error is returned
/// so long after. A lookup on disk takes less, so the time does not tell whether the disk tier has the document.
const UNDECIDED_PAUSE: Duration = Duration::from_millis(250);

/// What a restricted request learns of documents that it does not see, whatever the tiers and PostgreSQL have.
const ABSENT: Answer = Answer {
    found: None,
    provenance: Provenance::Undisclosed,
};

/// Whether `scope` has `document`. A remembered absence has no owner.
#[inline]
pub(super) fn admits(scope: &Scope<'_>, document: &Document) -> bool {
    scope.contains(document.kept().owner())
}

/// Whether `scope` has the document that was found.
fn admits_answer(scope: &Scope<'_>, answer: &Answer) -> bool {
    let found = answer.found.as_ref();
    found.is_some_and(|document| admits(scope, document))
}

/// Whether a document belongs to the owner of a scope.
#[derive(Clone, Debug)]
pub(super) enum Ownership {
    Own,
    /// There is no such document, or it has another owner or none.
    NotOwn,
    /// PostgreSQL did not say.
    Unknown(LookupError),
}

impl Documents {
    /// Asks PostgreSQL by one statement which documents of `keys`, which differ, are in the `scope`.
    pub(super) async fn ownership(
        &self,
        id: ResourceId,
        keys: Vec<String>,
        scope: &Scope<'_>,
    ) -> Vec<Ownership> {
        let count = keys.len();
        let owner = match scope {
            Scope::All => return vec![Ownership::Own; count],
            Scope::Own(None) => return vec![Ownership::NotOwn; count],
            Scope::Own(Some(claim)) => claim.as_ref().to_owned(),
        };
        let find = Find {
            alias: None,
            texts: keys,
            owner: Some(owner),
        };
        let ownership = |found: Option<String>| match found {
            Some(_) => Ownership::Own,
            None => Ownership::NotOwn,
        };
        match self.cache.find(id, &find).await {
            Ok(found) => found.into_iter().map(ownership).collect(),
            Err(error) => vec![Ownership::Unknown(error); count],
        }
    }

    /// Reads a document that memory does not have in the restricted `scope`.
    pub(super) async fn read_restricted(
        &self,
        id: ResourceId,
        key: &str,
        tokens: &[Token],
        scope: &Scope<'_>,
    ) -> Result<Answer, LookupError> {
        let began = Boottime::now();
        let ownership = self.ownership(id, vec![key.to_owned()], scope).await.pop();
        let ownership = ownership.unwrap_or(Ownership::NotOwn);
        let left = self
            .request_timeout()
            .saturating_sub(Boottime::now().since(began));
        let reading = self.read_decided(id, key, tokens, scope, ownership, None);
        // Without PostgreSQL it does not take long, but the time may be over.
        let left = left.max(2 * UNDECIDED_PAUSE);
        let read = timeout(left, reading).await;
        read.unwrap_or(Err(LookupError::Deadline))
    }

    /// Reads a document of which PostgreSQL has said, if it could, whether it is in the restricted `scope`. `until`: see
    /// [`Load::until`](crate::source::loader::Load::until).
    pub(super) async fn read_decided(
        &self,
        id: ResourceId,
        key: &str,
        tokens: &[Token],
        scope: &Scope<'_>,
        ownership: Ownership,
        until: Option<Boottime>,
    ) -> Result<Answer, LookupError> {
        match ownership {
            Ownership::NotOwn => Ok(ABSENT),
            Ownership::Own => {
                let answer = match tokens {
                    [] => self.cache.lookup(id, key, until).await?,
                    tokens => self.cache.lookup_after(id, key, tokens, until).await?,
                };
                if admits_answer(scope, &answer) {
                    return Ok(answer);
                }
                let answer = self.cache.load_anew(id, key, until).await?;
                // The owner may have changed since the statement.
                Ok(Some(answer)
                    .filter(|answer| admits_answer(scope, answer))
                    .unwrap_or(ABSENT))
            }
            Ownership::Unknown(error) => {
                let pause = sleep(UNDECIDED_PAUSE);
                let answer = self.cache.lookup_tiers(id, key, tokens).await;
                match answer.filter(|answer| admits_answer(scope, answer)) {
                    Some(answer) => Ok(answer),
                    None => {
                        pause.await;
                        Err(error)
                    }
                }
            }
        }
    }
}
