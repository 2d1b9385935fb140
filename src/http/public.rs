//! The service of the public address.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use axum::{BoxError, Router};
use futures_util::future::{BoxFuture, Either, FutureExt, TryFutureExt};
use ipnet::IpNet;
use tower_service::Service;

use crate::cache::Cache;
use crate::http::access_log::Who;
use crate::http::auth::{Admission, Auth};
use crate::http::body::Whole;
use crate::http::cors::{Cors, CorsConfig};
use crate::http::docs;
use crate::http::documents::{self, Documents};
use crate::http::forwarded::client;
use crate::http::labels::Labels;
use crate::http::openapi;
use crate::http::problem::Problem;
use crate::metrics::Metrics;
use crate::server::Peer;
use crate::source::writes::Writes;

/// The longest path and query: a thousand uuids fit.
const URI_BYTES_MAX: usize = 48 << 10;

/// The body of an answer: a document out of memory, or what a handler of axum's made.
pub type AnswerBody = http_body_util::Either<Whole, Body>;

/// Answers what is in memory at once, without a router, a box or a task; everything else goes through axum's router.
#[derive(Clone)]
pub struct Public {
    inner: Arc<Inner>,
    /// Of the connection that this serves.
    address: IpAddr,
}

struct Inner {
    /// `None`: everyone may.
    auth: Option<Arc<Auth>>,
    documents: Documents,
    router: Router,
    /// None where no other origin may do anything.
    cors: Option<Cors>,
    trusted_proxies: Vec<IpNet>,
}

/// What the public address says besides documents.
#[derive(Clone, Debug)]
pub struct PublicConfig {
    /// The address describes itself.
    pub docs: bool,
    /// Of each resource, in the order of their indices.
    pub labels: Vec<Labels>,
    /// Pages of other origins.
    pub cors: CorsConfig,
    /// Networks whose word is taken for whom they ask.
    pub trusted_proxies: Vec<IpNet>,
}

impl Public {
    /// Serves the documents of `cache` to whom `auth` admits, writes those of clients by `writes`, and counts the
    /// answers.
    pub fn new(
        cache: Arc<Cache>,
        writes: Arc<Writes>,
        metrics: Arc<Metrics>,
        config: PublicConfig,
        auth: Option<Arc<Auth>>,
    ) -> Self {
        let router = match config.docs {
            true => docs::router().merge(openapi::router(
                Arc::clone(&cache),
                auth.clone(),
                writes.keeps_answers(),
            )),
            false => Router::new(),
        };
        let cors = Cors::new(&config.cors);
        let documents = Documents::new(cache, writes, metrics, config.labels);
        // Paths are split by hand: keys are split at commas before they are percent-decoded, and may be empty.
        let router = router.fallback(documents::answer);
        let mut router = router.with_state(documents.clone());
        if let Some(auth) = &auth {
            router = router.merge(auth.router());
        }
        Self {
            inner: Arc::new(Inner {
                auth,
                documents,
                router,
                cors,
                trusted_proxies: config.trusted_proxies,
            }),
            address: Ipv4Addr::UNSPECIFIED.into(),
        }
    }

    /// The same for the connection of `peer`.
    pub fn of(&self, peer: Peer) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            address: peer.address,
        }
    }

    /// Who is counted for the passwords that come with a request.
    fn client<B>(&self, request: &Request<B>) -> IpAddr {
        let trusted = &self.inner.trusted_proxies;
        client(self.address, request.headers(), trusted)
    }

    /// The answer to a request that is not looked at.
    pub(super) fn refuse<B>(&self, request: &Request<B>, problem: Problem) -> Response<AnswerBody> {
        let refused = problem.into_whole_response();
        self.inner
            .ready(request.method(), request.headers(), refused)
    }
}

impl Inner {
    /// An answer that is there at once. Nobody else takes the body away where `method` is HEAD.
    fn ready(
        &self,
        method: &Method,
        headers: &HeaderMap,
        mut response: Response<Whole>,
    ) -> Response<AnswerBody> {
        if *method == Method::HEAD {
            let length = response.body().size_hint().exact().map(HeaderValue::from);
            *response.body_mut() = Whole::default();
            response
                .headers_mut()
                .extend(length.map(|length| (CONTENT_LENGTH, length)));
        }
        if let Some(cors) = &self.cors {
            cors.mark(cors.origin(headers), response.headers_mut());
        }
        response.map(http_body_util::Either::Left)
    }

    fn hit<B>(&self, request: &Request<B>) -> Option<Response<AnswerBody>> {
        let headers = request.headers();
        let hit = self
            .documents
            .hit(request.method(), request.uri(), headers)?;
        Some(self.ready(request.method(), headers, hit))
    }

    /// The answer to a request that has been looked up in memory in vain.
    fn route<B>(self: &Arc<Self>, request: Request<B>) -> BoxFuture<'static, Answered>
    where
        B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let asked = request.uri().path_and_query();
        if asked.is_some_and(|asked| asked.as_str().len() > URI_BYTES_MAX) {
            let response = Problem::uri_too_long().into_whole_response();
            let answer = self.ready(request.method(), request.headers(), response);
            return ready(Ok(answer)).boxed();
        }
        let cors = self.cors.as_ref();
        let origin = cors.and_then(|cors| cors.origin(request.headers()));
        let answer = self.router.clone().call(request);
        let inner = Arc::clone(self);
        let answer = answer.map_ok(move |response| {
            let mut response = routed(response);
            if let Some(cors) = &inner.cors {
                cors.mark(origin, response.headers_mut());
            }
            response
        });
        // hyper moves this future, so what only a miss needs is kept elsewhere.
        answer.boxed()
    }

    /// The answer to a request whose credential was not known at once.
    async fn verified<B>(
        self: Arc<Self>,
        auth: Arc<Auth>,
        address: IpAddr,
        request: Request<B>,
    ) -> Answered
    where
        B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let (mut head, body) = request.into_parts();
        let verified = auth.verify(address, &head.method, &head.uri, &head.headers);
        match verified.await {
            Ok(principal) => {
                if let Some(told) = head.extensions.get::<Who>() {
                    told.is(&principal);
                }
                head.extensions.insert(principal)
            }
            Err(refusal) => return Ok(self.ready(&head.method, &head.headers, refusal)),
        };
        let request = Request::from_parts(head, body);
        match self.hit(&request) {
            Some(response) => Ok(response),
            None => self.route(request).await,
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

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let inner = &self.inner;
        let (method, headers) = (request.method(), request.headers());
        let cors = inner.cors.as_ref();
        if let Some(response) = cors.and_then(|cors| cors.preflight(method, headers)) {
            return Either::Left(ready(Ok(response.map(http_body_util::Either::Left))));
        }
        let mut admitted = None;
        if let Some(auth) = &inner.auth {
            match auth.admission(method, request.uri(), headers) {
                Admission::Admitted(who) => {
                    if let Some(told) = request.extensions().get::<Who>()
                        && let Some(principal) = who.principal()
                    {
                        told.is(&principal);
                    }
                    admitted = Some(who);
                }
                Admission::Refused(refusal) => {
                    return Either::Left(ready(Ok(inner.ready(method, headers, refusal))));
                }
                Admission::Unknown => {
                    let (inner, auth) = (Arc::clone(inner), Arc::clone(auth));
                    let verified = inner.verified(auth, self.client(&request), request);
                    return Either::Right(verified.boxed());
                }
            }
        }
        if let Some(response) = inner.hit(&request) {
            return Either::Left(ready(Ok(response)));
        }
        if inner.auth.is_some() {
            // For who signs in.
            let client = self.client(&request);
            request.extensions_mut().insert(client);
        }
        // Who it is: handlers find an `Arc<Principal>`, or none where no credentials were shown.
        if let Some(principal) = admitted.and_then(|who| who.principal()) {
            request.extensions_mut().insert(principal);
        }
        Either::Right(inner.route(request))
    }
}
