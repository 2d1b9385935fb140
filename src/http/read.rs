//! `GET` and `HEAD` of documents, and `POST /RESOURCE:batch`.
//!
//! `document` answers one, `batch` those that are asked for by key, `list` pages; `query` reads the query. `response`
//! makes the answers: `range` decides on 206, `negotiate` on type and encoding; `cache_headers` are what caches are told.

pub(super) mod batch;
pub mod cache_headers;
pub(super) mod document;
pub(super) mod list;
pub(super) mod negotiate;
mod query;
mod range;
mod reading;
mod response;

use axum::body::Body;
use axum::http::Response;

pub(super) use crate::http::read::query::{KEYS_MAX, LIMIT, LIMIT_MAX};

use crate::http::full_body::FullBody;
use crate::http::problem::Problem;
use crate::http::read::query::Query;
use crate::http::read::reading::Reading;
use crate::http::request::Request;
use crate::http::state::HttpState;
use crate::resource::ResourceId;

/// An answer, and the value of the metrics' label `detail`.
pub(super) type Answered<B> = Result<(&'static str, Response<B>), Problem>;

/// The documents that the query of `/RESOURCE` asks for.
pub(super) async fn read_collection(
    state: &HttpState,
    request: &Request<'_>,
    resource: ResourceId,
) -> Answered<Body> {
    let mut reading = Reading::begin(state, request, resource)?;
    let Query { keys, page, fields } = Query::parse(request.query(), &reading.resource)?;
    reading.fields = fields;
    let answered: Answered<FullBody> = match keys {
        Some(keys) => batch::read_keys(&reading, &keys).await,
        None => list::read_page(&reading, page, request.uri).await,
    };
    answered.map(|(detail, response)| (detail, response.map(Body::new)))
}
