//! Responses with status 500: each is logged once, with an id that the response has, too.

use std::sync::Arc;

use axum::http::header::HeaderName;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, Uri};
use uuid::Uuid;

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// A longer id of a request is replaced.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Why a response has status 500, for the log only: an extension of the response.
#[derive(Clone, Debug)]
pub(super) struct InternalError(pub(super) Arc<str>);

/// What the log says of a request whose response has status 500.
pub(super) struct FailedRequest {
    method: Method,
    uri: Uri,
    id: Option<HeaderValue>,
}

impl FailedRequest {
    /// Keeps what the log may need of a request.
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            id: request.headers().get(X_REQUEST_ID).cloned(),
        }
    }

    /// Logs `response` if it has an [`InternalError`], and adds the id of the request to it.
    pub(super) fn log<B>(&self, response: &mut Response<B>) {
        let Some(InternalError(cause)) = response.extensions_mut().remove::<InternalError>() else {
            return;
        };
        let id = id_of(self.id.as_ref());
        log(&id, &format!("{} {}", self.method, self.uri.path()), &cause);
        if let Ok(id) = HeaderValue::try_from(id) {
            response.headers_mut().insert(X_REQUEST_ID, id);
        }
    }
}

/// Logs that the request with this `id` has failed. `target` is what it is about.
pub(super) fn log(id: &str, target: &str, cause: &str) {
    tracing::error!("a request failed (500): request {id}, {target}: {cause}");
}

/// The id of a request: the one that the client or a proxy has sent, or a random one.
pub(super) fn request_id(headers: &HeaderMap) -> String {
    id_of(headers.get(X_REQUEST_ID))
}

fn id_of(sent: Option<&HeaderValue>) -> String {
    let sent = sent.filter(|id| id.len() <= REQUEST_ID_BYTES_MAX);
    let id = sent.and_then(|id| id.to_str().ok()).map(str::to_owned);
    id.unwrap_or_else(|| Uuid::new_v4().to_string())
}
