//! All states, with every guard in place and with each of them taken out.

use super::{
    ATTEMPTS, Bounds, Dispatch, FEW_REPETITIONS, Guard, Mode, NEIGHBOURS, NO_ENDLESS_WAIT,
    NO_ROW_IS_LOST, ONE_SENDER, THE_APPLICATION_WINS,
};
use crate::check;

/// One of each.
const AT_LEAST_ONCE: Dispatch = Dispatch {
    mode: Mode::AtLeastOnce,
    batch: 2,
    has_bad_row: false,
    keeps_batch: false,
    bounds: Bounds {
        changes: 1,
        faults: 1,
        failures: 1,
    },
    without: None,
};

/// A row that the sink never accepts, and nothing else that fails.
const BAD_ROW: Dispatch = Dispatch {
    has_bad_row: true,
    bounds: Bounds {
        failures: 0,
        ..AT_LEAST_ONCE.bounds
    },
    ..AT_LEAST_ONCE
};

/// Faults during the recovery from a fault.
const FAULTS: Dispatch = Dispatch {
    bounds: Bounds {
        changes: 0,
        faults: 2,
        failures: 1,
    },
    ..AT_LEAST_ONCE
};

/// A row that is deleted and inserted again, among others.
const CHANGES: Dispatch = Dispatch {
    bounds: Bounds {
        changes: 2,
        faults: 0,
        failures: 1,
    },
    ..AT_LEAST_ONCE
};

const AT_MOST_ONCE: Dispatch = Dispatch {
    mode: Mode::AtMostOnce,
    bounds: Bounds {
        changes: 2,
        faults: 2,
        failures: 1,
    },
    ..AT_LEAST_ONCE
};

#[test]
fn each_due_row_is_delivered_at_least_once() {
    check::explore("dispatch at least once", AT_LEAST_ONCE);
}

#[test]
fn changes_of_the_application_win() {
    check::explore("dispatch beside two changes", CHANGES);
}

#[test]
fn a_bad_row_fails_no_neighbour() {
    check::explore("dispatch of a bad row", BAD_ROW);
}

#[test]
fn each_fault_repeats_at_most_a_batch() {
    check::explore("dispatch beside two faults", FAULTS);
    let model = Dispatch { batch: 1, ..FAULTS };
    check::explore("dispatch beside two faults, row by row", model);
}

#[test]
fn the_clock_suffices_for_a_process_that_keeps_its_batch_over_a_stop() {
    for model in [AT_LEAST_ONCE, AT_MOST_ONCE] {
        let model = Dispatch {
            keeps_batch: true,
            ..model
        };
        check::explore("dispatch with batches kept", model);
    }
}

#[test]
fn no_row_is_sent_twice_at_most_once() {
    check::explore("dispatch at most once", AT_MOST_ONCE);
}

/// One test for each guard: without it the property does not hold.
macro_rules! guards {
    ($($name:ident: $guard:ident, $model:expr, $property:expr;)*) => {
        $(
            #[test]
            fn $name() {
                let model = Dispatch {
                    without: Some(Guard::$guard),
                    ..$model
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
    with_lock_and_match_in_one_statement: LockFirst, AT_LEAST_ONCE, FEW_REPETITIONS;
    without_comparing_the_due_moment: Compare, AT_LEAST_ONCE, THE_APPLICATION_WINS;
    without_a_session_timeout: SessionTimeout, AT_LEAST_ONCE, NO_ENDLESS_WAIT;
    without_an_end_of_sending: EndOfSending, AT_LEAST_ONCE, ONE_SENDER;
    with_an_age_from_the_answer: AgeFromSending, AT_LEAST_ONCE, ONE_SENDER;
    without_trying_skipped_rows_again: SkippedAgain, AT_LEAST_ONCE, FEW_REPETITIONS;
    with_retries_not_tied_to_the_due_moment: RetryTiedToDue, AT_LEAST_ONCE, ATTEMPTS;
    with_neighbours_sent_together: RetryAlone, BAD_ROW, NEIGHBOURS;
    with_failures_in_two_transactions: OneTransaction, BAD_ROW, NO_ROW_IS_LOST;
    without_moving_rows_before_sending: MoveBeforeSending, AT_MOST_ONCE, FEW_REPETITIONS;
    without_a_durable_commit: DurableCommit, AT_MOST_ONCE, FEW_REPETITIONS;
}
