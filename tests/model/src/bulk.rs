//! Statements that touch more keys than are named: new roots end absences only, what else changes ends ranges of keys.
//!
//! An absence has an epoch of its own beside the generation of its key. A pass that finds new roots renews that epoch
//! and leaves documents alone; one that finds a changed range raises the generations of all keys and takes those that
//! lie in the range away. [`Bulk`] is explored in all its states, as it is and without each [`Guard`].
//!
//! # What is modelled
//! - *The database*: one key, without a row at first. Transactions insert its row, change it or delete it; each commits
//!   together with what its statement says in the log: a new root, a range that the key lies in, or the key. Others
//!   change only rows whose range the key does not lie in, of this resource or of another.
//! - *larder*: a pass, which may find several of these at once (what it read, then for each of them, in their order,
//!   the generation, memory, the queue's sweep, or the absences' epoch; then the key's drop, the mark, the position,
//!   each a step), requests that are answered by memory, by disk or by a load, loads that others join, documents on
//!   their way into the disk tier's queue and in it, and eviction.
//! - *A purge* of another key that shares the generation.
//! - *A crash*, after which a pass from the mark comes before anything is answered. The epoch is the mark's; the disk
//!   tier follows sweeps and drops, and is used once it has come to the order that stands behind all of that pass.
//! - *A disk tier that breaks*, for an error, in the middle of a sweep say, or because an order finds no place in the
//!   queue. It begins anew, empty, while the rest goes on.
//!
//! # What counts as stale
//! An answer that lacks a transaction which the position covered when its request began.
//!
//! # What is left out
//! Time and `fresh_at`, which [`crate::Protocol`] has; purges of whole resources; more than one load at a time. What a
//! sweep does to keys outside of its ranges is what it does to this key where a range elsewhere is swept: nothing. A
//! batch of the disk tier's writer is taken for its orders one by one: it calls nothing clean before all of it is on
//! disk, so it answers less.

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
    /// A pass queues its sweeps before it raises the generation of any key that it names: a sweep vouches for all
    /// generations, so no drop may be missing that raised one of them.
    SweepsBeforeKeys,
    /// No key is purged while a pass is under way, since its drop too vouches for all up to the generation that it
    /// raised: both hold the same lock.
    PurgeBetweenPasses,
    /// The disk tier's sweep follows the documents that were queued before.
    SweepInOrder,
    /// The disk tier's writer leaves out a document that was overtaken on its way into the queue or in it.
    VersionAtWriting,
    /// What was found on disk is used only behind all sweeps and drops of the pass from its mark.
    EnableBehindDrops,
    /// A disk tier that broke begins anew empty.
    EmptyAfterBreak,
    /// The disk tier answers only where all sweeps have been applied.
    CleanCheck,
    /// A root's key is unique, so that a new root changes no document that is there.
    UniqueRoots,
}

impl Guard {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::RenewAbsences,
        Self::AbsencesAtInstall,
        Self::AbsencesAtJoining,
        Self::AbsencesOnDisk,
        Self::MarkAfterRenewal,
        Self::RaiseAll,
        Self::RaiseBeforeSweep,
        Self::SweepsBeforeKeys,
        Self::PurgeBetweenPasses,
        Self::SweepInOrder,
        Self::VersionAtWriting,
        Self::EnableBehindDrops,
        Self::EmptyAfterBreak,
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
    /// Times that the disk tier breaks.
    pub breaks: u8,
    /// Purges.
    pub purges: u8,
    /// What is taken out.
    pub without: Option<Guard>,
}

/// What a statement did, and what it says of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Txn {
    /// Inserted the row: a new root.
    Insert,
    /// Changed it: a range.
    Update,
    /// Deleted it: a range.
    Delete,
    /// Wrote it, be it there or not: the key.
    Named,
    /// Changed rows of other keys: a range that the key does not lie in.
    Elsewhere,
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

/// What a pass has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Absences of the resource have ended.
    Absences,
    /// A range of keys; whether the key lies in it.
    Range(bool),
    /// The key.
    Key,
}

/// One step of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Raise the generation, of all keys or of the one.
    Raise,
    /// Take the key out of memory.
    Remove,
    /// Queue a range for the disk; whether the key lies in it.
    QueueSweep(bool),
    /// Queue the key's drop for the disk.
    QueueDrop,
    /// Renew the epoch of absences.
    Renew,
    /// Queue the mark.
    Mark,
    /// Queue that the content of the disk may be used; in place of the mark.
    Enable,
    /// Move the position.
    Complete,
}

/// A pass that has read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pass {
    /// What it has yet to do.
    pub steps: Vec<Step>,
    /// Transactions that its snapshot saw.
    pub seen: u8,
}

/// An order to the disk tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Keep this, read at this version.
    Put(Found, Version),
    /// Take a range away; whether the key lies in it, and the generation then.
    Sweep(bool, u8),
    /// Take a key away; whether it is the one, and the generation that said so.
    Drop(bool, u8),
    /// All up to this position is in the orders before; the epoch of absences then.
    Mark(u8, u8),
    /// The same of the pass from the mark, and the generation then: what was found may be used.
    Enable(u8, Version),
}

/// What the disk tier does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    /// It follows sweeps and drops, and answers nothing.
    Resuming,
    /// It is in use.
    On,
    /// It has to begin anew.
    Broken,
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
    /// What the disk tier does.
    pub tier: Tier,
    /// On disk: position and epoch of absences. None while an empty disk tier has not been given one.
    pub mark: Option<(u8, u8)>,
    /// A document that is about to be queued for the disk.
    pub late: Option<(Found, Version)>,
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
    /// Times that the disk tier broke.
    pub breaks: u8,
    /// Purges so far.
    pub purges: u8,
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
    /// It is queued for the disk.
    Put,
    /// The key has to leave memory for others.
    Evict,
    /// The disk tier's writer applies the oldest order.
    Write,
    /// Another key is purged.
    Purge,
    /// What the pass queues next for the disk finds no place.
    Lose,
    /// The disk tier fails.
    Break,
    /// It begins anew.
    Renew,
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
        if self.without.is_none() {
            next.forget_overtaken();
        }
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
            Property::sometimes("sweeps leave a document on disk", |_, state: &State| {
                let document = state.disk.is_some_and(|entry| entry.found.exists);
                let clean = state.clean == state.version.generation && state.clean > 0;
                document && clean && state.tier == Tier::On
            }),
            Property::sometimes(
                "a sweep is on disk before a key of its pass is overtaken",
                |_, state: &State| {
                    let named = [Step::Raise, Step::Remove, Step::QueueDrop];
                    let pass = state.pass.as_ref();
                    let named = pass.is_some_and(|pass| pass.steps.starts_with(&named));
                    named && state.clean > 0 && state.clean == state.version.generation
                },
            ),
        ]
    }
}
