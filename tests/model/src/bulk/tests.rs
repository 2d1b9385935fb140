//! All states, with every guard in place and with each of them taken out.

use super::{Bulk, Guard, NO_STALE_ANSWER};
use crate::check;

#[test]
fn no_answer_is_stale_beside_statements_of_many_keys() {
    let model = Bulk {
        commits: 3,
        crashes: 1,
        without: None,
    };
    check::explore("bulk", model);
}

/// One test for each guard: without it there is a stale answer.
macro_rules! guards {
    ($($name:ident: $guard:ident;)*) => {
        $(
            #[test]
            fn $name() {
                let model = Bulk {
                    commits: 3,
                    crashes: 1,
                    without: Some(Guard::$guard),
                };
                check::breaks(stringify!($guard), model, NO_STALE_ANSWER);
            }
        )*

        #[test]
        fn every_guard_has_a_test() {
            assert_eq!([$(Guard::$guard),*], Guard::ALL);
        }
    };
}

guards! {
    without_renewing_the_epoch_of_absences: RenewAbsences;
    without_that_epoch_at_install: AbsencesAtInstall;
    without_that_epoch_at_joining: AbsencesAtJoining;
    without_that_epoch_on_disk: AbsencesOnDisk;
    without_the_mark_behind_the_renewal: MarkAfterRenewal;
    without_raising_all_generations: RaiseAll;
    without_raising_before_sweeping: RaiseBeforeSweep;
    without_the_order_of_sweeps: SweepInOrder;
    without_the_clean_check: CleanCheck;
    without_unique_roots: UniqueRoots;
}
