//! All states, with every guard in place and with each of them taken out.

use super::{Bounds, Definition, Fingerprints, Guard, NO_STALE_ANSWER};
use crate::check;

/// A trigger that is disabled while others write.
const DISABLE: Bounds = Bounds {
    logged: 0,
    disables: 1,
    unlogged: 1,
    withins: 0,
    renames: 0,
    spurious: 1,
};

/// A trigger that is disabled for one's own write.
const WITHIN: Bounds = Bounds {
    disables: 0,
    unlogged: 0,
    withins: 1,
    ..DISABLE
};

/// A value of an enum that is renamed.
const RENAME: Bounds = Bounds {
    disables: 0,
    unlogged: 0,
    renames: 1,
    ..DISABLE
};

/// The first two, one behind the other.
const BOTH: Bounds = Bounds {
    withins: 1,
    ..DISABLE
};

fn explore(name: &str, fingerprints: Fingerprints, bounds: Bounds) {
    let model = Definition {
        bounds,
        fingerprints,
        without: None,
    };
    check::explore(name, model);
}

#[test]
fn no_answer_is_stale_while_others_disable_the_trigger() {
    let bounds = Bounds {
        logged: 1,
        ..DISABLE
    };
    explore("trigger disabled", Fingerprints::WithRows, bounds);
}

#[test]
fn no_answer_is_stale_while_a_writer_disables_the_trigger() {
    let bounds = Bounds {
        logged: 1,
        ..WITHIN
    };
    explore("trigger disabled within", Fingerprints::WithRows, bounds);
}

#[test]
fn no_answer_is_stale_while_a_value_is_renamed() {
    explore("value renamed", Fingerprints::WithRows, RENAME);
}

#[test]
fn no_answer_is_stale_while_both_happen() {
    explore("both", Fingerprints::WithRows, BOTH);
}

#[test]
fn fingerprints_in_a_later_statement_do_as_well() {
    explore("both, fingerprints later", Fingerprints::Later, BOTH);
}

#[test]
fn fingerprints_in_an_earlier_statement_do_not() {
    let model = Definition {
        bounds: DISABLE,
        fingerprints: Fingerprints::Earlier,
        without: None,
    };
    check::find_counterexample("fingerprints as new as rows", model, NO_STALE_ANSWER);
}

/// One test for each guard: without it there is a stale answer.
macro_rules! guards {
    ($($name:ident: $guard:ident, $bounds:expr;)*) => {
        $(
            #[test]
            fn $name() {
                let model = Definition {
                    bounds: $bounds,
                    fingerprints: Fingerprints::WithRows,
                    without: Some(Guard::$guard),
                };
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
    without_rows_before_the_mark: RowsBeforeMark, DISABLE;
    without_a_transaction_of_its_own_for_the_mark: MarkInAnotherTransaction, DISABLE;
    without_stopping_at_a_changed_mark: ChangedMarkStops, DISABLE;
    without_the_mark_before_its_fingerprints: MarkBeforeFingerprints, DISABLE;
    without_fingerprints_in_judged_passes: Fingerprints, WITHIN;
    without_fresh_at_from_judged_passes_only: FreshFromJudged, WITHIN;
    without_messages_before_trust: MessagesBeforeTrust, RENAME;
}
