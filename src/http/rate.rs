//! How often a client may ask.

use std::convert::Infallible;
use std::future::ready;
use std::hash::{BuildHasher, RandomState};
use std::iter;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use axum::http::{HeaderMap, Request};
use futures_util::future::Either;
use governor::clock::{Clock, DefaultClock};
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed, StateStore};
use governor::{Quota, RateLimiter};
use ipnet::IpNet;
use tower_service::Service;

use crate::http::accept::{Limits, Peer, network};
use crate::http::forwarded::client;
use crate::http::problem::Problem;
use crate::http::public::Public;
use crate::metrics::Metrics;

/// Counts of 8 bytes that clients are spread over.
const COUNTS: usize = 1 << 16;

/// What clients have asked: so many counts and no more, however many clients there are, and no lock. Two of them seldom
/// share one; which ones do is drawn at each start, so that nobody can aim at another.
struct Counts {
    hasher: RandomState,
    counts: Vec<InMemoryState>,
}

impl StateStore for Counts {
    type Key = IpAddr;

    fn measure_and_replace<T, F, E>(&self, client: &IpAddr, f: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let index = self.hasher.hash_one(client) as usize % COUNTS;
        self.counts[index].measure_and_replace(&NotKeyed::NonKey, f)
    }
}

/// What each client may ask.
pub struct Rate {
    limiter: RateLimiter<IpAddr, Counts, DefaultClock>,
    trusted: Vec<IpNet>,
    metrics: Arc<Metrics>,
}

impl Rate {
    /// `None` where requests are not limited.
    pub fn new(limits: &Limits, metrics: Arc<Metrics>) -> Option<Self> {
        let quota = Quota::per_second(NonZeroU32::new(limits.requests_per_second)?);
        let burst = NonZeroU32::new(limits.burst)?;
        let counts = Counts {
            hasher: RandomState::new(),
            counts: iter::repeat_with(InMemoryState::default)
                .take(COUNTS)
                .collect(),
        };
        let clock = DefaultClock::default();
        Some(Self {
            limiter: RateLimiter::new(quota.allow_burst(burst), counts, clock),
            trusted: limits.trusted_proxies.clone(),
            metrics,
        })
    }

    /// Counts a request; the seconds to wait where it is one too many.
    fn check(&self, peer: IpAddr, headers: &HeaderMap) -> Result<(), u64> {
        let client = network(client(peer, headers, &self.trusted));
        self.limiter.check_key(&client).map_err(|refused| {
            let now = self.limiter.clock().now();
            refused.wait_time_from(now).as_secs().saturating_add(1)
        })
    }
}

/// The public service for one connection, as often as its client may ask.
pub struct Limited {
    service: Public,
    rate: Option<Arc<Rate>>,
    peer: IpAddr,
}

impl Limited {
    /// Without `rate` it is `service`.
    pub fn new(service: Public, rate: Option<Arc<Rate>>, peer: Peer) -> Self {
        let peer = peer.address;
        Self {
            service,
            rate,
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
        if let Some(rate) = &self.rate
            && let Err(seconds) = rate.check(self.peer, request.headers())
        {
            rate.metrics.requests_refused.inc();
            let problem = Problem::too_many_requests("this client asks too often", seconds);
            return Either::Left(ready(Ok(self.service.refuse(&request, problem))));
        }
        self.service.call(request)
    }
}
