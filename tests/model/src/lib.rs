//! A model of larder's freshness protocol, to show that no reachable state gives a stale answer.
//!
//! The model checker `stateright` explores all states of [`Protocol`] (`tests` below), as it is and without each of its
//! guards. `src/cache/tests/replay.rs` drives the real cache along random traces of the same model and compares the two
//! after each step, to show that the cache does what the model does.
//!
//! # What is modelled
//! One document and all that happens to it, in steps as small as threads can interleave:
//! - *The database*: two transactions. Either both edit the document; or, with [`Scene::MovableParent`], one moves it
//!   to another parent while the other retitles that parent, concurrently. What a snapshot sees is the number of
//!   transactions committed before it; a transaction commits together with its rows in the log.
//! - *Time*: moments that are compared with `max_staleness` (commits, the starts of passes, statements sent) stand in
//!   their order in [`State::young`]; [`Action::Expire`] lets the earliest of them become too old. On a real clock,
//!   too, what happened earlier expires earlier, so every course of a real clock is one such course, and the other way
//!   round.
//! - *Requests*: freshness, memory, the check of `clean`, the content of the disk, promotion, the generation noted, the
//!   lease led or joined, each a step. Loads go on without them: sent, snapshot taken, installed under the key's lock,
//!   checked once more, queued for the disk, completed; or they fail and wake their waiters. Memory may evict the
//!   document at any time.
//! - *The feed*: a pass begins, reads, raises the generation, drops from memory, queues the drop, queues the mark,
//!   moves the position and `fresh_at`. It may stop between any two of them, as a feed does that is down.
//! - *The disk tier*: one queue; the writer takes orders from it and checks them, applies them in one step, and calls
//!   the stripe clean.
//! - *A crash* at any moment: memory and the queue are lost, disk and mark stay, and the disk tier is used again only
//!   after a pass from the mark.
//!
//! # What counts as stale
//! An answer that is older than the newest transaction which, when its request began, had been committed for more than
//! `max_staleness`, or was in the position (then its client may have received the answer: read your writes).
//!
//! # What is left out
//! Several keys (a stripe is a key), absences, epochs except the one that a crash renews, disks
//! that fail or lose content, `serve-stale`, the SQL of passes and the validity of positions, and statements of
//! many keys. A mark that waits alone in the writer counts as waiting in the queue. Passes that could change nothing do
//! not run, marks that repeat the last one are not queued, at most [`Bounds::puts`] documents wait in the queue, and at
//! most [`Bounds::loads`] loads are under way: bounds, not guards.
//!
//! # How states count
//! Everything together has more states than CI has time for, so there are four explorations, each of all its states:
//! two requests and two loads over memory; two requests over both tiers; one request over both tiers and a crash; two
//! requests and two loads while a parent moves. An exploration of everything, with one commit, can be run by hand. With
//! all guards, states with the same possible futures count once ([`Protocol::normal`]). Without a guard this is not
//! assumed, and the shortest path to a stale answer is searched.
//!
//! # Smaller models beside it
//! What [`Protocol`] assumes is modelled separately, each with states, steps and guards of its own:
//! - [`bulk`]: statements that touch more keys than are named.
//! - [`conditions`]: rows that a condition hides are changed, hidden and shown.
//! - [`definition`]: a pass finds out that a trigger was changed, by the mark and by fingerprints.
//! - [`horizon`]: rows of the log are deleted by hand, or pruned.
//! - [`life`]: an older copy of the database is put back.
//! - [`prepared`]: transactions that were prepared before PostgreSQL crashed have lost their rows of the log.
//! - [`refusal`]: PostgreSQL refuses to join the tables of a resource in a pass.
//! - [`segments`]: the files of the disk tier lose what they have not flushed, each on its own.
//! - [`strict`]: reads that reflect all that had committed when they arrived.
//!
//! Another protocol, which does not rest on this one, is modelled in the same way:
//! - [`dispatch`]: due rows are sent to a sink by several processes.
//!
//! `cargo test -p freshness-model -- --nocapture` runs the models alone and prints states and counterexamples.

pub mod bulk;
#[cfg(test)]
mod check;
pub mod conditions;
pub mod definition;
pub mod dispatch;
mod guard;
pub mod horizon;
pub mod life;
mod normal;
pub mod prepared;
mod properties;
pub mod refusal;
pub mod segments;
mod state;
mod steps;
pub mod strict;
#[cfg(test)]
mod tests;

pub use guard::Guard;
pub use state::{
    Batch, Content, Disk, Few, Load, Moment, Order, Pass, PassStep, Phase, Request, Scene, Stage,
    State, Txn, Version,
};
pub use steps::Action;

/// The size of the model.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Transactions that edit the document; two at most, and always two where the parent moves.
    pub commits: u8,
    /// Requests at a time.
    pub requests: usize,
    /// Loads at a time.
    pub loads: usize,
    /// Documents that wait in the disk tier's queue at a time.
    pub puts: usize,
    /// Whether there is a disk tier.
    pub disk: bool,
    /// Crashes.
    pub crashes: u8,
}

/// The protocol, with all of its guards or without one.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// What the transactions do.
    pub scene: Scene,
    /// The size of the model.
    pub bounds: Bounds,
    /// Whether states with the same possible futures count once; not to be used without a guard.
    pub normal: bool,
    /// The guard that is removed.
    pub without: Option<Guard>,
}

impl Protocol {
    /// The first state.
    pub fn begin(&self) -> State {
        State::initial(self).swap_remove(0)
    }

    /// The actions that are possible next.
    pub fn possible(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        self.enabled(state, &mut actions);
        actions
    }

    /// The state after an action.
    pub fn after(&self, state: &State, action: Action) -> State {
        let mut next = state.clone();
        self.step(&mut next, action);
        if self.normal {
            next.normalise();
        }
        next
    }

    /// Whether the guard is in place.
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }
}

impl stateright::Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        State::initial(self)
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // A stale answer is not explored further.
        if !state.stale {
            self.enabled(state, actions);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        Some(self.after(state, action))
    }

    fn properties(&self) -> Vec<stateright::Property<Self>> {
        properties::all(self)
    }
}
