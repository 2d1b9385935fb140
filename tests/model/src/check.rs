//! What the tests of all models share: explore all states, or look for a counterexample.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model};

/// Explores every state; panics where a property does not hold, and prints how many states there were.
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

/// Looks for a state in which `property` does not hold, which `without` should allow; panics where there is none.
#[expect(
    clippy::print_stdout,
    reason = "the counterexample is what the guard is for"
)]
pub(crate) fn breaks<M>(without: &str, model: M, property: &'static str)
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
