//! What can happen next, and what it does.

use super::{Action, Database, Entry, Epoch, Guard, Mark, Prepared, Set, State};

/// The number of the first transaction, and the end of the lower half of numbers.
const FIRST: u8 = 4;

fn bit(number: u8) -> Set {
    1 << number
}

fn numbers(set: Set) -> impl Iterator<Item = u8> {
    (0..8).filter(move |number| set & bit(*number) != 0)
}

impl Prepared {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    pub(super) fn begin() -> State {
        State {
            database: Database {
                next: FIRST,
                ended: bit(FIRST) - 1,
                committed: 0,
                prepared: 0,
                listed: 0,
                elsewhere: 0,
                lost: 0,
                rows: 0,
                epoch: Some(Epoch {
                    nonce: 0,
                    list: Some(0),
                }),
                read: None,
                crashes: 0,
            },
            nonce: None,
            position: None,
            looked: None,
            load: None,
            memory: None,
            disk: None,
            unmarked: false,
            mark: None,
            resumes: false,
            judged: false,
            stops: 0,
            emptied_for_another: false,
        }
    }

    pub(super) fn enabled(&self, state: &State, actions: &mut Vec<Action>) {
        self.database_actions(&state.database, actions);
        self.feed_actions(state, actions);
        if state.load.is_some() {
            actions.push(Action::Store);
        } else if state.answer().is_none() {
            actions.push(Action::Load);
        }
        if state.memory.is_some() && state.disk.is_some() {
            actions.push(Action::Evict);
        }
        if state.stops < self.bounds.stops {
            actions.push(Action::Stop);
        }
    }

    fn database_actions(&self, database: &Database, actions: &mut Vec<Action>) {
        if database.next < FIRST + self.bounds.transactions {
            actions.push(Action::Begin);
            if database.elsewhere.count_ones() < u32::from(self.bounds.elsewhere) {
                actions.push(Action::PrepareElsewhere);
            }
        }
        for number in numbers(database.running()) {
            actions.extend([Action::Commit(number), Action::Prepare(number)]);
        }
        let visible_first = self.has(Guard::VisibleFirst);
        for number in numbers(database.prepared | database.listed) {
            let prepared = database.prepared & bit(number) != 0;
            let listed = database.listed & bit(number) != 0;
            if prepared && (visible_first || !listed) {
                actions.push(Action::CommitPrepared(number));
            }
            if listed && prepared != visible_first {
                actions.push(Action::Unlist(number));
            }
            if prepared && listed {
                actions.push(Action::RollBackPrepared(number));
            }
        }
        if database.crashes < self.bounds.crashes {
            actions.push(Action::Crash);
        }
        match (&database.epoch, database.read) {
            (None, None) if self.has(Guard::ListWithNonce) => actions.push(Action::ReadPrepared),
            (None, _) => actions.push(Action::BeginEpoch),
            (Some(Epoch { list: None, .. }), _) => actions.push(Action::ReadPrepared),
            (Some(_), _) => {}
        }
    }

    fn feed_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let epoch = state.database.epoch;
        if state.looked.is_some() {
            return actions.push(Action::Restart);
        }
        let Some(epoch) = epoch else {
            return;
        };
        let same = state.nonce == Some(epoch.nonce) || !self.has(Guard::CompareNonce);
        if state.position.is_none() || !same {
            return actions.push(Action::Look);
        }
        actions.push(Action::Pass);
        if state.resumes {
            actions.push(Action::Resume);
        }
    }

    pub(super) fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Look => {
                let seen = state.database.ended;
                let epoch = state.database.epoch;
                state.looked = epoch.map(|Epoch { nonce, .. }| Mark { nonce, seen });
                if !self.has(Guard::EmptyBehindPosition) {
                    state.empty();
                }
            }
            Action::Restart => self.restart(state),
            Action::Pass => self.pass(state),
            Action::Resume => self.resume(state),
            Action::Load => state.load = Some(state.database.document()),
            Action::Store => {
                state.memory = state.load.take();
                // A disk tier that larder has yet to come back to takes nothing.
                if let Some(content) = state.memory.filter(|_| !state.resumes) {
                    let unmarked = state.unmarked;
                    state.disk = Some(Entry { content, unmarked });
                }
            }
            Action::Evict => state.memory = None,
            Action::Stop => state.stop(),
            _ => self.step_database(&mut state.database, action),
        }
    }

    fn step_database(&self, database: &mut Database, action: Action) {
        match action {
            Action::Begin => {
                database.rows |= bit(database.next);
                database.next += 1;
            }
            Action::PrepareElsewhere => {
                let number = database.next;
                database.next += 1;
                database.elsewhere |= bit(number);
                database.prepare(number);
            }
            Action::Prepare(number) => database.prepare(number),
            Action::Commit(number) | Action::CommitPrepared(number) => {
                database.committed |= bit(number);
                database.ended |= bit(number);
                database.prepared &= !bit(number);
            }
            Action::Unlist(number) => database.listed &= !bit(number),
            Action::RollBackPrepared(number) => {
                database.ended |= bit(number);
                database.prepared &= !bit(number);
                database.listed &= !bit(number);
            }
            Action::Crash => database.crash(),
            Action::ReadPrepared => {
                let list = self.list(database);
                match &mut database.epoch {
                    Some(epoch) => epoch.list = Some(list),
                    None => database.read = Some(list),
                }
            }
            Action::BeginEpoch => {
                database.epoch = Some(Epoch {
                    nonce: database.crashes,
                    list: database.read.take(),
                });
            }
            _ => {}
        }
    }

    /// What an epoch that begins now keeps.
    fn list(&self, database: &Database) -> Set {
        let elsewhere = if self.has(Guard::ThisDatabase) {
            database.elsewhere
        } else {
            0
        };
        let list = if self.has(Guard::List) {
            database.listed & !elsewhere
        } else {
            0
        };
        if self.has(Guard::WholeNumbers) {
            list
        } else {
            list >> FIRST
        }
    }

    /// Takes a new position over.
    fn restart(&self, state: &mut State) {
        let Some(looked) = state.looked.take() else {
            return;
        };
        if state.nonce != Some(looked.nonce) {
            state.judged = false;
        }
        state.nonce = Some(looked.nonce);
        if self.has(Guard::EmptyBehindPosition) {
            state.position = Some(looked.seen);
            state.empty();
        } else {
            state.position = Some(state.database.ended);
        }
    }

    fn pass(&self, state: &mut State) {
        let (Some(epoch), Some(position)) = (state.database.epoch, state.position) else {
            return;
        };
        let new = state.database.ended & !position;
        let seen = epoch.list.unwrap_or(0) & new;
        if self.has(Guard::JudgeAtPass) && seen != 0 && !state.judged {
            state.position = None;
            state.emptied_for_another = seen & !state.database.elsewhere == 0;
            state.judged = !self.has(Guard::EachCounts);
            return;
        }
        state.nonce = Some(epoch.nonce);
        state.apply(new);
        if !state.resumes {
            state.mark(epoch.nonce);
        }
    }

    fn resume(&self, state: &mut State) {
        let (Some(epoch), Some(mark)) = (state.database.epoch, state.mark) else {
            return;
        };
        let new = state.database.ended & !mark.seen;
        let seen = epoch.list.unwrap_or(0) & new;
        let other = mark.nonce != epoch.nonce && self.has(Guard::CompareNonceAtResume);
        state.resumes = false;
        if other || self.has(Guard::JudgeAtResume) && seen != 0 {
            state.disk = None;
            state.mark = None;
            return;
        }
        // What is on disk counts from here on, and nothing else.
        state.memory = None;
        state.load = None;
        state.apply(new);
        state.mark(epoch.nonce);
    }
}

impl State {
    /// What has ended since a position: its rows of the log drop the document.
    fn apply(&mut self, new: Set) {
        let database = &self.database;
        if database.rows & database.committed & new != 0 {
            self.memory = None;
            self.load = None;
            self.disk = self.disk.filter(|_| self.resumes);
        }
        self.position = Some(database.ended);
    }

    /// Makes all that both tiers hold a miss, and voids loads.
    fn empty(&mut self) {
        self.memory = None;
        self.load = None;
        // The mark brings back what it tells of, not what was put since.
        self.disk = self.disk.filter(|entry| !entry.unmarked);
        self.unmarked = !self.resumes;
    }

    /// The disk tier has followed: what was there before the last emptying is gone for good.
    fn mark(&mut self, nonce: u8) {
        let unmarked = self.unmarked;
        self.disk = self.disk.filter(|entry| entry.unmarked == unmarked);
        if let Some(entry) = &mut self.disk {
            entry.unmarked = false;
        }
        self.unmarked = false;
        self.mark = self.position.map(|seen| Mark { nonce, seen });
    }

    /// larder starts anew from what is on disk.
    fn stop(&mut self) {
        self.stops += 1;
        self.nonce = None;
        self.position = None;
        self.looked = None;
        self.load = None;
        self.memory = None;
        self.judged = false;
        // What the mark does not tell of is of no use.
        self.unmarked = false;
        self.disk = self.disk.filter(|entry| !entry.unmarked);
        self.resumes = self.mark.is_some() && self.disk.is_some();
        if !self.resumes {
            self.disk = None;
            self.mark = None;
        }
    }
}

impl Database {
    /// The transactions that the document shows to a snapshot taken now.
    pub(super) fn document(&self) -> Set {
        self.committed & !self.elsewhere
    }

    fn running(&self) -> Set {
        // All eight bits, where every transaction has begun.
        let begun = ((1_u16 << self.next) - 1) as Set;
        begun & !self.ended & !self.prepared
    }

    fn prepare(&mut self, number: u8) {
        self.prepared |= bit(number);
        self.listed |= bit(number);
    }

    fn crash(&mut self) {
        self.ended |= self.running();
        self.listed = self.prepared;
        self.lost |= self.prepared & !self.elsewhere;
        self.rows = 0;
        self.epoch = None;
        self.read = None;
        self.crashes += 1;
    }
}
