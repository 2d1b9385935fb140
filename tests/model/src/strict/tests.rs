//! All states, with every guard in place and with each of them taken out.

use super::{Guard, NO_STALE_ANSWER, Strict};
use crate::check;

#[test]
fn no_strict_answer_is_stale() {
    check::explore("strict reads", Strict { without: None });
}

#[test]
fn without_each_guard_a_strict_answer_is_stale() {
    for guard in Guard::ALL {
        let model = Strict {
            without: Some(guard),
        };
        check::find_counterexample(&format!("{guard:?}"), model, NO_STALE_ANSWER);
    }
}
