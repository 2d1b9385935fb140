//! Rows of the log that are deleted, by hand or by pruning, and the horizon that tells it.
//!
//! A pass reads the rows of transactions that committed since its position. Where such a row was deleted, the pass finds
//! nothing, and the document stays old. So whoever deletes moves the *horizon* past what it deletes, and a position that
//! is not past the horizon is not valid. [`Horizon`] is explored in all its states, as it is and without each [`Guard`],
//! and in two forms of the horizon ([`Form`]).
//!
//! # What is modelled
//! - *Transactions* that change the document. They get their numbers in one order and commit in any; each commits
//!   together with its row in the log. A snapshot is the set of transactions that it sees, with the oldest number that
//!   was still running.
//! - *Deleting by hand* one row: a trigger moves the horizon past the row, if it does not cover it yet, in the same
//!   transaction. An update of a row is the same.
//! - *Pruning*: moves the horizon up to the position in `larder.node`, then deletes what it covers, in one transaction.
//!   For a node that was not seen within `retention`, which is one that is down, it goes up to its own snapshot.
//! - *larder*: a pass (one statement, one snapshot), a load that has read and is installed unless overtaken, memory and
//!   disk tier with the position, the heartbeat that writes it to `larder.node`, a stop or crash, and the pass that
//!   resumes from the disk tier's position.
//!
//! # What counts as stale
//! An answer without a transaction that the position covers.
//!
//! # What the exploration says
//! - With the horizon as a number, a row deleted while an older transaction runs makes *each* pass invalid until that
//!   one ends: memory is emptied again and again. With the horizon as a snapshot it is emptied once
//!   ([`EMPTIED_ONCE`]).
//! - It keeps no answer from being stale that pruning stops at the oldest position: without that bound it empties
//!   tiers for nothing ([`NOTHING_FOR_NOTHING`]).
//! - The horizon has to be read in the snapshot of the rows.
//!
//! # What is left out
//! Time and `fresh_at`, the numbers of the deleting transactions themselves (they only hold a snapshot's oldest running
//! number back, which makes more positions invalid), other nodes (the oldest position is this one's), two
//! that delete at the same time (one waits for the horizon's row, unless it deletes only what is covered), `TRUNCATE`
//! of the log, and whoever disables the trigger.

mod steps;
#[cfg(test)]
mod tests;

use stateright::Property;

/// What keeps answers true, each to be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// A trigger moves the horizon past what is deleted by hand.
    TriggerMoves,
    /// The horizon moves in the transaction that deletes.
    SameTransaction,
    /// A pass looks whether its position is valid.
    CheckAtPass,
    /// So does the pass that resumes from the disk tier's position.
    CheckAtResume,
    /// A pass reads horizon and rows in one snapshot.
    OneSnapshot,
    /// Pruning goes up to the oldest position in `larder.node`.
    PruneBounded,
}

impl Guard {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::TriggerMoves,
        Self::SameTransaction,
        Self::CheckAtPass,
        Self::CheckAtResume,
        Self::OneSnapshot,
        Self::PruneBounded,
    ];
}

/// What the horizon is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A number: all transactions below it are covered; a position is valid if none of them ran at its snapshot.
    Number,
    /// A snapshot: what it sees is covered; a position is valid if it sees all of that.
    Snapshot,
}

/// How much of everything there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Transactions; eight at most.
    pub transactions: u8,
    /// Rows deleted by hand.
    pub deletions: u8,
    /// Times that the log is pruned.
    pub prunes: u8,
    /// Stops of larder.
    pub stops: u8,
}

/// The model, whole or without one of its guards.
#[derive(Clone, Copy, Debug)]
pub struct Horizon {
    /// How much of everything there is.
    pub bounds: Bounds,
    /// What the horizon is.
    pub form: Form,
    /// What is taken out.
    pub without: Option<Guard>,
}

/// A set of transactions, one bit for each.
pub type Set = u8;

/// What a snapshot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// The transactions that it sees.
    pub seen: Set,
    /// All numbers below the oldest one that was running.
    pub below: Set,
}

/// A transaction that deletes rows of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deleting {
    /// The rows.
    pub rows: Set,
    /// What the horizon will cover besides.
    pub covers: Set,
    /// Only without a guard: the rows are gone, the horizon has not moved yet.
    pub deleted: bool,
}

/// What PostgreSQL holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Database {
    /// Transactions that have a number.
    pub begun: u8,
    /// Those that have committed.
    pub committed: Set,
    /// The rows of the log.
    pub rows: Set,
    /// What the horizon covers.
    pub horizon: Set,
    /// The transaction that deletes.
    pub deleting: Option<Deleting>,
    /// The position in `larder.node`.
    pub node: Snapshot,
    /// What may still happen.
    pub left: Bounds,
}

/// One state of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// What PostgreSQL holds.
    pub database: Database,
    /// larder runs.
    pub up: bool,
    /// What has been applied; the disk tier's mark as well.
    pub position: Snapshot,
    /// The document in memory: the transactions that its snapshot saw.
    pub memory: Option<Set>,
    /// The document in the disk tier.
    pub disk: Option<Set>,
    /// larder has yet to come back to the disk tier.
    pub resumes: bool,
    /// The load that has read and is not installed yet.
    pub load: Option<Set>,
    /// Only without a guard: the horizon that the pass under way has read.
    pub horizon_read: Option<Set>,
    /// Nothing was deleted since both tiers were emptied.
    pub quiet: bool,
    /// Both tiers were emptied a second time for one deletion.
    pub emptied_again: bool,
    /// Rows were deleted by hand, or pruned without regard to the node.
    pub touched: bool,
    /// Both tiers were emptied although neither had happened.
    pub emptied_for_nothing: bool,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A transaction gets the next number.
    Begin,
    /// This one commits, with its row.
    Commit(u8),
    /// Somebody deletes this one's row.
    Delete(u8),
    /// The log is pruned.
    Prune,
    /// Who deletes commits.
    CommitDelete,
    /// A pass.
    Pass,
    /// A load reads.
    Load,
    /// It is installed.
    Install,
    /// The document has to leave memory for others.
    Evict,
    /// The position is written to `larder.node`.
    Heartbeat,
    /// larder stops or crashes.
    Stop,
    /// It starts.
    Start,
}

/// The promise itself.
pub(crate) const NO_STALE_ANSWER: &str = "no answer is stale";

/// What bounded pruning is good for.
pub const NOTHING_FOR_NOTHING: &str = "pruning empties nothing";

/// What a snapshot is good for as the horizon.
pub const EMPTIED_ONCE: &str = "a deletion empties tiers once";

impl State {
    /// What the tiers would answer now.
    pub fn answer(&self) -> Option<Set> {
        let disk = self.disk.filter(|_| !self.resumes);
        self.memory.or(disk).filter(|_| self.up)
    }

    fn is_stale(&self) -> bool {
        let covered = self.position.seen;
        self.answer().is_some_and(|answer| covered & !answer != 0)
    }
}

impl stateright::Model for Horizon {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.begin()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // A stale answer ends the story.
        if !state.is_stale() {
            Self::enabled(state, actions);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        self.step(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let again = |_: &Self, state: &State| state.emptied_again;
        let once = match self.form {
            Form::Number => Property::sometimes("a deletion empties tiers again", again),
            Form::Snapshot => {
                Property::always(EMPTIED_ONCE, |_, state: &State| !state.emptied_again)
            }
        };
        vec![
            Property::always(NO_STALE_ANSWER, |_, state: &State| !state.is_stale()),
            Property::always(NOTHING_FOR_NOTHING, |_, state: &State| {
                !state.emptied_for_nothing
            }),
            once,
            Property::sometimes("a row is gone that no pass has read", |_, state: &State| {
                let database = &state.database;
                let gone = database.committed & !database.rows & !state.position.seen;
                gone != 0 && state.answer().is_some()
            }),
            Property::sometimes(
                "a younger transaction's row is gone first",
                |_, state: &State| {
                    let database = &state.database;
                    let gone = database.committed & !database.rows;
                    gone == 0b10 && database.committed & 1 == 0 && state.answer().is_some()
                },
            ),
            Property::sometimes("pruned, the tiers stay", |_, state: &State| {
                let database = &state.database;
                let gone = database.committed & !database.rows;
                gone != 0 && !state.touched && state.memory.is_some()
            }),
            Property::sometimes(
                "the disk tier is resumed after pruning",
                |model: &Self, state: &State| {
                    let stops = state.database.left.stops < model.bounds.stops;
                    let pruned = state.database.horizon != 0 && !state.touched;
                    stops && pruned && state.memory.is_none() && state.answer().is_some()
                },
            ),
        ]
    }
}
