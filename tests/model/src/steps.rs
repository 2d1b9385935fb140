//! The actions that are possible in a state, and their effects.

mod disk;
mod feed;
mod load;
mod request;

use crate::state::Open;
use crate::{Guard, Moment, Phase, Protocol, Scene, Stage, State, Txn};

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The transaction writes; its triggers run.
    Write(Txn),
    /// The transaction commits.
    Commit(Txn),
    /// This one of the young moments is now more than `max_staleness` ago.
    Expire(usize),
    /// This request begins or goes one step on.
    Request(usize),
    /// This load goes one step on.
    Load(usize),
    /// The queue is full: this load's document is not queued.
    LeaveOut(usize),
    /// This load ends without an outcome.
    Fail(usize),
    /// Memory evicts the document.
    Evict,
    /// The feed begins a pass or goes one step on.
    Feed,
    /// The feed begins a pass from the disk tier's mark.
    Resume,
    /// The feed finds the database after a crash.
    Follow,
    /// The writer takes this many orders from the queue and checks them.
    Gather(usize),
    /// The writer applies them, and calls the stripe clean.
    Apply,
    /// larder crashes and starts anew.
    Crash,
}

impl Protocol {
    pub(crate) fn enabled(&self, state: &State, actions: &mut Vec<Action>) {
        self.transactions(state, actions);
        actions.extend((0..state.moments_next_to_expire()).map(Action::Expire));
        for (index, request) in state.requests.iter().enumerate() {
            if Self::request_can_go_on(state, request.phase) {
                actions.push(Action::Request(index));
            }
        }
        for (index, load) in state.loads.iter().enumerate() {
            if load.stage != Stage::Free && self.load_can_go_on(state, load.stage) {
                actions.push(Action::Load(index));
            }
            match load.stage {
                Stage::Granted | Stage::Sent | Stage::Read(_) => actions.push(Action::Fail(index)),
                Stage::Putting(_) => actions.push(Action::LeaveOut(index)),
                _ => {}
            }
        }
        // Without a disk tier, to evict an entry is the same as never to have installed it.
        if self.bounds.disk && state.memory.is_some() {
            actions.push(Action::Evict);
        }
        self.feed_actions(state, actions);
        match state.batch {
            None => actions.extend((1..=state.orders_of_a_batch()).map(Action::Gather)),
            Some(_) => actions.push(Action::Apply),
        }
        if state.crashes < self.bounds.crashes {
            actions.push(Action::Crash);
        }
    }

    fn transactions(&self, state: &State, actions: &mut Vec<Action>) {
        let database = &state.database;
        if self.scene == Scene::Edits {
            if database.commits() < self.bounds.commits {
                actions.push(Action::Commit(Txn::Edit));
            }
            return;
        }
        for txn in [Txn::Move, Txn::Retitle] {
            let is = |open: &Open| open.txn == txn;
            if database.open.iter().any(is) {
                actions.push(Action::Commit(txn));
            } else if !database.committed.iter().any(is) {
                actions.push(Action::Write(txn));
            }
        }
    }

    pub(crate) fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Write(txn) => {
                let database = &mut state.database;
                let mapped = !self.has(Guard::MapInPass) && database.at_second(database.commits());
                database.open.push(Open { txn, mapped });
                database.open.sort_unstable();
            }
            Action::Commit(txn) => state.commit(txn),
            Action::Expire(index) => {
                state.young.remove(index);
            }
            Action::Request(index) => self.step_request(state, index),
            Action::Load(index) => self.step_load(state, index),
            Action::LeaveOut(index) => {
                if let Stage::Putting(content) = state.loads[index].stage {
                    state.loads[index].stage = Stage::Ending(content);
                }
            }
            Action::Fail(index) => state.fail(index),
            Action::Evict => state.memory = None,
            Action::Feed => self.step_feed(state),
            Action::Resume => self.begin_pass(state, true),
            Action::Follow => {
                state.position = state.commits();
                state.following = true;
                state.forget_covered_commits();
            }
            Action::Gather(count) => self.gather(state, count),
            Action::Apply => self.apply(state),
            Action::Crash => self.crash(state),
        }
    }

    fn crash(&self, state: &mut State) {
        let Some(mut next) = State::initial(self).pop() else {
            return;
        };
        next.database = state.database.clone();
        next.young = std::mem::take(&mut state.young);
        next.young.retain(|moment| *moment == Moment::Commit);
        next.position = state.position;
        next.following = false;
        next.crashes = state.crashes + 1;
        // Without a mark the content is not used.
        if state.disk.mark.is_some() {
            next.disk = state.disk;
            if self.has(Guard::ResumeFirst) {
                next.disk_on = false;
                next.version.epoch = 1;
            }
            self.forget_mark(&mut next);
        }
        *state = next;
    }
}

impl State {
    fn commit(&mut self, txn: Txn) {
        let open = self.database.open.iter().position(|open| open.txn == txn);
        let committed = match open {
            Some(open) => self.database.open.remove(open),
            None => Open { txn, mapped: false },
        };
        self.database.committed.push(committed);
        self.young.push(Moment::Commit);
    }

    pub(crate) fn answer(&mut self, index: usize, content: u8) {
        let floor = self.requests[index].floor;
        self.stale |= !self.database.is_true_since(content, floor);
        self.requests[index] = crate::Request::IDLE;
    }

    /// Ends a load whose waiters have been answered or will load again.
    fn end_load(&mut self, index: usize) {
        self.loads[index] = crate::Load::FREE;
        self.young.retain(|moment| *moment != Moment::Sent(index));
        if self.lease == Some(index) {
            self.lease = None;
        }
    }

    fn waiting(&self, load: usize) -> Vec<usize> {
        let waits = |index: &usize| self.requests[*index].phase == Phase::Waiting(load);
        (0..self.requests.len()).filter(waits).collect()
    }
}
