//! Whether the tiers may answer: what the feed has reported of the database, and how old that is.
//!
//! - *Applied first.* [`Freshness::advance`] is called when all changes of a pass have been applied to the tiers. So
//!   the tiers reflect every transaction that the position covers, and every one that committed before `fresh_at`.
//! - *Never later than it was.* `fresh_at` is the start of the last pass that compared the fingerprints, on the
//!   boot-time clock, and no later than the start of the last pass.
//! - *One identity.* A position says something only of the history in which it was read, and only while its nonce
//!   lasts: an identity with another one of these comes without a position.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Boottime;
use crate::feed::OnLoss;
use crate::feed::backlog::Backlog;
use crate::feed::position::Position;
use crate::source::session::Identity;
use crate::source::token::Token;

/// Decides whether the tiers may answer.
pub(super) struct Freshness {
    max_staleness: Duration,
    on_loss: OnLoss,
    /// A [`Boottime`].
    fresh_at: AtomicU64,
    feed: watch::Sender<FeedState>,
}

/// What the feed has reported of the database.
#[derive(Default)]
pub(super) struct FeedState {
    /// Why the feed can't follow, since its last pass.
    pub(super) lost: Option<String>,
    pub(super) identity: Option<Identity>,
    pub(super) position: Option<Position>,
    /// The start of the pass that led to the position.
    pub(super) passed_at: Option<Boottime>,
    /// How long the change log was when it was last measured.
    pub(super) backlog: Option<Backlog>,
}

impl Freshness {
    pub(super) fn new(max_staleness: Duration, on_loss: OnLoss) -> Self {
        Self {
            max_staleness,
            on_loss,
            fresh_at: AtomicU64::new(Boottime::NEVER.0),
            feed: watch::channel(FeedState::default()).0,
        }
    }

    pub(super) fn max_staleness(&self) -> Duration {
        self.max_staleness
    }

    /// All that committed before this moment has been applied; [`Boottime::NEVER`] before the first pass.
    pub(super) fn fresh_at(&self) -> Boottime {
        Boottime(self.fresh_at.load(Ordering::SeqCst))
    }

    /// Whether `fresh_at` is at most `max_staleness` before `now`.
    pub(super) fn is_fresh(&self, now: Boottime) -> bool {
        let fresh_at = self.fresh_at();
        // A pass may have begun and ended since the caller read the clock.
        let now = if fresh_at > now { Boottime::now() } else { now };
        now.is_within(self.max_staleness, fresh_at)
    }

    /// Whether tiers that are not fresh answer, with what they had when they were.
    pub(super) fn serves_stale(&self) -> bool {
        self.on_loss == OnLoss::ServeStale && self.fresh_at() != Boottime::NEVER
    }

    pub(super) fn feed(&self) -> watch::Ref<'_, FeedState> {
        self.feed.borrow()
    }

    pub(super) fn position(&self) -> Option<Position> {
        self.feed.borrow().position.clone()
    }

    /// The feed follows this database.
    pub(super) fn reach(&self, identity: Identity) {
        self.feed.send_modify(|feed| feed.reach(identity));
    }

    /// The feed can't follow.
    pub(super) fn lose(&self, reason: String) {
        self.feed.send_modify(|feed| feed.lost = Some(reason));
    }

    /// The tiers hold nothing that was read before this position.
    pub(super) fn restart(&self, position: Position) {
        self.feed.send_modify(|feed| feed.position = Some(position));
    }

    /// The changes of a pass have been applied.
    pub(super) fn advance(&self, position: Position, passed_at: Boottime, fresh_at: Boottime) {
        self.feed.send_modify(|feed| {
            feed.position = Some(position);
            feed.passed_at = Some(passed_at);
            feed.lost = None;
        });
        self.fresh_at.store(fresh_at.0, Ordering::SeqCst);
    }

    pub(super) fn set_backlog(&self, backlog: Backlog) {
        // Requests that wait for a position need not wake for it.
        self.feed.send_if_modified(|feed| {
            feed.backlog = Some(backlog);
            false
        });
    }

    /// Waits for at most `limit` until all that these transactions did has been applied. Returns whether it has, and
    /// returns at once if that can't be told: the transactions are of another life of the database.
    pub(super) async fn covers_within(&self, tokens: &[Token], limit: Duration) -> bool {
        let mut feed = self.feed.subscribe();
        let mut covered = None;
        let decided = feed.wait_for(|feed| {
            covered = feed.covers(tokens);
            covered.is_some()
        });
        // What is not decided in time is not covered.
        let _late = tokio::time::timeout(limit, decided).await.is_err();
        covered == Some(true)
    }

    /// Waits for at most `limit` until all that the transaction of `token` did has been applied. Its life of the
    /// database may be one that the feed is about to find.
    pub(super) async fn catch_up(&self, token: &Token, limit: Duration) {
        let mut feed = self.feed.subscribe();
        let tokens = std::slice::from_ref(token);
        let applied = feed.wait_for(|feed| feed.covers(tokens) == Some(true));
        // The sender lives as long as the cache.
        let _late = tokio::time::timeout(limit, applied).await.is_err();
    }

    #[cfg(test)]
    pub(super) fn set_fresh_at(&self, fresh_at: Boottime) {
        self.fresh_at.store(fresh_at.0, Ordering::SeqCst);
    }
}

impl FeedState {
    /// Another life of the database counts other transactions: no position of an earlier one says anything of them.
    fn reach(&mut self, identity: Identity) {
        let known = self.identity.as_ref();
        if known.is_none_or(|known| !known.is_same_history(&identity)) {
            self.position = None;
        }
        self.identity = Some(identity);
    }

    /// Whether all that these transactions did has been applied; `None` if that may yet come. Those of another life of
    /// the database can't be told.
    fn covers(&self, tokens: &[Token]) -> Option<bool> {
        let identity = self.identity.as_ref()?;
        if tokens.iter().any(|token| token.nonce != identity.nonce) {
            return Some(false);
        }
        let position = self.position.as_ref()?;
        let covered = tokens.iter().all(|token| position.covers(token.xid));
        covered.then_some(true)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn no_earlier_life_of_the_database_covers_a_token() {
        let identity = |nonce| Identity {
            system: "1".into(),
            database: 1,
            epoch_table: 1,
            nonce,
            history: Uuid::nil(),
            server_start: String::new(),
        };
        let [first, second] = [1, 2].map(Uuid::from_u128);
        let mut feed = FeedState::default();
        feed.reach(identity(first));
        feed.position = Some(Position::new("20:20:"));
        let covers = |feed: &FeedState, nonce| feed.covers(&[Token { nonce, xid: 3 }]);
        feed.reach(identity(first));
        assert_eq!(covers(&feed, first), Some(true));
        feed.reach(identity(second));
        assert_eq!(covers(&feed, first), Some(false));
        assert_eq!(covers(&feed, second), None);
    }
}
