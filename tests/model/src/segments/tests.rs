//! All states, with every guard in place and with each of them taken out.

use super::{Guard, NO_STALE_ANSWER, Segments};
use crate::check;

const WHOLE: Segments = Segments {
    commits: 2,
    begun: 3,
    crashes: 2,
    purges: 1,
    deleted: 0,
    without: None,
};

#[test]
fn no_answer_is_stale_over_crashes() {
    check::explore("segments", WHOLE);
}

#[test]
fn no_answer_is_stale_without_a_segment() {
    let model = Segments {
        purges: 0,
        deleted: 1,
        ..WHOLE
    };
    check::explore("segments, one of which is deleted", model);
}

/// One test for each guard: without it there is a stale answer.
macro_rules! guards {
    ($($name:ident: $guard:ident;)*) => {
        $(
            #[test]
            fn $name() {
                let model = Segments {
                    deleted: u8::from(Guard::$guard == Guard::NoGaps),
                    without: Some(Guard::$guard),
                    ..WHOLE
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
    without_the_flush_before_the_next_segment: FlushBeforeNext;
    without_the_stored_mark_in_the_next_segment: StoredMarkInNext;
    without_removals_in_the_youngest_segment: RemovalInYoungest;
    without_the_youngest_deciding: YoungestCounts;
    without_the_check_for_gaps: NoGaps;
    without_the_flush_of_a_purge: FlushOfPurge;
    without_the_index_before_drops: IndexBeforeDrops;
}
