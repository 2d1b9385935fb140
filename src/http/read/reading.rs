//! The part of a request that all reads have in common.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use axum::http::{Method, Response};
use futures_util::poll;

use crate::auth::Right;
use crate::cache::{Answer, Demand, Provenance};
use crate::documents::lookups::{Lookups, TextKind};
use crate::documents::{Documents, Scope};
use crate::http::answers::AnswersMemory;
use crate::http::problem::Problem;
use crate::http::read::cache_headers::CacheHeaders;
use crate::http::read::composition::Composition;
use crate::http::request::Request;
use crate::http::state::HttpState;
use crate::http::work::{Waiting, WorkerTurn, wait_for_turn};
use crate::resource::projection::Projection;
use crate::resource::{Resource, ResourceId};

/// A request for more documents waits for its turn (see [`wait_for_turn`]).
const KEYS_AT_ONCE: usize = 16;

/// A request that reads documents of a resource.
pub(super) struct ReadRequest<'r> {
    pub(super) documents: &'r Documents,
    pub(super) id: ResourceId,
    pub(super) resource: Arc<Resource>,
    pub(super) cache_headers: &'r CacheHeaders,
    pub(super) request: &'r Request<'r>,
    /// The memory of answers with many documents.
    pub(super) answers: &'r AnswersMemory,
    pub(super) demand: Demand,
    /// The documents that it may read.
    pub(super) scope: Scope<'r>,
    /// The members to return; `None` for whole documents.
    pub(super) fields: Option<Arc<Projection>>,
    /// The number of the alias that documents are named by; `None`: their keys.
    pub(super) by: Option<usize>,
    /// The turn in which it was parsed, if it is long.
    pub(super) turn: Option<WorkerTurn>,
}

impl<'r> ReadRequest<'r> {
    /// Reads the headers of a request for documents of a resource.
    ///
    /// # Errors
    /// The client does not accept JSON; a token is malformed; the resource is not ready.
    pub(super) async fn begin(
        state: &'r HttpState,
        request: &'r Request<'r>,
        id: ResourceId,
    ) -> Result<Self, Problem> {
        if !request.accepts_json() {
            return Err(Problem::NOT_ACCEPTABLE);
        }
        let cache_headers = state.cache_headers(id).ok_or(Problem::NO_SUCH_RESOURCE)?;
        let demand = request.demand(cache_headers.allows_strict)?;
        let resource = state.documents.definition(id, &demand).await?;
        Ok(Self {
            documents: &state.documents,
            answers: &state.answers,
            id,
            cache_headers,
            demand,
            scope: request.scope(id, &resource, Right::Read),
            resource,
            request,
            fields: None,
            by: None,
            turn: None,
        })
    }

    /// Whether it reflects all that had committed when it arrived.
    pub(super) fn is_strict(&self) -> bool {
        self.demand.strict.is_some()
    }

    /// Adds the headers for caches to a response with many documents.
    pub(super) fn add_cache_headers(
        &self,
        response: &mut Response<impl Sized>,
        provenance: Provenance,
    ) {
        self.cache_headers
            .add(response, provenance, self.is_strict(), None);
    }

    /// Begins the body of an answer with many documents.
    pub(super) fn compose(&self, begin: &str) -> Composition {
        let is_kept = *self.request.method != Method::HEAD;
        let waiting = self.waiting();
        Composition::new(self.answers, self.fields.clone(), begin, is_kept, waiting)
    }

    /// For work that takes long.
    pub(super) fn waiting(&self) -> Waiting {
        Waiting {
            client: self.request.client(),
            wait_max: self.documents.request_timeout(),
        }
    }

    /// Looks up documents by `texts`, with [`Self::turn`] if the request has one.
    pub(super) fn look_up<'l>(
        &'l self,
        texts: &'l [String],
        kind: TextKind,
        turn: Option<WorkerTurn>,
    ) -> DocumentWindows<'l> {
        let bytes_max = self.answers.answer_bytes_max();
        let documents = self.documents;
        DocumentWindows {
            lookups: documents.read_many(
                self.id,
                texts,
                kind,
                &self.demand,
                &self.scope,
                bytes_max,
            ),
            waiting: self.waiting(),
            turn,
            is_projected: self.fields.is_some(),
        }
    }
}

/// Documents that are looked up some at a time: see [`Lookups`].
pub(super) struct DocumentWindows<'l> {
    lookups: Lookups<'l>,
    waiting: Waiting,
    turn: Option<WorkerTurn>,
    /// Between two windows it may wait for other threads.
    is_projected: bool,
}

impl<'l> DocumentWindows<'l> {
    /// The next ones. If they are many, the request waits for its turn before, and keeps it until the last window or until
    /// it has to wait for something else: requests that wait for their turn should hold no parsed keys and no documents.
    ///
    /// # Errors
    /// 503 if its turn does not come; else those of the lookups.
    pub(super) async fn next(
        &mut self,
    ) -> Result<Option<(&'l [String], Vec<Option<Answer>>)>, Problem> {
        let turn = match self.turn.take() {
            Some(turn) => {
                turn.pause().await;
                Some(turn)
            }
            None if self.lookups.left() > KEYS_AT_ONCE => Some(wait_for_turn(self.waiting).await?),
            None => None,
        };
        let mut next = pin!(self.lookups.next());
        let window = match poll!(next.as_mut()) {
            Poll::Ready(window) => {
                self.turn = turn.filter(|_| !self.is_projected);
                window?
            }
            Poll::Pending => {
                drop(turn);
                next.await?
            }
        };
        if window.is_none() {
            self.turn = None;
        }
        Ok(window)
    }
}
