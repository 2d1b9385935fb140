//! What can happen, and what comes of it.

use super::{
    Action, Bulk, Change, Entry, Found, Guard, Load, Order, Pass, State, Step, Tier, Txn, Version,
};

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
            tier: Tier::On,
            mark: Some((0, 0)),
            late: None,
            queue: Vec::new(),
            pass: None,
            load: None,
            resumes: false,
            crashes: 0,
            breaks: 0,
            purges: 0,
            stale: false,
        }
    }

    /// What a snapshot taken now sees.
    fn found(&self) -> Found {
        Found {
            // A few.
            snapshot: self.committed.len() as u8,
            exists: self.exists(),
        }
    }

    fn exists(&self) -> bool {
        let mut txns = self.committed.iter().rev();
        let last = txns.find(|txn| **txn != Txn::Elsewhere);
        last.is_some_and(|txn| *txn != Txn::Delete)
    }

    fn answer(&mut self, found: Found, floor: u8) {
        self.stale |= found.snapshot < floor && !self.is_same(found.snapshot, floor);
    }

    /// Whether no transaction between the two snapshots was about the key: each such makes another document.
    fn is_same(&self, earlier: u8, later: u8) -> bool {
        let between = &self.committed[usize::from(earlier)..usize::from(later)];
        between.iter().all(|txn| *txn == Txn::Elsewhere)
    }

    /// Takes away what has no effect any more where all guards are in place, so that fewer states are told apart.
    pub(super) fn forget_overtaken(&mut self) {
        let current = self.version;
        self.late = self.late.filter(|(_, version)| *version == current);
        self.queue.retain(|order| match order {
            Order::Put(_, version) => *version == current,
            _ => true,
        });
        self.memory = self
            .memory
            .filter(|entry| entry.found.exists || entry.absences == current.absences);
    }

    fn break_disk(&mut self) {
        self.tier = Tier::Broken;
        self.breaks += 1;
    }
}

impl Bulk {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    pub(super) fn enabled(&self, state: &State, actions: &mut Vec<Action>) {
        if state.committed.len() < usize::from(self.commits) {
            let exists = state.exists();
            actions.extend([Txn::Named, Txn::Elsewhere].map(Action::Commit));
            if exists {
                actions.extend([Txn::Update, Txn::Delete].map(Action::Commit));
            }
            if !exists || !self.has(Guard::UniqueRoots) {
                actions.push(Action::Commit(Txn::Insert));
            }
        }
        let room = state.queue.len() < QUEUE_MAX;
        let breakable = state.breaks < self.breaks && state.tier != Tier::Broken;
        match state.pass.as_ref().map(|pass| pass.steps[0]) {
            // A pass that finds nothing changes nothing, unless it is the one that resumes.
            None if state.found().snapshot > state.position || state.resumes => {
                actions.push(Action::Read);
            }
            None => {}
            Some(step) => {
                if room {
                    actions.push(Action::Pass);
                }
                // A mark that is lost only makes the next start catch up on more.
                if breakable && matches!(step, Step::QueueSweep(_) | Step::QueueDrop) {
                    actions.push(Action::Lose);
                }
            }
        }
        if !state.resumes {
            actions.push(Action::Request);
        }
        match state.load {
            Some(Load { found: None, .. }) => actions.push(Action::Load),
            Some(_) if state.late.is_none() => actions.push(Action::Fill),
            _ => {}
        }
        if state.late.is_some() && room {
            actions.push(Action::Put);
        }
        let may_purge = state.pass.is_none() || !self.has(Guard::PurgeBetweenPasses);
        if state.purges < self.purges && may_purge && room {
            actions.push(Action::Purge);
        }
        if state.memory.is_some() {
            actions.push(Action::Evict);
        }
        match state.tier {
            Tier::Broken => actions.push(Action::Renew),
            _ if !state.queue.is_empty() => actions.push(Action::Write),
            _ => {}
        }
        if breakable {
            actions.push(Action::Break);
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
            Action::Put => {
                let put = state.late.take().filter(|_| state.tier == Tier::On);
                let put = put.map(|(found, version)| Order::Put(found, version));
                state.queue.extend(put);
            }
            Action::Evict => state.memory = None,
            Action::Write => self.write(state),
            Action::Purge => {
                state.purges += 1;
                state.version.generation += 1;
                let drop = Order::Drop(false, state.version.generation);
                state.queue.push(drop);
            }
            Action::Lose => {
                if let Some(pass) = &mut state.pass {
                    pass.steps.remove(0);
                }
                state.break_disk();
            }
            Action::Break => state.break_disk(),
            Action::Renew => {
                if self.has(Guard::EmptyAfterBreak) {
                    state.disk = None;
                    state.mark = None;
                }
                // Whatever was invalidated until now, the disk holds nothing of it.
                state.clean = state.version.generation;
                state.tier = Tier::On;
            }
            Action::Crash => crash(state),
        }
    }

    fn read(&self, state: &mut State) {
        let mut changes = Vec::new();
        for txn in &state.committed[usize::from(state.position)..] {
            let change = match txn {
                Txn::Insert => Change::Absences,
                Txn::Update | Txn::Delete => Change::Range(true),
                Txn::Elsewhere => Change::Range(false),
                Txn::Named => Change::Key,
            };
            if !changes.contains(&change) {
                changes.push(change);
            }
        }
        if self.has(Guard::SweepsBeforeKeys) {
            changes.sort_by_key(|change| !matches!(change, Change::Range(_)));
        }
        state.pass = Some(Pass {
            steps: self.plan(&changes, state.resumes),
            seen: state.found().snapshot,
        });
    }

    /// The steps of a pass that has found these.
    fn plan(&self, changes: &[Change], resumes: bool) -> Vec<Step> {
        let mut steps = Vec::new();
        for change in changes {
            match change {
                Change::Absences if self.has(Guard::RenewAbsences) => steps.push(Step::Renew),
                Change::Absences => {}
                Change::Range(lies) => {
                    let raise = self.has(Guard::RaiseAll).then_some(Step::Raise);
                    let remove = lies.then_some(Step::Remove);
                    if self.has(Guard::RaiseBeforeSweep) {
                        steps.extend(raise.into_iter().chain(remove))
                    } else {
                        steps.extend(remove.into_iter().chain(raise))
                    }
                    steps.push(Step::QueueSweep(*lies));
                }
                Change::Key => steps.extend([Step::Raise, Step::Remove]),
            }
        }
        let end = if resumes { Step::Enable } else { Step::Mark };
        if changes.contains(&Change::Key) {
            steps.push(Step::QueueDrop);
        }
        let early = if resumes {
            !self.has(Guard::EnableBehindDrops)
        } else {
            !self.has(Guard::MarkAfterRenewal)
        };
        let is_before = |step: &Step| {
            if resumes {
                matches!(step, Step::QueueSweep(_) | Step::QueueDrop)
            } else {
                *step == Step::Renew
            }
        };
        let place = steps.iter().position(is_before).filter(|_| early);
        steps.insert(place.unwrap_or(steps.len()), end);
        steps.push(Step::Complete);
        steps
    }

    fn pass(&self, state: &mut State) {
        let Some(mut pass) = state.pass.take() else {
            return;
        };
        let Version {
            generation,
            absences,
        } = state.version;
        match pass.steps.remove(0) {
            Step::Raise => state.version.generation += 1,
            Step::Remove => state.memory = None,
            Step::QueueSweep(lies) => {
                let sweep = Order::Sweep(lies, generation);
                if self.has(Guard::SweepInOrder) {
                    state.queue.push(sweep)
                } else {
                    state.queue.insert(0, sweep)
                }
            }
            Step::QueueDrop => state.queue.push(Order::Drop(true, generation)),
            Step::Renew => state.version.absences += 1,
            Step::Mark => state.queue.push(Order::Mark(pass.seen, absences)),
            Step::Enable => state.queue.push(Order::Enable(pass.seen, state.version)),
            Step::Complete => {
                state.position = pass.seen;
                state.resumes = false;
                return;
            }
        }
        state.pass = Some(pass);
    }

    fn request(&self, state: &mut State) {
        let floor = state.position;
        let current =
            |entry: &Entry| entry.found.exists || entry.absences == state.version.absences;
        let clean = state.clean == state.version.generation || !self.has(Guard::CleanCheck);
        let disk = state.disk.filter(|_| clean && state.tier == Tier::On);
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
            let absences = entry.absences;
            state.late = Some((
                found,
                Version {
                    absences,
                    ..version
                },
            ));
        }
        state.answer(found, floor);
    }

    fn write(&self, state: &mut State) {
        let on = state.tier == Tier::On;
        match state.queue.remove(0) {
            Order::Put(found, version) => {
                let stands = version == state.version || !self.has(Guard::VersionAtWriting);
                if on && stands {
                    let absences = version.absences;
                    state.disk = Some(Entry { found, absences });
                }
            }
            Order::Sweep(removes, generation) | Order::Drop(removes, generation) => {
                state.disk = state.disk.filter(|_| !removes);
                state.clean = state.clean.max(generation);
            }
            Order::Mark(position, absences) if on => state.mark = Some((position, absences)),
            Order::Mark(..) => {}
            Order::Enable(position, version) if state.tier == Tier::Resuming => {
                state.mark = Some((position, version.absences));
                state.clean = state.clean.max(version.generation);
                state.tier = Tier::On;
            }
            Order::Enable(..) => {}
        }
    }
}

/// Memory and queue are gone; the disk tier goes on from its mark, or begins empty where it has none.
fn crash(state: &mut State) {
    let (disk, mark) = (state.disk, state.mark);
    let begin = State {
        committed: std::mem::take(&mut state.committed),
        crashes: state.crashes + 1,
        breaks: state.breaks,
        purges: state.purges,
        ..State::begin()
    };
    *state = match mark {
        Some((position, absences)) => State {
            position,
            version: Version {
                generation: 0,
                absences,
            },
            disk,
            tier: Tier::Resuming,
            mark,
            resumes: true,
            ..begin
        },
        None => State {
            position: begin.found().snapshot,
            mark,
            ..begin
        },
    };
}
