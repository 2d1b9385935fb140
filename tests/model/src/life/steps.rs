//! What can happen next, and what it does.

use super::{Action, Connection, Data, File, Guard, Life, Load, Mark, Sending, State};
use crate::Few;

impl Life {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    pub(super) fn begin() -> State {
        State {
            data: Data {
                history: Few::from_slice(&[0]),
                mark: 0,
            },
            copy: None,
            run: 0,
            commits: 0,
            put_back: 0,
            crashes: 0,
            file: File {
                acknowledged: 0,
                next: None,
            },
            connection: None,
            memory: None,
            disk: None,
            resumes: false,
            position: None,
            load: None,
            emptied_for_nothing: false,
        }
    }

    pub(super) fn enabled(&self, state: &State, actions: &mut Vec<Action>) {
        if state.commits < self.bounds.commits {
            actions.push(Action::Commit);
        }
        if state.run < self.bounds.restarts {
            actions.push(Action::Restart);
            if state.copy.is_none() {
                actions.push(Action::Copy);
            } else if state.put_back < self.bounds.copies {
                actions.push(Action::PutBack);
            }
        }
        if state.crashes < self.bounds.crashes {
            actions.push(Action::Crash);
        }
        match &state.connection {
            None => actions.push(Action::Connect),
            Some(connection) => {
                actions.push(Action::Lose);
                self.feed_actions(state, connection, actions);
            }
        }
        if state.load.is_some() {
            actions.push(Action::Store);
        } else if state.answer().is_none() {
            actions.push(Action::Load);
        }
        if state.memory.is_some() && state.disk.is_some() {
            actions.push(Action::Evict);
        }
    }

    fn feed_actions(&self, state: &State, connection: &Connection, actions: &mut Vec<Action>) {
        if let Sending::Committed(_) = connection.sending {
            // It may be on its way since before the run ended.
            actions.push(Action::Acknowledge);
        }
        if connection.run != state.run {
            return;
        }
        if !connection.compared {
            return actions.push(Action::Compare);
        }
        match connection.sending {
            Sending::Nothing if !connection.acknowledged || self.heartbeats => {
                actions.push(Action::Draw);
            }
            Sending::Drawn(_) => actions.push(Action::Send),
            Sending::Sent(_) => actions.push(Action::CommitMark),
            Sending::Nothing | Sending::Committed(_) => {}
        }
        let may_pass = connection.acknowledged || !self.has(Guard::PassAfterAcknowledgement);
        let behind = state.position != Some(state.covered());
        if may_pass && (behind || state.resumes || !connection.passed) {
            actions.push(Action::Pass);
        }
    }

    pub(super) fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Commit => {
                state.commits += 1;
                state.data.history.push(state.commits);
            }
            Action::Restart => state.run += 1,
            Action::Copy => {
                state.copy = Some(state.data.clone());
                state.run += 1;
            }
            Action::PutBack => {
                if let Some(copy) = &state.copy {
                    state.data = copy.clone();
                }
                state.put_back += 1;
                state.run += 1;
            }
            Action::Crash => {
                state.crashes += 1;
                state.connection = None;
                state.memory = None;
                state.load = None;
                state.resumes = true;
            }
            Action::Lose => state.connection = None,
            Action::Pass => state.pass(),
            Action::Load => {
                state.load = state.data.history.last().map(|content| Load {
                    run: state.run,
                    content: *content,
                });
            }
            Action::Store => self.store(state),
            Action::Evict => state.memory = None,
            Action::Connect
            | Action::Compare
            | Action::Draw
            | Action::Send
            | Action::CommitMark
            | Action::Acknowledge => self.step_feed(state, action),
        }
        state.forget();
    }

    fn step_feed(&self, state: &mut State, action: Action) {
        let Some(mut connection) = state.connection else {
            state.connection = Some(Connection {
                run: state.run,
                compared: false,
                acknowledged: false,
                passed: false,
                sending: Sending::Nothing,
            });
            return;
        };
        match (action, connection.sending) {
            (Action::Compare, _) => {
                self.compare(state);
                connection.compared = true;
                connection.acknowledged = !self.has(Guard::NewMarkOnConnection);
            }
            (Action::Draw, _) => {
                let mark = state.unused_mark();
                if self.has(Guard::NextStoredFirst) {
                    state.store_next(mark, self.has(Guard::AcknowledgedInFile));
                }
                connection.sending = Sending::Drawn(mark);
            }
            (Action::Send, Sending::Drawn(mark)) => connection.sending = Sending::Sent(mark),
            (Action::CommitMark, Sending::Sent(mark)) => {
                state.data.mark = mark;
                connection.sending = Sending::Committed(mark);
            }
            (Action::Acknowledge, Sending::Committed(mark)) => {
                if self.has(Guard::AcknowledgedInFile) {
                    state.file = File {
                        acknowledged: mark,
                        next: None,
                    };
                }
                connection.acknowledged = true;
                connection.sending = Sending::Nothing;
            }
            _ => {}
        }
        state.connection = Some(connection);
    }

    /// Compares the database's mark with the file's.
    fn compare(&self, state: &mut State) {
        let mark = state.data.mark;
        let is_next = state.file.next == Some(mark) && self.has(Guard::NextCounts);
        let known = state.file.acknowledged == mark || is_next;
        let compares = if state.resumes {
            self.has(Guard::CompareAtResume)
        } else {
            self.has(Guard::CompareAtReconnection)
        };
        if !known && compares {
            state.emptied_for_nothing = state.put_back == 0;
            state.empty();
        }
        if !known || (is_next && self.has(Guard::NextAdopted)) {
            state.file = File {
                acknowledged: mark,
                next: None,
            };
        }
    }

    fn store(&self, state: &mut State) {
        let Some(load) = state.load.take() else {
            return;
        };
        let may = match &state.connection {
            None => !self.has(Guard::LoadAfterAcknowledgement),
            Some(connection) => {
                let acknowledged =
                    connection.acknowledged || !self.has(Guard::LoadAfterAcknowledgement);
                let same_run = connection.run == load.run || !self.has(Guard::SameRun);
                acknowledged && same_run
            }
        };
        if may {
            state.memory = Some(load.content);
            // A disk tier that larder has yet to come back to takes nothing.
            if !state.resumes {
                state.disk = Some(load.content);
            }
        }
    }
}

impl State {
    /// Transactions that a snapshot taken now sees.
    fn covered(&self) -> u8 {
        // As many as commits, and the first state.
        self.data.history.len() as u8
    }

    /// Stores the mark as the next one; without a guard it is only now that the last one is stored as acknowledged.
    fn store_next(&mut self, mark: Mark, acknowledged_in_file: bool) {
        if !acknowledged_in_file && self.file.next == Some(self.data.mark) {
            self.file.acknowledged = self.data.mark;
        }
        self.file.next = Some(mark);
    }

    fn empty(&mut self) {
        self.memory = None;
        self.disk = None;
        self.load = None;
        self.position = None;
        self.resumes = false;
    }

    fn pass(&mut self) {
        let now = self.covered();
        match self.position {
            Some(position) if position == now => {}
            Some(position) if position < now => {
                self.memory = None;
                self.disk = None;
                self.load = None;
            }
            // It is ahead of the database, or there is none.
            Some(_) | None => self.empty(),
        }
        self.position = Some(now);
        self.resumes = false;
        if let Some(connection) = &mut self.connection {
            connection.passed = true;
        }
    }

    /// A mark that is stored nowhere.
    fn unused_mark(&self) -> Mark {
        let copied = self.copy.as_ref().map(|copy| copy.mark);
        let known = [
            Some(self.data.mark),
            copied,
            Some(self.file.acknowledged),
            self.file.next,
        ];
        // Of five marks at most four are known.
        (0..=4)
            .find(|mark| !known.contains(&Some(*mark)))
            .unwrap_or(5)
    }

    /// Forgets what nothing to come asks for.
    fn forget(&mut self) {
        if self.disk.is_none() && self.resumes {
            // The position alone says nothing about an empty tier, but a pass would begin there.
            self.resumes = false;
            self.position = None;
        }
    }
}
