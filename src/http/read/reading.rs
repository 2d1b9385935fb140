//! The part of a request that all reads have in common.

use std::sync::Arc;

use axum::http::Method;

use crate::documents::Documents;
use crate::http::answers::AnswersMemory;
use crate::http::problem::Problem;
use crate::http::read::cache_headers::CacheHeaders;
use crate::http::read::composition::Composition;
use crate::http::request::Request;
use crate::http::state::HttpState;
use crate::resource::projection::Projection;
use crate::resource::{Resource, ResourceId};
use crate::source::token::Token;

/// A request that reads documents of a resource.
pub(super) struct ReadRequest<'r> {
    pub(super) documents: &'r Documents,
    pub(super) id: ResourceId,
    pub(super) resource: Arc<Resource>,
    pub(super) cache_headers: &'r CacheHeaders,
    pub(super) request: &'r Request<'r>,
    /// The memory of answers with many documents.
    pub(super) answers: &'r AnswersMemory,
    /// The transactions that the response must reflect.
    pub(super) tokens: Vec<Token>,
    /// The members to return; `None` for whole documents.
    pub(super) fields: Option<Projection>,
}

impl<'r> ReadRequest<'r> {
    /// Reads the headers of a request for documents of a resource.
    ///
    /// # Errors
    /// The client does not accept JSON; a token is malformed; the resource is not ready.
    pub(super) fn begin(
        state: &'r HttpState,
        request: &'r Request<'r>,
        id: ResourceId,
    ) -> Result<Self, Problem> {
        if !request.accepts_json() {
            return Err(Problem::NOT_ACCEPTABLE);
        }
        let cache_headers = state.cache_headers(id);
        Ok(Self {
            documents: &state.documents,
            answers: &state.answers,
            id,
            cache_headers: cache_headers.ok_or(Problem::NO_SUCH_RESOURCE)?,
            tokens: request.tokens()?,
            resource: state.documents.resource(id)?,
            request,
            fields: None,
        })
    }
    /// Begins the body of an answer with many documents.
    pub(super) fn compose(&mut self, begin: &str) -> Composition {
        let is_kept = *self.request.method != Method::HEAD;
        let wait_max = self.documents.request_timeout();
        Composition::new(self.answers, self.fields.take(), begin, is_kept, wait_max)
    }
}
