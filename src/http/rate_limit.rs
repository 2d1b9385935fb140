//! The middleware that refuses requests above the rate limit with 429.

use std::convert::Infallible;
use std::future::ready;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use axum::http::Request;
use futures_util::future::Either;
use tower_service::Service;

use crate::http::forwarded::client;
use crate::http::problem::Problem;
use crate::http::public::Public;
use crate::server::Peer;
use crate::server::rate::RateLimiter;

/// The public service for one connection, below the rate limit of its client.
pub struct Limited {
    service: Public,
    limiter: Option<Arc<RateLimiter>>,
    peer: IpAddr,
}

impl Limited {
    /// Without `limiter` it is `service`.
    pub fn new(service: Public, limiter: Option<Arc<RateLimiter>>, peer: Peer) -> Self {
        let peer = peer.address;
        Self {
            service,
            limiter,
            peer,
        }
    }
}

impl<B> Service<Request<B>> for Limited
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = <Public as Service<Request<B>>>::Response;
    type Error = Infallible;
    /// That of the service itself, so that a request that is not limited pays nothing.
    type Future = <Public as Service<Request<B>>>::Future;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let refused = self.limiter.as_ref().and_then(|limiter| {
            let trusted = limiter.trusted_proxies();
            let client = client(self.peer, request.headers(), trusted);
            limiter.check(client).err()
        });
        if let Some(seconds) = refused {
            let problem = Problem::too_many_requests("rate limit exceeded", seconds);
            return Either::Left(ready(Ok(self.service.refuse(&request, problem))));
        }
        self.service.call(request)
    }
}
