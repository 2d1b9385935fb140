//! Gates between the steps of the code: a thread that reaches one waits there until the test lets it go on.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::clock::{Boottime, stopped};

/// A place in the code, named after the step that follows it.
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

/// What a thread has reached.
#[derive(Debug)]
pub(super) enum Arrival<T> {
    At(Point),
    /// Its future is pending.
    Pending,
    /// Its work is done.
    Ended(T),
}

/// Where a thread waits.
enum Stop {
    Gate(Point),
    Pending,
}

struct Gate {
    stops: mpsc::Sender<Stop>,
    go: mpsc::Receiver<Boottime>,
}

thread_local! {
    static GATE: RefCell<Option<Gate>> = const { RefCell::new(None) };
}

/// Waits at `point`, on a [`GatedThread`].
pub(in crate::cache) fn reach(point: Point) {
    stop(Stop::Gate(point));
}

/// Waits because the future that this thread polls is pending.
pub(super) fn wait_pending() {
    stop(Stop::Pending);
}

/// Reports where this thread is, and waits until it may go on.
fn stop(at: Stop) {
    GATE.with_borrow(|gate| {
        let Some(gate) = gate else {
            return;
        };
        let sent = gate.stops.send(at).is_ok();
        match gate.go.recv() {
            Ok(now) if sent => stopped::set(now),
            // A crash: nothing after this point happens.
            _ => resume_unwind(Box::new("crashed")),
        }
    });
}

/// A thread that is led from gate to gate.
pub(super) struct GatedThread<T> {
    go: Option<mpsc::Sender<Boottime>>,
    stops: mpsc::Receiver<Stop>,
    /// `None` if it crashed.
    thread: Option<thread::JoinHandle<Option<T>>>,
    /// The gate that it waits at.
    pub(super) at: Option<Point>,
}

impl<T: Send + 'static> GatedThread<T> {
    /// Begins `work` and leads it to its first gate, or to its end.
    pub(super) fn start(
        now: Boottime,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> (Self, Arrival<T>) {
        let (go, receive_go) = mpsc::channel();
        let (stops, stopped_at) = mpsc::channel();
        let thread = thread::spawn(move || {
            stopped::set(now);
            GATE.set(Some(Gate {
                stops,
                go: receive_go,
            }));
            let end = catch_unwind(AssertUnwindSafe(work)).ok();
            GATE.set(None);
            end
        });
        let mut thread = Self {
            go: Some(go),
            stops: stopped_at,
            thread: Some(thread),
            at: None,
        };
        let arrival = thread.arrival();
        (thread, arrival)
    }

    /// Leads it to the next gate, or to its end.
    pub(super) fn go(&mut self, now: Boottime) -> Arrival<T> {
        let go = self.go.as_ref().expect("it has not crashed");
        go.send(now).expect("it waits");
        self.arrival()
    }

    fn arrival(&mut self) -> Arrival<T> {
        self.at = None;
        match self.stops.recv_timeout(Duration::from_secs(20)) {
            Ok(Stop::Gate(point)) => {
                self.at = Some(point);
                Arrival::At(point)
            }
            Ok(Stop::Pending) => Arrival::Pending,
            Err(RecvTimeoutError::Timeout) => panic!("it neither reaches a gate nor ends"),
            Err(RecvTimeoutError::Disconnected) => {
                let thread = self.thread.take().expect("it ends once");
                let end = thread.join().expect("panics are caught");
                Arrival::Ended(end.expect("it does not panic"))
            }
        }
    }
}

impl<T> Drop for GatedThread<T> {
    /// Crashes the thread: the steps that it has not made yet never happen.
    fn drop(&mut self) {
        self.go = None;
        if let Some(thread) = self.thread.take() {
            // Unwinding is how it ends.
            let _crashed = thread.join();
        }
    }
}
