//! How a pass finds out that a trigger was changed: by a mark that costs nothing to read, and by fingerprints.
//!
//! A write that no trigger logged is found by no pass, so a pass has to find out that a trigger was disabled. It reads
//! the *mark*, a value that changes when PostgreSQL has told the feed's server process that the catalogue has changed,
//! and at times the *fingerprints*, which are the catalogue itself. [`Definition`] is explored in all its states, as it
//! is and without each [`Guard`].
//!
//! # What is modelled
//! - *A commit that changes the catalogue*, in the three steps that PostgreSQL takes: it becomes visible to new
//!   snapshots; it sends its invalidation messages; it releases its locks and its client is told. A server process
//!   receives messages where it begins a transaction, so a mark stands for all that was sent before its statement.
//! - *Writes that no trigger logs*. Either one transaction disables the trigger and, after that one has released its
//!   lock, others write ([`Change::Disable`]); or one transaction disables, writes and enables, so that its row is
//!   visible before any message is sent ([`Change::Within`]). Other writes are logged. They wait for no lock here,
//!   since they may go to another table of the same document.
//! - *A value of an enum is renamed* ([`Change::Rename`]): what a load renders is by what its process remembers, old
//!   until the messages are sent, whatever its snapshot. No other write is explored beside it, since a document that
//!   has the write and not the name is neither before nor after.
//! - *Messages that say nothing*, as `analyze` sends them, and a new connection of the feed, which has a mark of its
//!   own.
//! - *A pass*: it begins, reads rows in a snapshot, reads the mark in a later transaction, completes. Where the last
//!   judged pass began `max_staleness / 2` ago or earlier, or the mark has changed, it is *judged*: it compares
//!   fingerprints too. `fresh_at` is the begin of the last judged pass that completed.
//! - *A mark that has changed*: the pass does not complete, and the next one is judged. If the fingerprints are equal,
//!   memory stays. If they differ, or whenever larder prefers so ([`Action::Distrust`]), memory is emptied and nothing
//!   is kept until a mark, then fingerprints with every trigger in place, have been read and every visible change has
//!   sent its messages ([`Kind::Recovery`]). The position moves nevertheless to where fingerprints that differ were found:
//!   what the pass has read holds for the resources whose fingerprints are equal.
//! - *A load*: its statement has read, and it is installed unless memory has been invalidated since.
//! - *Time*: [`State::young`] holds moments in their order. Each lasts `max_staleness / 2`, and one that counts for
//!   `max_staleness` is put behind all others for a second time, so that the order is that of a real clock.
//!
//! # What counts as stale
//! An answer from memory without a transaction that was committed (became visible) more than `max_staleness` ago, or
//! that the position covers and whose client had been told before the position's snapshot was taken.
//!
//! # What the exploration says
//! - The mark alone is exact for a transaction that only disables: a token of a write that follows is kept at once.
//! - For a transaction that disables, writes and enables, `max_staleness` holds. Its *own* token does not: a pass
//!   between its commit and its messages covers its transaction, and memory answers without it until the next pass
//!   reads the mark (the property "its own token comes too early" is reached). Any later token is kept.
//! - A pass without fingerprints that finds the position where it is may end without reading the mark: for the state it
//!   is one that did not begin. A transaction's own token may then come too early until the next judged pass.
//! - A judged pass may complete without reading the mark ([`Action::Skip`]): its fingerprints are at least as new.
//! - The fingerprints need not be of the snapshot of the rows; a later statement does as well
//!   ([`Fingerprints::Later`]), since no fingerprint ever returns to what it was. Older than the rows
//!   ([`Fingerprints::Earlier`]) they are not enough where the pass does not read the mark.
//!
//! # What is left out
//! The disk tier, tokens' waiting, joined loads and generations (a load that was overtaken ends), which are
//! [`crate::Protocol`]'s; fingerprints that miss a change; locks that a pass would wait for.

mod steps;
#[cfg(test)]
mod tests;

use stateright::Property;

use crate::Few;

/// What keeps answers true, each to be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// A pass reads rows first, then the mark.
    RowsBeforeMark,
    /// It reads the mark in another transaction than the rows.
    MarkInAnotherTransaction,
    /// A pass whose mark has changed does not complete.
    ChangedMarkStops,
    /// A mark is known only if it was read before the fingerprints that it stands for.
    MarkBeforeFingerprints,
    /// Judged passes compare fingerprints although the mark has not changed.
    Fingerprints,
    /// Only judged passes move `fresh_at`.
    FreshFromJudged,
    /// Nothing is trusted anew before every visible change has sent its messages.
    MessagesBeforeTrust,
}

impl Guard {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::RowsBeforeMark,
        Self::MarkInAnotherTransaction,
        Self::ChangedMarkStops,
        Self::MarkBeforeFingerprints,
        Self::Fingerprints,
        Self::FreshFromJudged,
        Self::MessagesBeforeTrust,
    ];
}

/// Where a judged pass reads the fingerprints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fingerprints {
    /// In a statement before its rows.
    Earlier,
    /// In the snapshot of its rows.
    WithRows,
    /// In a statement after its rows.
    Later,
}

/// How much of everything there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Writes that a trigger logs.
    pub logged: u8,
    /// Transactions that disable the trigger.
    pub disables: u8,
    /// Writes while the trigger is disabled.
    pub unlogged: u8,
    /// Transactions that disable, write and enable.
    pub withins: u8,
    /// Transactions that rename a value of an enum.
    pub renames: u8,
    /// Messages that say nothing.
    pub spurious: u8,
}

/// The model, whole or without one of its guards.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// How much of everything there is.
    pub bounds: Bounds,
    /// Where fingerprints are read.
    pub fingerprints: Fingerprints,
    /// What is taken out.
    pub without: Option<Guard>,
}

/// A transaction that changes the trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// It disables the trigger.
    Disable,
    /// It enables the trigger; larder's installing is one.
    Enable,
    /// It disables the trigger, writes, and enables it again.
    Within,
    /// It renames what the document shows, and changes no row of it.
    Rename,
}

/// What PostgreSQL holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Database {
    /// Transactions that changed the document, in the order of their commits: whether a trigger logged them.
    pub log: Few<bool, 8>,
    /// The trigger is enabled.
    pub enabled: bool,
    /// The visible version of the trigger; never one that was there before.
    pub version: u8,
    /// Messages sent.
    pub messages: u8,
    /// The change that is visible and has not released its lock; whether it has sent its messages.
    pub change: Option<(Change, bool)>,
    /// The document as [`Change::Within`] or [`Change::Rename`] left it, while its client is not told.
    pub untold: Option<u8>,
    /// What may still happen.
    pub left: Bounds,
}

/// A moment whose age matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Moment {
    /// The transaction that is this one in the log became visible.
    Commit(u8),
    /// `fresh_at`.
    Fresh,
    /// The begin of the last judged pass, where it is not `fresh_at`.
    Judged,
    /// The begin of the pass under way.
    Began,
}

/// What a pass is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It reads rows and the mark.
    Plain,
    /// It also compares fingerprints.
    Judged,
    /// Nothing is trusted: it reads a mark, then fingerprints.
    Recovery,
}

/// What a pass does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Read rows in a snapshot.
    Rows,
    /// Compare fingerprints in a snapshot of their own.
    Compare,
    /// Read the mark.
    Mark,
    /// Invalidate, and move the position.
    Complete,
}

/// The pass under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pass {
    /// What it is for.
    pub kind: Kind,
    /// What it does next.
    pub step: Step,
    /// Messages received where its first transaction began; only without a guard does it matter.
    pub received: Option<u8>,
    /// Transactions that its snapshot saw.
    pub seen: u8,
    /// The last of them whose client had been told.
    pub told: u8,
    /// The log names the document.
    pub changed: bool,
}

/// One state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// What PostgreSQL holds.
    pub database: Database,
    /// Moments that are not too old, the earliest first; whether for the second half of `max_staleness`.
    pub young: Few<(Moment, bool), 8>,
    /// The document in memory: the number of transactions that its snapshot saw.
    pub memory: Option<u8>,
    /// The load that has read and is not installed yet.
    pub load: Option<u8>,
    /// Transactions that the position covers.
    pub position: u8,
    /// The last of them whose client had been told.
    pub told: u8,
    /// Memory may answer and keep.
    pub trusted: bool,
    /// The mark has changed: the next pass is judged.
    pub doubt: bool,
    /// The mark that is known.
    pub mark: Option<u8>,
    /// The version of the trigger that is known.
    pub version: u8,
    /// The pass under way.
    pub pass: Option<Pass>,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A transaction writes, is logged and commits.
    Write,
    /// A transaction writes while the trigger is disabled, and commits.
    WriteUnlogged,
    /// A transaction changes the trigger and becomes visible.
    Change(Change),
    /// It sends its messages.
    Send,
    /// It releases its lock; its client is told.
    Release,
    /// Messages arrive that say nothing.
    Analyze,
    /// The earliest moment ends its half of `max_staleness`.
    Expire,
    /// A load reads.
    Load,
    /// It is installed.
    Install,
    /// The feed begins a pass or goes one step on.
    Feed,
    /// A judged pass completes without reading the mark.
    Skip,
    /// The mark has changed, and larder empties memory at once.
    Distrust,
    /// The feed has a new connection.
    Reconnect,
}

/// The promise itself.
pub(crate) const NO_STALE_ANSWER: &str = "no answer is stale";

impl State {
    /// What memory would answer now.
    pub fn answer(&self) -> Option<u8> {
        let fresh = self
            .young
            .iter()
            .any(|(moment, _)| *moment == Moment::Fresh);
        self.memory.filter(|_| self.trusted && fresh)
    }

    /// The oldest document that may be answered now.
    pub fn floor(&self) -> u8 {
        let young = self.young.iter().filter_map(|(moment, _)| match moment {
            Moment::Commit(commit) => Some(commit - 1),
            _ => None,
        });
        self.told
            .max(young.min().unwrap_or(self.database.commits()))
    }

    fn is_stale(&self) -> bool {
        self.answer().is_some_and(|answer| answer < self.floor())
    }
}

impl Database {
    /// Transactions that a snapshot taken now sees.
    pub fn commits(&self) -> u8 {
        // At most five.
        self.log.len() as u8
    }

    /// The last of them whose client has been told.
    fn told(&self) -> u8 {
        let commits = self.commits();
        commits - u8::from(self.untold == Some(commits))
    }
}

impl stateright::Model for Definition {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.begin()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // A stale answer ends the story.
        if !state.is_stale() {
            self.enabled(state, actions);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(NO_STALE_ANSWER, |_, state: &State| !state.is_stale()),
            Property::sometimes(
                "a mark finds what fingerprints confirm",
                |_, state: &State| {
                    state.doubt && state.trusted && state.version != state.database.version
                },
            ),
            Property::sometimes("a mark has changed for nothing", |_, state: &State| {
                let same = state.version == state.database.version;
                state.doubt && same && state.mark.is_some() && state.answer().is_some()
            }),
            Property::sometimes("memory answers after a recovery", |_, state: &State| {
                state.version > 0 && state.answer().is_some()
            }),
        ];
        if self.bounds.disables > 0 {
            let disabled =
                |_: &Self, state: &State| !state.database.enabled && state.answer().is_some();
            let name = "memory answers while the trigger is disabled";
            properties.push(Property::sometimes(name, disabled));
        }
        if self.bounds.withins > 0 {
            properties.extend(Self::properties_within());
        }
        properties
    }
}

impl Definition {
    fn properties_within() -> [Property<Self>; 2] {
        [
            Property::sometimes(
                "a pass covers a row before its messages",
                |_, state: &State| {
                    let untold = state.database.untold;
                    let answer = state.answer().zip(untold);
                    answer
                        .is_some_and(|(answer, untold)| answer < untold && untold <= state.position)
                },
            ),
            Property::sometimes("its own token comes too early", |_, state: &State| {
                let told = state.database.change.is_none();
                told && state.answer().is_some_and(|answer| answer < state.position)
            }),
        ]
    }
}
