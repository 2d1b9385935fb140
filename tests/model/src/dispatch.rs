//! How `larder dispatch` delivers due rows: which rows are sent again, and that none is lost.
//!
//! A worker takes the advisory lock of a slot, reads due rows, sends them to a sink and moves their due moments, all on
//! one connection and without an open transaction. [`Dispatch`] is explored in all its states, as it is and without
//! each [`Guard`], for both kinds of delivery ([`Mode`]).
//!
//! # What is modelled
//! - *The table*: one slot with two rows. Each due moment that is written to a row gets the next number. Retries can be
//!   matched at once: how long a moment is ahead says nothing here.
//! - *The application*: a transaction locks a row, then changes its due moment, deletes the row, inserts it again, or
//!   leaves the moment as it is.
//! - *Two workers*: lock, match, the match's result, requests of one or two rows, their responses, one statement for
//!   each row that has its response, end of the slot. A statement for the whole batch has fewer orders of steps.
//! - *The sink* fails a limited number of requests. With [`Dispatch::has_bad_row`] it fails each request with the first
//!   row, as a whole or that row alone.
//! - *Faults*: a process is killed and starts again, or is stopped by SIGSTOP and continued; a link delays everything
//!   for as long as it likes, as a cut one does; PostgreSQL restarts. The session of a killed process ends with it,
//!   since its kernel closes the socket. That of a stopped or cut off process ends by a timeout. The worker notices
//!   later.
//! - *Time*: a statement is sent before PostgreSQL executes it, and both timeouts are `takeover`. So when PostgreSQL
//!   ends a session for its silence, the last answered statement of its worker was sent more than `takeover` ago, and
//!   so was a match whose result is still on its way. Both become old in the step that ends the session.
//!
//! # What the exploration says
//! - The boot-time clock alone ends the sending of a process that was stopped: a worker that keeps its batch over
//!   SIGCONT ([`Dispatch::keeps_batch`]) violates nothing.
//! - The age counts from the sending of a statement. Its answer may arrive when another worker has the slot.
//! - PostgreSQL's restart ends all sessions at once. Until the former holder of a slot notices that, two workers may
//!   send its rows. Each row of the batch is repeated at most once.
//! - Rows that an application has locked are skipped. If they were not moved before the slot is left, they would be
//!   repeated without a fault.
//!
//! # What is left out
//! A process that is stopped between looking at the clock and beginning the request; several slots, which share
//! nothing; the place from which a match reads on; the circuit breaker, which only delays; SIGTERM; rows that refuse
//! their new due moment; the next interval of a delivered row, which is like a change by the application; an
//! application that sets a due moment which the row had before (such an element has the old id); failovers that lose
//! commits.

mod steps;
#[cfg(test)]
mod tests;

use stateright::Property;

/// What keeps the promises, each to be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The lock is taken by a statement before the one that matches.
    LockFirst,
    /// A statement changes a row only if its due moment is the one that the worker knows.
    Compare,
    /// PostgreSQL ends sessions of stopped and cut off processes.
    SessionTimeout,
    /// A worker begins no request once its last answered statement is old.
    EndOfSending,
    /// That age counts from the sending of the statement, not from its answer.
    AgeFromSending,
    /// Skipped rows are tried again before the slot is left.
    SkippedAgain,
    /// A row of `larder.delivery` counts only for the due moment that it was written with.
    RetryTiedToDue,
    /// A retry is sent alone.
    RetryAlone,
    /// A failure moves the row and writes `larder.delivery` or the dead letter in one transaction.
    OneTransaction,
    /// At most once, rows are moved and committed before they are sent.
    MoveBeforeSending,
    /// At most once, such a commit survives a restart of PostgreSQL.
    DurableCommit,
}

impl Guard {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::LockFirst,
        Self::Compare,
        Self::SessionTimeout,
        Self::EndOfSending,
        Self::AgeFromSending,
        Self::SkippedAgain,
        Self::RetryTiedToDue,
        Self::RetryAlone,
        Self::OneTransaction,
        Self::MoveBeforeSending,
        Self::DurableCommit,
    ];
}

/// Which kind of delivery is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Rows are sent, then moved.
    AtLeastOnce,
    /// Rows are moved, then sent.
    AtMostOnce,
}

/// How much of everything there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Transactions of the application.
    pub changes: u8,
    /// Kills, stops, cut links and restarts of PostgreSQL together.
    pub faults: u8,
    /// Requests that the sink fails without regard to their rows.
    pub failures: u8,
}

/// The model, whole or without one of its guards.
#[derive(Clone, Copy, Debug)]
pub struct Dispatch {
    /// The kind of delivery.
    pub mode: Mode,
    /// Rows that are matched at a time, 1 or 2.
    pub batch: u8,
    /// The sink fails each request with the first row.
    pub has_bad_row: bool,
    /// A worker keeps its batch over SIGCONT.
    pub keeps_batch: bool,
    /// How much of everything there is.
    pub bounds: Bounds,
    /// What is taken out.
    pub without: Option<Guard>,
}

/// A due moment of a row, by its number.
pub type Moment = u8;

/// A set of rows, one bit for each.
pub type Rows = u8;

/// Whether a row is there and due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Its due moment has come.
    #[default]
    Due,
    /// Its due moment is ahead, for longer than the exploration lasts.
    Later,
    /// The application has deleted it.
    Deleted,
}

/// A row of `larder.delivery`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Retry {
    due: Moment,
    first_due: Moment,
    attempts: u8,
}

/// A row of the table, and its row of `larder.delivery`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Row {
    due: Moment,
    standing: Standing,
    retry: Option<Retry>,
}

/// What has happened to a row, of which no worker knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct History {
    /// The last number of a due moment.
    last: Moment,
    /// The due moment that the application has set last.
    origin: Moment,
    /// Failures of its element that were written.
    failures: u8,
    /// It was delivered or became a dead letter, or the application does not want it to be sent.
    is_settled: bool,
    /// The row has a dead letter.
    is_dead: bool,
    /// Elements that were sent, one bit for each id and attempt.
    sent: u32,
    /// Only without a guard: a restart of PostgreSQL takes back that the row was moved.
    is_volatile: bool,
}

/// Where an element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// It waits for its request.
    Unsent,
    /// It is in a request with these rows.
    InFlight(Rows),
    /// The sink has accepted it.
    Acknowledged,
    /// The sink has failed it.
    Failed,
    /// Only without a guard: failed and moved, and that is to be written to larder's tables.
    Moved,
}

/// A matched row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Element {
    /// The due moment that the row has as far as the worker knows.
    due: Moment,
    /// The due moment that its id is made of.
    first_due: Moment,
    attempt: u8,
    step: Step,
}

/// What a worker has matched, row by row.
pub type Batch = [Option<Element>; 2];

/// Where a worker is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It has no slot.
    #[default]
    Idle,
    /// Only without a guard: its statement sees these rows and is to take the lock.
    Snapshot([Row; 2]),
    /// PostgreSQL has executed its match; the result is on its way.
    Matched,
    /// It has locked the slot, and sends and moves what it has read.
    Locked,
}

/// A process, with one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Worker {
    phase: Phase,
    batch: Batch,
    /// SIGSTOP; it does nothing.
    is_stopped: bool,
    /// Its link is cut, or delays for so long that PostgreSQL may end the session.
    is_cut: bool,
    /// A restart of PostgreSQL has ended its session, and it does not know.
    is_severed: bool,
    /// Its last answered statement was sent more than `takeover` ago, as was a match whose result is on its way.
    is_old: bool,
}

/// One state of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    rows: [Row; 2],
    histories: [History; 2],
    /// The worker whose session holds the lock.
    holder: Option<usize>,
    workers: [Worker; 2],
    /// The row that a transaction of the application has locked.
    locked: Option<usize>,
    /// What may yet happen.
    left: Bounds,
    /// Elements that were sent again, with the same id and attempt.
    repeated: u8,
    /// A change of the application was overwritten.
    is_overwritten: bool,
    /// A match gave an element a wrong id or attempt.
    is_confused: bool,
    /// A worker began a request where another had taken over.
    has_two_senders: bool,
}

/// What a transaction of the application does to the row that it has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Makes it due now, or inserts it.
    Move,
    /// Moves it to a moment that is ahead.
    Postpone,
    /// Deletes it.
    Delete,
    /// Leaves its due moment as it is.
    Other,
}

/// One step. The first number is the worker's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It takes the lock; without a guard, its statement gets its snapshot.
    Lock(usize),
    /// PostgreSQL executes its match.
    Match(usize),
    /// It has read the match's result.
    Read(usize),
    /// It begins a request with these rows.
    Send(usize, Rows),
    /// It receives the response to that request, which has failed for the second set of rows.
    Receive(usize, Rows, Rows),
    /// PostgreSQL executes and answers the statement for a row that has its response.
    Write(usize, usize),
    /// It unlocks the slot.
    Leave(usize),
    /// It finds out that its session has ended.
    Notice(usize),
    /// A timeout ends its session.
    TimeOut(usize),
    /// SIGKILL, and it starts again.
    Kill(usize),
    /// SIGSTOP.
    Stop(usize),
    /// SIGCONT.
    Continue(usize),
    /// Its link is cut, or delays everything.
    Cut(usize),
    /// PostgreSQL stops and starts.
    Restart,
    /// A transaction of the application locks this row.
    LockRow(usize),
    /// It changes the row and commits.
    Commit(Change),
}

type Condition = fn(&Dispatch, &State) -> bool;

pub(crate) const NO_ROW_IS_LOST: &str = "no due row is lost";
pub(crate) const FEW_REPETITIONS: &str =
    "only a fault repeats rows, at most a batch, and none at most once";
pub(crate) const THE_APPLICATION_WINS: &str = "no change of the application is overwritten";
pub(crate) const ATTEMPTS: &str = "an element has the id and the attempt of its due moment";
pub(crate) const NEIGHBOURS: &str = "no row has a dead letter because of its neighbour";
pub(crate) const ONE_SENDER: &str = "no worker begins a request where another has taken over";
pub(crate) const NO_ENDLESS_WAIT: &str = "no due row waits for a process that does not run";

impl Dispatch {
    fn faults(&self, state: &State) -> u8 {
        self.bounds.faults - state.left.faults
    }

    fn repeats_few(&self, state: &State) -> bool {
        match self.mode {
            Mode::AtLeastOnce => state.repeated <= self.faults(state) * self.batch,
            Mode::AtMostOnce => state.repeated == 0,
        }
    }

    /// Whether all rows that are not due any more have been delivered or are dead letters. At most once, a worker may
    /// have yet to do that, and each fault may lose a batch.
    fn loses_none(&self, state: &State) -> bool {
        let is_lost = |row: &usize| {
            let (due, standing) = (state.rows[*row].due, state.rows[*row].standing);
            let mut elements = state.workers.iter().filter_map(|worker| worker.batch[*row]);
            let is_coming = elements.any(|element| element.due == due);
            let is_settled = state.histories[*row].is_settled;
            let is_moved_first = self.mode == Mode::AtMostOnce;
            standing == Standing::Later && !is_settled && !(is_moved_first && is_coming)
        };
        let lost = (0..2).filter(is_lost).count();
        match self.mode {
            Mode::AtLeastOnce => lost == 0,
            Mode::AtMostOnce => lost <= usize::from(self.faults(state) * self.batch),
        }
    }

    /// Whether a worker runs and a row is due that it never gets.
    fn is_stuck(&self, state: &State) -> bool {
        let is_due = |row: &Row| row.standing == Standing::Due;
        let waits = state.locked.is_none() && state.rows.iter().any(is_due);
        if !waits || state.workers.iter().all(|worker| worker.is_stopped) {
            return false;
        }
        let mut actions = Vec::new();
        self.enable_progress(state, &mut actions);
        actions.is_empty()
    }

    fn promises() -> [Property<Self>; 7] {
        [
            Property::always(NO_ROW_IS_LOST, Self::loses_none),
            Property::always(FEW_REPETITIONS, Self::repeats_few),
            Property::always(THE_APPLICATION_WINS, |_, state: &State| {
                !state.is_overwritten
            }),
            Property::always(ATTEMPTS, |_, state: &State| !state.is_confused),
            Property::always(NEIGHBOURS, |model: &Self, state: &State| {
                model.bounds.failures > 0 || !state.histories[1].is_dead
            }),
            Property::always(ONE_SENDER, |_, state: &State| !state.has_two_senders),
            Property::always(NO_ENDLESS_WAIT, |model: &Self, state: &State| {
                !model.is_stuck(state)
            }),
        ]
    }

    /// What has to be reached, or the promises would say little.
    fn reached(&self) -> Vec<Property<Self>> {
        let settled = |_: &Self, state: &State| {
            let is_idle = |worker: &Worker| worker.phase == Phase::Idle;
            let is_settled = |history: &History| history.is_settled;
            state.workers.iter().all(is_idle) && state.histories.iter().all(is_settled)
        };
        let changed = |_: &Self, state: &State| {
            let is_changed = |element: Element| element.due < state.histories[1].origin;
            state.workers[0].batch[1].is_some_and(is_changed)
        };
        let taken_over = |_: &Self, state: &State| {
            let [first, _] = state.workers;
            first.is_stopped && first.batch != Batch::default() && state.holder == Some(1)
        };
        let repeated = |model: &Self, state: &State| state.repeated == model.batch;
        let dead = |_: &Self, state: &State| {
            let [bad, neighbour] = state.histories;
            bad.is_dead && neighbour.is_settled
        };
        let Bounds {
            changes, faults, ..
        } = self.bounds;
        let repeats = self.mode == Mode::AtLeastOnce && faults > 0;
        let reached: [(bool, &'static str, Condition); 5] = [
            (true, "all rows are delivered", settled),
            (changes > 0, "a matched row is changed", changed),
            (
                faults > 0,
                "the slot of a stopped process is taken over",
                taken_over,
            ),
            (repeats, "a batch is repeated", repeated),
            (
                self.has_bad_row,
                "a dead letter's neighbour is delivered",
                dead,
            ),
        ];
        let reached = reached.into_iter().filter(|(is_possible, ..)| *is_possible);
        let reached = reached.map(|(_, name, condition)| Property::sometimes(name, condition));
        reached.collect()
    }
}

impl stateright::Model for Dispatch {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            left: self.bounds,
            ..State::default()
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // What must not happen is not explored further.
        if !(state.is_overwritten || state.is_confused || state.has_two_senders) {
            self.enable_progress(state, actions);
            state.enable_chances(actions);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        self.step(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = Vec::from(Self::promises());
        properties.extend(self.reached());
        properties
    }
}
