//! feed
use std::time::Duration;

/// What a tier answers while freshness can't be proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// PostgreSQL answers.
    Bypass,
    /// The tiers answer and say so.
    ServeStale,
}

/// How changes are followed.
#[derive(Clone, Debug)]
pub struct FeedConfig {
    /// Knowledge older than this is not trusted.
    pub max_staleness: Duration,
    /// The longest pause between two passes.
    pub poll_interval: Duration,
    /// Writers ring on commit.
    pub notify: bool,
    /// What to answer while not fresh.
    pub on_loss: OnLoss,
    /// How long the log is kept for a node that stopped.
    pub retention: Duration,
    /// A statement that touches more documents empties the resource.
    pub keys_per_statement: u32,
}
