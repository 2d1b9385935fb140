//! Gates between the steps of the real code: a thread that comes to one waits there until it is told to go on.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::cache::writer::Writer;
use crate::cache::{Answer, LookupError};
use crate::clock::{Boottime, stopped};

/// A place in the code; named for what comes next there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) enum Point {
    Memory,
    Clean,
    Load,
    Noted,
    Installed,
    Putting,
    Ending,
    TakeEpoch,
    Raise,
    Forget,
    QueueDrop,
    QueueMark,
    Complete,
    QueueEnable,
    Gathered,
}

/// Where a thread has come to.
#[derive(Debug)]
pub(super) enum Arrival {
    At(Point),
    /// Its future waits for something.
    Pending,
    Answered(Result<Answer, LookupError>),
    Wrote(Written),
    Done,
}

/// The writer, back from a batch.
pub(super) struct Written(pub(super) Box<Writer>);

impl std::fmt::Debug for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the writer")
    }
}

struct Gate {
    arrivals: mpsc::Sender<Arrival>,
    go: mpsc::Receiver<Boottime>,
}

thread_local! {
    static GATE: RefCell<Option<Gate>> = const { RefCell::new(None) };
}

/// Waits at `point`, on a thread that is led through gates.
pub(in crate::cache) fn reach(point: Point) {
    wait(Arrival::At(point));
}

/// Tells where this thread is, and waits until it may go on.
pub(super) fn wait(arrival: Arrival) {
    GATE.with_borrow(|gate| {
        let Some(gate) = gate else {
            return;
        };
        let told = gate.arrivals.send(arrival).is_ok();
        match gate.go.recv() {
            Ok(now) if told => stopped::set(now),
            // A crash: nothing after this point happens.
            _ => resume_unwind(Box::new("crashed")),
        }
    });
}

/// A thread that is led through gates.
pub(super) struct Actor {
    go: Option<mpsc::Sender<Boottime>>,
    arrivals: mpsc::Receiver<Arrival>,
    thread: Option<thread::JoinHandle<()>>,
    /// The gate that it waits at.
    pub(super) at: Option<Point>,
}

impl Actor {
    /// Begins `work` and leads it to its first gate, or to its end.
    pub(super) fn start(
        now: Boottime,
        work: impl FnOnce() -> Arrival + Send + 'static,
    ) -> (Self, Arrival) {
        let (go, gone) = mpsc::channel();
        let (arrivals, arrived) = mpsc::channel();
        let thread = thread::spawn(move || {
            stopped::set(now);
            let gate = Gate {
                arrivals: arrivals.clone(),
                go: gone,
            };
            GATE.set(Some(gate));
            if let Ok(end) = catch_unwind(AssertUnwindSafe(work)) {
                // Nobody listens after a crash.
                let _crashed = arrivals.send(end);
            }
            GATE.set(None);
        });
        let mut actor = Self {
            go: Some(go),
            arrivals: arrived,
            thread: Some(thread),
            at: None,
        };
        let arrival = actor.arrival();
        (actor, arrival)
    }

    /// Leads it to the next gate, or to its end.
    pub(super) fn go(&mut self, now: Boottime) -> Arrival {
        let go = self.go.as_ref().expect("it has not crashed");
        go.send(now).expect("it waits");
        self.arrival()
    }

    fn arrival(&mut self) -> Arrival {
        let arrival = self.arrivals.recv_timeout(Duration::from_secs(20));
        let arrival = arrival.expect("it neither comes to a gate nor ends");
        self.at = match arrival {
            Arrival::At(point) => Some(point),
            _ => None,
        };
        arrival
    }
}

impl Drop for Actor {
    /// What it has not done by now never happens.
    fn drop(&mut self) {
        self.go = None;
        if let Some(thread) = self.thread.take() {
            // Unwinding is how it ends.
            let _crashed = thread.join();
        }
    }
}
