//! One pass: it reads the rows of the log, then checks whether definitions have changed, then tells the cache.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::postgres::PgConnection;

use crate::clock::Boottime;
use crate::feed::answers::erase_deleted;
use crate::feed::change_log::query::PassQuery;
use crate::feed::change_log::{self, PassReading};
use crate::feed::definition::Fingerprints;
use crate::feed::establish::EstablishError;
use crate::feed::follower::refusal::is_refusal;
use crate::feed::follower::{
    DefinitionSigns, Feed, PASS_TIMEOUT, PassContext, ReducedQuery, StopReason, with_timeout,
};
use crate::feed::position::Position;
use crate::feed::{Change, Event, Pass, PassCause};
use crate::resource::ResourceId;
use crate::source::SourceError;

/// The longest time between two passes that compare the fingerprints, if half of `max_staleness` is longer.
const FINGERPRINTS_INTERVAL_MAX: Duration = Duration::from_millis(500);

/// Attempts to read a pass while tables are locked, after the first one. The last joins only tables of schema larder.
const LOCKED_ATTEMPTS_MAX: usize = 2;

/// What a pass has found out of the definitions of resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verified {
    /// Nothing, since no transaction has become visible: there is none that may have logged nothing.
    NotNeeded,
    /// They are the known ones.
    Unchanged,
    /// Some have changed: their resources are distrusted, what was read holds for the others, and everything has to be checked
    /// again.
    Changed,
}

impl<F: FnMut(Event)> Feed<F> {
    /// Runs a pass from the last position. Returns the number of changes that it found.
    pub(super) async fn run_pass(
        &mut self,
        connection: &mut PgConnection,
        context: &PassContext,
        cause: PassCause,
    ) -> Result<usize, StopReason> {
        let Some(from) = self.position.clone() else {
            return Err(StopReason::Recheck);
        };
        let (number, is_strict) = self.setup.strict.begin();
        let began_at = Boottime::now();
        let reading = self.read_pass(connection, context, &from, began_at, is_strict);
        let (read, verified) = match reading.await {
            Ok(read) => read,
            Err(StopReason::Failed(EstablishError::Source(error))) if !error.is_transient() => {
                // The next pass from this position would fail as well. Without one, the feed begins at the newest one.
                self.position = None;
                return Err(error.into());
            }
            Err(reason) => return Err(reason),
        };
        if !read.is_valid {
            tracing::warn!(
                "larder.change no longer reaches back to the last position; both tiers start empty"
            );
            self.position = None;
            return Err(StopReason::Recheck);
        }
        let found = read.changes.len();
        let lag_from = match cause {
            PassCause::Bell => began_at,
            PassCause::Poll => self.last_pass_began,
        };
        self.last_pass_began = began_at;
        self.last_pass_found = found > 0;
        self.position = Some(read.position.clone());
        if found > 0 {
            tracing::debug!(
                documents = found,
                resources = ?self.changed_names(&read.changes),
                cause = cause.as_str(),
                took = ?Boottime::now().since(began_at),
                position = %read.position,
                "pass with changes"
            );
        }
        let erased = self.setup.config.answers.then(|| read.changes.clone());
        (self.on_event)(Event::Passed(Pass {
            changes: read.changes,
            position: read.position,
            began_at,
            fresh_at: self.fingerprints_at,
            verified: (verified != Verified::NotNeeded).then_some(number),
            cause,
            lag_from: (found > 0).then_some(lag_from),
        }));
        if let Some(changes) = erased.filter(|changes| !changes.is_empty()) {
            let erasing = erase_deleted(connection, &context.cached, &changes);
            match with_timeout(PASS_TIMEOUT, erasing).await {
                Err(error) if error.is_connection_error() => return Err(error.into()),
                Err(error) => {
                    tracing::warn!("kept answers of deleted documents were not erased: {error}");
                }
                Ok(()) => {}
            }
        }
        if verified == Verified::Changed || self.is_refusal_new {
            return Err(StopReason::Recheck);
        }
        Ok(found)
    }

    /// The names of the resources of `changes`.
    fn changed_names(&self, changes: &[Change]) -> BTreeSet<&str> {
        let definition = |change: &Change| self.setup.definitions.get(change.resource.index());
        let changed = changes.iter().filter_map(definition);
        changed
            .map(|definition| definition.name.value.as_str())
            .collect()
    }

    /// Reads what is new since `from`, and makes sure that all of it was logged: the rows first, then the signs of
    /// changed definitions, then the fingerprints if they are needed. A strict read needs the signs in any case.
    async fn read_pass(
        &mut self,
        connection: &mut PgConnection,
        context: &PassContext,
        from: &Position,
        began_at: Boottime,
        is_strict: bool,
    ) -> Result<(PassReading, Verified), StopReason> {
        let definitions = &context.definitions;
        let interval = FINGERPRINTS_INTERVAL_MAX.min(self.setup.config.max_staleness / 2);
        let with_fingerprints =
            self.is_plan_mark_unreliable || !began_at.is_within(interval, self.fingerprints_at);
        let reading = self.read_unlocked(connection, context, from, with_fingerprints);
        let read = match reading.await {
            Err(SourceError::RowSecurity) => {
                tracing::info!("larder's role sees other rows; checking the tables");
                return Err(StopReason::Recheck);
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
            && !is_strict
            && known.is_some_and(|known| known.remainder == read.remainder)
        {
            return Ok((read, Verified::NotNeeded));
        }
        let signs = DefinitionSigns {
            plan_mark: with_timeout(PASS_TIMEOUT, definitions.plan_mark(connection)).await?,
            remainder: read.remainder.clone(),
        };
        let is_same = self.signs.as_ref() == Some(&signs);
        let fingerprints = match &read.fingerprints {
            None if is_same => return Ok((read, Verified::Unchanged)),
            Some(fingerprints) if is_same => fingerprints.clone(),
            // Computed after the plan mark that they will belong to.
            _ => with_timeout(PASS_TIMEOUT, definitions.fingerprints(connection)).await?,
        };
        let has_changed = !self.compare_fingerprints(&fingerprints);
        if has_changed && is_same {
            let reading = definitions.plan_mark(connection);
            if with_timeout(PASS_TIMEOUT, reading).await? == signs.plan_mark {
                tracing::warn!(
                    "cached plans are not invalidated by DDL on this server; every pass checks the tables"
                );
                self.is_plan_mark_unreliable = true;
            }
        }
        self.signs = Some(signs);
        self.fingerprints_at = began_at;
        let verified = if has_changed {
            Verified::Changed
        } else {
            Verified::Unchanged
        };
        Ok((read, verified))
    }

    /// Reads what is new since `from`, without joining tables of locked resources: a client that alters one table must
    /// not keep the other resources from being followed. Nor are those of resources joined whose joins PostgreSQL refuses;
    /// these are distrusted.
    async fn read_unlocked(
        &mut self,
        connection: &mut PgConnection,
        context: &PassContext,
        from: &Position,
        with_fingerprints: bool,
    ) -> Result<PassReading, SourceError> {
        let definitions = &context.definitions;
        let mut attempts = 0;
        let mut refused = BTreeSet::new();
        loop {
            if attempts > 0 || self.reduced.is_some() || !refused.is_empty() {
                let reading = definitions.watched.locked_resources(connection);
                let mut locked = with_timeout(PASS_TIMEOUT, reading).await?;
                locked.extend(&refused);
                self.reduce_query(context, locked, attempts);
            }
            let query = self
                .reduced
                .as_ref()
                .map_or(&context.query, |reduced| &reduced.query);
            let reading = change_log::read(
                connection,
                query,
                definitions,
                from,
                with_fingerprints,
                self.last_pass_found,
            );
            match with_timeout(PASS_TIMEOUT, reading).await {
                Err(error) if error.is_lock_timeout() && attempts < LOCKED_ATTEMPTS_MAX => {
                    attempts += 1
                }
                Err(error) if is_refusal(&error) && refused.is_empty() => {
                    refused = self.refuse(connection, context, from, error).await?;
                }
                read => return read,
            }
        }
    }

    /// Makes statements that join no tables of the resources in `locked`, if they are not the ones of the last pass. At
    /// the last attempt no resource's tables are joined.
    fn reduce_query(
        &mut self,
        context: &PassContext,
        mut locked: BTreeSet<ResourceId>,
        attempts: usize,
    ) {
        if attempts >= LOCKED_ATTEMPTS_MAX {
            locked = context.cached.iter().map(|(id, _)| *id).collect();
        }
        let same = |reduced: &ReducedQuery| reduced.locked == locked;
        if locked.is_empty() {
            self.reduced = None;
        } else if !self.reduced.as_ref().is_some_and(same) {
            let remainder = &context.definitions.remainder;
            let query = PassQuery::new(&context.cached, remainder, &locked);
            self.reduced = Some(ReducedQuery { locked, query });
        }
    }

    /// Stops if the nonce is not the known one.
    fn check_nonce(&mut self, read: &PassReading) -> Result<(), StopReason> {
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
        Err(StopReason::Recheck)
    }

    /// Whether all fingerprints are the known ones. A resource with another one is distrusted until it is checked again.
    fn compare_fingerprints(&mut self, fingerprints: &Fingerprints) -> bool {
        let (equal, differing): (Fingerprints, Fingerprints) =
            std::mem::take(&mut self.fingerprints)
                .into_iter()
                .partition(|known| fingerprints.contains(known));
        self.fingerprints = equal;
        if differing.is_empty() {
            return true;
        }
        for (resource, _) in differing {
            (self.on_event)(Event::Distrusted { resource });
        }
        tracing::info!("tables or triggers have changed; checking them");
        false
    }

    /// If the disk tier offers a position, runs a pass from there, so that its content can be used. This is done once.
    pub(super) async fn resume_if_offered(
        &mut self,
        connection: &mut PgConnection,
        context: &PassContext,
    ) -> Result<(), StopReason> {
        if self.is_offer_handled {
            return Ok(());
        }
        let Some((identity, from)) = self.setup.resumable.borrow_and_update().clone() else {
            return Ok(());
        };
        self.is_offer_handled = true;
        let reached = self.identity.as_ref();
        if reached.is_none_or(|reached| !reached.is_same_history(&identity)) {
            tracing::info!(
                "the disk tier starts empty: it belongs to another database or another history of it"
            );
            (self.on_event)(Event::NotResumed);
            return Ok(());
        }
        let began_at = Boottime::now();
        let reading = self.read_pass(connection, context, &from, began_at, false);
        let read = match reading.await {
            Ok((read, Verified::NotNeeded | Verified::Unchanged)) => read,
            unread => {
                tracing::info!(
                    "the disk tier starts empty: the changes since it was written can't be read"
                );
                (self.on_event)(Event::NotResumed);
                return Err(unread.err().unwrap_or(StopReason::Recheck));
            }
        };
        if !read.is_valid {
            tracing::info!(
                "the disk tier starts empty: larder.change does not reach back to where it was written"
            );
            (self.on_event)(Event::NotResumed);
            return Ok(());
        }
        self.position = Some(read.position.clone());
        (self.on_event)(Event::Resumed(Pass {
            changes: read.changes,
            position: read.position,
            began_at,
            fresh_at: self.fingerprints_at,
            verified: None,
            cause: PassCause::Poll,
            lag_from: None,
        }));
        Ok(())
    }
}
