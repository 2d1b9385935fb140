//! `GET` and `HEAD` of documents, and `POST /RESOURCE:batch`.
//!
//! `document` reads one document, `batch` the documents of given keys, `list` a page; `query` parses the query. `composition`
//! makes bodies of many documents, `response` the responses, and `cache_headers` are the headers for caches.

pub(super) mod batch;
pub mod cache_headers;
mod composition;
pub(super) mod document;
pub(super) mod list;
mod query;
mod reading;
mod response;

use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;

pub(super) use crate::http::read::query::{KEYS_MAX, LIMIT, LIMIT_MAX};

use crate::http::problem::Problem;
use crate::http::read::query::ListQuery;
use crate::http::read::reading::ReadRequest;
use crate::http::request::Request;
use crate::http::state::HttpState;
use crate::http::work::wait_for_turn;
use crate::resource::ResourceId;

/// A longer query waits for its turn before it is parsed (see [`wait_for_turn`]).
const QUERY_BYTES_AT_ONCE: usize = 1_024;

/// A response, and the value of the metrics' label `detail`.
pub(super) type ReadResult<B> = Result<(&'static str, Response<B>), Problem>;

/// Answers `GET /RESOURCE`.
pub(super) async fn read_collection(
    state: &HttpState,
    request: &Request<'_>,
    resource: ResourceId,
) -> ReadResult<Body> {
    let mut read = ReadRequest::begin(state, request, resource).await?;
    if request.query().len() > QUERY_BYTES_AT_ONCE {
        // It keeps its turn, so that requests that wait hold no parsed keys.
        read.turn = Some(wait_for_turn(read.waiting()).await?);
    }
    let query = ListQuery::parse(request.query(), &read.resource)?;
    let ListQuery {
        keys,
        by,
        page,
        fields,
    } = query;
    read.fields = fields.map(Arc::new);
    read.by = by;
    match keys {
        Some(keys) => batch::read_keys(&mut read, &keys).await,
        None => list::read_page(&mut read, page, request.uri).await,
    }
}
