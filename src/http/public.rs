//! The service of the public address.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::CONTENT_LENGTH;
use axum::http::{Request, Response, StatusCode};
use axum::{BoxError, Router};
use futures_util::future::{BoxFuture, Either, FutureExt, TryFutureExt};
use tower_service::Service;

use crate::cache::Cache;
use crate::http::body::Whole;
use crate::http::documents::{self, Documents};
use crate::http::problem::Problem;
use crate::metrics::Metrics;

/// The longest path and query: a thousand uuids fit.
const URI_BYTES_MAX: usize = 48 << 10;

/// The body of an answer: a document out of memory, or what a handler of axum's made.
pub type AnswerBody = http_body_util::Either<Whole, Body>;

/// Answers what is in memory at once, without a router, a box or a task; everything else goes through axum's router.
#[derive(Clone)]
pub struct Public {
    inner: Arc<Inner>,
}

struct Inner {
    documents: Documents,
    router: Router,
}

impl Public {
    /// Serves the documents of `cache`, and counts the answers.
    pub fn new(cache: Arc<Cache>, metrics: Arc<Metrics>) -> Self {
        let documents = Documents::new(cache, metrics);
        // Paths are split by hand: keys are split at commas before they are percent-decoded, and may be empty.
        let router = Router::new().fallback(documents::answer);
        let router = router.with_state(documents.clone());
        Self {
            inner: Arc::new(Inner { documents, router }),
        }
    }
}

type Answered = Result<Response<AnswerBody>, Infallible>;

/// What the router has answered, as this service answers it.
fn routed(mut response: Response<Body>) -> Response<AnswerBody> {
    // The router says 0, which is not the document's length (RFC 9110, section 8.6).
    if response.status() == StatusCode::NOT_MODIFIED {
        response.headers_mut().remove(CONTENT_LENGTH);
    }
    response.map(http_body_util::Either::Right)
}

impl<B> Service<Request<B>> for Public
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Either<Ready<Answered>, BoxFuture<'static, Answered>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let hit = self
            .inner
            .documents
            .hit(request.method(), request.uri(), request.headers());
        if let Some(response) = hit {
            return Either::Left(ready(Ok(response.map(http_body_util::Either::Left))));
        }
        let asked = request.uri().path_and_query();
        if asked.is_some_and(|asked| asked.as_str().len() > URI_BYTES_MAX) {
            let response = Problem::uri_too_long().into_whole_response();
            return Either::Left(ready(Ok(response.map(http_body_util::Either::Left))));
        }
        let answer = self.inner.router.clone().call(request);
        // hyper moves this future, so what only a miss needs is kept elsewhere.
        Either::Right(answer.map_ok(routed).boxed())
    }
}
