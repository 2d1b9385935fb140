//! The scenarios under schedulers: random, random with priorities (PCT: Burckhardt et al., "A randomized scheduler with
//! probabilistic guarantees of finding bugs", ASPLOS 2010), and every schedule up to a number.
//!
//! A failure prints its schedule, which `shuttle::replay` runs again.

use interleavings::scenarios;

const SCHEDULES: usize = 1_000;
/// Orders between steps that a bug may need, for PCT.
const DEPTH: usize = 3;

fn explore(scenario: fn()) {
    shuttle::check_random(scenario, SCHEDULES);
    shuttle::check_pct(scenario, SCHEDULES, DEPTH);
    shuttle::check_dfs(scenario, Some(SCHEDULES));
}

macro_rules! explored {
    ($($scenario:ident)*) => {
        $(
            #[test]
            fn $scenario() {
                explore(scenarios::$scenario);
            }
        )*
    };
}

explored! {
    fill_beside_a_pass
    fills_beside_passes
    fill_beside_a_new_epoch
    promotion_beside_a_pass
    a_lease_is_handed_over
    an_outcome_ends_its_load
    an_overtaken_load_leaves_its_successor
    eviction_beside_installs
}
