//! Whose each document was, commit by commit, and whether somebody may still, or already, have seen it.
//!
//! A version is noted before its commit is sent and settled after the commit is acknowledged, so the time in which it was the
//! document is known from both sides. While it is open whether a commit happened, both versions count. No I/O, no clock.

use std::time::Duration;

use larder::clock::Boottime;

/// What a transaction makes of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// Unique among all versions of all documents; the document's text has it.
    pub(super) version: i64,
    /// `None`: nobody's.
    pub(super) owner: Option<i64>,
    /// It is there, and its condition is true.
    pub(super) is_visible: bool,
    pub(super) number: String,
}

/// One version of a document.
#[derive(Clone, Debug)]
struct Version {
    state: State,
    /// Before its commit was sent.
    began: Boottime,
    /// After the commit of the next version was acknowledged.
    ended: Option<Boottime>,
}

/// The versions of one document, in the order of their commits.
#[derive(Clone, Debug, Default)]
pub(super) struct History(Vec<Version>);

/// What a principal may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sees {
    All,
    /// What belongs to one owner; `None`: nothing.
    Own(Option<i64>),
}

/// The time of a request, up to its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) began: Boottime,
    pub(super) ended: Boottime,
    pub(super) max_staleness: Duration,
}

impl History {
    /// Notes what a transaction will make of the document.
    pub(super) fn note(&mut self, state: State, now: Boottime) {
        self.0.push(Version {
            state,
            began: now,
            ended: None,
        });
    }

    /// The transaction of `version` was committed, or not. One of which that is not known stays open.
    pub(super) fn settle(&mut self, version: i64, is_committed: bool, now: Boottime) {
        let Some(at) = self
            .0
            .iter()
            .rposition(|known| known.state.version == version)
        else {
            return;
        };
        if !is_committed {
            self.0.remove(at);
            return;
        }
        for earlier in &mut self.0[..at] {
            earlier.ended.get_or_insert(now);
        }
    }

    /// The document as the last transaction leaves it.
    pub(super) fn last(&self) -> Option<&State> {
        self.0.last().map(|version| &version.state)
    }

    /// The states that an answer to a request may show.
    pub(super) fn possible(&self, span: Span) -> impl Iterator<Item = &State> {
        let versions = self.0.iter().filter(move |version| {
            let is_over = version
                .ended
                .is_some_and(|ended| ended.after(span.max_staleness) < span.began);
            version.began <= span.ended && !is_over
        });
        versions.map(|version| &version.state)
    }

    /// How a reader sees the last versions.
    pub(super) fn shown(&self) -> String {
        let first = self.0.len().saturating_sub(6);
        let lines = self.0[first..]
            .iter()
            .map(|version| format!("  {version:?}\n"));
        lines.collect()
    }
}

impl State {
    pub(super) fn is_for(&self, sees: Sees) -> bool {
        self.is_visible
            && match sees {
                Sees::All => true,
                Sees::Own(owner) => owner.is_some() && self.owner == owner,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(version: i64, owner: i64) -> State {
        State {
            version,
            owner: Some(owner),
            is_visible: true,
            number: String::new(),
        }
    }

    fn owners(history: &History, began: u64, ended: u64) -> Vec<Option<i64>> {
        let span = Span {
            began: Boottime(began),
            ended: Boottime(ended),
            max_staleness: Duration::from_nanos(100),
        };
        history.possible(span).map(|state| state.owner).collect()
    }

    #[test]
    fn a_document_is_its_owners_from_before_the_commit_until_max_staleness_after_the_next() {
        let mut history = History::default();
        history.note(state(1, 7), Boottime(10));
        history.settle(1, true, Boottime(20));
        history.note(state(2, 8), Boottime(1_000));
        assert_eq!(owners(&history, 500, 999), [Some(7)]);
        assert_eq!(owners(&history, 500, 1_000), [Some(7), Some(8)]);
        history.settle(2, true, Boottime(1_020));
        assert_eq!(owners(&history, 1_120, 1_130), [Some(7), Some(8)]);
        assert_eq!(owners(&history, 1_121, 1_130), [Some(8)]);
    }

    #[test]
    fn what_was_rolled_back_is_gone_and_what_is_unknown_stays() {
        let mut history = History::default();
        history.note(state(1, 7), Boottime(10));
        history.settle(1, true, Boottime(20));
        history.note(state(2, 8), Boottime(30));
        history.settle(2, false, Boottime(40));
        assert_eq!(owners(&history, 2_000, 2_001), [Some(7)]);
        history.note(state(3, 9), Boottime(50));
        assert_eq!(owners(&history, 2_000, 2_001), [Some(7), Some(9)]);
        history.note(state(4, 6), Boottime(3_000));
        history.settle(4, true, Boottime(3_010));
        assert_eq!(owners(&history, 4_000, 4_001), [Some(6)]);
    }
}
