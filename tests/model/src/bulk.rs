//! Statements that touch more keys than are named: new roots end absences only, what else changes ends ranges of keys.
//!
//! An absence has an epoch of its own beside the generation of its key. A pass that finds new roots renews that epoch
//! and leaves documents alone; one that finds a changed range raises the generations of all keys and takes those that
//! lie in the range away. [`Bulk`] is explored in all its states, as it is and without each [`Guard`].
//!
//! # What is modelled
//! - *The database*: one key, without a row at first. Transactions insert its row, change it or delete it; each commits
//!   together with what its statement says in the log: a new root, or a range that the key lies in. None of them names
//!   the key.
//! - *larder*: a pass (what it read, then the generation, memory, the queue's sweep, the absences' epoch, the mark, the
//!   position, each a step), requests that are answered by memory, by disk or by a load, loads that others join, the
//!   disk tier's queue, eviction, and a crash, after which a pass from the mark comes before the disk tier answers, and
//!   the epoch is the mark's.
//!
//! # What counts as stale
//! An answer that lacks a transaction which the position covered when its request began.
//!
//! # What is left out
//! Time and `fresh_at`, which [`crate::Protocol`] has; keys outside of the range, which a sweep leaves alone; that many
//! keys share the generations.

mod steps;
#[cfg(test)]
mod tests;

use stateright::Property;

/// What keeps answers true, each to be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// New roots renew the epoch of absences.
    RenewAbsences,
    /// What a load found is kept only if that epoch stands.
    AbsencesAtInstall,
    /// A load is joined only under the epoch that it noted.
    AbsencesAtJoining,
    /// An absence on disk bears the epoch, and answers only under it.
    AbsencesOnDisk,
    /// A pass queues its mark, which holds the epoch, after it has renewed that.
    MarkAfterRenewal,
    /// A changed range raises the generations of all keys.
    RaiseAll,
    /// It does so before it takes keys out of memory.
    RaiseBeforeSweep,
    /// The disk tier's sweep follows the documents that were queued before.
    SweepInOrder,
    /// The disk tier answers only where all sweeps have been applied.
    CleanCheck,
    /// A root's key is unique, so that a new root changes no document that is there.
    UniqueRoots,
}

impl Guard {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::RenewAbsences,
        Self::AbsencesAtInstall,
        Self::AbsencesAtJoining,
        Self::AbsencesOnDisk,
        Self::MarkAfterRenewal,
        Self::RaiseAll,
        Self::RaiseBeforeSweep,
        Self::SweepInOrder,
        Self::CleanCheck,
        Self::UniqueRoots,
    ];
}

/// The model, whole or without one of its guards.
#[derive(Clone, Copy, Debug)]
pub struct Bulk {
    /// Transactions.
    pub commits: u8,
    /// Crashes.
    pub crashes: u8,
    /// What is taken out.
    pub without: Option<Guard>,
}

/// What a statement did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Txn {
    /// Inserted the row.
    Insert,
    /// Changed it.
    Update,
    /// Deleted it.
    Delete,
}

/// What a snapshot saw of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Found {
    /// Transactions committed before it.
    pub snapshot: u8,
    /// There is a document.
    pub exists: bool,
}

/// The generation of the key and the epoch of absences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Version {
    /// Sweeps so far, in this run.
    pub generation: u8,
    /// Renewals so far; a resumed run goes on with the mark's.
    pub absences: u8,
}

/// What a tier keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The document or absence.
    pub found: Found,
    /// The epoch of absences that it was read under.
    pub absences: u8,
}

/// What a pass does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Raise the generation.
    Raise,
    /// Take the key out of memory.
    Sweep,
    /// Queue the same for the disk.
    Queue,
    /// Renew the epoch of absences.
    Renew,
    /// Queue the mark.
    Mark,
    /// Move the position.
    Complete,
}

/// A pass that has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pass {
    /// What it does next.
    pub step: Step,
    /// Transactions that its snapshot saw.
    pub seen: u8,
    /// A range was changed.
    pub changed: bool,
    /// There are new roots.
    pub new: bool,
}

/// An order to the disk tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Keep this, read at this generation.
    Put(Entry, u8),
    /// Take the key away; the generation that said so.
    Sweep(u8),
    /// All up to this position is in the orders before; the epoch of absences then.
    Mark(u8, u8),
}

/// A load, and the request that it was sent for or that joined it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Load {
    /// What stood when it was granted.
    pub version: Version,
    /// What it has read.
    pub found: Option<Found>,
    /// Transactions that its youngest request may not miss.
    pub floor: u8,
}

/// One state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// In the order of their commits.
    pub committed: Vec<Txn>,
    /// What has been applied.
    pub position: u8,
    /// What stands.
    pub version: Version,
    /// The generation up to which all sweeps are on disk.
    pub clean: u8,
    /// The memory tier.
    pub memory: Option<Entry>,
    /// The disk tier.
    pub disk: Option<Entry>,
    /// On disk: position and epoch of absences.
    pub mark: (u8, u8),
    /// The disk tier's orders, the oldest first.
    pub queue: Vec<Order>,
    /// The pass under way.
    pub pass: Option<Pass>,
    /// The load under way.
    pub load: Option<Load>,
    /// A pass from the mark is to come.
    pub resumes: bool,
    /// Crashes so far.
    pub crashes: u8,
    /// An answer was stale.
    pub stale: bool,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A transaction commits.
    Commit(Txn),
    /// A pass reads.
    Read,
    /// It goes on.
    Pass,
    /// A request comes, and is answered by a tier, or leads or joins a load.
    Request,
    /// The load reads.
    Load,
    /// It ends: what it found is kept where nothing has overtaken it.
    Fill,
    /// The key has to leave memory for others.
    Evict,
    /// The disk tier's writer applies the oldest order.
    Write,
    /// larder crashes and starts again.
    Crash,
}

/// The promise itself.
pub(crate) const NO_STALE_ANSWER: &str = "no answer is stale";

impl stateright::Model for Bulk {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::begin()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // A stale answer ends the story.
        if !state.stale {
            self.enabled(state, actions);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NO_STALE_ANSWER, |_, state: &State| !state.stale),
            Property::sometimes(
                "an absence is on disk after it has ended",
                |_, state: &State| {
                    let entry = state.disk.filter(|entry| !entry.found.exists);
                    entry.is_some_and(|entry| entry.absences != state.version.absences)
                },
            ),
            Property::sometimes("a document outlives new roots", |_, state: &State| {
                let entry = state.memory.filter(|entry| entry.found.exists);
                entry.is_some_and(|entry| entry.absences != state.version.absences)
            }),
            Property::sometimes(
                "the disk tier is resumed with an absence",
                |_, state: &State| {
                    let absence = state.disk.is_some_and(|entry| {
                        !entry.found.exists && entry.absences == state.version.absences
                    });
                    state.crashes > 0 && !state.resumes && absence && state.version.absences > 0
                },
            ),
            Property::sometimes("a load is overtaken by new roots", |_, state: &State| {
                let load = state
                    .load
                    .and_then(|load| Some((load.version, load.found?)));
                load.is_some_and(|(version, found)| {
                    !found.exists && version.absences != state.version.absences
                })
            }),
        ]
    }
}
