//! The open connections, and the periodic check of their activity.
//!
//! hyper's own timeout for request heads would start a timer for each request. Here one check a second goes through all
//! connections: one that takes too long for its first request or for a head, sends no request, or reads nothing of its
//! answer is closed. A request pays for that only by being counted.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus::IntCounterVec;
use tokio::runtime::Handle;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, interval_at};

use crate::server::activity::{Activity, Order, Stage};
use crate::server::limits::Limits;

/// Time between two checks of the open connections.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The same while draining; a connection without activity from one check to the next is closed.
const DRAIN_INTERVAL: Duration = Duration::from_secs(2);

/// Checks in a row that find nothing new before a connection is closed.
struct IdleTicks {
    head: u32,
    idle: u32,
    write: u32,
}

impl IdleTicks {
    /// One check more than fits into the time, since the first may come at once.
    fn of(limits: &Limits) -> Self {
        let ticks = |time: Duration| {
            let ticks = time.as_millis().div_ceil(CHECK_INTERVAL.as_millis()) + 1;
            u32::try_from(ticks).unwrap_or(u32::MAX)
        };
        Self {
            head: ticks(limits.header_timeout),
            idle: ticks(limits.idle_timeout),
            write: ticks(limits.write_timeout),
        }
    }

    /// While draining, an answer that is still being read is bounded by `shutdown_timeout` alone.
    const DRAINING: Self = Self {
        head: 1,
        idle: 1,
        write: u32::MAX,
    };
}

/// The open connections.
pub(super) struct Connections {
    pub(super) tasks: JoinSet<()>,
    seen: HashMap<Id, Seen>,
    idle_ticks: IdleTicks,
    closed: IntCounterVec,
}

struct Seen {
    activity: Arc<Activity>,
    /// What the last check has found.
    steps: u64,
    head: u64,
    /// Checks since then that have found nothing new, and nothing to be answered or sent.
    still: u32,
    head_still: u32,
    /// What was sent when the client had last taken enough, or had nothing to take.
    sent: u64,
    /// Checks since then.
    unsent_still: u32,
}

impl Seen {
    fn check(&mut self) {
        let is_unsent = self.activity.is_unsent();
        let steps = self.activity.steps.load(Ordering::Relaxed);
        let idle = !self.activity.owes(Stage::Draining);
        let same = steps == self.steps && idle;
        self.still = if same { self.still + 1 } else { 0 };
        self.steps = steps;
        let sent = self.activity.sent.load(Ordering::Relaxed);
        if is_unsent && sent < self.enough() {
            self.unsent_still += 1;
        } else {
            (self.sent, self.unsent_still) = (sent, 0);
        }
        let head = self.activity.head.load(Ordering::Relaxed);
        let same = head == self.head && self.activity.awaits_head();
        self.head_still = if same { self.head_still + 1 } else { 0 };
        self.head = head;
    }

    /// What is sent once the client has taken enough of what waits for it.
    fn enough(&self) -> u64 {
        self.sent.saturating_add(self.activity.least_to_take())
    }

    /// Which of its limits the connection has passed, and what it is told then.
    fn overdue(&self, idle_ticks: &IdleTicks, stage: Stage) -> Option<(&'static str, Order)> {
        // Whatever else is being made for it.
        if self.unsent_still >= idle_ticks.write {
            return Some(("write", Order::CloseUnsent));
        }
        if self.activity.owes(stage) {
            return None;
        }
        if self.head_still >= idle_ticks.head {
            return Some(("header", Order::CloseHead));
        }
        (self.still >= idle_ticks.idle).then_some(("idle", Order::Close))
    }
}

impl Connections {
    /// `closed` counts what is closed, by why.
    pub(super) fn new(limits: &Limits, closed: IntCounterVec) -> Self {
        Self {
            tasks: JoinSet::new(),
            seen: HashMap::new(),
            idle_ticks: IdleTicks::of(limits),
            closed,
        }
    }

    pub(super) fn spawn(
        &mut self,
        served: impl Future<Output = ()> + Send + 'static,
        activity: Arc<Activity>,
        runtime: &Handle,
    ) {
        let task = self.tasks.spawn_on(served, runtime);
        let seen = Seen {
            activity,
            steps: 0,
            head: 0,
            still: 0,
            head_still: 0,
            sent: 0,
            unsent_still: 0,
        };
        self.seen.insert(task.id(), seen);
    }

    pub(super) fn forget(&mut self, ended: Result<(Id, ()), JoinError>) {
        let id = match ended {
            Ok((id, ())) => id,
            Err(error) => {
                tracing::error!("a connection's task failed: {error}");
                error.id()
            }
        };
        self.seen.remove(&id);
    }

    /// Closes connections that have passed a limit.
    pub(super) fn check(&mut self) {
        check(
            self.seen.values_mut(),
            &self.idle_ticks,
            Stage::Serving,
            &self.closed,
        );
    }

    /// Lets each connection end after the answers at hand, and ends when all have.
    pub(super) async fn drain(mut self) {
        for seen in self.seen.values_mut() {
            seen.check();
            (seen.still, seen.head_still) = (0, 0);
            seen.activity.order(Order::Drain);
        }
        let mut checks = interval_at(Instant::now() + DRAIN_INTERVAL, DRAIN_INTERVAL);
        loop {
            tokio::select! {
                ended = self.tasks.join_next_with_id() => match ended {
                    Some(ended) => self.forget(ended),
                    None => return,
                },
                _ = checks.tick() => {
                    let seen = self.seen.values_mut();
                    check(seen, &IdleTicks::DRAINING, Stage::Draining, &self.closed);
                }
            }
        }
    }
}

fn check<'a>(
    all: impl Iterator<Item = &'a mut Seen>,
    idle_ticks: &IdleTicks,
    stage: Stage,
    closed: &IntCounterVec,
) {
    for seen in all {
        seen.check();
        if let Some((reason, order)) = seen.overdue(idle_ticks, stage) {
            let expected = match order {
                Order::CloseHead => seen.head,
                Order::CloseUnsent => seen.enough(),
                _ => seen.steps,
            };
            seen.activity.expected.store(expected, Ordering::Relaxed);
            seen.activity.order(order);
            closed.with_label_values(&[reason]).inc();
            // Where something has happened since, it goes on, and has its time again.
            (seen.still, seen.head_still, seen.unsent_still) = (0, 0, 0);
        }
    }
}
