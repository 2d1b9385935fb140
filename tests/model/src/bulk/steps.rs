//! What can happen, and what comes of it.

use super::{Action, Bulk, Entry, Found, Guard, Load, Order, Pass, State, Step, Txn, Version};

/// Orders that wait for the disk tier's writer at a time: a bound of the exploration.
const QUEUE_MAX: usize = 3;

impl State {
    pub(super) fn begin() -> Self {
        Self {
            committed: Vec::new(),
            position: 0,
            version: Version::default(),
            clean: 0,
            memory: None,
            disk: None,
            mark: (0, 0),
            queue: Vec::new(),
            pass: None,
            load: None,
            resumes: false,
            crashes: 0,
            stale: false,
        }
    }

    /// What a snapshot taken now sees.
    fn found(&self) -> Found {
        Found {
            // A few.
            snapshot: self.committed.len() as u8,
            exists: self.committed.last().is_some_and(|txn| *txn != Txn::Delete),
        }
    }

    fn answer(&mut self, found: Found, floor: u8) {
        self.stale |= found.snapshot < floor && !self.is_same(found.snapshot, floor);
    }

    /// Whether nothing was committed between the two snapshots: each transaction makes another document.
    fn is_same(&self, earlier: u8, later: u8) -> bool {
        self.committed[usize::from(earlier)..usize::from(later)].is_empty()
    }
}

impl Bulk {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    pub(super) fn enabled(&self, state: &State, actions: &mut Vec<Action>) {
        if state.committed.len() < usize::from(self.commits) {
            let exists = state.found().exists;
            if exists {
                actions.extend([Txn::Update, Txn::Delete].map(Action::Commit));
            }
            if !exists || !self.has(Guard::UniqueRoots) {
                actions.push(Action::Commit(Txn::Insert));
            }
        }
        let room = state.queue.len() < QUEUE_MAX;
        match state.pass {
            // A pass that finds nothing changes nothing, unless it is the one that resumes.
            None if state.found().snapshot > state.position || state.resumes => {
                actions.push(Action::Read);
            }
            None => {}
            Some(_) if room => actions.push(Action::Pass),
            Some(_) => {}
        }
        if !state.resumes {
            actions.push(Action::Request);
        }
        match state.load {
            Some(Load { found: None, .. }) => actions.push(Action::Load),
            Some(_) if room => actions.push(Action::Fill),
            _ => {}
        }
        if state.memory.is_some() {
            actions.push(Action::Evict);
        }
        if !state.queue.is_empty() {
            actions.push(Action::Write);
        }
        if state.crashes < self.crashes {
            actions.push(Action::Crash);
        }
    }

    pub(super) fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Commit(txn) => state.committed.push(txn),
            Action::Read => self.read(state),
            Action::Pass => self.pass(state),
            Action::Request => self.request(state),
            Action::Load => {
                let found = state.found();
                if let Some(load) = &mut state.load {
                    load.found = Some(found);
                }
            }
            Action::Fill => self.fill(state),
            Action::Evict => state.memory = None,
            Action::Write => write(state),
            Action::Crash => crash(state),
        }
    }

    fn read(&self, state: &mut State) {
        let rows = &state.committed[usize::from(state.position)..];
        let new = rows.contains(&Txn::Insert);
        let changed = rows.iter().any(|txn| *txn != Txn::Insert);
        let step = match (changed, self.has(Guard::RaiseBeforeSweep)) {
            (true, true) => Step::Raise,
            (true, false) => Step::Sweep,
            (false, _) => self.after_ranges(),
        };
        state.pass = Some(Pass {
            step,
            seen: state.found().snapshot,
            changed,
            new,
        });
    }

    fn after_ranges(&self) -> Step {
        match self.has(Guard::MarkAfterRenewal) {
            true => Step::Renew,
            false => Step::Mark,
        }
    }

    fn pass(&self, state: &mut State) {
        let Some(pass) = state.pass else {
            return;
        };
        let raises_first = self.has(Guard::RaiseBeforeSweep);
        let mark_last = self.has(Guard::MarkAfterRenewal);
        let next = match pass.step {
            Step::Raise => {
                state.version.generation += u8::from(self.has(Guard::RaiseAll));
                if raises_first {
                    Step::Sweep
                } else {
                    Step::Queue
                }
            }
            Step::Sweep => {
                state.memory = None;
                if raises_first {
                    Step::Queue
                } else {
                    Step::Raise
                }
            }
            Step::Queue => {
                let sweep = Order::Sweep(state.version.generation);
                match self.has(Guard::SweepInOrder) {
                    true => state.queue.push(sweep),
                    false => state.queue.insert(0, sweep),
                }
                self.after_ranges()
            }
            Step::Renew => {
                state.version.absences += u8::from(pass.new && self.has(Guard::RenewAbsences));
                if mark_last {
                    Step::Mark
                } else {
                    Step::Complete
                }
            }
            Step::Mark => {
                let mark = Order::Mark(pass.seen, state.version.absences);
                state.queue.push(mark);
                if mark_last {
                    Step::Complete
                } else {
                    Step::Renew
                }
            }
            Step::Complete => {
                state.position = pass.seen;
                state.resumes = false;
                state.pass = None;
                return;
            }
        };
        state.pass = Some(Pass { step: next, ..pass });
    }

    fn request(&self, state: &mut State) {
        let floor = state.position;
        let current =
            |entry: &Entry| entry.found.exists || entry.absences == state.version.absences;
        let clean = state.clean == state.version.generation || !self.has(Guard::CleanCheck);
        let disk = state.disk.filter(|_| clean);
        let disk = disk.filter(|entry| current(entry) || !self.has(Guard::AbsencesOnDisk));
        if let Some(entry) = state.memory.filter(current) {
            return state.answer(entry.found, floor);
        }
        if let Some(entry) = disk {
            return state.answer(entry.found, floor);
        }
        let joined = state.load.filter(|load| {
            let absences = load.version.absences == state.version.absences;
            let same = absences || !self.has(Guard::AbsencesAtJoining);
            load.version.generation == state.version.generation && same
        });
        match (joined, state.load) {
            (Some(load), _) => {
                state.load = Some(Load {
                    floor: load.floor.max(floor),
                    ..load
                });
            }
            // Its own load, which ends at once and keeps nothing: one load under way is enough to be overtaken.
            (None, Some(_)) => {}
            (None, None) => {
                state.load = Some(Load {
                    version: state.version,
                    found: None,
                    floor,
                });
            }
        }
    }

    fn fill(&self, state: &mut State) {
        let Some(Load {
            version,
            found: Some(found),
            floor,
        }) = state.load.take()
        else {
            return;
        };
        let absences = version.absences == state.version.absences;
        let stands = version.generation == state.version.generation
            && (absences || !self.has(Guard::AbsencesAtInstall));
        if stands {
            let entry = Entry {
                found,
                absences: state.version.absences,
            };
            state.memory = Some(entry);
            state.queue.push(Order::Put(entry, version.generation));
        }
        state.answer(found, floor);
    }
}

/// A put that was overtaken before it was queued can't come here: the check and the queueing are one step.
fn write(state: &mut State) {
    match state.queue.remove(0) {
        Order::Put(entry, _) => state.disk = Some(entry),
        Order::Sweep(generation) => {
            state.disk = None;
            state.clean = state.clean.max(generation);
        }
        Order::Mark(position, absences) => state.mark = (position, absences),
    }
}

/// Memory and queue are gone; the disk tier goes on from its mark.
fn crash(state: &mut State) {
    let (position, absences) = state.mark;
    *state = State {
        committed: std::mem::take(&mut state.committed),
        position,
        version: Version {
            generation: 0,
            absences,
        },
        disk: state.disk,
        mark: state.mark,
        resumes: true,
        crashes: state.crashes + 1,
        ..State::begin()
    };
}
