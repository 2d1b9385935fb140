//! What answers that read have in common.

use std::sync::Arc;

use axum::http::HeaderMap;

use crate::documents::Documents;
use crate::http::problem::Problem;
use crate::http::read::cache_headers::CacheHeaders;
use crate::http::read::negotiate::accepts_json;
use crate::http::request::Request;
use crate::http::state::HttpState;
use crate::resource::projection::Projection;
use crate::resource::{Resource, ResourceId};
use crate::source::token::Token;

/// A request that reads.
pub(super) struct Reading<'r> {
    pub(super) documents: &'r Documents,
    pub(super) id: ResourceId,
    pub(super) resource: Arc<Resource>,
    pub(super) cache_headers: &'r CacheHeaders,
    pub(super) headers: &'r HeaderMap,
    /// The transactions that the answer must show.
    pub(super) tokens: Vec<Token>,
    /// The members that are wanted; none for whole documents.
    pub(super) fields: Option<Projection>,
}

impl<'r> Reading<'r> {
    /// Begins to read documents of a resource.
    ///
    /// # Errors
    /// The client takes no JSON; a token that is none; the resource does not fit the database.
    pub(super) fn begin(
        state: &'r HttpState,
        request: &Request<'r>,
        id: ResourceId,
    ) -> Result<Self, Problem> {
        if !accepts_json(request.headers) {
            return Err(Problem::NOT_ACCEPTABLE);
        }
        let cache_headers = state.cache_headers(id);
        Ok(Self {
            documents: &state.documents,
            id,
            cache_headers: cache_headers.ok_or(Problem::NO_SUCH_RESOURCE)?,
            tokens: request.tokens()?,
            resource: state.documents.resource(id)?,
            headers: request.headers,
            fields: None,
        })
    }
}
