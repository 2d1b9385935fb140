//! The files of the disk tier: segments, of which only the youngest is written to, and the oldest is removed.
//!
//! An entry that has to go is not removed from the segment that has it: a removal in the youngest one hides it. The
//! mark is in the youngest segment, too. A crash loses what a segment has not flushed, of each segment on its own.
//! [`Segments`] is explored in all its states, as it is and without each [`Guard`].
//!
//! # What is modelled
//! - *The database*: transactions that change one document.
//! - *The writer*: for each pass the drop of the key, if it has changed, then the mark, each a step; documents that a
//!   load has found, at the position or later; an entry of the oldest segment that is written again; the beginning of a
//!   segment, also between the two steps of a pass; the removal of the oldest segment; the purge of the key. The index
//!   knows the segment of the key's entry.
//! - *A flush* of any segment, at any time.
//! - *A crash*, after which the index is made from the segments, and a pass from the mark comes before any answer. A
//!   segment other than the youngest may be gone then: somebody deleted its directory.
//!
//! # What counts as stale
//! An answer that lacks a transaction which the position covers, or that was written before a purge was answered.
//!
//! # What is left out
//! The queue, versions and clean stripes, which [`crate::Protocol`] has: the writer's orders come in their order, no
//! document is written that was overtaken, and nothing is answered while a drop is outstanding. Damage, which tallies
//! show. A youngest segment whose directory was deleted: a purge may be lost with it.

mod steps;
#[cfg(test)]
mod tests;

use stateright::Property;

/// What keeps answers true, each to be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// A segment is flushed before the next one is begun: the mark there implies its drops.
    FlushBeforeNext,
    /// The next segment begins with the mark that is stored, not with one whose drops are yet to be written.
    StoredMarkInNext,
    /// If there are older segments, a drop writes a removal; to remove the youngest entry would show an older one.
    RemovalInYoungest,
    /// After a crash the youngest segment that has an entry or a removal of a key decides.
    YoungestCounts,
    /// A directory that lacks a segment between others is not used: its removals hid entries of older ones. So the
    /// oldest is removed first, too.
    NoGaps,
    /// A purge is flushed before it is answered.
    FlushOfPurge,
    /// After a crash the index is made before drops are applied: it decides whether there is anything to remove.
    IndexBeforeDrops,
}

impl Guard {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::FlushBeforeNext,
        Self::StoredMarkInNext,
        Self::RemovalInYoungest,
        Self::YoungestCounts,
        Self::NoGaps,
        Self::FlushOfPurge,
        Self::IndexBeforeDrops,
    ];
}

/// The model, whole or without one of its guards.
#[derive(Clone, Copy, Debug)]
pub struct Segments {
    /// Transactions.
    pub commits: u8,
    /// Segments that are begun after the first.
    pub begun: u8,
    /// Crashes.
    pub crashes: u8,
    /// Purges.
    pub purges: u8,
    /// Segments that are deleted while larder is not running.
    pub deleted: u8,
    /// What is taken out.
    pub without: Option<Guard>,
}

/// What a segment says of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    /// The document after so many transactions, written after so many purges.
    Entry(u8, u8),
    /// There is no entry.
    Removal,
}

/// The content of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Content {
    /// Of the key.
    pub record: Option<Record>,
    /// The transactions that the mark covers.
    pub mark: Option<u8>,
}

/// One segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Later ones have higher numbers.
    pub number: u8,
    /// With what a crash would lose.
    pub now: Content,
    /// What a crash leaves.
    pub flushed: Content,
}

/// A pass that the writer has yet to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pass {
    /// The drop is outstanding.
    pub drop: bool,
    /// Its mark.
    pub mark: u8,
}

/// One state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Transactions.
    pub committed: u8,
    /// Those that have been applied.
    pub position: u8,
    /// Purges that were answered.
    pub purges: u8,
    /// The oldest first.
    pub segments: Vec<Segment>,
    /// The youngest has been made, and its mark is yet to be written.
    pub beginning: bool,
    /// The number of the segment that has the key's entry.
    pub place: Option<u8>,
    /// The mark that was written last.
    pub stored: Option<u8>,
    /// The pass under way.
    pub pass: Option<Pass>,
    /// A pass from the mark is to come.
    pub resumes: bool,
    /// Segments that were begun after the first.
    pub begun: u8,
    /// Crashes so far.
    pub crashes: u8,
    /// Segments that were deleted.
    pub deleted: u8,
    /// An answer was stale.
    pub stale: bool,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A transaction commits.
    Commit,
    /// A pass reads, and moves the position.
    Pass,
    /// Its drop is written.
    Drop,
    /// Its mark is written.
    Mark,
    /// A document is written as it is after so many transactions.
    Put(u8),
    /// An entry of the oldest segment is written again.
    Rewrite,
    /// The key is purged.
    Purge,
    /// A segment is begun.
    Begin,
    /// Its mark is written and flushed.
    Finish,
    /// The oldest segment is removed.
    Remove,
    /// A segment, by its place in the order of age, is flushed.
    Flush(usize),
    /// A request is answered from disk.
    Answer,
    /// larder crashes and starts again.
    Crash,
    /// As [`Action::Crash`]; meanwhile a segment is deleted.
    Delete(usize),
}

/// The promise itself.
pub(crate) const NO_STALE_ANSWER: &str = "no answer is stale";

impl stateright::Model for Segments {
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
                "an older segment answers after a crash",
                |_, state: &State| {
                    let youngest = state.segments.last().map(|segment| segment.number);
                    let is_older = state.place.is_some() && state.place != youngest;
                    state.crashes > 0 && state.may_answer() && is_older
                },
            ),
            Property::sometimes("a removal hides an older entry", |_, state: &State| {
                let records = || state.segments.iter().map(|segment| segment.now.record);
                let entries = records().any(|record| matches!(record, Some(Record::Entry(..))));
                state.crashes > 0
                    && entries
                    && records().any(|record| record == Some(Record::Removal))
            }),
            Property::sometimes(
                "a crash leaves a segment without a mark",
                |_, state: &State| state.beginning && state.stored.is_some(),
            ),
        ]
    }
}
