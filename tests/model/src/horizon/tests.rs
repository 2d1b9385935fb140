//! All states, with every guard in place and with each of them taken out.

use super::{
    Bounds, EMPTIED_ONCE, Guard, Horizon, NO_STALE_ANSWER, NOTHING_FOR_NOTHING, NOTHING_LEFT,
};
use crate::check;

const BOUNDS: Bounds = Bounds {
    transactions: 3,
    deletions: 1,
    prunes: 2,
    stops: 1,
    others: 1,
};

#[test]
fn no_answer_is_stale_while_rows_are_deleted() {
    let model = Horizon {
        bounds: BOUNDS,
        without: None,
    };
    check::explore("horizon", model);
}

/// One test for each guard: without it the property does not hold.
macro_rules! guards {
    ($($name:ident: $guard:ident, $property:expr;)*) => {
        $(
            #[test]
            fn $name() {
                let model = Horizon {
                    bounds: BOUNDS,
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
    without_a_trigger_that_moves_the_horizon: TriggerMoves, NO_STALE_ANSWER;
    without_moving_it_in_the_same_transaction: SameTransaction, NO_STALE_ANSWER;
    without_the_check_at_a_pass: CheckAtPass, NO_STALE_ANSWER;
    without_the_check_at_resume: CheckAtResume, NO_STALE_ANSWER;
    without_one_snapshot_for_horizon_and_rows: OneSnapshot, NO_STALE_ANSWER;
    without_comparing_upper_bounds: CompareBounds, NO_STALE_ANSWER;
    without_comparing_what_is_unfinished: CompareUnfinished, NO_STALE_ANSWER;
    without_a_bound_for_pruning: PruneBounded, NOTHING_FOR_NOTHING;
    without_what_is_unfinished_for_one_position: UnfinishedOfAll, NOTHING_FOR_NOTHING;
    without_leaving_out_invalid_positions: OnlyUpwards, NO_STALE_ANSWER;
    without_leaving_out_of_the_horizon_what_is_unfinished: TriggerLeavesUnfinished, EMPTIED_ONCE;
    without_leaving_out_of_the_mark_what_is_unfinished: MarkLeavesUnfinished, NOTHING_LEFT;
}
