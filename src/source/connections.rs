//! The connections over which documents are read and written: one limit for all of them.
//!
//! `database.connections` counts all connections of larder. Two are the feed's; the others are shared by loads, lists,
//! writes and bulk writes, as `shares` describes. A connection is opened when it is first needed, has the settings of
//! its purpose, and is verified to reach the database that the feed follows. It is idle between two statements or
//! transactions. If the server refuses a connection since it has too many, larder uses fewer for a while.

mod probe;
mod shares;

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::Connection;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::source::SourceError;
use crate::source::availability::Availability;
pub use crate::source::connections::shares::PoolStatus;
pub(in crate::source) use crate::source::connections::shares::Purpose;
use crate::source::connections::shares::{Place, Shares};
use crate::source::session::{
    Database, Identity, Session, verify_identity, within_connect_timeout,
};

/// The connections of the feed: one for passes, one for LISTEN.
const FEED_CONNECTIONS: usize = 2;

/// The most connections that read lists.
const LIST_CONNECTIONS_MAX: usize = 4;

/// More connections do not make commits faster. Several are needed, since each may wait for a lock.
const WRITE_CONNECTIONS_MAX: usize = 8;

/// A write waits longer for a connection to a busy PostgreSQL than a read, since no tier can answer it.
const WRITE_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long closing a connection may take before its socket is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// The pauses between attempts if the server has too many connections: it counts one that larder has closed until its
/// process has ended.
const CLOSED_PAUSE_MIN: Duration = Duration::from_millis(5);
const CLOSED_PAUSE_MAX: Duration = Duration::from_millis(160);

/// How long no further connection is opened after the server has refused one since it has too many. Doubled each time.
const REFUSED_PAUSE_MIN: Duration = Duration::from_secs(1);
const REFUSED_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Time between two warnings that the server has too many connections.
const REFUSED_WARNING_PAUSE: Duration = Duration::from_secs(60);

/// The connections over which documents are read and written.
pub struct Connections {
    database: Database,
    /// How many there may be.
    count: usize,
    /// The longest wait for a connection.
    wait_max: Duration,
    shares: Mutex<Shares<IdleConnection>>,
    refusal: Mutex<Refusal>,
    reads: Availability,
    writes: Availability,
}

/// That the server has refused connections since it has too many.
struct Refusal {
    /// When they are tried again, if some were refused.
    until: Option<Instant>,
    /// When the last one was refused.
    last: Option<Instant>,
    pause: Duration,
    warned_at: Option<Instant>,
}

/// A connection that runs no statement.
struct IdleConnection {
    session: Session,
    /// The identity that it was verified to have.
    verified: Arc<Identity>,
}

impl IdleConnection {
    async fn close(self) {
        let closing = self.session.connection.close();
        // Past the limit the socket is closed.
        let _closed = tokio::time::timeout(CLOSE_TIMEOUT, closing).await;
    }
}

/// A place among the connections. Dropping it gives the place to others.
struct HeldPlace {
    connections: Arc<Connections>,
    purpose: Purpose,
    is_held: bool,
}

impl Drop for HeldPlace {
    fn drop(&mut self) {
        if self.is_held {
            self.connections.shares().give_back(self.purpose, None);
        }
    }
}

/// A connection that is in use. Dropping it closes its socket.
pub(in crate::source) struct UsedConnection {
    // Closed before its place is given to others.
    session: Session,
    verified: Arc<Identity>,
    is_reused: bool,
    place: HeldPlace,
}

impl UsedConnection {
    /// Makes the connection idle. No transaction may be open on it.
    pub(in crate::source) fn put_back(self) {
        let Self {
            session,
            verified,
            mut place,
            ..
        } = self;
        place.is_held = false;
        let idle = IdleConnection { session, verified };
        let mut shares = place.connections.shares();
        shares.give_back(place.purpose, Some(idle));
    }

    /// Whether it was idle before, so that it may have been lost without larder's notice.
    pub(in crate::source) fn is_reused(&self) -> bool {
        self.is_reused
    }
}

impl Deref for UsedConnection {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl DerefMut for UsedConnection {
    fn deref_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}

/// A task that waits for a place. If it ends before it has taken the place, others get it.
struct Waiting {
    connections: Arc<Connections>,
    purpose: Purpose,
    receiver: oneshot::Receiver<Place<IdleConnection>>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.receiver.close();
        if let Ok(place) = self.receiver.try_recv() {
            let idle = match place {
                Place::Idle(idle) => Some(idle),
                Place::Free | Place::InPlaceOf(_) => None,
            };
            self.connections.shares().give_back(self.purpose, idle);
        }
    }
}

impl Connections {
    /// For `connections` connections in all, those of the feed among them. Opens none. A task waits at most `wait_max`
    /// for one.
    pub fn new(database: Database, connections: usize, wait_max: Duration) -> Arc<Self> {
        let count = connections.saturating_sub(FEED_CONNECTIONS).max(2);
        Arc::new(Self {
            database,
            count,
            wait_max,
            shares: Mutex::new(Shares::new(count)),
            refusal: Mutex::new(Refusal {
                until: None,
                last: None,
                pause: REFUSED_PAUSE_MIN,
                warned_at: None,
            }),
            reads: Availability::new("read from PostgreSQL", true),
            writes: Availability::new("written to PostgreSQL", false),
        })
    }

    /// The database that they reach.
    pub(in crate::source) fn database(&self) -> &Database {
        &self.database
    }

    /// The most lists that are read at a time: half of the connections that may read.
    pub(in crate::source) fn lists_max(&self) -> usize {
        ((self.count - 1) / 2).clamp(1, LIST_CONNECTIONS_MAX)
    }

    /// The most statements at a time that look for documents without reading them: half of those that read documents.
    pub(in crate::source) fn finds_max(&self) -> usize {
        self.loads_max().div_ceil(2)
    }

    /// The most statements at a time that read documents. Lists hold up none of them if there are enough connections.
    pub(in crate::source) fn loads_max(&self) -> usize {
        (self.count - 1).saturating_sub(self.lists_max()).max(1)
    }

    /// The most transactions at a time, but for bulk writes.
    pub(in crate::source) fn writes_max(&self) -> usize {
        (self.count - 1).min(WRITE_CONNECTIONS_MAX)
    }

    /// The most bulk writes at a time. They may take long, so most connections are left to others.
    pub(in crate::source) fn bulk_writes_max(&self) -> usize {
        (self.count / 3).clamp(1, WRITE_CONNECTIONS_MAX)
    }

    /// The purpose of the connections of bulk writes. Two connections are one for reads and one for writes.
    pub(in crate::source) fn bulk_purpose(&self) -> Purpose {
        if self.count > 2 {
            Purpose::BulkWrite
        } else {
            Purpose::Write
        }
    }

    /// Whether documents can be read (`Purpose::Read`) or written.
    pub(in crate::source) fn availability(&self, purpose: Purpose) -> &Availability {
        match purpose {
            Purpose::Read => &self.reads,
            Purpose::Write | Purpose::BulkWrite => &self.writes,
        }
    }

    /// Why documents can't be read; `None` if they can.
    pub fn reads_unavailable(&self) -> Option<String> {
        self.reads.unavailable_reason()
    }

    /// Why documents can't be written; `None` if they can, or if [`Connections::require_writes`] was not called.
    pub fn writes_unavailable(&self) -> Option<String> {
        self.writes.unavailable_reason()
    }

    /// From now on it matters that documents can be written, since a resource is writable.
    pub fn require_writes(&self) {
        self.writes.require();
    }

    /// How many connections each purpose has now.
    pub fn pools(&self) -> Vec<PoolStatus> {
        self.shares().pools().to_vec()
    }

    fn shares(&self) -> MutexGuard<'_, Shares<IdleConnection>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refusal(&self) -> MutexGuard<'_, Refusal> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection for `purpose` to the database `followed`: an idle one, or a new one.
    ///
    /// Waits at most `wait_max` for a place, then at most 5 s (reads: 800 ms for each of four steps) for the connection.
    /// Cancel safe.
    /// # Errors
    /// [`SourceError::Overloaded`] if all connections are in use for `wait_max`; else why none can be opened.
    pub(in crate::source) async fn connect(
        self: &Arc<Self>,
        purpose: Purpose,
        followed: &Arc<Identity>,
    ) -> Result<UsedConnection, SourceError> {
        let until = Instant::now() + self.wait_max;
        loop {
            let (place, idle) = self.take_place(purpose, until).await?;
            // An outdated connection is closed before a new one is opened, so that the server has a free connection.
            let idle = idle.filter(|idle| Arc::ptr_eq(&idle.verified, followed));
            if let Some(IdleConnection { session, verified }) = idle {
                return Ok(UsedConnection {
                    session,
                    verified,
                    is_reused: true,
                    place,
                });
            }
            match self.open_patiently(purpose, followed).await {
                Ok(session) => {
                    return Ok(UsedConnection {
                        session,
                        verified: Arc::clone(followed),
                        is_reused: false,
                        place,
                    });
                }
                Err(SourceError::TooManyConnections(message))
                    if self.refuse_place(place, &message) && Instant::now() < until => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes a place, and an idle connection if there is one for it.
    async fn take_place(
        self: &Arc<Self>,
        purpose: Purpose,
        until: Instant,
    ) -> Result<(HeldPlace, Option<IdleConnection>), SourceError> {
        let retries_refused = self
            .refusal()
            .until
            .take_if(|until| *until <= Instant::now());
        let receiver = {
            let mut shares = self.shares();
            if retries_refused.is_some() {
                shares.retry_refused();
            }
            match shares.take(purpose) {
                Some(place) => Ok(place),
                None => Err(shares.wait(purpose)),
            }
        };
        let place = match receiver {
            Ok(place) => place,
            Err(receiver) => {
                let mut waiting = Waiting {
                    connections: Arc::clone(self),
                    purpose,
                    receiver,
                };
                let received = tokio::time::timeout_at(until, &mut waiting.receiver).await;
                received
                    .ok()
                    .and_then(Result::ok)
                    .ok_or(SourceError::Overloaded)?
            }
        };
        let held = HeldPlace {
            connections: Arc::clone(self),
            purpose,
            is_held: true,
        };
        Ok(match place {
            Place::Idle(idle) => (held, Some(idle)),
            Place::Free => (held, None),
            Place::InPlaceOf(idle) => {
                idle.close().await;
                (held, None)
            }
        })
    }

    /// Opens a connection. If the server has too many, tries again for a short time: larder may have closed one just now.
    async fn open_patiently(
        &self,
        purpose: Purpose,
        followed: &Identity,
    ) -> Result<Session, SourceError> {
        let mut pause = CLOSED_PAUSE_MIN;
        loop {
            match self.open(purpose, followed).await {
                Err(SourceError::TooManyConnections(_)) if pause <= CLOSED_PAUSE_MAX => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                opened => return opened,
            }
        }
    }

    /// Opens a connection and checks which database it has reached. Behind a pooler, each transaction checks that.
    async fn open(&self, purpose: Purpose, followed: &Identity) -> Result<Session, SourceError> {
        let is_pooled = self.database.pooler();
        if purpose == Purpose::Read {
            let mut session = self.database.connect().await?;
            if !is_pooled {
                let verified =
                    within_connect_timeout(verify_identity(&mut session.connection, followed));
                verified.await.ok_or_else(SourceError::no_response)??;
            }
            return Ok(session);
        }
        let connecting = async {
            let mut session = self.database.connect_for_writes().await?;
            if !is_pooled {
                verify_identity(&mut session.connection, followed).await?;
            }
            Ok(session)
        };
        let connected = tokio::time::timeout(WRITE_CONNECT_TIMEOUT, connecting).await;
        connected.unwrap_or_else(|_| Err(SourceError::no_response()))
    }

    /// Gives up a place for which the server has refused a connection with `message`, for a while. Returns whether
    /// larder has other connections, which may be used instead.
    fn refuse_place(&self, mut place: HeldPlace, message: &str) -> bool {
        place.is_held = false;
        let held = {
            let mut shares = self.shares();
            shares.refuse(place.purpose);
            let held = shares.held();
            if held == 0 {
                shares.retry_refused();
            }
            held
        };
        if held == 0 {
            return false;
        }
        let now = Instant::now();
        let mut refusal = self.refusal();
        if refusal
            .last
            .is_none_or(|last| now - last > 2 * REFUSED_PAUSE_MAX)
        {
            refusal.pause = REFUSED_PAUSE_MIN;
        }
        refusal.last = Some(now);
        if refusal.until.is_none() {
            refusal.until = Some(now + refusal.pause);
            refusal.pause = (refusal.pause * 2).min(REFUSED_PAUSE_MAX);
        }
        let is_due = |at: Instant| now - at > REFUSED_WARNING_PAUSE;
        if refusal.warned_at.is_none_or(is_due) {
            refusal.warned_at = Some(now);
            tracing::warn!(
                "too many connections: PostgreSQL refuses more than {held} besides the change feed's, \
                 though database.connections allows {}; lower it, or raise max_connections or the connection limit of \
                 the role or the database: {message}",
                self.count
            );
        }
        true
    }

    /// Closes the idle connections of `purpose`, after one of them was found to be lost.
    pub(in crate::source) fn close_idle(&self, purpose: Purpose) {
        let idle = self.shares().take_idle(purpose);
        drop(idle);
    }

    /// Closes the idle connections of all purposes, and lets no other become idle.
    pub(in crate::source) fn close(&self) {
        let idle = self.shares().close();
        drop(idle);
    }
}
