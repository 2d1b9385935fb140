//! The loop of the feed: connect, establish, pass after pass, and from the start when something breaks.

mod pass;
mod settle;

use std::collections::{BTreeSet, HashMap};
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
use crate::feed::{Event, FeedSetup, FirstOutcome, Via};
use crate::resource::{Resource, ResourceId};
use crate::source::SourceError;
use crate::source::session::Identity;

/// Pause between passes while changes come in, and until they have ceased.
const QUICK_PAUSE: Duration = Duration::from_millis(5);
/// The same after a pass that named so many documents, those of all resources together: passes are dearer then, and in
/// quick succession take a tenth of two processors from the writers (2026-11-21, PostgreSQL 15, 11,000 commits/s). That
/// begins at some 11,000 documents a second and ends below some 5,000.
const FULL_PASS: usize = 100;
const FULL_PAUSE: Duration = Duration::from_millis(15);
/// Passes that have to find nothing before the quick ones end.
const QUIET_PASSES: u32 = 2;
/// The same while transactions that write are under way: they may have come too late to ring, and commit unrung.
const QUIET_PASSES_BESIDE_WRITERS: u32 = 10;
/// A pass without an answer for this long has lost its connection. PostgreSQL gives up earlier by itself: see
/// [`change_log::SETTINGS`].
const PASS_TIMEOUT: Duration = Duration::from_secs(5);
/// Heartbeat and pruning may not keep passes waiting for longer.
const HOUSEKEEPING_TIMEOUT: Duration = Duration::from_secs(5);
/// All of establishing, locks included.
const ESTABLISH_TIMEOUT: Duration = Duration::from_secs(60);
/// Pauses between attempts to reach PostgreSQL.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_millis(200);
/// Pause between two attempts while a restore may be under way.
const DELAY_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after PostgreSQL refused something: what is to be installed may take rights that nobody grants, and
/// each attempt leaves dead rows in the catalogue.
const REFUSED_MAX: Duration = Duration::from_secs(30);

/// Follows one database.
pub(super) struct Feed<F> {
    setup: FeedSetup,
    follow: F,
    first: watch::Sender<Option<FirstOutcome>>,
    /// The bell was heard.
    rung: Arc<Notify>,
    identity: Option<Identity>,
    /// The database was lost since it was reached.
    lost: bool,
    position: Option<Position>,
    fingerprints: Fingerprints,
    /// What a change of definitions would change, as it was when the fingerprints were known to stand. None on a new
    /// connection, whose mark is another.
    signs: Option<Signs>,
    /// The server process behind the connection, once it is known.
    process: Option<i32>,
    /// The start of the last pass that had fingerprints.
    judged_at: Boottime,
    /// This server keeps a plan though its tables change: every pass computes the fingerprints.
    marks_fail: bool,
    /// The last pass found something.
    found: bool,
    /// Of the last pass, where tables were locked.
    narrowed: Option<Narrowed>,
    history: History,
    restore: RestoreDetector,
    /// Resources that the cache has definitions of.
    defined: BTreeSet<ResourceId>,
    /// The resume offer has been dealt with.
    resumed: bool,
    last_pass_began: Boottime,
    /// What was said of resources that don't fit, so that it is said once.
    unfit: HashMap<ResourceId, String>,
    /// Pauses between two looks at what does not fit the database, or lacks triggers, and the longest of them.
    unfinished: Option<(Duration, RetryPauses)>,
    /// Passes over the last connection had begun.
    followed: bool,
}

/// What a pass reads to find out whether definitions may have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Signs {
    mark: String,
    remainder: String,
}

/// A pass that leaves out what is locked.
struct Narrowed {
    locked: BTreeSet<ResourceId>,
    query: PassQuery,
}

/// Why a connection is given up.
enum Break {
    /// The connection or PostgreSQL failed.
    Lost(EstablishError),
    /// Schema larder is not complete and may not be installed yet. Says why.
    Delayed(String),
    /// What freshness rests on changed: check everything again, at once.
    Recheck,
}

impl<E: Into<EstablishError>> From<E> for Break {
    fn from(error: E) -> Self {
        Self::Lost(error.into())
    }
}

impl<F: FnMut(Event)> Feed<F> {
    pub(super) fn new(
        setup: FeedSetup,
        follow: F,
        first: watch::Sender<Option<FirstOutcome>>,
    ) -> Self {
        Self {
            history: History::open(setup.marks_file.clone()),
            restore: RestoreDetector::open(setup.tables_file.clone()),
            defined: BTreeSet::new(),
            setup,
            follow,
            first,
            rung: Arc::new(Notify::new()),
            identity: None,
            lost: false,
            position: None,
            fingerprints: Vec::new(),
            signs: None,
            process: None,
            judged_at: Boottime::NEVER,
            marks_fail: false,
            found: false,
            narrowed: None,
            resumed: false,
            last_pass_began: Boottime::NEVER,
            unfit: HashMap::new(),
            unfinished: None,
            followed: false,
        }
    }

    /// Never ends by itself.
    pub(super) async fn run(&mut self) {
        if self.setup.config.notify {
            let options = self.setup.database.listener_options();
            tokio::spawn(listener::ring(
                options,
                Arc::clone(&self.rung),
                Arc::clone(&self.setup.metrics),
            ));
        }
        let mut pauses = retries();
        let mut refusals = refused();
        let mut said = String::new();
        let mut rechecked = false;
        loop {
            let began = Instant::now();
            self.followed = false;
            let end = self.connect_and_follow().await;
            if self.followed && began.elapsed() > RETRY_MAX {
                (pauses, refusals) = (retries(), refused());
                rechecked = false;
                said.clear();
            }
            let pause = match end {
                // At once, but not again and again.
                Break::Recheck if !std::mem::replace(&mut rechecked, true) => continue,
                Break::Recheck => pauses.next(),
                Break::Delayed(why) => {
                    self.lose(why, &mut said);
                    Some(DELAY_PAUSE)
                }
                Break::Lost(error) => {
                    self.lose(error.to_string(), &mut said);
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

    /// The database can't be followed; `said` is why it could not before.
    fn lose(&mut self, reason: String, said: &mut String) {
        self.lost = true;
        self.setup.metrics.feed_gaps.inc();
        // Once for each reason, not for each attempt.
        if reason != *said {
            tracing::warn!("not following the database: {reason}");
            said.clone_from(&reason);
            (self.follow)(Event::Lost { reason });
        }
    }

    async fn connect_and_follow(&mut self) -> Break {
        let mut connection = match self
            .setup
            .database
            .connect_writer(&change_log::SETTINGS)
            .await
        {
            Ok(connection) => connection,
            Err(error) => return error.into(),
        };
        let outcome = self.follow_connection(&mut connection).await;
        if matches!(outcome, Break::Recheck)
            && let Err(error) = connection.close().await
        {
            tracing::debug!("closing the feed's connection: {error}");
        }
        outcome
    }

    async fn follow_connection(&mut self, connection: &mut PgConnection) -> Break {
        let following = match self.begin(connection).await {
            Ok(Ok(following)) => following,
            Ok(Err(why)) => return Break::Delayed(why),
            Err(error) => return error.into(),
        };
        self.followed = true;
        let look_at = self.next_look(following.unfinished);
        let FeedSetup {
            node,
            config,
            install,
            persisted,
            ..
        } = &self.setup;
        let mut housekeeping = Housekeeping::new(
            *node,
            config,
            persisted.clone(),
            following.needs.clone(),
            *install,
        );
        let mut bell = Bell::default();
        let mut quiet = 0;
        let mut told_at = Instant::now();
        let mut via = Via::Bell;
        loop {
            let found = match self.pass(connection, &following, via).await {
                Ok(found) => found,
                Err(end) => return end,
            };
            if let Err(end) = self.resume_if_offered(connection, &following).await {
                return end;
            }
            if found > 0 {
                housekeeping.note_changes();
            }
            if let Err(error) = self.keep_house(&mut housekeeping, connection).await {
                return error.into();
            }
            if look_at.is_some_and(|at| Instant::now() >= at) {
                return Break::Recheck;
            }
            // One that follows at once upon another, since both were rung for, does not tell that changes have ceased.
            if found > 0 || told_at.elapsed() >= QUICK_PAUSE {
                told_at = Instant::now();
                let was_held = bell.is_held();
                if self.setup.config.notify {
                    let keeping = bell.keep(connection, found > 0, housekeeping.has_neighbours());
                    if let Err(error) = within(PASS_TIMEOUT, keeping).await {
                        return error.into();
                    }
                }
                // Whoever commits while the bell is let go may not have rung.
                quiet = if found > 0 || was_held { 0 } else { quiet + 1 };
            }
            let pause = self.pause(quiet, found);
            via = self.next(pause, &bell).await;
            if via == Via::Bell {
                quiet = 0;
            }
        }
    }

    /// When to look again whether what is unfinished can be finished, at most `longest` from now.
    fn next_look(&mut self, longest: Option<Duration>) -> Option<Instant> {
        let Some(longest) = longest else {
            self.unfinished = None;
            return None;
        };
        let known = self
            .unfinished
            .take()
            .filter(|(known, _)| *known == longest);
        let (_, known) = self
            .unfinished
            .insert(known.unwrap_or_else(|| (longest, retry_pauses(LOCK_PAUSE_MIN, longest))));
        Some(Instant::now() + known.next().unwrap_or(longest))
    }

    /// Heartbeat and pruning, when they are due, and word of how long the log is.
    async fn keep_house(
        &mut self,
        housekeeping: &mut Housekeeping,
        connection: &mut PgConnection,
    ) -> Result<(), SourceError> {
        if let Some(position) = &self.position {
            let keeping = housekeeping.keep(connection, position, &mut self.history);
            within(HOUSEKEEPING_TIMEOUT, keeping).await?;
        }
        if let Some(backlog) = housekeeping.take_backlog() {
            (self.follow)(Event::Measured(backlog));
        }
        Ok(())
    }

    /// Waits for the next pass, at most for `pause`.
    async fn next(&self, pause: Duration, bell: &Bell) -> Via {
        tokio::select! {
            () = self.rung.notified(), if !bell.is_held() => Via::Bell,
            () = self.setup.committed.notified() => if bell.is_held() { Via::Poll } else { Via::Bell },
            () = tokio::time::sleep(pause) => Via::Poll,
        }
    }

    /// The pause after `quiet` passes in a row that found nothing, or after one that found something.
    fn pause(&self, quiet: u32, found: usize) -> Duration {
        let writers = self.position.as_ref().is_some_and(Position::has_writers);
        let quick = if writers {
            QUIET_PASSES_BESIDE_WRITERS
        } else {
            QUIET_PASSES
        };
        let poll_interval = self.setup.config.poll_interval;
        if quiet >= quick {
            return poll_interval;
        }
        let pause = if found < FULL_PASS {
            QUICK_PAUSE
        } else {
            FULL_PAUSE
        };
        pause.min(poll_interval)
    }
}

/// What the connection answers within `limit`.
async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, SourceError>>,
) -> Result<T, SourceError> {
    // sqlx panics where a row has fewer columns than its statement: the answer is another statement's.
    let work = AssertUnwindSafe(work).catch_unwind();
    match tokio::time::timeout(limit, work).await {
        Ok(outcome) => outcome.unwrap_or(Err(SourceError::Pooler("an answer has too few columns"))),
        Err(_) => Err(SourceError::silent()),
    }
}

/// What passes over a connection need.
pub(super) struct Following {
    query: PassQuery,
    /// The resources that it is for.
    cached: Vec<(ResourceId, Arc<Resource>)>,
    definitions: Definitions,
    needs: Needs,
    /// The longest pause between looks, where a resource does not fit the database or a table lacks triggers.
    unfinished: Option<Duration>,
}

fn retries() -> RetryPauses {
    retry_pauses(RETRY_MIN, RETRY_MAX)
}

fn refused() -> RetryPauses {
    retry_pauses(RETRY_MAX, REFUSED_MAX)
}
