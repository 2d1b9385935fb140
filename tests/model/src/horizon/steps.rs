//! What can happen next, and what it does.

use super::{Action, Database, Deleting, Guard, Horizon, Set, Snapshot, State};

/// Sees nothing.
const NOTHING: Snapshot = Snapshot {
    xmax: 0,
    unfinished: 0,
};

fn below(number: u8) -> Set {
    (1 << number) - 1
}

impl Snapshot {
    fn new(xmax: u8, unfinished: Set) -> Self {
        Self {
            xmax,
            unfinished: unfinished & below(xmax),
        }
    }

    /// The transactions that it sees.
    pub fn seen(self) -> Set {
        below(self.xmax) & !self.unfinished
    }
}

impl Horizon {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    pub(super) fn begin(&self) -> State {
        let position = NOTHING;
        State {
            database: Database {
                begun: 0,
                committed: 0,
                rows: 0,
                horizon: NOTHING,
                pruned: NOTHING,
                deleting: None,
                node: position,
                other: None,
                left: self.bounds,
            },
            up: true,
            position,
            memory: None,
            disk: None,
            resumes: false,
            load: None,
            horizon_read: None,
            quiet: false,
            emptied_again: false,
            touched: false,
            emptied_for_nothing: false,
        }
    }

    pub(super) fn enabled(state: &State, actions: &mut Vec<Action>) {
        state.database.enabled(actions);
        if !state.up {
            return actions.push(Action::Start);
        }
        actions.push(Action::Pass);
        if state.load.is_some() {
            actions.push(Action::Install);
        } else if state.answer().is_none() {
            actions.push(Action::Load);
        }
        if state.memory.is_some() && state.disk.is_some() {
            actions.push(Action::Evict);
        }
        actions.push(Action::Heartbeat);
        if state.database.left.stops > 0 {
            actions.push(Action::Stop);
        }
    }

    pub(super) fn step(&self, state: &mut State, action: Action) {
        let database = &mut state.database;
        match action {
            Action::Begin => database.begun += 1,
            Action::Commit(number) => {
                database.committed |= 1 << number;
                database.rows |= 1 << number;
            }
            Action::Delete(number) => {
                database.left.deletions -= 1;
                state.touched = true;
                self.delete(database, number);
            }
            Action::Prune | Action::PruneOne => {
                database.left.prunes -= 1;
                // A node that is down may be one that was not seen within `retention`.
                let node = Some(database.node).filter(|_| state.up);
                state.touched |= !state.up;
                self.prune(database, node, action == Action::PruneOne);
            }
            Action::CommitDelete => {
                self.commit_delete(database);
                state.quiet = false;
            }
            Action::Pass => self.pass(state),
            Action::Load => state.load = Some(database.committed),
            Action::Install => {
                state.memory = state.load.take();
                // A disk tier that larder has yet to come back to takes nothing.
                if !state.resumes {
                    state.disk = state.memory;
                }
            }
            Action::Evict => state.memory = None,
            // What is written is the position that the disk tier would come back to.
            Action::Heartbeat => database.node = state.position,
            Action::OtherHeartbeat => {
                database.left.others -= 1;
                database.other = Some(database.snapshot());
            }
            Action::Stop => {
                database.left.stops -= 1;
                state.up = false;
                state.memory = None;
                state.load = None;
                state.horizon_read = None;
                state.resumes = true;
            }
            Action::Start => state.up = true,
        }
    }

    /// Whether the position sees all that the horizon sees.
    fn is_valid(&self, position: Snapshot, horizon: Snapshot) -> bool {
        let bounds = !self.has(Guard::CompareBounds) || horizon.xmax <= position.xmax;
        let unfinished =
            !self.has(Guard::CompareUnfinished) || position.unfinished & horizon.seen() == 0;
        bounds && unfinished
    }

    fn delete(&self, database: &mut Database, number: u8) {
        let row = 1 << number;
        let was = database.horizon;
        let mut deleting = Deleting {
            rows: row,
            horizon: was,
            pruned: database.pruned,
            deleted: false,
        };
        if was.seen() & row == 0 && self.has(Guard::TriggerMoves) {
            let now = database.snapshot();
            let unfinished = (was.unfinished | now.unfinished) & !was.seen() & !now.seen();
            let left_out = self.has(Guard::TriggerLeavesUnfinished);
            let unfinished = if left_out { unfinished } else { 0 };
            deleting.horizon = Snapshot::new(was.xmax.max(now.xmax), unfinished);
            deleting.pruned = NOTHING;
        }
        database.deleting = Some(deleting);
    }

    fn prune(&self, database: &mut Database, node: Option<Snapshot>, one: bool) {
        let counts = |position: &Snapshot| {
            !self.has(Guard::OnlyUpwards) || self.is_valid(*position, database.horizon)
        };
        let bounds = [node, database.other];
        let bounds = bounds.into_iter().flatten().filter(counts);
        let bounds = bounds.filter(|_| self.has(Guard::PruneBounded));
        let mut common = database.snapshot();
        for position in bounds {
            let unfinished = if self.has(Guard::UnfinishedOfAll) {
                common.unfinished | position.unfinished
            } else if position.xmax < common.xmax {
                position.unfinished
            } else {
                common.unfinished
            };
            common = Snapshot::new(common.xmax.min(position.xmax), unfinished);
        }
        let was = database.pruned;
        let mut rows = database.rows & common.seen() & !was.seen();
        if rows == 0 {
            return;
        }
        let mut reached = common.xmax;
        if one {
            rows &= rows.wrapping_neg();
            reached = u8::try_from(rows.trailing_zeros()).unwrap_or(reached);
        }
        let unfinished =
            (was.unfinished | common.unfinished) & !was.seen() & !(below(reached) & common.seen());
        let left_out = self.has(Guard::MarkLeavesUnfinished);
        let unfinished = if left_out { unfinished } else { 0 };
        database.deleting = Some(Deleting {
            rows,
            horizon: common,
            pruned: Snapshot::new(was.xmax.max(reached), unfinished),
            deleted: false,
        });
    }

    fn commit_delete(&self, database: &mut Database) {
        let Some(mut deleting) = database.deleting.take() else {
            return;
        };
        database.rows &= !deleting.rows;
        if self.has(Guard::SameTransaction) || deleting.deleted {
            database.horizon = deleting.horizon;
            database.pruned = deleting.pruned;
        } else {
            deleting.deleted = true;
            database.deleting = Some(deleting);
        }
    }

    fn pass(&self, state: &mut State) {
        if !self.has(Guard::OneSnapshot) && state.horizon_read.is_none() {
            state.horizon_read = Some(state.database.horizon);
            return;
        }
        let database = &state.database;
        let horizon = state.horizon_read.take().unwrap_or(database.horizon);
        let checked = if state.resumes {
            self.has(Guard::CheckAtResume)
        } else {
            self.has(Guard::CheckAtPass)
        };
        let invalid = checked && !self.is_valid(state.position, horizon);
        let changed = database.rows & !state.position.seen() != 0;
        state.position = database.snapshot();
        if changed || invalid {
            state.memory = None;
            state.disk = None;
            state.load = None;
        }
        if invalid {
            state.emptied_again |= state.quiet;
            state.emptied_for_nothing |= !state.touched;
            state.quiet = true;
        }
        state.resumes = false;
    }
}

impl Database {
    fn snapshot(&self) -> Snapshot {
        let ended = Set::BITS - self.committed.leading_zeros();
        let xmax = u8::try_from(ended).unwrap_or(0);
        Snapshot::new(xmax, !self.committed)
    }

    fn enabled(&self, actions: &mut Vec<Action>) {
        if self.begun < self.left.transactions {
            actions.push(Action::Begin);
        }
        for number in 0..self.begun {
            if self.committed & (1 << number) == 0 {
                actions.push(Action::Commit(number));
            }
        }
        if self.deleting.is_some() {
            return actions.push(Action::CommitDelete);
        }
        if self.left.deletions > 0 {
            let rows = (0..self.begun).filter(|number| self.rows & (1 << *number) != 0);
            actions.extend(rows.map(Action::Delete));
        }
        if self.left.prunes > 0 {
            actions.extend([Action::Prune, Action::PruneOne]);
        }
        if self.left.others > 0 {
            actions.push(Action::OtherHeartbeat);
        }
    }
}
