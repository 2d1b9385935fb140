//! The open connections, and the looks at them.
//!
//! hyper's own timeout for request heads would start a timer for each request. Here all connections are looked at each
//! second: one that takes too long for its first request or for a head, asks nothing, or takes nothing of its answer is
//! closed. A request pays for that what it takes to count it.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus::IntCounterVec;
use tokio::runtime::Handle;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, interval_at};

use crate::http::accept::limits::Limits;
use crate::http::accept::progress::{Order, Progress, Stage};

/// Looks at the open connections are this far apart.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The same once larder is to stop; whatever has not moved from one to the next is closed.
const DRAIN_INTERVAL: Duration = Duration::from_secs(2);

/// Looks at a connection that find nothing new before it is closed.
struct Patience {
    head: u32,
    idle: u32,
    write: u32,
}

impl Patience {
    /// One look more than fits into the time, since the first may come at once.
    fn of(limits: &Limits) -> Self {
        let looks = |time: Duration| {
            let looks = time.as_millis().div_ceil(LOOK_INTERVAL.as_millis()) + 1;
            u32::try_from(looks).unwrap_or(u32::MAX)
        };
        Self {
            head: looks(limits.header_timeout),
            idle: looks(limits.idle_timeout),
            write: looks(limits.write_timeout),
        }
    }

    /// Who still has something to get while larder drains is bounded by the deadline of that alone.
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
    patience: Patience,
    closed: IntCounterVec,
}

struct Seen {
    progress: Arc<Progress>,
    /// What the last look has found.
    steps: u64,
    head: u64,
    /// Looks since then that have found nothing new, and nothing to be answered or sent.
    still: u32,
    head_still: u32,
    /// What was sent when the client had last taken enough, or had nothing to take.
    sent: u64,
    /// Looks since then.
    unsent_still: u32,
}

impl Seen {
    fn look(&mut self) {
        let is_unsent = self.progress.is_unsent();
        let steps = self.progress.steps.load(Ordering::Relaxed);
        let idle = !self.progress.owes(Stage::Draining);
        let same = steps == self.steps && idle;
        self.still = if same { self.still + 1 } else { 0 };
        self.steps = steps;
        let sent = self.progress.sent.load(Ordering::Relaxed);
        if is_unsent && sent < self.enough() {
            self.unsent_still += 1;
        } else {
            (self.sent, self.unsent_still) = (sent, 0);
        }
        let head = self.progress.head.load(Ordering::Relaxed);
        let same = head == self.head && self.progress.awaits_head();
        self.head_still = if same { self.head_still + 1 } else { 0 };
        self.head = head;
    }

    /// What is sent once the client has taken enough of what waits for it.
    fn enough(&self) -> u64 {
        self.sent.saturating_add(self.progress.least_to_take())
    }

    /// Which of its limits the connection has passed, and what it is told then.
    fn overdue(&self, patience: &Patience, stage: Stage) -> Option<(&'static str, Order)> {
        // Whatever else is being made for it.
        if self.unsent_still >= patience.write {
            return Some(("write", Order::CloseUnsent));
        }
        if self.progress.owes(stage) {
            return None;
        }
        if self.head_still >= patience.head {
            return Some(("header", Order::CloseHead));
        }
        (self.still >= patience.idle).then_some(("idle", Order::Close))
    }
}

impl Connections {
    /// `closed` counts what is closed, by why.
    pub(super) fn new(limits: &Limits, closed: IntCounterVec) -> Self {
        Self {
            tasks: JoinSet::new(),
            seen: HashMap::new(),
            patience: Patience::of(limits),
            closed,
        }
    }

    pub(super) fn spawn(
        &mut self,
        served: impl Future<Output = ()> + Send + 'static,
        progress: Arc<Progress>,
        runtime: &Handle,
    ) {
        let task = self.tasks.spawn_on(served, runtime);
        let seen = Seen {
            progress,
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
    pub(super) fn look(&mut self) {
        look(
            self.seen.values_mut(),
            &self.patience,
            Stage::Serving,
            &self.closed,
        );
    }

    /// Lets each connection end after the answers at hand, and ends when all have.
    pub(super) async fn drain(mut self) {
        for seen in self.seen.values_mut() {
            seen.look();
            (seen.still, seen.head_still) = (0, 0);
            seen.progress.order(Order::Drain);
        }
        let mut looks = interval_at(Instant::now() + DRAIN_INTERVAL, DRAIN_INTERVAL);
        loop {
            tokio::select! {
                ended = self.tasks.join_next_with_id() => match ended {
                    Some(ended) => self.forget(ended),
                    None => return,
                },
                _ = looks.tick() => {
                    let seen = self.seen.values_mut();
                    look(seen, &Patience::DRAINING, Stage::Draining, &self.closed);
                }
            }
        }
    }
}

fn look<'a>(
    all: impl Iterator<Item = &'a mut Seen>,
    patience: &Patience,
    stage: Stage,
    closed: &IntCounterVec,
) {
    for seen in all {
        seen.look();
        if let Some((reason, order)) = seen.overdue(patience, stage) {
            let expected = match order {
                Order::CloseHead => seen.head,
                Order::CloseUnsent => seen.enough(),
                _ => seen.steps,
            };
            seen.progress.expected.store(expected, Ordering::Relaxed);
            seen.progress.order(order);
            closed.with_label_values(&[reason]).inc();
            // Where something has happened since, it goes on, and has its time again.
            (seen.still, seen.head_still, seen.unsent_still) = (0, 0, 0);
        }
    }
}
