//! Shared by the tests of all models: explore all states, or search for a counterexample.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};

use stateright::{Checker, Model, Property};

/// Explores every state, and prints the number of states. Panics if a property does not hold.
#[expect(
    clippy::print_stdout,
    reason = "how much there was to explore is worth a line"
)]
pub(crate) fn explore<M>(name: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let checker = model.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    println!(
        "{name}: {} states, {} steps between them, at most {} from the first",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
    );
}

/// A model, and the property that is to fail.
struct Search<M: Model> {
    model: M,
    property: Property<M>,
    /// It has failed in one state. Without this the checker would keep the last one that it comes by.
    is_found: AtomicBool,
}

impl<M: Model> Search<M> {
    fn holds(&self, state: &M::State) -> bool {
        let holds = (self.property.condition)(&self.model, state);
        holds || self.is_found.swap(true, Ordering::Relaxed)
    }
}

impl<M: Model> Model for Search<M> {
    type State = M::State;
    type Action = M::Action;

    fn init_states(&self) -> Vec<M::State> {
        self.model.init_states()
    }

    fn actions(&self, state: &M::State, actions: &mut Vec<M::Action>) {
        self.model.actions(state, actions);
    }

    fn next_state(&self, state: &M::State, action: M::Action) -> Option<M::State> {
        self.model.next_state(state, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(self.property.name, Self::holds)]
    }
}

/// Searches for a shortest path to a state in which `property` does not hold. Panics if there is none, because then the
/// guard `without` is not needed.
#[expect(
    clippy::print_stdout,
    reason = "the counterexample is what the guard is for"
)]
pub(crate) fn find_counterexample<M>(without: &str, model: M, property: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let search = Search {
        property: model.property(property),
        model,
        is_found: AtomicBool::new(false),
    };
    // One thread visits states in the order of their distance.
    let checker = search.checker().threads(1).spawn_bfs().join();
    let Some(path) = checker.discovery(property) else {
        panic!("without {without} \"{property}\" holds: it guards nothing")
    };
    let steps = path.into_actions();
    println!(
        "without {without}, {} states, \"{property}\" fails after {} steps: {steps:?}",
        checker.unique_state_count(),
        steps.len(),
    );
}
