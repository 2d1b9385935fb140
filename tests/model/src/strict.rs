//! Strict reads: they reflect all whose commit was told before they arrived.
//!
//! A strict read waits for a *verified* pass that begins after it has arrived, and then looks the document up as others do.
//! If none is applied in time, a statement of its own answers. [`Strict`] is explored in all its states, as it is and
//! without each [`Guard`].
//!
//! # What is modelled
//! - *Writes that the trigger logs*, in one step, and one transaction that disables the trigger and writes, in two: it
//!   becomes visible, then the server processes get its messages (the mark changes) and its client is told.
//! - *A pass*: it begins, with the next number; reads rows in a snapshot; reads the mark, if its snapshot is not that of the
//!   pass before or a strict read waits; is applied. Where the mark has changed, the resource is no longer kept, and
//!   passes leave it out until it is defined again.
//! - *The feed may begin anew* with the position that it had. The pass under way is lost.
//! - *Two loads* of other requests or of the strict read, and one *strict read*.
//!
//! # What counts as stale
//! An answer to the strict read without a transaction whose client had been told when it arrived.
//!
//! # What is left out
//! The disk tier, the steps in which a pass is applied, and the age of passes, which are [`crate::Protocol`]'s; a transaction
//! that also enables the trigger, of which [`crate::definition`] tells.

mod steps;
#[cfg(test)]
mod tests;

use stateright::Property;

/// What keeps answers true, each to be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Only a pass that begins after the read has arrived ends its wait.
    LaterPass,
    /// The number is noted before the lookup.
    NumberFirst,
    /// A pass for a strict read reads the mark though its position stands still.
    MarkThoughStill,
    /// A load is joined only if its version is current.
    JoinVersion,
    /// Without a pass a load is joined only if it was not sent when the read arrived.
    NotSentBefore,
    /// Where the feed begins anew, the wait goes on.
    PassEndsWait,
}

impl Guard {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::LaterPass,
        Self::NumberFirst,
        Self::MarkThoughStill,
        Self::JoinVersion,
        Self::NotSentBefore,
        Self::PassEndsWait,
    ];
}

/// The model, whole or without one of its guards.
#[derive(Clone, Copy, Debug)]
pub struct Strict {
    /// What is taken out.
    pub without: Option<Guard>,
}

/// Where a pass is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// It reads rows next.
    Rows,
    /// It reads the mark next, if it has to.
    Mark,
    /// It is applied next; whether it is verified.
    Apply(bool),
}

/// The pass under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pass {
    number: u8,
    step: Step,
    /// A strict read waited when it began.
    wanted: bool,
    /// Transactions that its snapshot saw.
    seen: u8,
}

/// Where a load is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// There is none.
    Free,
    /// It waits for a connection.
    Waiting,
    /// Its statement is sent.
    Sent,
    /// PostgreSQL has answered with this content.
    Read(u8),
}

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Load {
    stage: Stage,
    version: u8,
    /// It was sent when the strict read arrived.
    old: bool,
}

/// Where the strict read is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It has not arrived.
    Idle,
    /// It waits for a pass with a higher number than this one.
    Waiting(u8),
    /// Only without a guard: it has found this in memory, and notes the number next.
    Found(u8),
    /// Memory is asked next.
    Covered,
    /// The version is noted next; whether a pass was applied.
    Load(bool),
    /// A load is joined or led next, at this version; whether a pass was applied.
    Noted(u8, bool),
    /// It waits for this load.
    Joined(usize),
    /// It is answered.
    Answered,
}

/// One state of the model. A content is the number of transactions that it reflects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Visible transactions.
    visible: u8,
    /// The one that nothing logged, by its number.
    unlogged: Option<u8>,
    /// Its client was not told yet.
    is_untold: bool,
    /// The mark has changed.
    mark: bool,
    known_mark: bool,
    kept: bool,
    memory: Option<u8>,
    version: u8,
    position: u8,
    /// The number of the last pass that has begun.
    begun: u8,
    /// The number of the last pass that was applied and verified.
    verified: u8,
    pass: Option<Pass>,
    restarted: bool,
    loads: [Load; 2],
    /// The load that may be joined.
    lease: Option<usize>,
    phase: Phase,
    /// Only without a guard: what the read has found before it waited.
    found: Option<u8>,
    /// What the read has to reflect.
    floor: u8,
    /// The read joined a load that was sent before it arrived.
    joined_old: bool,
    answer: Option<u8>,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A write that the trigger logs.
    Write,
    /// A transaction that disables the trigger and writes is visible.
    WriteUnlogged,
    /// Its messages are sent, and its client is told.
    Tell,
    /// The feed begins a pass, or goes on with it.
    Feed,
    /// The feed begins anew.
    Restart,
    /// The resource is defined again, and its trigger enabled.
    Define,
    /// Another request loads the document.
    Miss,
    /// A load goes on.
    Load(usize),
    /// The strict read goes on.
    Read,
    /// It waits no longer.
    GiveUp,
}

/// The promise itself.
pub(crate) const NO_STALE_ANSWER: &str = "no strict answer is stale";

impl State {
    fn is_stale(&self) -> bool {
        self.answer.is_some_and(|content| content < self.floor)
    }
}

impl stateright::Model for Strict {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::initial()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.answer.is_none() {
            self.enabled(state, actions);
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
            Property::sometimes("a strict read is a hit", |_, state: &State| {
                state.answer.is_some() && state.phase == Phase::Covered
            }),
            Property::sometimes(
                "a load is joined that was sent before",
                |_, state: &State| state.answer.is_some() && state.joined_old,
            ),
            Property::sometimes(
                "PostgreSQL answers in place of a pass",
                |_, state: &State| state.answer.is_some() && state.verified == 0,
            ),
            Property::sometimes("an unlogged write is seen", |_, state: &State| {
                state.answer.is_some() && state.unlogged.is_some_and(|number| number <= state.floor)
            }),
        ]
    }
}
