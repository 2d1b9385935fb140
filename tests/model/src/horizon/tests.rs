//! All states, with every guard in place and with each of them taken out.

use super::{Bounds, Form, Guard, Horizon, NO_STALE_ANSWER, NOTHING_FOR_NOTHING};
use crate::check;

const BOUNDS: Bounds = Bounds {
    transactions: 3,
    deletions: 2,
    prunes: 1,
    stops: 1,
};

fn explore(name: &str, form: Form) {
    let model = Horizon {
        bounds: BOUNDS,
        form,
        without: None,
    };
    check::explore(name, model);
}

#[test]
fn no_answer_is_stale_while_rows_are_deleted() {
    explore("horizon, a snapshot", Form::Snapshot);
}

#[test]
fn no_answer_is_stale_with_a_number_as_horizon() {
    explore("horizon, a number", Form::Number);
}

/// One test for each guard: without it the property does not hold, in either form.
macro_rules! guards {
    ($($name:ident: $guard:ident, $property:expr;)*) => {
        $(
            #[test]
            fn $name() {
                for form in [Form::Number, Form::Snapshot] {
                    let model = Horizon {
                        bounds: BOUNDS,
                        form,
                        without: Some(Guard::$guard),
                    };
                    let without = format!("{}, {form:?}", stringify!($guard));
                    check::breaks(&without, model, $property);
                }
            }
        )*

        #[test]
        fn every_guard_has_a_test() {
            assert_eq!([$(Guard::$guard),*], Guard::ALL);
        }
    };
}

guards! {
    without_a_trigger_that_moves_the_horizon: TriggerMoves, NO_STALE_ANSWER;
    without_moving_it_in_the_same_transaction: SameTransaction, NO_STALE_ANSWER;
    without_the_check_at_a_pass: CheckAtPass, NO_STALE_ANSWER;
    without_the_check_at_resume: CheckAtResume, NO_STALE_ANSWER;
    without_one_snapshot_for_horizon_and_rows: OneSnapshot, NO_STALE_ANSWER;
    without_a_bound_for_pruning: PruneBounded, NOTHING_FOR_NOTHING;
}
