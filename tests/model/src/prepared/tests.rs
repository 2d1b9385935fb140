//! All states, with every guard in place and with each of them taken out.

use super::{Bounds, Guard, NO_STALE_ANSWER, NOTHING_FOR_ANOTHER, Prepared};
use crate::check;

const BOUNDS: Bounds = Bounds {
    transactions: 2,
    elsewhere: 1,
    crashes: 1,
    stops: 1,
};

fn explore(name: &str, bounds: Bounds) {
    let model = Prepared {
        bounds,
        without: None,
    };
    check::explore(name, model);
}

#[test]
fn no_answer_is_stale_after_a_crash_with_prepared_transactions() {
    explore("prepared", BOUNDS);
}

#[test]
fn no_answer_is_stale_after_two_crashes() {
    let bounds = Bounds {
        elsewhere: 0,
        crashes: 2,
        ..BOUNDS
    };
    explore("prepared, two crashes", bounds);
}

#[test]
#[ignore = "takes a minute"]
fn no_answer_is_stale_beside_others() {
    let bounds = Bounds {
        transactions: 3,
        elsewhere: 0,
        ..BOUNDS
    };
    explore("prepared, three transactions", bounds);
}

/// One test for each guard: without it the property does not hold.
macro_rules! guards {
    ($($name:ident: $guard:ident, $property:expr;)*) => {
        $(
            #[test]
            fn $name() {
                let model = Prepared {
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
    without_the_list: List, NO_STALE_ANSWER;
    without_the_list_beside_the_nonce: ListWithNonce, NO_STALE_ANSWER;
    without_whole_numbers: WholeNumbers, NO_STALE_ANSWER;
    without_leaving_out_other_databases: ThisDatabase, NOTHING_FOR_ANOTHER;
    without_judging_at_a_pass: JudgeAtPass, NO_STALE_ANSWER;
    without_judging_at_resume: JudgeAtResume, NO_STALE_ANSWER;
    without_counting_each_transaction: EachCounts, NO_STALE_ANSWER;
    without_comparing_the_nonce: CompareNonce, NO_STALE_ANSWER;
    without_comparing_the_nonce_at_resume: CompareNonceAtResume, NO_STALE_ANSWER;
    without_emptying_behind_the_position: EmptyBehindPosition, NO_STALE_ANSWER;
    without_visibility_before_the_list_is_left: VisibleFirst, NO_STALE_ANSWER;
}
