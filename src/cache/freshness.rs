//! Whether the tiers may answer: what the feed has reported of the database, and how old that is.
//!
//! - [`Freshness::advance`] is called only when all changes of a pass have been applied to the tiers. So the tiers
//!   reflect every transaction that the position covers, and every transaction that committed before `fresh_at`.
//! - `fresh_at` is the start of the last pass that compared the fingerprints, on the boot-time clock. It is never later
//!   than the start of the last pass.
//! - A position is valid only in the history in which it was read, and for its nonce. An identity with another history
//!   or nonce removes the position.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Boottime;
use crate::feed::backlog::Backlog;
use crate::feed::position::Position;
use crate::feed::strict::StrictPasses;
use crate::feed::{OnLoss, Pass};
use crate::source::session::Identity;
use crate::source::token::Token;

/// Whether the tiers may answer, and up to which transaction they are current.
pub(super) struct Freshness {
    max_staleness: Duration,
    on_loss: OnLoss,
    /// A [`Boottime`].
    fresh_at: AtomicU64,
    feed: watch::Sender<FeedState>,
    pub(super) passes: Arc<StrictPasses>,
}

/// What the feed has reported of the database.
#[derive(Default)]
pub(super) struct FeedState {
    /// Why the feed can't follow the database; `None` since a pass succeeded.
    pub(super) lost: Option<String>,
    pub(super) identity: Option<Identity>,
    pub(super) position: Option<Position>,
    /// The start of the pass that ended at the position.
    pub(super) pass_began_at: Option<Boottime>,
    /// The number of the last pass that was applied and verified, and its start.
    pub(super) verified: Option<(u64, Boottime)>,
    /// The length of the change log when it was last measured.
    pub(super) backlog: Option<Backlog>,
}

impl Freshness {
    pub(super) fn new(max_staleness: Duration, on_loss: OnLoss) -> Self {
        Self {
            max_staleness,
            on_loss,
            fresh_at: AtomicU64::new(Boottime::NEVER.0),
            feed: watch::channel(FeedState::default()).0,
            passes: Arc::default(),
        }
    }

    pub(super) fn max_staleness(&self) -> Duration {
        self.max_staleness
    }

    /// Everything committed before this moment has been applied; [`Boottime::NEVER`] before the first pass.
    pub(super) fn fresh_at(&self) -> Boottime {
        Boottime(self.fresh_at.load(Ordering::SeqCst))
    }

    /// Whether `fresh_at` is at most `max_staleness` before `now`.
    pub(super) fn is_fresh(&self, now: Boottime) -> bool {
        let fresh_at = self.fresh_at();
        // A pass may have begun and ended after the caller read the clock.
        let now = if fresh_at > now { Boottime::now() } else { now };
        now.is_within(self.max_staleness, fresh_at)
    }

    /// Whether the tiers answer also while they are not fresh, because of `on_loss = "serve-stale"`.
    pub(super) fn serves_stale(&self) -> bool {
        self.on_loss == OnLoss::ServeStale && self.fresh_at() != Boottime::NEVER
    }

    pub(super) fn feed(&self) -> watch::Ref<'_, FeedState> {
        self.feed.borrow()
    }

    pub(super) fn position(&self) -> Option<Position> {
        self.feed.borrow().position.clone()
    }

    /// The feed has connected to this database.
    pub(super) fn set_identity(&self, identity: Identity) {
        self.feed.send_modify(|feed| feed.set_identity(identity));
    }

    /// The feed can't follow the database.
    pub(super) fn set_lost(&self, reason: String) {
        self.feed.send_modify(|feed| feed.lost = Some(reason));
    }

    /// All entries are invalid, and later ones are at least as new as this position.
    pub(super) fn set_position(&self, position: Position) {
        self.feed.send_modify(|feed| feed.position = Some(position));
    }

    /// The changes of a pass have been applied.
    pub(super) fn advance(&self, pass: Pass) {
        self.feed.send_modify(|feed| {
            feed.position = Some(pass.position);
            feed.pass_began_at = Some(pass.began_at);
            let verified = pass.verified.map(|number| (number, pass.began_at));
            feed.verified = verified.or(feed.verified);
            feed.lost = None;
        });
        self.fresh_at.store(pass.fresh_at.0, Ordering::SeqCst);
    }

    pub(super) fn set_backlog(&self, backlog: Backlog) {
        // Returns false to not wake requests that wait for a position.
        self.feed.send_if_modified(|feed| {
            feed.backlog = Some(backlog);
            false
        });
    }

    /// Waits until these transactions have been applied, at most `limit`. Returns whether they have. Returns false at
    /// once if one has another nonce than the followed database, because positions can't be compared with it.
    pub(super) async fn wait_covered(&self, tokens: &[Token], limit: Duration) -> bool {
        let mut feed = self.feed.subscribe();
        let mut covered = None;
        let decided = feed.wait_for(|feed| {
            covered = feed.covers(tokens);
            covered.is_some()
        });
        // Not covered in time is not covered.
        let _late = tokio::time::timeout(limit, decided).await.is_err();
        covered == Some(true)
    }

    /// Waits until the transaction of `token` has been applied, at most `limit`. If its nonce is not that of the
    /// followed database, waits for the feed to find a database with that nonce.
    pub(super) async fn catch_up(&self, token: &Token, limit: Duration) {
        let mut feed = self.feed.subscribe();
        let tokens = std::slice::from_ref(token);
        let applied = feed.wait_for(|feed| feed.covers(tokens) == Some(true));
        // The sender lives as long as the cache.
        let _late = tokio::time::timeout(limit, applied).await.is_err();
    }

    /// Waits until a pass that begins from now on has been applied and verified, at most `limit`. Returns whether one was;
    /// false at once if the feed has lost the database.
    pub(super) async fn wait_verified(&self, limit: Duration) -> bool {
        let mut feed = self.feed.subscribe();
        let waiting = self.passes.wait();
        let is_applied = |feed: &FeedState| {
            let number = feed.verified.map(|(number, _)| number);
            number.is_some_and(|number| number > waiting.begun)
        };
        let ended = feed.wait_for(|feed| is_applied(feed) || feed.lost.is_some());
        let ended = tokio::time::timeout(limit, ended).await;
        ended.is_ok_and(|feed| feed.is_ok_and(|feed| is_applied(&feed)))
    }

    /// The start of the last pass that was applied and verified.
    pub(super) fn verified_at(&self) -> Boottime {
        let verified = self.feed.borrow().verified;
        verified.map_or(Boottime::NEVER, |(_, began_at)| began_at)
    }

    #[cfg(test)]
    pub(super) fn set_fresh_at(&self, fresh_at: Boottime) {
        self.fresh_at.store(fresh_at.0, Ordering::SeqCst);
    }
}

impl FeedState {
    /// Removes the position if it was read in another history or under another nonce.
    fn set_identity(&mut self, identity: Identity) {
        let known = self.identity.as_ref();
        if known.is_none_or(|known| !known.is_same_history(&identity)) {
            self.position = None;
        }
        self.identity = Some(identity);
    }

    /// Whether these transactions have been applied: `None` if not yet, `Some(false)` if one has another nonce.
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
    fn a_position_of_another_nonce_covers_no_token() {
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
        feed.set_identity(identity(first));
        feed.position = Some(Position::new("20:20:"));
        let covers = |feed: &FeedState, nonce| feed.covers(&[Token { nonce, xid: 3 }]);
        feed.set_identity(identity(first));
        assert_eq!(covers(&feed, first), Some(true));
        feed.set_identity(identity(second));
        assert_eq!(covers(&feed, first), Some(false));
        assert_eq!(covers(&feed, second), None);
    }
}
