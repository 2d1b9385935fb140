//! One pass: rows first, then what tells of changed definitions, then the cache.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::postgres::PgConnection;

use crate::clock::Boottime;
use crate::feed::change_log::query::PassQuery;
use crate::feed::change_log::{self, PassReading};
use crate::feed::definition::Fingerprints;
use crate::feed::establish::EstablishError;
use crate::feed::follower::{Break, Feed, Following, Narrowed, PASS_TIMEOUT, Signs, within};
use crate::feed::position::Position;
use crate::feed::{Event, Pass, Via};
use crate::resource::ResourceId;
use crate::source::SourceError;

/// The longest time without fingerprints, where half of `max_staleness` is longer.
const JUDGE_PAUSE: Duration = Duration::from_millis(500);

/// Attempts at a pass around locked tables; the last asks no table but larder's own.
const LOCKED_READS: usize = 2;

impl<F: FnMut(Event)> Feed<F> {
    /// One pass from the last position. Returns how many documents and whole resources it named.
    pub(super) async fn pass(
        &mut self,
        connection: &mut PgConnection,
        following: &Following,
        via: Via,
    ) -> Result<usize, Break> {
        let Some(from) = self.position.clone() else {
            return Err(Break::Recheck);
        };
        let began_at = Boottime::now();
        let reading = self.read(connection, following, &from, began_at);
        let read = match reading.await {
            Ok(read) => read,
            Err(Break::Lost(EstablishError::Source(error))) if !error.is_passing() => {
                // The next pass from here would fare no better: begin anew from where the database is then.
                self.position = None;
                return Err(error.into());
            }
            Err(end) => return Err(end),
        };
        if !read.is_valid {
            tracing::warn!(
                "larder.change no longer reaches back to the last position; both tiers were emptied"
            );
            self.position = None;
            return Err(Break::Recheck);
        }
        let found = read.changes.len();
        let heard = match via {
            Via::Bell => began_at,
            Via::Poll => self.last_pass_began,
        };
        self.last_pass_began = began_at;
        self.found = found > 0;
        self.position = Some(read.position.clone());
        (self.follow)(Event::Passed(Pass {
            changes: read.changes,
            position: read.position,
            began_at,
            fresh_at: self.judged_at,
            via,
            lag_from: (found > 0).then_some(heard),
        }));
        Ok(found)
    }

    /// Reads what is new since `from`, and makes sure that it was all logged: the rows first, then what tells of
    /// changed definitions.
    async fn read(
        &mut self,
        connection: &mut PgConnection,
        following: &Following,
        from: &Position,
        began_at: Boottime,
    ) -> Result<PassReading, Break> {
        let definitions = &following.definitions;
        let judge_pause = JUDGE_PAUSE.min(self.setup.config.max_staleness / 2);
        let judge = self.marks_fail || !began_at.is_within(judge_pause, self.judged_at);
        let reading = self.read_unlocked(connection, following, from, judge);
        let read = match reading.await {
            Err(SourceError::RowSecurity) => {
                tracing::info!("larder's role sees other rows; checking the tables");
                return Err(Break::Recheck);
            }
            read => read?,
        };
        if *self.process.get_or_insert(read.process) != read.process {
            let changed = "the server process changed between two statements";
            return Err(SourceError::Pooler(changed).into());
        }
        self.check_nonce(&read)?;
        let known = self.signs.as_ref();
        if read.position == *from
            && read.fingerprints.is_none()
            && known.is_some_and(|known| known.remainder == read.remainder)
        {
            // No transaction has become visible, so none that went unlogged either.
            return Ok(read);
        }
        let signs = Signs {
            mark: within(PASS_TIMEOUT, definitions.mark(connection)).await?,
            remainder: read.remainder.clone(),
        };
        let is_same = self.signs.as_ref() == Some(&signs);
        let fingerprints = match &read.fingerprints {
            None if is_same => return Ok(read),
            Some(fingerprints) if is_same => fingerprints.clone(),
            // Computed after the mark that they are to stand for.
            _ => within(PASS_TIMEOUT, definitions.fingerprints(connection)).await?,
        };
        if let Err(end) = self.compare(&fingerprints) {
            if is_same && within(PASS_TIMEOUT, definitions.mark(connection)).await? == signs.mark {
                tracing::warn!(
                    "cached plans are not invalidated by DDL on this server; every pass checks the tables"
                );
                self.marks_fail = true;
            }
            return Err(end);
        }
        self.signs = Some(signs);
        self.judged_at = began_at;
        Ok(read)
    }

    /// Reads what is new since `from`, without the tables that are locked: who alters one table may keep larder from
    /// that, not from the others.
    async fn read_unlocked(
        &mut self,
        connection: &mut PgConnection,
        following: &Following,
        from: &Position,
        judge: bool,
    ) -> Result<PassReading, SourceError> {
        let definitions = &following.definitions;
        let mut refused = 0;
        loop {
            if refused > 0 || self.narrowed.is_some() {
                let locked = within(PASS_TIMEOUT, definitions.watched.locked(connection)).await?;
                self.narrow(following, locked, refused);
            }
            let query = self
                .narrowed
                .as_ref()
                .map_or(&following.query, |narrowed| &narrowed.query);
            let reading = change_log::read(connection, query, definitions, from, judge, self.found);
            match within(PASS_TIMEOUT, reading).await {
                Err(error) if error.is_of_lock() && refused < LOCKED_READS => refused += 1,
                read => return read,
            }
        }
    }

    /// Leaves out the resources in `locked`; all, where that was in vain before.
    fn narrow(&mut self, following: &Following, mut locked: BTreeSet<ResourceId>, refused: usize) {
        if refused >= LOCKED_READS {
            locked = following.cached.iter().map(|(id, _)| *id).collect();
        }
        let same = |narrowed: &Narrowed| narrowed.locked == locked;
        if locked.is_empty() {
            self.narrowed = None;
        } else if !self.narrowed.as_ref().is_some_and(same) {
            let remainder = &following.definitions.remainder;
            let query = PassQuery::new(&following.cached, remainder, &locked);
            self.narrowed = Some(Narrowed { locked, query });
        }
    }

    /// The nonce must be the known one.
    fn check_nonce(&mut self, read: &PassReading) -> Result<(), Break> {
        let nonce = self
            .identity
            .as_ref()
            .map(|identity| identity.nonce.to_string());
        if read.nonce == nonce {
            return Ok(());
        }
        tracing::warn!(
            "PostgreSQL has crashed or was promoted, or schema larder was created again; checking the tables"
        );
        self.identity = None;
        Err(Break::Recheck)
    }

    /// Fingerprints must be the known ones; a resource whose fingerprint differs is distrusted and checked again.
    fn compare(&mut self, fingerprints: &Fingerprints) -> Result<(), Break> {
        let (same, differing): (Fingerprints, Fingerprints) =
            std::mem::take(&mut self.fingerprints)
                .into_iter()
                .partition(|known| fingerprints.contains(known));
        self.fingerprints = same;
        if differing.is_empty() {
            return Ok(());
        }
        for (resource, _) in differing {
            (self.follow)(Event::Distrusted { resource });
        }
        tracing::info!("tables or triggers have changed; checking them");
        Err(Break::Recheck)
    }

    /// If the disk tier offers a position, catches up from it.
    pub(super) async fn resume_if_offered(
        &mut self,
        connection: &mut PgConnection,
        following: &Following,
    ) -> Result<(), Break> {
        if self.resumed {
            return Ok(());
        }
        let Some((identity, from)) = self.setup.resumable.borrow_and_update().clone() else {
            return Ok(());
        };
        self.resumed = true;
        let reached = self.identity.as_ref();
        if reached.is_none_or(|reached| !reached.is_same_history(&identity)) {
            (self.follow)(Event::NotResumed);
            return Ok(());
        }
        let began_at = Boottime::now();
        let reading = self.read(connection, following, &from, began_at);
        let read = match reading.await {
            Ok(read) => read,
            Err(end) => {
                (self.follow)(Event::NotResumed);
                return Err(end);
            }
        };
        if !read.is_valid {
            (self.follow)(Event::NotResumed);
            return Ok(());
        }
        self.position = Some(read.position.clone());
        (self.follow)(Event::Resumed(Pass {
            changes: read.changes,
            position: read.position,
            began_at,
            fresh_at: self.judged_at,
            via: Via::Poll,
            lag_from: None,
        }));
        Ok(())
    }
}
