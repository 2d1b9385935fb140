//! What can happen next, and what it does.

use super::{Action, Database, Deleting, Form, Guard, Horizon, Set, Snapshot, State};

impl Horizon {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    pub(super) fn begin(&self) -> State {
        let position = Snapshot { seen: 0, below: 0 };
        State {
            database: Database {
                begun: 0,
                committed: 0,
                rows: 0,
                horizon: 0,
                deleting: None,
                node: position,
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
            Action::Prune => {
                database.left.prunes -= 1;
                // A node that is down may be one that was not seen within `retention`.
                let bounded = state.up && self.has(Guard::PruneBounded);
                state.touched |= !state.up;
                self.prune(database, bounded);
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

    /// Whether the position is past the horizon.
    fn is_valid(&self, position: Snapshot, horizon: Set) -> bool {
        let past = match self.form {
            Form::Number => position.below,
            Form::Snapshot => position.seen,
        };
        horizon & !past == 0
    }

    fn delete(&self, database: &mut Database, number: u8) {
        let row = 1 << number;
        let covered = database.horizon & row != 0 || !self.has(Guard::TriggerMoves);
        let past = match self.form {
            Form::Number => (row << 1) - 1,
            Form::Snapshot => database.committed,
        };
        database.deleting = Some(Deleting {
            rows: row,
            covers: if covered { 0 } else { past },
            deleted: false,
        });
    }

    fn prune(&self, database: &mut Database, bounded: bool) {
        let oldest = if bounded {
            database.node
        } else {
            database.snapshot()
        };
        let covers = match self.form {
            Form::Number => oldest.below,
            Form::Snapshot => oldest.seen,
        };
        database.deleting = Some(Deleting {
            rows: database.rows & (covers | database.horizon),
            covers,
            deleted: false,
        });
    }

    fn commit_delete(&self, database: &mut Database) {
        let Some(mut deleting) = database.deleting.take() else {
            return;
        };
        database.rows &= !deleting.rows;
        if self.has(Guard::SameTransaction) || deleting.deleted {
            database.horizon |= deleting.covers;
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
        let changed = database.rows & !state.position.seen != 0;
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
        let running = |number: &u8| self.committed & (1 << *number) == 0;
        let oldest = (0..self.begun).find(running).unwrap_or(self.begun);
        Snapshot {
            seen: self.committed,
            below: (1 << oldest) - 1,
        }
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
            actions.push(Action::Prune);
        }
    }
}
