//! Which handler answers a request that memory did not answer.

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, Request, Response, StatusCode};
use axum::routing::MethodRouter;

use crate::clock::Boottime;
use crate::http::decoding::{content_coding, decode};
use crate::http::full_body::FullBody;
use crate::http::headers::add_allow;
use crate::http::problem::Problem;
use crate::http::request::{self, RequestContext, TargetPart};
use crate::http::state::HttpState;
use crate::http::{docs, index, openapi, read, write};

/// The methods of the server as a whole (`OPTIONS *`).
const METHODS: &str = "GET, HEAD, POST, OPTIONS";

/// The value of the metrics' label `detail` if the request alone decided the response.
pub(super) const REQUEST: &str = "request";
/// The same if PostgreSQL did.
const POSTGRES: &str = "postgres";

/// The methods of paths that can only be read.
const READING_METHODS: &str = "GET, HEAD, OPTIONS";

/// All paths of the public address; `described`: with `/`, `/docs` and `/openapi.json`.
pub(super) fn router(state: &HttpState, described: bool) -> Router {
    let auth = state.auth.clone();
    let sessions = auth.as_ref().map(|auth| auth.router());
    let described = described.then(|| {
        let documents = &state.documents;
        docs::router()
            .merge(openapi::router(documents.clone(), auth.clone()))
            .merge(index::router(documents.clone(), auth))
    });
    // The middleware has split paths of documents. axum's router would decode keys before they are split at commas.
    let router = described.unwrap_or_default().fallback(handle);
    let router = router.with_state(state.clone());
    router.merge(sessions.unwrap_or_default())
}

/// Answers all requests for documents, and those for paths that do not exist.
async fn handle(State(state): State<HttpState>, request: Request<Body>) -> Response<Body> {
    let began = Boottime::now();
    let (mut head, body) = request.into_parts();
    let Some(context) = head.extensions.remove::<RequestContext>() else {
        return Problem::internal("the request did not pass the middleware").into_response();
    };
    let request = request::Request::resume(&head, context);
    let target = request.resource();
    let resource = target.as_ref().ok().map(|(resource, _)| *resource);
    let in_progress =
        target.and_then(|_| state.in_progress.begin(request.client(), request.headers));
    let answered = match in_progress {
        Ok(_held) => dispatch(&state, request, body).await,
        Err(_) if head.method == Method::OPTIONS && head.uri.path() == "*" => {
            Ok((REQUEST, allow(METHODS).map(Body::new)))
        }
        Err(problem) => Err(problem),
    };
    let (detail, response) = answered.unwrap_or_else(|problem| {
        let detail = if problem.status().is_client_error() {
            REQUEST
        } else {
            POSTGRES
        };
        (detail, problem.into_response())
    });
    state.count(resource, detail, response.status(), began);
    response
}

/// Answers a request about a resource by its method: the answer, and the value of the metrics' label `detail`.
///
/// What may wait is boxed, but for a document's read: with room for the state of each, every request that waits took
/// 18,880 bytes (2026-11-26), and takes 3,456 now.
async fn dispatch(
    state: &HttpState,
    request: request::Request<'_>,
    body: Body,
) -> Result<(&'static str, Response<Body>), Problem> {
    let (resource, part) = request.resource()?;
    let has_body = matches!(*request.method, Method::POST | Method::PUT | Method::PATCH);
    let coding = if has_body {
        content_coding(request.headers)?
    } else {
        None
    };
    let body = match coding {
        Some(coding) => decode(body, coding, state.bodies.share(request.client())),
        None => body,
    };
    match (request.method, part) {
        (&Method::GET | &Method::HEAD, TargetPart::Document { .. } | TargetPart::Alias { .. }) => {
            read::document::read_document(state, request, resource).await
        }
        (&Method::GET | &Method::HEAD, TargetPart::Collection) => {
            Box::pin(read::read_collection(state, &request, resource)).await
        }
        (&Method::POST, TargetPart::Batch) => {
            Box::pin(read::batch::read_batch(state, &request, resource, body)).await
        }
        (&Method::OPTIONS, part) => {
            // While the resource is not ready, it is not known whether its tables can be written; and it is not shown to
            // a client that may neither read nor write.
            let is_closed = state
                .auth
                .as_ref()
                .is_some_and(|auth| !auth.allows_any(request.principal.as_deref(), resource));
            let resource = state.documents.resource(resource).ok();
            let resource = resource.filter(|_| !is_closed);
            let writable = resource.is_none_or(|resource| resource.writable.is_ok());
            Ok((REQUEST, allow(part.methods(writable)).map(Body::new)))
        }
        (_, part) => {
            let writing = write::write_documents(state, &request, resource, part, body);
            Ok((POSTGRES, Box::pin(writing).await?))
        }
    }
}

/// Answers `OPTIONS` for a path that can only be read, too.
pub(super) fn with_options<S: Clone + Send + Sync + 'static>(
    reading: MethodRouter<S>,
) -> MethodRouter<S> {
    reading.options(async || allow(READING_METHODS).map(Body::new))
}

/// 204 with the methods that are allowed.
fn allow(methods: &'static str) -> Response<FullBody> {
    let mut response = Response::new(FullBody::default());
    *response.status_mut() = StatusCode::NO_CONTENT;
    add_allow(response.headers_mut(), methods);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDLER_BYTES_MAX: usize = 6 << 10;

    /// The bytes of the future that `answer` returns.
    fn bytes_of<A, F>(_: impl Fn(A) -> F) -> usize {
        size_of::<F>()
    }

    /// A client may let thousands of requests wait.
    #[test]
    fn a_request_that_waits_takes_little_memory() {
        let bytes = bytes_of(|(state, request)| handle(State(state), request));
        assert!(bytes <= HANDLER_BYTES_MAX, "{bytes}");
    }
}
