//! All states, with every guard in place and with each of them taken out.

use super::{Conditions, Guard, NO_STALE_ANSWER};
use crate::check;

const COMMITS: usize = 4;

fn model(maps_by_conditions_above: bool, without: Option<Guard>) -> Conditions {
    Conditions {
        commits: COMMITS,
        maps_by_conditions_above,
        without,
    }
}

#[test]
fn no_answer_is_stale_while_rows_are_hidden_and_shown() {
    check::explore("conditions", model(false, None));
}

/// They do not: the constants of a condition may be others in a later check of the tables.
#[test]
fn passes_could_leave_out_rows_below_hidden_ones() {
    check::explore("conditions above", model(true, None));
}

/// One test for each guard: without it the property does not hold.
macro_rules! guards {
    ($($name:ident: $guard:ident;)*) => {
        $(
            #[test]
            fn $name() {
                let model = model(false, Some(Guard::$guard));
                check::find_counterexample(stringify!($guard), model, NO_STALE_ANSWER);
            }
        )*

        #[test]
        fn every_guard_has_a_test() {
            assert_eq!([$(Guard::$guard),*], Guard::ALL);
        }
    };
}

guards! {
    without_logging_what_is_hidden_now: LogNowHidden;
    without_logging_what_was_hidden_before: LogOnceHidden;
    without_mapping_what_is_hidden: MapHidden;
}
