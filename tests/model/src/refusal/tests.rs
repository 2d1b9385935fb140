//! All states, with every guard in place and with each of them taken out.

use super::{Guard, NO_STALE_ANSWER, Refusals};
use crate::check;

fn model(without: Option<Guard>) -> Refusals {
    Refusals {
        commits: 3,
        turns: 4,
        restarts: 2,
        without,
    }
}

#[test]
fn no_answer_is_stale_while_joins_are_refused_and_accepted() {
    check::explore("refusals", model(None));
}

/// One test for each guard: without it the property does not hold.
macro_rules! guards {
    ($($name:ident: $guard:ident;)*) => {
        $(
            #[test]
            fn $name() {
                let model = model(Some(Guard::$guard));
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
    without_distrust_before_the_pass: DistrustBeforePass;
    returning_with_the_old_epochs: NewEpochs;
    with_the_epochs_of_what_is_left_out_in_the_mark: LeftOutOfMark;
}
