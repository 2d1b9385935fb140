//! Shared by the tests of all models: explore all states, or search for a counterexample.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model};

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

/// Searches for a state in which `property` does not hold. Panics if there is none, because then the guard `without` is
/// not needed.
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
    let only = HasDiscoveries::AnyOf([property].into());
    let checker = model.checker().threads(2).finish_when(only);
    let checker = checker.spawn_bfs().join();
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
