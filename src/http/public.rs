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
use crate::http::cors::{Cors, CorsConfig};
use crate::http::documents::{self, Documents};
use crate::http::labels::Labels;
use crate::http::problem::Problem;
use crate::metrics::Metrics;
use crate::source::writes::Writes;

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
    /// None where no other origin may do anything.
    cors: Option<Cors>,
}

/// What the public address says besides documents.
#[derive(Clone, Debug)]
pub struct PublicConfig {
    /// Of each resource, in the order of their indices.
    pub labels: Vec<Labels>,
    /// Pages of other origins.
    pub cors: CorsConfig,
}

impl Public {
    /// Serves the documents of `cache`, writes those of clients by `writes`, and counts the answers.
    pub fn new(
        cache: Arc<Cache>,
        writes: Arc<Writes>,
        metrics: Arc<Metrics>,
        config: PublicConfig,
    ) -> Self {
        let cors = Cors::new(&config.cors);
        let documents = Documents::new(cache, writes, metrics, config.labels);
        // Paths are split by hand: keys are split at commas before they are percent-decoded, and may be empty.
        let router = Router::new().fallback(documents::answer);
        let router = router.with_state(documents.clone());
        Self {
            inner: Arc::new(Inner {
                documents,
                router,
                cors,
            }),
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
        let (method, headers) = (request.method(), request.headers());
        let cors = self.inner.cors.as_ref();
        let hit = cors
            .and_then(|cors| cors.preflight(method, headers))
            .or_else(|| {
                let hit = self.inner.documents.hit(method, request.uri(), headers);
                hit.map(|mut response| {
                    if let Some(cors) = cors {
                        cors.mark(cors.origin(headers), response.headers_mut());
                    }
                    response
                })
            });
        if let Some(response) = hit {
            return Either::Left(ready(Ok(response.map(http_body_util::Either::Left))));
        }
        let asked = request.uri().path_and_query();
        if asked.is_some_and(|asked| asked.as_str().len() > URI_BYTES_MAX) {
            let response = Problem::uri_too_long().into_whole_response();
            return Either::Left(ready(Ok(response.map(http_body_util::Either::Left))));
        }
        let origin = cors.and_then(|cors| cors.origin(headers));
        let answer = self.inner.router.clone().call(request);
        let inner = Arc::clone(&self.inner);
        let answer = answer.map_ok(move |response| {
            let mut response = routed(response);
            if let Some(cors) = &inner.cors {
                cors.mark(origin, response.headers_mut());
            }
            response
        });
        // hyper moves this future, so what only a miss needs is kept elsewhere.
        Either::Right(answer.boxed())
    }
}
