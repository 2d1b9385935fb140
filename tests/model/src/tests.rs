//! All states, with every guard in place and with each of them taken out.

use crate::properties::NO_STALE_ANSWER;
use crate::{Bounds, Guard, Protocol, Scene, check};

/// Joined loads and overtaken ones, in memory alone.
const MEMORY: Bounds = Bounds {
    commits: 2,
    requests: 2,
    loads: 2,
    puts: 0,
    disk: false,
    crashes: 0,
};

/// Both tiers.
const TIERS: Bounds = Bounds {
    loads: 1,
    puts: 1,
    disk: true,
    ..MEMORY
};

/// A crash, and what the disk tier kept over it.
const CRASH: Bounds = Bounds {
    requests: 1,
    crashes: 1,
    ..TIERS
};

/// One of each.
const SMALL: Bounds = Bounds {
    requests: 1,
    loads: 1,
    ..MEMORY
};

/// One of each, and the disk tier.
const DISK: Bounds = Bounds {
    puts: 1,
    disk: true,
    ..SMALL
};

/// A crash with nothing that is not needed.
const ONE_COMMIT: Bounds = Bounds {
    commits: 1,
    ..CRASH
};

/// Everything at once, and one commit.
const WIDE: Bounds = Bounds {
    commits: 1,
    loads: 2,
    crashes: 1,
    ..TIERS
};

/// Explores every state of the whole protocol.
fn explore(name: &str, scene: Scene, bounds: Bounds) {
    let protocol = Protocol {
        scene,
        bounds,
        normal: true,
        without: None,
    };
    check::explore(name, protocol);
}

/// Looks for a stale answer without the guard; panics where there is none.
fn find_counterexample(without: Guard, scene: Scene, bounds: Bounds) {
    let protocol = Protocol {
        scene,
        bounds,
        normal: false,
        without: Some(without),
    };
    check::find_counterexample(&format!("{without:?}"), protocol, NO_STALE_ANSWER);
}

#[test]
fn no_answer_is_stale_in_memory() {
    explore("memory", Scene::Edits, MEMORY);
}

#[test]
fn no_answer_is_stale_in_both_tiers() {
    explore("both tiers", Scene::Edits, TIERS);
}

#[test]
fn no_answer_is_stale_after_a_crash() {
    explore("crash", Scene::Edits, CRASH);
}

#[test]
fn no_answer_is_stale_while_a_parent_moves() {
    explore("movable parent", Scene::MovableParent, MEMORY);
}

#[test]
#[ignore = "takes minutes"]
fn no_answer_is_stale_in_all_at_once() {
    explore("all at once", Scene::Edits, WIDE);
}

/// One test for each guard: without it there is a stale answer.
macro_rules! guards {
    ($($name:ident: $guard:ident, $scene:ident, $bounds:expr;)*) => {
        $(
            #[test]
            fn $name() {
                find_counterexample(Guard::$guard, Scene::$scene, $bounds);
            }
        )*

        #[test]
        fn every_guard_has_a_test() {
            assert_eq!([$(Guard::$guard),*], Guard::ALL);
        }
    };
}

guards! {
    without_the_generation_check_at_install: GenerationAtInstall, Edits, SMALL;
    without_its_atomicity_with_the_installation: AtomicInstall, Edits, SMALL;
    without_raising_before_dropping: RaiseBeforeDrop, Edits, SMALL;
    without_the_generation_noted_before_the_read: GenerationBeforeRead, Edits, SMALL;
    without_the_put_check_in_the_writer: PutCheck, Edits, DISK;
    without_calling_clean_only_what_is_applied: CleanAfterApply, Edits, DISK;
    without_the_clean_check: CleanCheck, Edits, DISK;
    without_the_check_at_promotion: PromotionCheck, Edits, DISK;
    without_the_mark_behind_the_drop: MarkAfterDrop, Edits, ONE_COMMIT;
    without_the_generation_check_at_joining: JoinGeneration, Edits, MEMORY;
    without_the_age_check_at_joining: JoinAge, Edits, MEMORY;
    without_fresh_at_moved_at_the_end: FreshAtEnd, Edits, SMALL;
    without_fresh_at_from_the_start: FreshFromStart, Edits, SMALL;
    without_the_freshness_check: FreshCheck, Edits, SMALL;
    without_a_pass_before_what_a_crash_left: ResumeFirst, Edits, ONE_COMMIT;
    without_mapping_in_the_pass: MapInPass, MovableParent, SMALL;
}
