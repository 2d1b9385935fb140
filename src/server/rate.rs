//! The rate limiter: requests of each client, by the address that counts as one client.

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
use crate::server::{Limits, network};

/// Counts of 8 bytes that clients are spread over.
const COUNTS: usize = 1 << 16;

/// Requests of clients: a fixed number of counts, however many clients there are, and no lock. Two clients seldom share
/// one; which ones do is drawn at each start, so that no client can aim at another.
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
            limiter: governor::RateLimiter::new(quota.allow_burst(burst), counts, clock),
            metrics,
        })
    }

    /// Counts a request of `client`; the seconds to wait where it is one too many.
    pub(crate) fn check(&self, client: IpAddr) -> Result<(), u64> {
        self.limiter.check_key(&network(client)).map_err(|refused| {
            self.metrics.requests_refused.inc();
            let now = self.limiter.clock().now();
            refused.wait_time_from(now).as_secs().saturating_add(1)
        })
    }
}
