//! Conditions on rows: a document shows a root row and a row below it, unless a condition hides them.
//!
//! Triggers log what is touched, whether it is hidden or not, and a pass maps the row below to its document whatever its
//! condition says. [`Conditions`] is explored in all its states, as it is and without each [`Guard`]; and also with passes
//! that leave out rows below hidden roots, to show that these could do so.
//!
//! # What is modelled
//! - *The database*: the two rows. Each transaction edits one of them, shows it or hides it, and commits together with
//!   its row of the log.
//! - *larder*: a load notes the generation and reads in one step, and stores in another; a pass maps what was logged since
//!   its position in its own snapshot, and applies it, in one step. Memory holds the document or its absence.
//!
//! # What counts as stale
//! Memory holds what the document was neither at the position nor later.
//!
//! # What is left out
//! All that [`crate::Protocol`] has: smaller steps, requests, the disk tier and time.

#[cfg(test)]
mod tests;

use stateright::Property;

use crate::Few;

/// What keeps answers true, each to be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// A statement logs the rows that are hidden after it.
    LogNowHidden,
    /// It logs the rows that were hidden before it.
    LogOnceHidden,
    /// A pass maps a row that is hidden in its snapshot.
    MapHidden,
}

impl Guard {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::LogNowHidden, Self::LogOnceHidden, Self::MapHidden];
}

/// The model, whole or without one of its guards.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// Transactions.
    pub commits: usize,
    /// Passes apply the conditions of rows above a logged one.
    pub maps_by_conditions_above: bool,
    /// What is taken out.
    pub without: Option<Guard>,
}

/// A row of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// Edits so far.
    pub content: u8,
    /// The condition hides it.
    pub is_hidden: bool,
}

/// A row of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The root row, whose key is logged.
    Root,
    /// The row below it, whose key is mapped.
    Below,
}

/// What a snapshot sees of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tables {
    /// The root row.
    pub root: Row,
    /// The row below it.
    pub below: Row,
}

/// A document: the contents of its root row and of the row below it, if that is not hidden.
type Document = (u8, Option<u8>);

impl Tables {
    fn row(&mut self, place: Place) -> &mut Row {
        match place {
            Place::Root => &mut self.root,
            Place::Below => &mut self.below,
        }
    }

    /// The document; `None` if its root row is hidden.
    fn document(self) -> Option<Document> {
        let shown = |row: Row| (!row.is_hidden).then_some(row.content);
        Some((shown(self.root)?, shown(self.below)))
    }
}

/// A load that has read and not stored yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Load {
    /// The generation before it read.
    pub generation: u8,
    /// What it has read.
    pub found: Option<Document>,
}

/// One state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The tables at first and after each transaction.
    pub history: Few<Tables, 5>,
    /// What each transaction has logged.
    pub log: Few<Option<Place>, 4>,
    /// Transactions that have been applied.
    pub position: usize,
    /// Invalidations so far.
    pub generation: u8,
    /// What memory holds: a document or its absence.
    pub memory: Option<Option<Document>>,
    /// The load under way.
    pub load: Option<Load>,
}

/// What a statement does to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Edits what the document shows of it.
    Edit,
    /// Hides it, or shows it if it is hidden.
    Toggle,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A transaction changes a row.
    Commit(Place, Change),
    /// A load reads.
    Load,
    /// It stores, or may not and ends.
    Store,
    /// A pass.
    Pass,
}

/// The promise itself.
pub(crate) const NO_STALE_ANSWER: &str = "no answer is stale";

impl State {
    fn tables(&self) -> Tables {
        self.history[self.history.len() - 1]
    }

    fn is_stale(&self) -> bool {
        let since = self.history.iter().skip(self.position);
        let is_other = |known| since.clone().all(|tables| tables.document() != known);
        self.memory.is_some_and(is_other)
    }
}

impl Conditions {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    fn commit(&self, state: &mut State, place: Place, change: Change) {
        let mut tables = state.tables();
        let row = tables.row(place);
        let before = *row;
        match change {
            Change::Edit => row.content += 1,
            Change::Toggle => row.is_hidden = !row.is_hidden,
        }
        let is_logged = (self.has(Guard::LogNowHidden) || !row.is_hidden)
            && (self.has(Guard::LogOnceHidden) || !before.is_hidden);
        state.history.push(tables);
        state.log.push(is_logged.then_some(place));
    }

    fn pass(&self, state: &mut State) {
        let Tables { root, below } = state.tables();
        let is_mapped = (self.has(Guard::MapHidden) || !below.is_hidden)
            && !(self.maps_by_conditions_above && root.is_hidden);
        let mut logged = state.log.iter().skip(state.position).flatten();
        if logged.any(|place| *place == Place::Root || is_mapped) {
            state.generation += 1;
            state.memory = None;
        }
        state.position = state.log.len();
    }
}

impl stateright::Model for Conditions {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let row = |is_hidden| Row {
            content: 0,
            is_hidden,
        };
        let begin = |root, below| State {
            history: Few::from_iter([Tables {
                root: row(root),
                below: row(below),
            }]),
            log: Few::new(),
            position: 0,
            generation: 0,
            memory: None,
            load: None,
        };
        vec![begin(false, false), begin(true, false), begin(false, true)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // A stale answer is not explored further.
        if state.is_stale() {
            return;
        }
        if state.log.len() < self.commits {
            for place in [Place::Root, Place::Below] {
                actions.extend([Change::Edit, Change::Toggle].map(|c| Action::Commit(place, c)));
            }
        }
        actions.push(match state.load {
            None => Action::Load,
            Some(_) => Action::Store,
        });
        if state.position < state.log.len() {
            actions.push(Action::Pass);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Commit(place, change) => self.commit(&mut next, place, change),
            Action::Load => {
                next.load = Some(Load {
                    generation: state.generation,
                    found: state.tables().document(),
                });
            }
            Action::Store => {
                let load = next.load.take()?;
                if load.generation == next.generation {
                    next.memory = Some(load.found);
                }
            }
            Action::Pass => self.pass(&mut next),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NO_STALE_ANSWER, |_, state: &State| !state.is_stale()),
            Property::sometimes("an absence is remembered", |_, state: &State| {
                state.memory == Some(None) && state.position > 0
            }),
            Property::sometimes("a load is overtaken", |_, state: &State| {
                state
                    .load
                    .is_some_and(|load| load.generation != state.generation)
            }),
        ]
    }
}
