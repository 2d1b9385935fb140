//! What can happen next, and what it does.

use super::{
    Action, Batch, Change, Dispatch, Element, Guard, Mode, Moment, Phase, Retry, Row, Rows,
    Standing, State, Step, Worker,
};

/// Times that a row is sent at least once, before it becomes a dead letter.
const ATTEMPTS_MAX: u8 = 2;

/// The rows of the set, in their order.
fn each(rows: Rows) -> impl Iterator<Item = usize> {
    (0..2).filter(move |row| rows & (1 << *row) != 0)
}

impl Dispatch {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    /// Whether a match moves rows.
    fn moves_first(&self) -> bool {
        self.mode == Mode::AtMostOnce && self.has(Guard::MoveBeforeSending)
    }

    /// Whether a match finds the row; an update skips it where it is locked.
    fn is_matched(&self, state: &State, row: usize) -> bool {
        let is_skipped = self.moves_first() && state.locked == Some(row);
        state.rows[row].standing == Standing::Due && !is_skipped
    }

    fn finds_rows(&self, state: &State) -> bool {
        self.is_matched(state, 0) || self.is_matched(state, 1)
    }

    /// What happens some time without a fault, a signal or the application.
    pub(super) fn enable_progress(&self, state: &State, actions: &mut Vec<Action>) {
        for (worker, it) in state.workers.iter().enumerate() {
            let holds = state.holder == Some(worker);
            if holds && (it.is_stopped || it.is_cut) && self.has(Guard::SessionTimeout) {
                actions.push(Action::TimeOut(worker));
            }
            if it.is_stopped {
                continue;
            }
            if it.believes() && !holds {
                actions.push(Action::Notice(worker));
            }
            let may_lock = state.holder.is_none() || !self.has(Guard::LockFirst);
            match it.phase {
                Phase::Idle if may_lock && self.finds_rows(state) => {
                    actions.push(Action::Lock(worker));
                }
                Phase::Snapshot(_) if state.holder.is_none() => {
                    actions.push(Action::Match(worker));
                }
                Phase::Idle | Phase::Snapshot(_) => {}
                Phase::Matched => actions.push(Action::Read(worker)),
                Phase::Locked => {
                    self.enable_requests(state, worker, actions);
                    if holds {
                        self.enable_statements(state, worker, actions);
                    }
                }
            }
        }
    }

    fn enable_requests(&self, state: &State, worker: usize, actions: &mut Vec<Action>) {
        let it = &state.workers[worker];
        let may_send = !it.is_old || !self.has(Guard::EndOfSending);
        for rows in 1..=3 {
            let is_refused = self.has_bad_row && rows & 1 != 0;
            let mut elements = each(rows).filter_map(|row| it.batch[row]);
            if elements.any(|element| element.step == Step::InFlight(rows)) {
                let least = Rows::from(is_refused);
                actions.push(Action::Receive(worker, rows, least));
                if rows != least && (is_refused || state.left.failures > 0) {
                    actions.push(Action::Receive(worker, rows, rows));
                }
            } else if may_send && self.is_request(&it.batch, rows) {
                actions.push(Action::Send(worker, rows));
            }
        }
    }

    /// Whether these rows may be sent in one request.
    fn is_request(&self, batch: &Batch, rows: Rows) -> bool {
        let is_alone = rows != 3 || !self.has(Guard::RetryAlone);
        let fits =
            |element: Element| element.step == Step::Unsent && (is_alone || element.attempt == 1);
        each(rows).all(|row| batch[row].is_some_and(fits))
    }

    fn enable_statements(&self, state: &State, worker: usize, actions: &mut Vec<Action>) {
        let batch = &state.workers[worker].batch;
        let is_done = *batch == Batch::default();
        let may_write = |row: &usize| batch[*row].is_some_and(|element| element.is_answered());
        let is_locked = |row: &usize| state.locked == Some(*row);
        let writes = (0..2).filter(|row| may_write(row) && !is_locked(row));
        actions.extend(writes.map(|row| Action::Write(worker, row)));
        let leaves = |row: usize| batch[row].is_none() || may_write(&row) && is_locked(&row);
        if is_done && self.finds_rows(state) {
            actions.push(Action::Match(worker));
        } else if is_done || !self.has(Guard::SkippedAgain) && (0..2).all(leaves) {
            actions.push(Action::Leave(worker));
        }
    }

    pub(super) fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Notice(worker) => state.workers[worker] = Worker::default(),
            Action::Lock(worker) if self.has(Guard::LockFirst) => {
                state.holder = Some(worker);
                state.workers[worker].phase = Phase::Locked;
            }
            Action::Lock(worker) => {
                state.workers[worker].phase = Phase::Snapshot(state.rows);
            }
            Action::Match(worker) => self.match_rows(state, worker),
            Action::Read(worker) => {
                let it = &mut state.workers[worker];
                it.phase = Phase::Locked;
                it.is_old &= self.has(Guard::AgeFromSending);
            }
            Action::Send(worker, rows) => state.send(worker, rows),
            Action::Receive(worker, rows, failed) => self.receive(state, worker, rows, failed),
            Action::Write(worker, row) => self.write(state, worker, row),
            Action::Leave(worker) => {
                state.holder = None;
                state.workers[worker] = Worker::default();
            }
            Action::TimeOut(worker) => {
                state.holder = None;
                state.workers[worker].is_old = true;
            }
            Action::Continue(worker) => {
                let it = &mut state.workers[worker];
                it.is_stopped = false;
                if !self.keeps_batch {
                    (it.phase, it.batch) = (Phase::Locked, Batch::default());
                }
            }
            Action::Kill(_) | Action::Stop(_) | Action::Cut(_) | Action::Restart => {
                state.left.faults -= 1;
                state.fail(action);
            }
            Action::LockRow(row) => {
                state.left.changes -= 1;
                state.locked = Some(row);
            }
            Action::Commit(change) => state.commit(change),
        }
    }

    /// Matches due rows; at most once, moves them.
    fn match_rows(&self, state: &mut State, worker: usize) {
        let mut seen = *state;
        if let Phase::Snapshot(rows) = state.workers[worker].phase {
            seen.rows = rows;
        }
        let due = (0..2).filter(|row| self.is_matched(&seen, *row));
        for row in due.take(usize::from(self.batch)) {
            let mut element = self.element(&seen.rows[row]);
            let history = &state.histories[row];
            state.is_confused |= element.first_due != history.origin;
            state.is_confused |= element.attempt != history.failures + 1;
            if self.moves_first() {
                element.due = state.set_due(row, Standing::Later);
                state.histories[row].is_volatile = !self.has(Guard::DurableCommit);
            }
            state.workers[worker].batch[row] = Some(element);
        }
        state.workers[worker].phase = Phase::Matched;
        state.holder = Some(worker);
    }

    fn element(&self, row: &Row) -> Element {
        let counts = |retry: &Retry| retry.due == row.due || !self.has(Guard::RetryTiedToDue);
        let retry = row.retry.filter(counts);
        Element {
            due: row.due,
            first_due: retry.map_or(row.due, |retry| retry.first_due),
            attempt: retry.map_or(1, |retry| retry.attempts + 1),
            step: Step::Unsent,
        }
    }

    fn receive(&self, state: &mut State, worker: usize, rows: Rows, failed: Rows) {
        let is_refused = self.has_bad_row && rows & 1 != 0;
        state.left.failures -= u8::from(failed != 0 && !is_refused);
        for row in each(rows) {
            let Some(mut element) = state.workers[worker].batch[row].take() else {
                continue;
            };
            let has_failed = failed & (1 << row) != 0;
            element.step = if has_failed {
                Step::Failed
            } else {
                state.settle(row, &element);
                Step::Acknowledged
            };
            // Only a failure is to be written where the row has been moved.
            if has_failed || !self.moves_first() {
                state.workers[worker].batch[row] = Some(element);
            }
        }
    }

    /// Moves a row that has its response, and writes its failure or its dead letter.
    fn write(&self, state: &mut State, worker: usize, row: usize) {
        let Some(mut element) = state.workers[worker].batch[row].take() else {
            return;
        };
        if self.moves_first() {
            return state.bury(row, &element);
        }
        let stands = state.rows[row].due == element.due;
        let is_deleted = state.rows[row].standing == Standing::Deleted;
        if is_deleted || !stands && self.has(Guard::Compare) {
            return;
        }
        state.is_overwritten |= !stands;
        let has_failed = element.step == Step::Failed;
        let is_last = self.mode == Mode::AtMostOnce || element.attempt == ATTEMPTS_MAX;
        if element.step != Step::Moved {
            let standing = if has_failed && !is_last {
                Standing::Due
            } else {
                Standing::Later
            };
            element.due = state.set_due(row, standing);
            state.histories[row].failures += u8::from(has_failed);
        }
        if has_failed && !self.has(Guard::OneTransaction) {
            element.step = Step::Moved;
            state.workers[worker].batch[row] = Some(element);
        } else if element.step == Step::Acknowledged {
            state.rows[row].retry = None;
        } else if is_last {
            state.bury(row, &element);
        } else {
            state.rows[row].retry = Some(Retry {
                due: element.due,
                first_due: element.first_due,
                attempts: element.attempt,
            });
        }
    }
}

impl Worker {
    /// Whether it believes to hold the slot.
    fn believes(&self) -> bool {
        matches!(self.phase, Phase::Matched | Phase::Locked)
    }
}

impl Element {
    fn is_answered(&self) -> bool {
        !matches!(self.step, Step::Unsent | Step::InFlight(_))
    }
}

impl State {
    /// What may happen besides.
    pub(super) fn enable_chances(&self, actions: &mut Vec<Action>) {
        for (worker, it) in self.workers.iter().enumerate() {
            if it.is_stopped {
                actions.push(Action::Continue(worker));
            }
            // What befalls a worker without a slot changes nothing.
            if self.left.faults > 0 && it.believes() {
                actions.push(Action::Kill(worker));
                if !it.is_stopped {
                    actions.push(Action::Stop(worker));
                }
                if !it.is_cut {
                    actions.push(Action::Cut(worker));
                }
            }
        }
        if self.left.faults > 0 {
            actions.push(Action::Restart);
        }
        match self.locked {
            Some(row) => {
                actions.push(Action::Commit(Change::Move));
                if self.rows[row].standing != Standing::Deleted {
                    let changes = [Change::Postpone, Change::Delete, Change::Other];
                    actions.extend(changes.map(Action::Commit));
                }
            }
            None if self.left.changes > 0 => actions.extend([0, 1].map(Action::LockRow)),
            None => {}
        }
    }

    /// Writes a new due moment.
    fn set_due(&mut self, row: usize, standing: Standing) -> Moment {
        self.histories[row].last += 1;
        let due = self.histories[row].last;
        (self.rows[row].due, self.rows[row].standing) = (due, standing);
        due
    }

    /// Nothing more is owed for the element.
    fn settle(&mut self, row: usize, element: &Element) {
        let history = &mut self.histories[row];
        history.is_settled |= history.origin == element.first_due;
    }

    /// Writes a dead letter.
    fn bury(&mut self, row: usize, element: &Element) {
        self.settle(row, element);
        self.histories[row].is_dead = true;
        self.rows[row].retry = None;
    }

    fn send(&mut self, worker: usize, rows: Rows) {
        let it = &mut self.workers[worker];
        let is_taken_over = self.holder.is_some_and(|holder| holder != worker);
        self.has_two_senders |= is_taken_over && !it.is_severed;
        for row in each(rows) {
            let Some(element) = &mut it.batch[row] else {
                continue;
            };
            element.step = Step::InFlight(rows);
            let bit: u32 = 1 << (element.first_due * ATTEMPTS_MAX + element.attempt - 1);
            let sent = &mut self.histories[row].sent;
            self.repeated += u8::from(*sent & bit != 0);
            *sent |= bit;
        }
    }

    fn fail(&mut self, fault: Action) {
        match fault {
            Action::Kill(worker) => {
                if self.holder == Some(worker) {
                    self.holder = None;
                }
                self.workers[worker] = Worker::default();
            }
            Action::Stop(worker) => self.workers[worker].is_stopped = true,
            Action::Cut(worker) => self.workers[worker].is_cut = true,
            _ => self.restart(),
        }
    }

    /// Ends all sessions and transactions.
    fn restart(&mut self) {
        for (worker, it) in self.workers.iter_mut().enumerate() {
            it.is_severed |= self.holder == Some(worker);
            if let Phase::Snapshot(_) = it.phase {
                it.phase = Phase::Idle;
            }
        }
        (self.holder, self.locked) = (None, None);
        for (row, history) in self.rows.iter_mut().zip(&mut self.histories) {
            if std::mem::take(&mut history.is_volatile) {
                (row.due, row.standing) = (history.origin, Standing::Due);
            }
        }
    }

    fn commit(&mut self, change: Change) {
        let Some(row) = self.locked.take() else {
            return;
        };
        let standing = match change {
            Change::Move => Standing::Due,
            Change::Postpone => Standing::Later,
            Change::Delete => Standing::Deleted,
            Change::Other => return,
        };
        let due = self.set_due(row, standing);
        let history = &mut self.histories[row];
        (history.origin, history.failures) = (due, 0);
        history.is_settled = change != Change::Move;
        history.is_volatile = false;
    }
}
