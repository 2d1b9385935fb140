//! Passes whose joins PostgreSQL refuses for one resource, and which go on for the others.
//!
//! The resource has one document. [`Refusals`] is explored in all its states, as it is and without each [`Guard`].
//!
//! # What is modelled
//! - *The database*: transactions change the document and log it. At any time PostgreSQL begins to refuse the join of the
//!   resource, or accepts it again.
//! - *The feed*: a pass moves the position, for the other resources too. If its join is refused, the resource is distrusted,
//!   and passes leave it out until it is trusted again. Each pass writes its mark to disk.
//! - *The tiers*: a load notes the epoch and reads in one step, and stores in another, in memory and on disk.
//! - *A restart*: memory is lost. The mark's position and epochs are taken over, and the resource is trusted.
//!
//! # What counts as stale
//! A tier may answer with a document that is older than the position.
//!
//! # What is left out
//! All that [`crate::Protocol`] has: smaller steps, generations, requests and time.

#[cfg(test)]
mod tests;

use stateright::Property;

/// What keeps answers true, each to be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The resource is distrusted before a pass without its join moves the position.
    DistrustBeforePass,
    /// It gets a new epoch before it is trusted again.
    NewEpochs,
    /// The mark has no epoch of a resource that passes leave out.
    LeftOutOfMark,
}

impl Guard {
    /// All of them.
    pub const ALL: [Self; 3] = [
        Self::DistrustBeforePass,
        Self::NewEpochs,
        Self::LeftOutOfMark,
    ];
}

/// The model, whole or without one of its guards.
#[derive(Clone, Copy, Debug)]
pub struct Refusals {
    /// Transactions.
    pub commits: u8,
    /// Changes of what PostgreSQL refuses.
    pub turns: u8,
    /// Restarts.
    pub restarts: u8,
    /// What is taken out.
    pub without: Option<Guard>,
}

/// A document with the epoch that it was loaded under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The epoch.
    pub epoch: u8,
    /// The transactions that it reflects.
    pub content: u8,
}

/// What a pass has written to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    /// Transactions that had been applied.
    pub position: u8,
    /// The resource's epoch; `None` if the pass left it out.
    pub epoch: Option<u8>,
}

/// One state of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// Transactions that have committed.
    pub committed: u8,
    /// Transactions that have been applied.
    pub position: u8,
    /// PostgreSQL refuses the join.
    pub is_refused: bool,
    /// Changes of that so far.
    pub turns: u8,
    /// The tiers may answer, and passes join the resource's tables.
    pub is_trusted: bool,
    /// The resource's epoch.
    pub epoch: u8,
    /// The largest epoch so far.
    pub last_epoch: u8,
    /// The load that has read and not stored.
    pub load: Option<Entry>,
    /// What memory holds.
    pub memory: Option<Entry>,
    /// What the disk holds.
    pub disk: Option<Entry>,
    /// The last mark.
    pub mark: Option<Mark>,
    /// Restarts so far.
    pub restarts: u8,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A transaction changes the document.
    Commit,
    /// PostgreSQL begins to refuse the join, or accepts it again.
    Turn,
    /// A pass.
    Pass,
    /// The resource is trusted again, since PostgreSQL accepts its join.
    Trust,
    /// A load reads.
    Load,
    /// It stores, unless its epoch was overtaken.
    Store,
    /// larder ends and starts.
    Restart,
}

/// The promise itself.
pub(crate) const NO_STALE_ANSWER: &str = "no answer is stale";

impl State {
    fn is_stale(&self) -> bool {
        let mut entries = self.memory.iter().chain(&self.disk);
        self.is_trusted
            && entries.any(|entry| entry.epoch == self.epoch && entry.content < self.position)
    }

    fn renew_epoch(&mut self) {
        self.last_epoch += 1;
        self.epoch = self.last_epoch;
    }
}

impl Refusals {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    fn pass(&self, state: &mut State) {
        if state.is_trusted && state.is_refused {
            state.is_trusted = !self.has(Guard::DistrustBeforePass);
        } else if state.is_trusted && state.position < state.committed {
            // Its key is dropped from both tiers, and a load of it is void.
            (state.memory, state.disk, state.load) = (None, None, None);
        }
        state.position = state.committed;
        let is_named = state.is_trusted || !self.has(Guard::LeftOutOfMark);
        state.mark = Some(Mark {
            position: state.position,
            epoch: is_named.then_some(state.epoch),
        });
    }

    fn restart(&self, state: &mut State) {
        state.restarts += 1;
        (state.memory, state.load) = (None, None);
        match state.mark {
            Some(Mark {
                position,
                epoch: Some(epoch),
            }) => {
                (state.position, state.epoch) = (position, epoch);
                state.is_trusted = true;
                // The tiers answer after a pass from the mark.
                self.pass(state);
            }
            _ => {
                state.renew_epoch();
                state.position = state.committed;
                state.is_trusted = !state.is_refused;
            }
        }
    }
}

impl stateright::Model for Refusals {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            is_trusted: true,
            ..State::default()
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // A stale answer is not explored further.
        if state.is_stale() {
            return;
        }
        let possible = [
            (state.committed < self.commits, Action::Commit),
            (state.turns < self.turns, Action::Turn),
            (true, Action::Pass),
            (!state.is_trusted && !state.is_refused, Action::Trust),
            (state.load.is_none(), Action::Load),
            (state.load.is_some(), Action::Store),
            (state.restarts < self.restarts, Action::Restart),
        ];
        actions.extend(
            possible
                .iter()
                .filter(|(is, _)| *is)
                .map(|(_, action)| *action),
        );
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        match action {
            Action::Commit => next.committed += 1,
            Action::Turn => {
                next.is_refused = !state.is_refused;
                next.turns += 1;
            }
            Action::Pass => self.pass(&mut next),
            Action::Trust => {
                if self.has(Guard::NewEpochs) {
                    next.renew_epoch();
                }
                next.is_trusted = true;
            }
            Action::Load => {
                next.load = Some(Entry {
                    epoch: state.epoch,
                    content: state.committed,
                });
            }
            Action::Store => {
                let load = next.load.take()?;
                if load.epoch == state.epoch {
                    (next.memory, next.disk) = (Some(load), Some(load));
                }
            }
            Action::Restart => self.restart(&mut next),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NO_STALE_ANSWER, |_, state: &State| !state.is_stale()),
            Property::sometimes("it is left out", |_, state: &State| {
                !state.is_trusted && state.is_refused && state.position > 0
            }),
            Property::sometimes("it is trusted again", |_, state: &State| {
                state.is_trusted && state.turns > 1 && state.epoch > 0
            }),
            Property::sometimes("the disk answers after a restart", |_, state: &State| {
                let mut kept = state.disk.iter();
                state.is_trusted && state.restarts > 0 && kept.any(|kept| kept.epoch == state.epoch)
            }),
        ]
    }
}
