//! What can happen next, and what it does.

use super::{
    Action, Change, Database, Definition, Fingerprints, Guard, Kind, Moment, Pass, State, Step,
};
use crate::Few;

impl Definition {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    pub(super) fn begin(&self) -> State {
        State {
            database: Database {
                log: Few::new(),
                enabled: true,
                version: 0,
                messages: 0,
                change: None,
                untold: None,
                left: self.bounds,
            },
            young: Few::from_slice(&[(Moment::Fresh, false)]),
            memory: None,
            load: None,
            position: 0,
            told: 0,
            trusted: true,
            doubt: false,
            mark: Some(0),
            version: 0,
            pass: None,
        }
    }

    pub(super) fn enabled(&self, state: &State, actions: &mut Vec<Action>) {
        state.database.enabled(actions);
        if !state.young.is_empty() {
            actions.push(Action::Expire);
        }
        if state.trusted && state.memory.is_none() && state.load.is_none() {
            actions.push(Action::Load);
        }
        if state.load.is_some() {
            actions.push(Action::Install);
        }
        // Where all is in place, a pass that would find nothing and move nothing does not begin.
        if self.without.is_some() || state.pass.is_some() || self.pass_can_change(state) {
            actions.push(Action::Feed);
        }
        let skips = |pass: Pass| pass.kind == Kind::Judged && pass.step == Step::Mark;
        if self.without.is_none() && state.pass.is_some_and(skips) {
            actions.push(Action::Skip);
        }
        if state.trusted && state.doubt && state.pass.is_none() {
            actions.push(Action::Distrust);
        }
        if state.mark.is_some() {
            actions.push(Action::Reconnect);
        }
    }

    fn pass_can_change(&self, state: &State) -> bool {
        let database = &state.database;
        let behind = state.position != database.commits() || state.told != database.told();
        let marked = state.mark != Some(database.messages);
        behind || marked || state.doubt || !state.trusted || self.is_due(state)
    }

    /// Whether the last judged pass began `max_staleness / 2` ago or earlier.
    fn is_due(&self, state: &State) -> bool {
        let judged = if self.has(Guard::FreshFromJudged) {
            Moment::Fresh
        } else {
            Moment::Judged
        };
        !state.young.contains(&(judged, false))
    }

    pub(super) fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Write => {
                state.database.left.logged -= 1;
                state.commit(true);
            }
            Action::WriteUnlogged => {
                state.database.left.unlogged -= 1;
                state.commit(false);
            }
            Action::Change(change) => state.change(change),
            Action::Send => {
                state.database.messages += 1;
                if let Some((_, sent)) = &mut state.database.change {
                    *sent = true;
                }
            }
            Action::Release => {
                state.database.change = None;
                state.database.untold = None;
            }
            Action::Analyze => {
                state.database.left.spurious -= 1;
                state.database.messages += 1;
            }
            Action::Expire => state.expire(),
            Action::Load => state.load = Some(state.database.rendered()),
            Action::Install => state.memory = state.load.take(),
            Action::Feed => self.step_feed(state),
            Action::Skip => {
                if let Some(pass) = &mut state.pass {
                    pass.step = Step::Complete;
                }
            }
            Action::Distrust => state.distrust(),
            Action::Reconnect => {
                state.mark = None;
                state.abandon();
            }
        }
    }

    fn begin_pass(&self, state: &mut State) {
        let kind = if !state.trusted {
            Kind::Recovery
        } else if state.doubt || self.is_due(state) {
            Kind::Judged
        } else {
            Kind::Plain
        };
        if kind != Kind::Plain || !self.has(Guard::FreshFromJudged) {
            state.young.push((Moment::Began, false));
        }
        let received = !self.has(Guard::MarkInAnotherTransaction);
        state.pass = Some(Pass {
            kind,
            step: self.steps(kind)[0],
            received: received.then_some(state.database.messages),
            seen: 0,
            told: 0,
            changed: false,
        });
    }

    /// What a pass does, in its order.
    fn steps(&self, kind: Kind) -> Few<Step, 4> {
        use Step::{Compare, Complete, Mark, Rows};
        let mut steps = Few::from_slice(&[Rows, Mark, Complete]);
        let mark_first = match kind {
            Kind::Plain | Kind::Judged => !self.has(Guard::RowsBeforeMark),
            Kind::Recovery => self.has(Guard::MarkBeforeFingerprints),
        };
        if mark_first {
            steps.swap(0, 1);
        }
        match self.fingerprints {
            Fingerprints::Earlier if kind == Kind::Judged => steps.insert(0, Compare),
            Fingerprints::Later if kind == Kind::Judged => steps.insert(1, Compare),
            _ => {}
        }
        steps
    }

    fn step_feed(&self, state: &mut State) {
        let Some(mut pass) = state.pass else {
            return self.begin_pass(state);
        };
        let goes_on = match pass.step {
            Step::Rows => {
                let database = &state.database;
                pass.seen = database.commits();
                pass.told = database.told();
                let log = database.log.iter().skip(usize::from(state.position));
                pass.changed = log.copied().any(|logged| logged);
                match pass.kind {
                    Kind::Judged if self.fingerprints == Fingerprints::WithRows => {
                        self.judge(state, pass)
                    }
                    Kind::Recovery => state.verify(),
                    Kind::Plain | Kind::Judged => true,
                }
            }
            Step::Compare => self.judge(state, pass),
            Step::Mark => self.read_mark(state, pass),
            Step::Complete => {
                let unsent = matches!(state.database.change, Some((_, false)));
                let waits = pass.kind == Kind::Recovery && unsent;
                if !waits || !self.has(Guard::MessagesBeforeTrust) {
                    self.complete(state, pass);
                }
                return;
            }
        };
        if goes_on {
            let steps = self.steps(pass.kind);
            let mut rest = steps.iter().skip_while(|step| **step != pass.step);
            pass.step = rest.nth(1).copied().unwrap_or(Step::Complete);
            state.pass = Some(pass);
        }
    }

    /// Compares fingerprints; whether the pass goes on.
    fn judge(&self, state: &mut State, pass: Pass) -> bool {
        let same = state.version == state.database.version;
        if same || (!self.has(Guard::Fingerprints) && !state.doubt) {
            return true;
        }
        state.distrust();
        // What the pass has read holds for other resources, so the position moves.
        if self.fingerprints != Fingerprints::Earlier && self.has(Guard::RowsBeforeMark) {
            state.move_position(pass);
        }
        false
    }

    /// Reads the mark; whether the pass goes on.
    fn read_mark(&self, state: &mut State, pass: Pass) -> bool {
        let mark = Some(pass.received.unwrap_or(state.database.messages));
        if state.mark == mark {
            return true;
        }
        // What a pass reads behind its fingerprints is not what they stand for.
        let adopts = self.has(Guard::MarkBeforeFingerprints) || pass.kind != Kind::Plain;
        if adopts {
            state.mark = mark;
        }
        match pass.kind {
            Kind::Recovery => true,
            Kind::Judged if !self.has(Guard::MarkBeforeFingerprints) => true,
            Kind::Plain | Kind::Judged if !self.has(Guard::ChangedMarkStops) => true,
            Kind::Plain | Kind::Judged => {
                state.doubt = true;
                state.abandon();
                false
            }
        }
    }

    fn complete(&self, state: &mut State, pass: Pass) {
        state.pass = None;
        if pass.changed {
            state.memory = None;
            state.load = None;
        }
        state.move_position(pass);
        let judged = pass.kind != Kind::Plain;
        if judged {
            state.trusted = true;
            state.doubt = false;
        }
        if judged || !self.has(Guard::FreshFromJudged) {
            state.freshen(judged && !self.has(Guard::FreshFromJudged));
        }
    }
}

impl Database {
    /// The transactions that a document rendered now shows.
    fn rendered(&self) -> u8 {
        let unheard = self.change == Some((Change::Rename, false));
        self.commits() - u8::from(unheard)
    }

    fn enabled(&self, actions: &mut Vec<Action>) {
        let left = &self.left;
        if left.logged > 0 {
            actions.push(Action::Write);
        }
        match self.change {
            Some((_, false)) => actions.push(Action::Send),
            Some((_, true)) => actions.push(Action::Release),
            None if self.enabled => {
                if left.disables > 0 {
                    actions.push(Action::Change(Change::Disable));
                }
                if left.withins > 0 {
                    actions.push(Action::Change(Change::Within));
                }
                if left.renames > 0 {
                    actions.push(Action::Change(Change::Rename));
                }
            }
            None => {
                actions.push(Action::Change(Change::Enable));
                if left.unlogged > 0 {
                    actions.push(Action::WriteUnlogged);
                }
            }
        }
        if left.spurious > 0 {
            actions.push(Action::Analyze);
        }
    }
}

impl State {
    fn commit(&mut self, logged: bool) {
        self.database.log.push(logged);
        let commit = Moment::Commit(self.database.commits());
        self.young.push((commit, false));
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Disable => {
                self.database.left.disables -= 1;
                self.database.enabled = false;
            }
            Change::Enable => self.database.enabled = true,
            Change::Within | Change::Rename => {
                match change {
                    Change::Rename => self.database.left.renames -= 1,
                    _ => self.database.left.withins -= 1,
                }
                self.commit(false);
                self.database.untold = Some(self.database.commits());
            }
        }
        self.database.version += 1;
        self.database.change = Some((change, false));
    }

    fn expire(&mut self) {
        let (moment, second) = self.young.remove(0);
        if !second && moment != Moment::Judged {
            self.young.push((moment, true));
        }
    }

    /// Ends the pass under way without an outcome.
    fn abandon(&mut self) {
        self.pass = None;
        self.young.retain(|(moment, _)| *moment != Moment::Began);
    }

    fn distrust(&mut self) {
        self.trusted = false;
        self.doubt = false;
        self.memory = None;
        self.load = None;
        self.young.retain(|(moment, _)| *moment != Moment::Fresh);
        self.abandon();
    }

    /// All that the pass has seen is covered.
    fn move_position(&mut self, pass: Pass) {
        let Pass { seen, told, .. } = pass;
        (self.position, self.told) = (seen, told);
        self.young
            .retain(|(moment, _)| !matches!(moment, Moment::Commit(commit) if *commit <= told));
    }

    /// Reads fingerprints for a recovery; whether the trigger is in place.
    fn verify(&mut self) -> bool {
        if self.database.enabled {
            self.version = self.database.version;
        } else {
            self.abandon();
        }
        self.database.enabled
    }

    /// Moves `fresh_at` to the begin of the pass.
    fn freshen(&mut self, judged_apart: bool) {
        let moved =
            |moment: Moment| moment == Moment::Fresh || (judged_apart && moment == Moment::Judged);
        self.young.retain(|(moment, _)| !moved(*moment));
        let began = self
            .young
            .iter()
            .position(|(moment, _)| *moment == Moment::Began);
        let Some(began) = began else {
            return;
        };
        self.young[began].0 = Moment::Fresh;
        if judged_apart && !self.young[began].1 {
            self.young.insert(began, (Moment::Judged, false));
        }
    }
}
