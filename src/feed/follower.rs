//! The loop of the feed: it connects, establishes, and runs one pass after the other. If something fails, or
//! definitions have changed, it begins again with a new connection.

mod begin;
mod pass;
mod refusal;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use sqlx::Connection;
use sqlx::postgres::PgConnection;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::clock::Boottime;
use crate::feed::bell::Bell;
use crate::feed::change_log;
use crate::feed::change_log::query::PassQuery;
use crate::feed::ddl::LOCK_PAUSE_MIN;
use crate::feed::definition::{Definitions, Fingerprints};
use crate::feed::establish::EstablishError;
use crate::feed::history::History;
use crate::feed::listener;
use crate::feed::node::{Housekeeping, Needs};
use crate::feed::position::Position;
use crate::feed::restore::RestoreDetector;
use crate::feed::retry::{RetryPauses, retry_pauses};
use crate::feed::strict::next_strict;
use crate::feed::{Event, FeedSetup, FirstOutcome, PassCause};
use crate::resource::{Resource, ResourceId};
use crate::source::SourceError;
use crate::source::session::Identity;

/// Pause between passes while there are changes, and until they have ceased.
const QUICK_PAUSE: Duration = Duration::from_millis(5);
/// A pass that names this many documents of all resources together is followed by [`LARGE_PASS_PAUSE`] instead. Such
/// passes cost more, and in quick succession take a tenth of two processors from the writers (2026-11-21, PostgreSQL
/// 15, 11,000 commits/s). With these numbers the longer pause begins at some 11,000 documents a second and ends below
/// some 5,000.
const LARGE_PASS: usize = 100;
const LARGE_PASS_PAUSE: Duration = Duration::from_millis(15);
/// Passes in a row that have to find nothing before `poll_interval` is the pause again.
const QUIET_PASSES: u32 = 2;
/// The same while transactions that write are open: another one may have held the lock of the bell, so that they commit
/// without a notification.
const QUIET_PASSES_BESIDE_WRITERS: u32 = 10;
/// If a pass gets no answer for this long, its connection is lost. The timeouts in [`change_log::SETTINGS`] are
/// shorter.
const PASS_TIMEOUT: Duration = Duration::from_secs(5);
/// How long passes wait for housekeeping at most.
const HOUSEKEEPING_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time for establishing, including waits for locks.
const ESTABLISH_TIMEOUT: Duration = Duration::from_secs(60);
/// Pauses between attempts to reach PostgreSQL.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_millis(200);
/// Pause between two attempts while a restore may be under way.
const DELAY_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after PostgreSQL refused something. A missing privilege may never be granted, and each attempt to
/// install leaves dead rows in the catalogue.
const REFUSED_MAX: Duration = Duration::from_secs(30);

/// Checks of what does not fit hold up the passes for at most one part in this many of the time.
const CHECK_SHARE: u32 = 20;

/// Follows one database.
pub(super) struct Feed<F> {
    setup: FeedSetup,
    on_event: F,
    first_outcome: watch::Sender<Option<FirstOutcome>>,
    /// Notified when a notification was received.
    bell: Arc<Notify>,
    identity: Option<Identity>,
    /// The database could not be followed since [`Event::Reached`].
    is_lost: bool,
    position: Option<Position>,
    fingerprints: Fingerprints,
    /// The fingerprints of the last delay.
    delayed: Fingerprints,
    /// The signs that belong to the fingerprints. `None` on a new connection, since its plan mark is another one.
    signs: Option<DefinitionSigns>,
    /// The server process of the connection, after the first pass.
    process: Option<i32>,
    /// The start of the last pass that compared the fingerprints.
    fingerprints_at: Boottime,
    /// The server behind this connection keeps plans although their tables change, so every pass computes the
    /// fingerprints.
    is_plan_mark_unreliable: bool,
    /// The last pass found changes.
    last_pass_found: bool,
    /// The statements of the last pass, if tables were locked.
    reduced: Option<ReducedQuery>,
    /// The resources whose joins PostgreSQL has refused in a pass, with the reason. They are not cached.
    refused: BTreeMap<ResourceId, String>,
    /// Since the tables were checked, a resource has been refused.
    is_refusal_new: bool,
    history: History,
    restore: RestoreDetector,
    /// Resources of which the cache has definitions.
    defined: BTreeSet<ResourceId>,
    /// The offer of the disk tier to resume was accepted or refused.
    is_offer_handled: bool,
    last_pass_began: Boottime,
    /// When strict reads get the next pass.
    next_strict: Instant,
    /// The last definition of each resource, also of one that no longer fits: what the next one differs in is logged.
    last_definitions: HashMap<ResourceId, Arc<Resource>>,
    /// What was logged of resources that do not fit the database, so that it is logged once.
    unfit: HashMap<ResourceId, String>,
    /// Pauses before resources that do not fit, and tables without triggers, are checked again; with the longest pause.
    recheck_pauses: Option<(Duration, RetryPauses)>,
    /// The current connection was established, and passes have begun.
    has_followed: bool,
}

/// What a pass compares to find out whether definitions may have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DefinitionSigns {
    plan_mark: String,
    remainder: String,
}

/// The statements of a pass that join no tables of locked resources.
struct ReducedQuery {
    locked: BTreeSet<ResourceId>,
    query: PassQuery,
}

/// Why a connection is no longer followed.
enum StopReason {
    /// The connection was lost, or establishing failed.
    Failed(EstablishError),
    /// Schema larder is not complete and may not be installed yet. Says why.
    Delayed(String),
    /// Definitions have changed, or the position is not valid: everything is checked again at once.
    Recheck,
}

impl<E: Into<EstablishError>> From<E> for StopReason {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl<F: FnMut(Event)> Feed<F> {
    pub(super) fn new(
        setup: FeedSetup,
        on_event: F,
        first_outcome: watch::Sender<Option<FirstOutcome>>,
    ) -> Self {
        Self {
            history: History::open(setup.marks_file.clone()),
            restore: RestoreDetector::open(setup.tables_file.clone()),
            defined: BTreeSet::new(),
            setup,
            on_event,
            first_outcome,
            bell: Arc::new(Notify::new()),
            identity: None,
            is_lost: false,
            position: None,
            fingerprints: Vec::new(),
            delayed: Vec::new(),
            signs: None,
            process: None,
            fingerprints_at: Boottime::NEVER,
            is_plan_mark_unreliable: false,
            last_pass_found: false,
            reduced: None,
            refused: BTreeMap::new(),
            is_refusal_new: false,
            is_offer_handled: false,
            last_pass_began: Boottime::NEVER,
            next_strict: Instant::now(),
            last_definitions: HashMap::new(),
            unfit: HashMap::new(),
            recheck_pauses: None,
            has_followed: false,
        }
    }

    /// Follows the database; never returns.
    pub(super) async fn run(&mut self) {
        if self.setup.config.notify {
            tokio::spawn(listener::listen(
                self.setup.database.clone(),
                Arc::clone(&self.bell),
                Arc::clone(&self.setup.metrics),
            ));
        }
        let mut pauses = connect_pauses();
        let mut refusals = refusal_pauses();
        let mut logged = String::new();
        let mut was_rechecked = false;
        loop {
            let began = Instant::now();
            self.has_followed = false;
            let end = self.connect_and_follow().await;
            if self.has_followed && began.elapsed() > RETRY_MAX {
                (pauses, refusals) = (connect_pauses(), refusal_pauses());
                was_rechecked = false;
                logged.clear();
            }
            let pause = match end {
                // At once, but not twice in a row.
                StopReason::Recheck if !std::mem::replace(&mut was_rechecked, true) => continue,
                StopReason::Recheck => pauses.next(),
                StopReason::Delayed(reason) => {
                    self.report_lost(reason, &mut logged);
                    Some(DELAY_PAUSE)
                }
                StopReason::Failed(error) => {
                    self.report_lost(error.to_string(), &mut logged);
                    match error {
                        EstablishError::Source(SourceError::Refused { .. })
                        | EstablishError::Locked(_) => refusals.next(),
                        _ => pauses.next(),
                    }
                }
            };
            tokio::time::sleep(pause.unwrap_or(RETRY_MAX)).await;
        }
    }

    /// Reports that the database can't be followed, once for each reason. `logged` is the last reason.
    fn report_lost(&mut self, reason: String, logged: &mut String) {
        self.is_lost = true;
        self.setup.metrics.feed_gaps.inc();
        if reason != *logged {
            tracing::warn!("not following the database: {reason}");
            logged.clone_from(&reason);
            (self.on_event)(Event::Lost { reason });
        }
    }

    async fn connect_and_follow(&mut self) -> StopReason {
        let mut connection = match self
            .setup
            .database
            .connect_for_feed(&change_log::SETTINGS)
            .await
        {
            Ok(connection) => connection,
            Err(error) => return error.into(),
        };
        let outcome = self.follow_connection(&mut connection).await;
        if matches!(outcome, StopReason::Recheck)
            && let Err(error) = connection.close().await
        {
            tracing::debug!("could not close the feed's connection: {error}");
        }
        outcome
    }

    async fn follow_connection(&mut self, connection: &mut PgConnection) -> StopReason {
        let context = match self.begin(connection).await {
            Ok(context) => context,
            Err(reason) => return reason,
        };
        self.has_followed = true;
        let mut recheck_at = self.next_recheck(context.recheck_within);
        let mut housekeeping = Housekeeping::new(&self.setup, context.needs.clone());
        let mut bell = Bell::default();
        let mut quiet_passes = 0;
        let mut bell_updated_at = Instant::now();
        let mut cause = PassCause::Bell;
        loop {
            let began = Instant::now();
            let found = match self.run_pass(connection, &context, cause).await {
                Ok(found) => found,
                Err(reason) => return reason,
            };
            self.next_strict = next_strict(began, Instant::now());
            if let Err(reason) = self.resume_if_offered(connection, &context).await {
                return reason;
            }
            if found > 0 {
                housekeeping.note_changes();
            }
            if let Err(error) = self.run_housekeeping(&mut housekeeping, connection).await {
                return error.into();
            }
            if recheck_at.is_some_and(|at| Instant::now() >= at) {
                let began = Instant::now();
                match self.is_as_unfit(connection, &context).await {
                    Ok(true) => {
                        let rest = Instant::now() + began.elapsed() * CHECK_SHARE;
                        recheck_at = self.next_recheck(context.recheck_within).max(Some(rest));
                    }
                    Ok(false) => return StopReason::Recheck,
                    Err(error) => return error.into(),
                }
            }
            // If two notifications came at once, the second pass finds nothing. That does not mean that changes have
            // ceased.
            if found > 0 || bell_updated_at.elapsed() >= QUICK_PAUSE {
                bell_updated_at = Instant::now();
                let was_held = bell.is_held();
                if self.setup.config.notify {
                    let updating =
                        bell.update(connection, found > 0, housekeeping.has_other_nodes());
                    if let Err(error) = with_timeout(PASS_TIMEOUT, updating).await {
                        return error.into();
                    }
                }
                // Transactions that commit while the lock is released may not have notified.
                quiet_passes = if found > 0 || was_held {
                    0
                } else {
                    quiet_passes + 1
                };
            }
            let pause = self.pause_after(quiet_passes, found);
            cause = self.wait_for_next(pause, &bell).await;
            if cause == PassCause::Bell {
                quiet_passes = 0;
            }
        }
    }

    /// When to check again what does not fit or is not installed, at most `longest` from now; never if that is `None`.
    fn next_recheck(&mut self, longest: Option<Duration>) -> Option<Instant> {
        let Some(longest) = longest else {
            self.recheck_pauses = None;
            return None;
        };
        let known = self
            .recheck_pauses
            .take()
            .filter(|(known, _)| *known == longest);
        let (_, known) = self
            .recheck_pauses
            .insert(known.unwrap_or_else(|| (longest, retry_pauses(LOCK_PAUSE_MIN, longest))));
        Some(Instant::now() + known.next().unwrap_or(longest))
    }

    /// Does the housekeeping that is due, and reports the length of the log.
    async fn run_housekeeping(
        &mut self,
        housekeeping: &mut Housekeeping,
        connection: &mut PgConnection,
    ) -> Result<(), SourceError> {
        if let Some(position) = &self.position {
            let running = housekeeping.run_due(connection, position, &mut self.history);
            with_timeout(HOUSEKEEPING_TIMEOUT, running).await?;
        }
        if let Some(backlog) = housekeeping.take_backlog() {
            (self.on_event)(Event::Measured(backlog));
        }
        Ok(())
    }

    /// Waits until the next pass has to start, at most for `pause`. Returns what starts it.
    async fn wait_for_next(&self, pause: Duration, bell: &Bell) -> PassCause {
        tokio::select! {
            () = self.bell.notified(), if !bell.is_held() => PassCause::Bell,
            () = self.setup.committed.notified() => {
                // While the feed holds the lock, other clients can't notify, and the lag of their changes begins
                // earlier.
                if bell.is_held() {
                    PassCause::Poll
                } else {
                    PassCause::Bell
                }
            }
            () = self.strict_read_is_due() => PassCause::Poll,
            () = tokio::time::sleep(pause) => PassCause::Poll,
        }
    }

    /// Waits until a strict read gets a pass.
    async fn strict_read_is_due(&self) {
        self.setup.strict.wanted().await;
        tokio::time::sleep_until(self.next_strict).await;
    }

    /// The pause after a pass that found `found` documents, the last of `quiet_passes` in a row that found none.
    fn pause_after(&self, quiet_passes: u32, found: usize) -> Duration {
        let writers = self.position.as_ref().is_some_and(Position::has_writers);
        let quiet_passes_min = if writers {
            QUIET_PASSES_BESIDE_WRITERS
        } else {
            QUIET_PASSES
        };
        let poll_interval = self.setup.config.poll_interval;
        if quiet_passes >= quiet_passes_min {
            return poll_interval;
        }
        let pause = if found < LARGE_PASS {
            QUICK_PAUSE
        } else {
            LARGE_PASS_PAUSE
        };
        pause.min(poll_interval)
    }
}

/// Runs `work` on the connection. If it takes longer than `limit`, the connection is lost.
async fn with_timeout<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, SourceError>>,
) -> Result<T, SourceError> {
    // sqlx panics if a row has fewer columns than its statement, that is if another statement was answered.
    let work = AssertUnwindSafe(work).catch_unwind();
    match tokio::time::timeout(limit, work).await {
        Ok(outcome) => outcome.unwrap_or(Err(SourceError::Pooler("an answer has too few columns"))),
        Err(_) => Err(SourceError::no_response()),
    }
}

/// What the passes on one connection need.
pub(super) struct PassContext {
    query: PassQuery,
    /// The resources that `query` is for: those that are not uncached.
    cached: Vec<(ResourceId, Arc<Resource>)>,
    definitions: Definitions,
    needs: Needs,
    /// The resources that do not fit the database, if besides these only refused ones have to be checked again.
    only_unfit: Option<Vec<ResourceId>>,
    /// The longest time until everything is checked again, if a resource does not fit the database or a table lacks
    /// triggers.
    recheck_within: Option<Duration>,
}

fn connect_pauses() -> RetryPauses {
    retry_pauses(RETRY_MIN, RETRY_MAX)
}

fn refusal_pauses() -> RetryPauses {
    retry_pauses(RETRY_MAX, REFUSED_MAX)
}
