//! All states, with every guard in place and with each of them taken out.

use super::{Bulk, Guard, NO_STALE_ANSWER};
use crate::check;

#[test]
fn no_answer_is_stale_beside_statements_of_many_keys() {
    let model = Bulk {
        commits: 3,
        crashes: 1,
        breaks: 0,
        purges: 0,
        without: None,
    };
    check::explore("bulk", model);
}

/// The disk tier may break before a crash, while it resumes, and behind that.
#[test]
fn no_answer_is_stale_beside_a_disk_tier_that_breaks() {
    let model = Bulk {
        commits: 2,
        crashes: 1,
        breaks: 1,
        purges: 1,
        without: None,
    };
    check::explore("bulk beside a disk tier that breaks", model);
}

/// One test for each guard: without it there is a stale answer.
macro_rules! guards {
    ($($name:ident: $guard:ident;)*) => {
        $(
            #[test]
            fn $name() {
                let model = Bulk {
                    commits: 2,
                    crashes: 1,
                    breaks: u8::from(Guard::$guard == Guard::EmptyAfterBreak),
                    purges: u8::from(Guard::$guard == Guard::PurgeBetweenPasses),
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
    without_renewing_the_epoch_of_absences: RenewAbsences;
    without_that_epoch_at_install: AbsencesAtInstall;
    without_that_epoch_at_joining: AbsencesAtJoining;
    without_that_epoch_on_disk: AbsencesOnDisk;
    without_the_mark_behind_the_renewal: MarkAfterRenewal;
    without_raising_all_generations: RaiseAll;
    without_raising_before_sweeping: RaiseBeforeSweep;
    without_sweeps_before_keys: SweepsBeforeKeys;
    without_purges_between_passes: PurgeBetweenPasses;
    without_the_order_of_sweeps: SweepInOrder;
    without_the_version_at_writing: VersionAtWriting;
    without_the_drops_before_enabling: EnableBehindDrops;
    without_beginning_anew_empty: EmptyAfterBreak;
    without_the_clean_check: CleanCheck;
    without_unique_roots: UniqueRoots;
}
