//! Rows of the log that are deleted, by hand or by pruning, and the horizon that tells it.
//!
//! A pass reads the rows of transactions that committed since its position. Where such a row was deleted, the pass
//! finds nothing, and the document stays old. So each deletion moves the *horizon*, a snapshot, until it sees what is
//! deleted, and a position that does not see all that the horizon sees is not valid. [`Horizon`] is explored in all its
//! states, as it is and without each [`Guard`].
//!
//! # What is modelled
//! - *Transactions* that change the document. They get their numbers in one order and commit in any; each commits
//!   together with its row in the log. A snapshot is what PostgreSQL makes of it: the number behind the newest one that
//!   has ended, and the numbers below that were unfinished.
//! - *Deleting by hand* one row: a trigger moves the horizon up to what has ended, if it does not see the row yet, in
//!   the same transaction. An update of a row is the same.
//! - *Pruning*: moves the horizon to what is common to the positions in `larder.node` and to its own snapshot, then
//!   deletes rows that it sees, in one transaction: all, or the row of the lowest number, which then may have more. It
//!   begins where the *mark* says, another snapshot: what that one sees is gone. For a node that was not seen within
//!   `retention`, which is one that is down, it heeds no position.
//! - *larder*: a pass (one statement, one snapshot), a load that has read and is installed unless overtaken, memory and
//!   disk tier with the position, the heartbeat that writes it to `larder.node`, a stop or crash, and the pass that
//!   resumes from the disk tier's position. *Another larder* writes its position to `larder.node` at times.
//!
//! # What counts as stale
//! An answer without a transaction that the position covers.
//!
//! # What the exploration says
//! - With all that is unfinished in it, a row deleted by hand while an older transaction runs empties memory once;
//!   without, *each* pass is invalid until that one ends ([`EMPTIED_ONCE`]).
//! - It keeps no answer from being stale that pruning stops at the positions of all: without that bound it empties
//!   tiers for nothing ([`NOTHING_FOR_NOTHING`]).
//! - A position that is not valid must not count for pruning, or the horizon comes back to it.
//! - The horizon has to be read in the snapshot of the rows.
//!
//! # What is left out
//! Time and `fresh_at`, the numbers of the deleting transactions themselves and of transactions that log nothing (they
//! only move snapshots on), two that delete at the same time (one waits for the horizon's row, or prunes later, unless
//! it deletes only what the horizon sees), `TRUNCATE` of the log, and a session that disables the trigger.

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
    /// A position whose upper bound is below the horizon's is not valid.
    CompareBounds,
    /// One with an unfinished transaction that the horizon sees is not valid.
    CompareUnfinished,
    /// Pruning stops at the positions in `larder.node`.
    PruneBounded,
    /// What is unfinished for one of the positions is so for the horizon.
    UnfinishedOfAll,
    /// Positions that are not valid do not count for pruning.
    OnlyUpwards,
    /// The trigger leaves out what is unfinished.
    TriggerLeavesUnfinished,
    /// So does the mark.
    MarkLeavesUnfinished,
}

impl Guard {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::TriggerMoves,
        Self::SameTransaction,
        Self::CheckAtPass,
        Self::CheckAtResume,
        Self::OneSnapshot,
        Self::CompareBounds,
        Self::CompareUnfinished,
        Self::PruneBounded,
        Self::UnfinishedOfAll,
        Self::OnlyUpwards,
        Self::TriggerLeavesUnfinished,
        Self::MarkLeavesUnfinished,
    ];
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
    /// Times that another larder writes its position.
    pub others: u8,
}

/// The model, whole or without one of its guards.
#[derive(Clone, Copy, Debug)]
pub struct Horizon {
    /// How much of everything there is.
    pub bounds: Bounds,
    /// What is taken out.
    pub without: Option<Guard>,
}

/// A set of transactions, one bit for each.
pub type Set = u8;

/// What a snapshot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// The number behind the newest one that had ended.
    pub xmax: u8,
    /// The numbers below it that were unfinished.
    pub unfinished: Set,
}

/// A transaction that deletes rows of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deleting {
    /// The rows.
    pub rows: Set,
    /// What the horizon will be.
    pub horizon: Snapshot,
    /// What the mark will be.
    pub pruned: Snapshot,
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
    /// What it sees may be gone.
    pub horizon: Snapshot,
    /// The mark: what it sees is gone.
    pub pruned: Snapshot,
    /// The transaction that deletes.
    pub deleting: Option<Deleting>,
    /// The position in `larder.node`.
    pub node: Snapshot,
    /// The other larder's.
    pub other: Option<Snapshot>,
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
    pub horizon_read: Option<Snapshot>,
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
    /// A session deletes this one's row.
    Delete(u8),
    /// The log is pruned.
    Prune,
    /// It is pruned by a batch that is full with one row.
    PruneOne,
    /// The session that deletes commits.
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
    /// The other larder writes its position.
    OtherHeartbeat,
    /// larder stops or crashes.
    Stop,
    /// It starts.
    Start,
}

/// The promise itself.
pub(crate) const NO_STALE_ANSWER: &str = "no answer is stale";

/// What bounded pruning is good for.
pub const NOTHING_FOR_NOTHING: &str = "pruning empties nothing";

/// What the mark promises.
pub const NOTHING_LEFT: &str = "what pruning has passed is gone";

/// What it is good for that the horizon leaves out what is unfinished.
pub const EMPTIED_ONCE: &str = "a deletion empties tiers once";

impl State {
    /// What the tiers would answer now.
    pub fn answer(&self) -> Option<Set> {
        let disk = self.disk.filter(|_| !self.resumes);
        self.memory.or(disk).filter(|_| self.up)
    }

    fn is_stale(&self) -> bool {
        let covered = self.position.seen();
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
        vec![
            Property::always(NO_STALE_ANSWER, |_, state: &State| !state.is_stale()),
            Property::always(NOTHING_FOR_NOTHING, |_, state: &State| {
                !state.emptied_for_nothing
            }),
            Property::always(EMPTIED_ONCE, |_, state: &State| !state.emptied_again),
            Property::always(NOTHING_LEFT, |_, state: &State| {
                state.database.rows & state.database.pruned.seen() == 0
            }),
            Property::sometimes("a row is gone that no pass has read", |_, state: &State| {
                let database = &state.database;
                let gone = database.committed & !database.rows & !state.position.seen();
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
            Property::sometimes(
                "a row is pruned beside an older transaction that runs",
                |_, state: &State| {
                    let database = &state.database;
                    let gone = database.committed & !database.rows;
                    gone == 0b10 && database.committed & 1 == 0 && !state.touched
                },
            ),
            Property::sometimes("what was unfinished is pruned later", |_, state: &State| {
                let mark = state.database.pruned;
                mark.xmax == 2 && mark.unfinished == 0 && !state.touched && state.memory.is_some()
            }),
            Property::sometimes("pruned, the tiers stay", |_, state: &State| {
                let database = &state.database;
                let gone = database.committed & !database.rows;
                gone != 0 && !state.touched && state.memory.is_some()
            }),
            Property::sometimes(
                "the disk tier is resumed after pruning",
                |model: &Self, state: &State| {
                    let stops = state.database.left.stops < model.bounds.stops;
                    let pruned = state.database.horizon.seen() != 0 && !state.touched;
                    stops && pruned && state.memory.is_none() && state.answer().is_some()
                },
            ),
        ]
    }
}
