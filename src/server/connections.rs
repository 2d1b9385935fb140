//! The open connections, and the periodic check of their activity.
//!
//! hyper's own timeout for request heads would start a timer for each request. Here one check a second goes through all
//! connections, and closes those that take too long for their first request or for a head, send no request, or read
//! nothing of their answers. A request only has to be counted for that.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus::{IntCounterVec, IntGauge};
use tokio::runtime::Handle;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, interval_at};

use crate::metrics::Metrics;
use crate::server::activity::{Activity, ConnectionCommand, Stage};
use crate::server::limits::Limits;

/// Time between two checks of the open connections.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The same while draining. A connection of HTTP/1.1 whose client was active in the second before may send one more
/// request in this time: closing between its requests would lose one that is on its way, which a proxy repeats only if
/// the method is idempotent (RFC 9110, section 9.2.2).
const DRAIN_INTERVAL: Duration = Duration::from_millis(250);
/// While draining: checks without progress before any other connection is closed. The rest of a head may come in this
/// time, and over HTTP/2 the requests that the client has sent before it received GOAWAY (RFC 9113, section 6.8).
const DRAIN_CHECKS: u32 = 8;
/// A connection is idle when draining begins if so many checks have found no progress: for at least one
/// [`CHECK_INTERVAL`].
const IDLE_CHECKS: u32 = 2;

/// Checks in a row that find nothing new before a connection is closed.
struct IdleTicks {
    head: u32,
    /// Between two requests over HTTP/1.1.
    kept: u32,
    /// Between two requests over HTTP/2.
    idle: u32,
    write: u32,
}

impl IdleTicks {
    /// One more check than fits into the time, since the first check may come at once.
    fn of(limits: &Limits) -> Self {
        let ticks = |time: Duration| {
            let ticks = time.as_millis().div_ceil(CHECK_INTERVAL.as_millis()) + 1;
            u32::try_from(ticks).unwrap_or(u32::MAX)
        };
        Self {
            head: ticks(limits.header_timeout),
            kept: ticks(limits.idle_timeout),
            idle: ticks(limits.idle_timeout),
            write: ticks(limits.write_timeout),
        }
    }

    /// While draining, an answer that is still being read is bounded by `shutdown_timeout` alone.
    const DRAINING: Self = Self {
        head: DRAIN_CHECKS,
        kept: 1,
        idle: DRAIN_CHECKS,
        write: u32::MAX,
    };
}

/// The open connections.
pub(super) struct Connections {
    pub(super) tasks: JoinSet<()>,
    tracked: HashMap<Id, TrackedConnection>,
    idle_ticks: IdleTicks,
    closed: IntCounterVec,
    open: IntGauge,
}

struct TrackedConnection {
    activity: Arc<Activity>,
    /// The activity's counts at the last check.
    progress: u64,
    head: u64,
    /// Checks in a row that have found no progress, no request in progress and nothing unsent.
    idle_checks: u32,
    head_checks: u32,
    /// The activity's count when the client had last read enough, or had nothing to read.
    sent: u64,
    /// Checks since then.
    unsent_checks: u32,
}

impl TrackedConnection {
    fn check(&mut self) {
        let is_unsent = self.activity.is_unsent();
        let progress = self.activity.progress.load(Ordering::Relaxed);
        let idle = !self.activity.is_busy(Stage::Draining);
        let same = progress == self.progress && idle;
        self.idle_checks = if same { self.idle_checks + 1 } else { 0 };
        self.progress = progress;
        let sent = self.activity.sent.load(Ordering::Relaxed);
        if is_unsent && sent < self.sent_required() {
            self.unsent_checks += 1;
        } else {
            (self.sent, self.unsent_checks) = (sent, 0);
        }
        let head = self.activity.head.load(Ordering::Relaxed);
        let same = head == self.head && self.activity.awaits_head();
        self.head_checks = if same { self.head_checks + 1 } else { 0 };
        self.head = head;
    }

    /// The value of [`Activity::sent`] once the client has read enough of what waits for it.
    fn sent_required(&self) -> u64 {
        self.sent.saturating_add(self.activity.bytes_to_read())
    }

    /// The limit that the connection has exceeded, and the command that it gets for it.
    fn overdue(
        &self,
        idle_ticks: &IdleTicks,
        stage: Stage,
    ) -> Option<(&'static str, ConnectionCommand)> {
        // Even if other requests are in progress.
        if self.unsent_checks >= idle_ticks.write {
            return Some(("write", ConnectionCommand::CloseUnsent));
        }
        if self.activity.is_busy(stage) {
            return None;
        }
        if self.activity.awaits_head() {
            let is_late = self.head_checks >= idle_ticks.head;
            return is_late.then_some(("header", ConnectionCommand::CloseHead));
        }
        let idle = if self.activity.is_kept() {
            idle_ticks.kept
        } else {
            idle_ticks.idle
        };
        (self.idle_checks >= idle).then_some(("idle", ConnectionCommand::CloseIdle))
    }

    /// Begins the drain: the connection ends after the requests in progress, or at once if it is idle. What its client has
    /// sent by now is answered even then.
    fn drain(&mut self) {
        self.check();
        let is_idle = self.idle_checks >= IDLE_CHECKS && self.activity.is_kept();
        (self.idle_checks, self.head_checks) = (0, 0);
        self.activity.give_command(ConnectionCommand::Drain);
        if is_idle {
            self.close(ConnectionCommand::CloseIdle);
        }
    }

    /// Commands the connection to close, unless something has happened since the check.
    fn close(&self, command: ConnectionCommand) {
        let expected = match command {
            ConnectionCommand::CloseHead => self.head,
            ConnectionCommand::CloseUnsent => self.sent_required(),
            _ => self.progress,
        };
        self.activity.expected.store(expected, Ordering::Relaxed);
        self.activity.give_command(command);
    }
}

impl Connections {
    /// None is open. `metrics` counts those that are, and those that are closed, by the limit that they exceed.
    pub(super) fn new(limits: &Limits, metrics: &Metrics) -> Self {
        Self {
            tasks: JoinSet::new(),
            tracked: HashMap::new(),
            idle_ticks: IdleTicks::of(limits),
            closed: metrics.connections_closed.clone(),
            open: metrics.gauges.connections.clone(),
        }
    }

    pub(super) fn spawn(
        &mut self,
        served: impl Future<Output = ()> + Send + 'static,
        activity: Arc<Activity>,
        runtime: &Handle,
    ) {
        let task = self.tasks.spawn_on(served, runtime);
        let tracked = TrackedConnection {
            activity,
            progress: 0,
            head: 0,
            idle_checks: 0,
            head_checks: 0,
            sent: 0,
            unsent_checks: 0,
        };
        self.tracked.insert(task.id(), tracked);
        self.open.inc();
    }

    pub(super) fn remove(&mut self, ended: Result<(Id, ()), JoinError>) {
        let id = match ended {
            Ok((id, ())) => id,
            Err(error) => {
                tracing::error!("a connection's task failed: {error}");
                error.id()
            }
        };
        self.tracked.remove(&id);
        self.open.dec();
    }

    /// Closes connections that have exceeded a limit.
    pub(super) fn check(&mut self) {
        check(
            self.tracked.values_mut(),
            &self.idle_ticks,
            Stage::Serving,
            &self.closed,
        );
    }

    /// Commands each connection to end after the requests in progress, and waits until all have ended.
    pub(super) async fn drain(mut self) {
        self.tracked.values_mut().for_each(TrackedConnection::drain);
        let mut checks = interval_at(Instant::now() + DRAIN_INTERVAL, DRAIN_INTERVAL);
        loop {
            tokio::select! {
                ended = self.tasks.join_next_with_id() => match ended {
                    Some(ended) => self.remove(ended),
                    None => return,
                },
                _ = checks.tick() => {
                    let tracked = self.tracked.values_mut();
                    check(tracked, &IdleTicks::DRAINING, Stage::Draining, &self.closed);
                }
            }
        }
    }
}

fn check<'a>(
    all: impl Iterator<Item = &'a mut TrackedConnection>,
    idle_ticks: &IdleTicks,
    stage: Stage,
    closed: &IntCounterVec,
) {
    for tracked in all {
        tracked.check();
        if let Some((reason, command)) = tracked.overdue(idle_ticks, stage) {
            tracked.close(command);
            closed.with_label_values(&[reason]).inc();
            // If something has happened since, the connection goes on and its times begin again.
            (
                tracked.idle_checks,
                tracked.head_checks,
                tracked.unsent_checks,
            ) = (0, 0, 0);
        }
    }
}
