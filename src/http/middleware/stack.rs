//! The service of the public address: the middleware in its order, memory, then the router.
//!
//! A request passes access log, rate limit, the check of its head, CORS preflight, the check of its web page or of
//! credential and rights, and memory, in this order.
//! A request that one of them answers needs neither the router nor a boxed future. Any other goes to the router, with what the
//! middleware has found out about it.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::{CONTENT_LENGTH, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{self, HeaderValue, Method, Response, StatusCode};
use axum::{BoxError, Router};
use futures_util::future::{BoxFuture, Either, FutureExt};
use ipnet::IpNet;
use tower_service::Service;

use crate::auth::Principal;
use crate::cache::Cache;
use crate::clock::Boottime;
use crate::documents::Documents;
use crate::http::answers::AnswersConfig;
use crate::http::auth::{Admission, Admitted, Auth, Verified};
use crate::http::full_body::FullBody;
use crate::http::internal_error::FailedRequest;
use crate::http::middleware::access_log::{AccessLog, PendingLine};
use crate::http::middleware::cors::{Cors, CorsConfig};
use crate::http::origin::{PageCheck, PageOrigin, host};
use crate::http::problem::Problem;
use crate::http::protocol::check_head;
use crate::http::read::cache_headers::CacheHeaders;
use crate::http::read::document;
use crate::http::request::{Request, RequestContext, RequestHead, RequestTarget};
use crate::http::router::{REQUEST, router};
use crate::http::state::HttpState;
use crate::metrics::Metrics;
use crate::server::rate::RateLimiter;
use crate::server::{Peer, trusts};
use crate::source::writes::Writes;

/// The longest path and query; a thousand UUIDs fit.
const URI_BYTES_MAX: usize = 48 << 10;

/// The body of a response: a document from memory, or the body that one of axum's handlers made.
pub type AnswerBody = http_body_util::Either<FullBody, Body>;

/// Serves the documents of one larder to the connections of the public address.
#[derive(Clone)]
pub struct PublicService {
    stack: Arc<Stack>,
    /// The other end of the connection that this service is for.
    peer: Peer,
}

/// The configuration of the public address.
#[derive(Clone)]
pub struct PublicConfig {
    /// `/docs` and `/openapi.json` are served.
    pub docs: bool,
    /// The headers for caches of each resource, in the order of their ids.
    pub cache_headers: Vec<CacheHeaders>,
    /// The bounds of answers with many documents.
    pub answers: AnswersConfig,
    /// All request bodies that are being received, in bytes; one client may have a quarter.
    pub bodies_bytes_max: u64,
    /// What pages of other origins may do.
    pub cors: CorsConfig,
    /// Without authentication: names of the host by which web pages may reach the address; `None`: any, since the address
    /// is not on loopback.
    pub hosts: Option<Vec<String>>,
    /// The address speaks TLS.
    pub is_tls: bool,
    /// Proxies whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// `None`: requests are not limited.
    pub limiter: Option<Arc<RateLimiter>>,
    /// `None`: no line is written.
    pub access_log: Option<AccessLog>,
}

struct Stack {
    access_log: Option<AccessLog>,
    limiter: Option<Arc<RateLimiter>>,
    /// `None` if no other origin may do anything.
    cors: Option<Cors>,
    /// `None`: web pages of any site may use the address, as far as credentials allow.
    page_check: Option<PageCheck>,
    is_tls: bool,
    /// `None`: requests need no credential.
    auth: Option<Arc<Auth>>,
    state: HttpState,
    router: Router,
    trusted_proxies: Vec<IpNet>,
}

/// Breaks with the answer, or goes on with what is known of the request so far.
type StackResult<C = RequestContext> = ControlFlow<Response<AnswerBody>, C>;

/// A request that has no answer yet.
struct PendingRequest {
    context: RequestContext,
    /// Its credential has to be verified before anything else.
    is_unverified: bool,
}

impl PublicService {
    /// Composes the middleware, for the server and for tests: serves the documents of `cache` to the principals that `auth`
    /// admits, writes through `writes`, and counts the responses in `metrics`.
    pub fn new(
        cache: Arc<Cache>,
        writes: Arc<Writes>,
        metrics: Arc<Metrics>,
        config: PublicConfig,
        auth: Option<Arc<Auth>>,
    ) -> Self {
        let documents = Documents::new(cache, writes, Arc::clone(&metrics));
        let state = HttpState::new(
            documents,
            &config.answers,
            config.bodies_bytes_max,
            metrics,
            config.cache_headers,
            auth.clone(),
        );
        let stack = Stack {
            router: router(&state, config.docs),
            cors: Cors::new(&config.cors),
            access_log: config.access_log,
            limiter: config.limiter,
            page_check: config
                .hosts
                .filter(|_| auth.is_none())
                .map(|hosts| PageCheck::for_public(&hosts)),
            is_tls: config.is_tls,
            auth,
            state,
            trusted_proxies: config.trusted_proxies,
        };
        Self {
            stack: Arc::new(stack),
            peer: Peer {
                address: Ipv4Addr::UNSPECIFIED.into(),
                is_proxied: false,
            },
        }
    }

    /// Counts and logs a request of `peer` whose head can't be parsed, so that no service was called: the status of its
    /// response, and the length of the body.
    pub fn log_refusal(&self, peer: Peer, status: StatusCode, bytes: usize) {
        let stack = &self.stack;
        stack.state.count(None, REQUEST, status, Boottime::now());
        if let Some(log) = &stack.access_log {
            log.log_refusal(peer.address, status, bytes);
        }
    }

    /// The same for the connection of `peer`.
    pub fn for_connection(&self, peer: Peer) -> Self {
        Self {
            stack: Arc::clone(&self.stack),
            peer,
        }
    }
}

impl Stack {
    /// Makes the request that `peer` has sent. The path is split here and nowhere else.
    #[inline]
    fn request<'r>(&'r self, head: RequestHead<'r>, peer: IpAddr) -> Request<'r> {
        let documents = &self.state.documents;
        let target = RequestTarget::parse(head.uri.path(), |name| documents.id_of(name));
        Request::new(head, target, peer, &self.trusted_proxies)
    }

    /// Passes a request through the middleware, and answers it if that needs no waiting.
    #[inline]
    fn run_middleware(
        &self,
        request: &mut Request<'_>,
        peer: Peer,
        line: &mut Option<Box<PendingLine>>,
    ) -> StackResult<PendingRequest> {
        if let Some(limiter) = &self.limiter
            && let Err(seconds) = limiter.check(request.client())
        {
            let problem = Problem::too_many_requests("rate limit exceeded", seconds);
            return Break(self.complete(request, problem.into_full_response()));
        }
        if let Err(problem) = check_head(request.head()) {
            let status = problem.status();
            self.state.count(None, REQUEST, status, Boottime::now());
            return Break(self.complete(request, problem.into_full_response()));
        }
        if let Some(cors) = &self.cors
            && let Some(answer) = cors.preflight(request.method, request.headers)
        {
            return Break(answer.map(http_body_util::Either::Left));
        }
        if let Some(check) = &self.page_check
            && let Err(problem) = self.check_page(check, request.head(), peer)
        {
            let status = problem.status();
            self.state.count(None, REQUEST, status, Boottime::now());
            return Break(self.complete(request, problem.into_full_response()));
        }
        let mut admitted = None;
        if let Some(auth) = &self.auth {
            match auth.admission(request) {
                Admission::Admitted(sender) => admitted = Some(sender),
                Admission::Refused(refusal) => return Break(self.complete(request, refusal)),
                Admission::Unknown => {
                    return Continue(PendingRequest {
                        context: request.take_context(),
                        is_unverified: true,
                    });
                }
            }
        }
        let principal = admitted.as_ref().and_then(Admitted::principal);
        if let Some(line) = line {
            line.set_user(principal.map(Arc::as_ref));
        }
        if let Some(answer) = self.try_memory(request, principal.map(Arc::as_ref)) {
            return Break(answer);
        }
        request.principal = principal.map(Arc::clone);
        self.pass_on(request)
            .map_continue(|context| PendingRequest {
                context,
                is_unverified: false,
            })
    }

    /// Checks that no web page of another site sends the request to an address without authentication. A proxy may be
    /// called by any name.
    fn check_page(
        &self,
        check: &PageCheck,
        head: RequestHead<'_>,
        peer: Peer,
    ) -> Result<(), Problem> {
        if peer.is_proxied || trusts(&self.trusted_proxies, peer.address) {
            return Ok(());
        }
        let cors = self.cors.as_ref();
        let is_configured = |origin: &HeaderValue| cors.is_some_and(|cors| cors.allows(origin));
        check.check(
            head,
            PageOrigin::of(head, host(head), self.is_tls, is_configured),
        )
    }

    /// Verifies the credential of a request, then goes on as [`Stack::run_middleware`] does with a known one. `hint` becomes
    /// the `WWW-Authenticate` of a response that ignores an invalid cookie.
    async fn verify(
        &self,
        head: &Parts,
        context: RequestContext,
        line: &mut Option<Box<PendingLine>>,
        hint: &mut Option<HeaderValue>,
    ) -> StackResult {
        let mut request = Request::resume(head, context);
        if let Some(auth) = &self.auth {
            match auth.verify(&request).await {
                Ok(Verified::Known(principal)) => request.principal = Some(principal),
                Ok(Verified::Anonymous(value)) => *hint = Some(value),
                Err(refusal) => return Break(self.complete(&request, refusal)),
            }
        }
        if let Some(line) = line {
            line.set_user(request.principal.as_deref());
        }
        let principal = request.principal.clone();
        match self.try_memory(&mut request, principal.as_deref()) {
            Some(answer) => Break(answer),
            None => self.pass_on(&mut request),
        }
    }

    #[inline]
    fn try_memory(
        &self,
        request: &mut Request<'_>,
        principal: Option<&Principal>,
    ) -> Option<Response<AnswerBody>> {
        if is_too_long(request) {
            return None;
        }
        let answer = document::try_memory(&self.state, request, principal)?;
        Some(self.complete(request, answer))
    }

    /// Passes a request that memory did not answer on to the router, unless its path and query are too long.
    fn pass_on(&self, request: &mut Request<'_>) -> StackResult {
        if is_too_long(request) {
            Break(self.complete(request, Problem::URI_TOO_LONG.into_full_response()))
        } else {
            Continue(request.take_context())
        }
    }

    /// Completes a response that the router did not make: adds CORS headers, and removes the body for `HEAD`, which hyper
    /// does not do over HTTP/2.
    fn complete(
        &self,
        request: &Request<'_>,
        mut answer: Response<FullBody>,
    ) -> Response<AnswerBody> {
        if *request.method == Method::HEAD {
            let length = answer.body().size_hint().exact().map(HeaderValue::from);
            *answer.body_mut() = FullBody::default();
            answer
                .headers_mut()
                .extend(length.map(|length| (CONTENT_LENGTH, length)));
        }
        if let Some(cors) = &self.cors {
            cors.add_headers(cors.allowed_origin(request.headers), answer.headers_mut());
        }
        answer.map(http_body_util::Either::Left)
    }

    /// Answers a request that [`Stack::run_middleware`] did not answer.
    async fn finish<B>(
        self: Arc<Self>,
        request: http::Request<B>,
        pending: PendingRequest,
        mut line: Option<Box<PendingLine>>,
    ) -> ServiceResult
    where
        B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let (head, body) = request.into_parts();
        let mut hint = None;
        let step = if pending.is_unverified {
            self.verify(&head, pending.context, &mut line, &mut hint)
                .await
        } else {
            Continue(pending.context)
        };
        let mut answer = match step {
            Break(answer) => answer,
            Continue(context) => {
                let request = http::Request::from_parts(head, body);
                self.route(request, context).await
            }
        };
        let headers = answer.headers_mut();
        headers.extend(hint.map(|hint| (WWW_AUTHENTICATE, hint)));
        self.log(line, &answer);
        Ok(answer)
    }

    /// Answers a request by the router's handlers.
    async fn route<B>(
        &self,
        mut request: http::Request<B>,
        context: RequestContext,
    ) -> Response<AnswerBody>
    where
        B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let cors = self.cors.as_ref();
        let origin = cors.and_then(|cors| cors.allowed_origin(request.headers()));
        request.extensions_mut().insert(context);
        let failed = FailedRequest::of(&request);
        let Ok(mut answer) = self.router.clone().call(request).await;
        failed.log(&mut answer);
        // The router adds 0, which is not the document's length (RFC 9110, section 8.6).
        if answer.status() == StatusCode::NOT_MODIFIED {
            answer.headers_mut().remove(CONTENT_LENGTH);
        }
        if let Some(cors) = cors {
            cors.add_headers(origin, answer.headers_mut());
        }
        answer.map(http_body_util::Either::Right)
    }

    fn log(&self, line: Option<Box<PendingLine>>, answer: &Response<AnswerBody>) {
        if let (Some(log), Some(line)) = (&self.access_log, line) {
            log.complete(*line, answer);
        }
    }
}

/// Whether its path and query are longer than accepted.
fn is_too_long(request: &Request<'_>) -> bool {
    let path_and_query = request.uri.path_and_query();
    path_and_query.is_some_and(|text| text.as_str().len() > URI_BYTES_MAX)
}

type ServiceResult = Result<Response<AnswerBody>, Infallible>;

impl<B> Service<http::Request<B>> for PublicService
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = Either<Ready<ServiceResult>, BoxFuture<'static, ServiceResult>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, http: http::Request<B>) -> Self::Future {
        let stack = &self.stack;
        let mut request = stack.request(RequestHead::of(&http), self.peer.address);
        let log = stack.access_log.as_ref();
        let mut line = log.map(|_| Box::new(PendingLine::begin(&request)));
        match stack.run_middleware(&mut request, self.peer, &mut line) {
            Break(answer) => {
                stack.log(line, &answer);
                Either::Left(ready(Ok(answer)))
            }
            // hyper moves this future, so the state of a miss is in a box.
            Continue(pending) => {
                let answering = Arc::clone(stack).finish(http, pending, line);
                Either::Right(answering.boxed())
            }
        }
    }
}
