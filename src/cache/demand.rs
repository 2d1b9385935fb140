//! What a request demands of the documents that it reads, beyond the bounded staleness of all answers.

use std::time::Duration;

use tokio::sync::OnceCell;

use crate::cache::fill::LoadReason;
use crate::cache::{Cache, CachedResource};
use crate::clock::Boottime;
use crate::resource::ResourceId;
use crate::source::token::Token;

/// How long a request waits for its tokens: two polls, by default.
const TOKEN_WAIT: Duration = Duration::from_millis(100);

/// How long a strict read waits for a pass, from its arrival.
const STRICT_WAIT: Duration = Duration::from_millis(100);

/// What a request demands of the documents that it reads.
#[derive(Debug, Default)]
pub struct Demand {
    /// The transactions that they reflect.
    pub tokens: Vec<Token>,
    /// They reflect all that had committed when the request arrived.
    pub strict: Option<Strict>,
    /// No statement is sent for them.
    pub only_if_cached: bool,
}

/// A read that reflects all that had committed when it arrived.
#[derive(Debug)]
pub struct Strict {
    arrived: Boottime,
    /// Whether a pass was applied that began later, once that is known.
    covered: OnceCell<bool>,
}

impl Strict {
    /// A read that arrives now.
    pub fn arriving() -> Self {
        Self {
            arrived: Boottime::now(),
            covered: OnceCell::new(),
        }
    }
}

impl Demand {
    /// No demand.
    #[inline]
    pub fn none() -> &'static Self {
        static NONE: Demand = Demand {
            tokens: Vec::new(),
            strict: None,
            only_if_cached: false,
        };
        &NONE
    }

    /// Whether there is none, so that memory may be asked at once.
    pub fn is_none(&self) -> bool {
        self.tokens.is_empty() && self.strict.is_none() && !self.only_if_cached
    }

    /// When the request arrived, if it is strict.
    pub(super) fn arrived(&self) -> Option<Boottime> {
        self.strict.as_ref().map(|strict| strict.arrived)
    }
}

impl Cache {
    /// Waits until the tiers have what `demand` asks for, for at most 100 ms.
    ///
    /// # Errors
    /// Why PostgreSQL has to answer.
    pub(super) async fn settle(
        &self,
        resource: ResourceId,
        demand: &Demand,
    ) -> Result<(), LoadReason> {
        let tokens = &demand.tokens;
        if !tokens.is_empty() && !self.freshness.wait_covered(tokens, TOKEN_WAIT).await {
            return Err(LoadReason::Token);
        }
        let Some(strict) = &demand.strict else {
            return Ok(());
        };
        let cached = self.cached(resource);
        let waiting = || self.wait_strict(cached, strict.arrived);
        if *strict.covered.get_or_init(waiting).await && self.is_fresh(cached, Boottime::now()) {
            return Ok(());
        }
        Err(cached.bypass_reason())
    }

    /// Whether the tiers have what `demand` asks for, within the time that it may wait for that.
    pub async fn is_settled(&self, resource: ResourceId, demand: &Demand) -> bool {
        self.settle(resource, demand).await.is_ok()
    }

    /// Waits for a pass that begins after a strict read has `arrived`; returns whether one was applied. Where the tiers can't
    /// answer anyway, there is no wait.
    async fn wait_strict(&self, cached: &CachedResource, arrived: Boottime) -> bool {
        let began = Boottime::now();
        let is_covered = self.is_fresh(cached, began)
            && self
                .freshness
                .wait_verified(arrived.after(STRICT_WAIT).since(began))
                .await;
        let metrics = &self.metrics;
        let outcome = if is_covered { "pass" } else { "postgres" };
        metrics.strict_reads.with_label_values(&[outcome]).inc();
        let waited = Boottime::now().since(began);
        metrics.strict_wait.observe(waited.as_secs_f64());
        is_covered
    }
}

impl CachedResource {
    /// Why PostgreSQL has to answer while the tiers can't.
    pub(super) fn bypass_reason(&self) -> LoadReason {
        if self.is_uncached() {
            LoadReason::Uncached
        } else {
            LoadReason::Bypass
        }
    }
}
