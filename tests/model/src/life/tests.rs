//! All states, with every guard in place and with each of them taken out.

use super::{Bounds, Guard, Life, NO_STALE_ANSWER, NOTHING_FOR_NOTHING};
use crate::check;

/// A copy is made, put back, and as much happens after as before.
const BOUNDS: Bounds = Bounds {
    commits: 2,
    restarts: 2,
    copies: 1,
    crashes: 1,
};

fn explore(name: &str, heartbeats: bool, bounds: Bounds) {
    let model = Life {
        bounds,
        heartbeats,
        without: None,
    };
    check::explore(name, model);
}

#[test]
fn no_answer_is_stale_after_a_copy_is_put_back() {
    explore("life", true, BOUNDS);
}

#[test]
fn marks_of_heartbeats_are_not_needed() {
    explore("life without heartbeats", false, BOUNDS);
}

#[test]
fn no_answer_is_stale_where_more_follows_than_was_lost() {
    let bounds = Bounds {
        commits: 3,
        crashes: 0,
        ..BOUNDS
    };
    explore("more than was lost", true, bounds);
}

/// One test for each guard: without it the property does not hold.
macro_rules! guards {
    ($($name:ident: $guard:ident, $property:expr;)*) => {
        $(
            #[test]
            fn $name() {
                let model = Life {
                    bounds: BOUNDS,
                    heartbeats: true,
                    without: Some(Guard::$guard),
                };
                check::find_counterexample(stringify!($guard), model, $property);
            }
        )*

        #[test]
        fn every_guard_has_a_test() {
            assert_eq!([$(Guard::$guard),*], Guard::ALL);
        }
    };
}

guards! {
    without_the_comparison_at_reconnection: CompareAtReconnection, NO_STALE_ANSWER;
    without_the_comparison_at_resume: CompareAtResume, NO_STALE_ANSWER;
    without_a_new_mark_on_each_connection: NewMarkOnConnection, NO_STALE_ANSWER;
    without_loads_that_wait_for_the_acknowledgement: LoadAfterAcknowledgement, NO_STALE_ANSWER;
    without_passes_that_wait_for_the_acknowledgement: PassAfterAcknowledgement, NO_STALE_ANSWER;
    without_the_acknowledged_mark_in_the_file: AcknowledgedInFile, NO_STALE_ANSWER;
    without_the_run_of_a_load: SameRun, NO_STALE_ANSWER;
    without_the_next_mark_stored_before_it_is_sent: NextStoredFirst, NOTHING_FOR_NOTHING;
    without_counting_the_next_mark: NextCounts, NOTHING_FOR_NOTHING;
    without_adopting_the_next_mark: NextAdopted, NOTHING_FOR_NOTHING;
}
