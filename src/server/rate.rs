//! The rate limiter: how many requests each client may send.

use std::hash::{BuildHasher, RandomState};
use std::iter;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use governor::Quota;
use governor::clock::{Clock, DefaultClock};
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed, StateStore};

use crate::metrics::Metrics;
use crate::server::{Limits, client_network};

/// The number of counts, 8 bytes each. A hash of a client's address selects one.
const COUNTS: usize = 1 << 16;

/// Requests by client: a fixed number of counts for any number of clients, and no lock. Two clients seldom share a count.
/// Which clients do is random at each start, so a client can't use up another's requests on purpose.
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

/// How many requests each client may send.
pub struct RateLimiter {
    limiter: governor::RateLimiter<IpAddr, Counts, DefaultClock>,
    metrics: Arc<Metrics>,
}

impl RateLimiter {
    /// `None` if requests are not limited.
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
            limiter: governor::RateLimiter::new(quota.allow_burst(burst), counts, clock),
            metrics,
        })
    }

    /// Counts a request of `client`.
    ///
    /// # Errors
    /// The request exceeds the limit: the seconds after which another one is allowed.
    pub(crate) fn check(&self, client: IpAddr) -> Result<(), u64> {
        self.limiter
            .check_key(&client_network(client))
            .map_err(|refused| {
                self.metrics.requests_refused.inc();
                let now = self.limiter.clock().now();
                refused.wait_time_from(now).as_secs().saturating_add(1)
            })
    }
}
