//! Positions: how far a node has followed the database.
//!
//! ```
//! use larder::feed::position::Position;
//!
//! // All transactions below 10 had ended, none from 20 on had begun; of those between, 15 was in progress.
//! let position = Position::new("10:20:15");
//! assert!(position.covers(9) && position.covers(14));
//! assert!(!position.covers(15) && !position.covers(20));
//! ```

use std::fmt;
use std::sync::Arc;

/// A snapshot, in PostgreSQL's text of `pg_snapshot`. Every committed transaction that it sees has been applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position(Arc<str>);

/// The position that the disk tier's content reflects, from which a later run would resume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Persisted {
    /// The disk tier is being opened.
    Unknown,
    /// A later run could resume nothing.
    Nothing,
    /// The content reflects this position.
    At(Position),
}

impl Position {
    /// From the text of `pg_current_snapshot()`.
    pub fn new(snapshot: &str) -> Self {
        Self(Arc::from(snapshot))
    }

    /// The snapshot's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether transaction `xid` had ended when the snapshot was taken: `xmin:xmax:xip,…`, with what was in progress
    /// between the bounds (PostgreSQL manual, "Snapshot Components").
    pub fn covers(&self, xid: u64) -> bool {
        let mut parts = self.0.split(':');
        let mut bound = || parts.next()?.parse::<u64>().ok();
        let (Some(xmin), Some(xmax)) = (bound(), bound()) else {
            return false;
        };
        let in_progress = |xip: &str| xip.split(',').any(|other| other.parse() == Ok(xid));
        xid < xmin || xid < xmax && !parts.next().is_some_and(in_progress)
    }

    /// Whether a transaction that writes was in progress.
    pub(super) fn has_writers(&self) -> bool {
        !self.0.ends_with(':')
    }
}

/// SQL for whether the snapshot `outer` sees every transaction that `inner` sees. It may be false although that is so,
/// if `inner` sees no transaction between the two upper bounds.
pub(super) fn contains_sql(outer: &str, inner: &str) -> String {
    format!(
        "(pg_snapshot_xmax({inner}) <= pg_snapshot_xmax({outer}) \
         and not exists (select from pg_snapshot_xip({outer}) xid where pg_visible_in_snapshot(xid, {inner})))"
    )
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_covers_what_had_ended() {
        let position = Position::new("10:20:10,15");
        let covered = |xid| position.covers(xid);
        assert!(covered(9) && covered(11) && covered(14) && covered(19));
        assert!(!covered(10) && !covered(15) && !covered(20) && !covered(u64::MAX));
        assert!(position.has_writers());
        let quiet = Position::new("20:20:");
        assert!(!quiet.has_writers());
        assert!(quiet.covers(19) && !quiet.covers(20));
        assert!(!Position::new("").covers(1));
    }
}
