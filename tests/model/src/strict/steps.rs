//! The steps of the model.

use super::{Action, Guard, Load, Pass, Phase, Stage, State, Step, Strict};

/// Transactions, the unlogged one among them.
const COMMITS_MAX: u8 = 2;
const PASSES_MAX: u8 = 4;

const FREE: Load = Load {
    stage: Stage::Free,
    version: 0,
    old: false,
};

impl State {
    pub(super) fn initial() -> Self {
        Self {
            visible: 0,
            unlogged: None,
            is_untold: false,
            mark: false,
            known_mark: false,
            kept: true,
            memory: None,
            version: 0,
            position: 0,
            begun: 0,
            verified: 0,
            pass: None,
            restarted: false,
            loads: [FREE; 2],
            lease: None,
            phase: Phase::Idle,
            found: None,
            floor: 0,
            joined_old: false,
            answer: None,
        }
    }

    /// Makes the entry in memory and loads under way void.
    fn invalidate(&mut self) {
        self.version += 1;
        self.memory = None;
    }

    fn free_load(&self) -> Option<usize> {
        let free = |load: &Load| load.stage == Stage::Free;
        self.loads.iter().position(free)
    }

    fn lead(&mut self, version: u8) -> Option<usize> {
        let load = self.free_load()?;
        self.loads[load] = Load {
            stage: Stage::Waiting,
            version,
            old: false,
        };
        self.lease = Some(load);
        Some(load)
    }
}

impl Strict {
    fn has(&self, guard: Guard) -> bool {
        self.without != Some(guard)
    }

    pub(super) fn enabled(&self, state: &State, actions: &mut Vec<Action>) {
        if state.is_untold {
            actions.push(Action::Tell);
        } else if state.visible < COMMITS_MAX {
            // A write while the trigger is disabled would be a second unlogged one.
            if state.unlogged.is_none() || state.kept && state.known_mark == state.mark {
                actions.push(Action::Write);
            }
            if state.unlogged.is_none() {
                actions.push(Action::WriteUnlogged);
            }
        }
        if state.pass.is_some() || state.begun < PASSES_MAX {
            actions.push(Action::Feed);
        }
        if !state.restarted && state.known_mark == state.mark && !state.is_untold {
            actions.push(Action::Restart);
        }
        if !state.kept && !state.is_untold && state.pass.is_none() {
            actions.push(Action::Define);
        }
        if state.lease.is_none() && state.free_load().is_some() && state.memory.is_none() {
            actions.push(Action::Miss);
        }
        for (index, load) in state.loads.iter().enumerate() {
            if load.stage != Stage::Free {
                actions.push(Action::Load(index));
            }
        }
        match state.phase {
            Phase::Waiting(number) => {
                actions.push(Action::GiveUp);
                let later = state.verified > number;
                let begun = state.verified == number && number > 0;
                if later || begun && !self.has(Guard::LaterPass) {
                    actions.push(Action::Read);
                }
            }
            Phase::Noted(..) if state.lease.is_none() && state.free_load().is_none() => {}
            Phase::Joined(_) | Phase::Answered => {}
            _ => actions.push(Action::Read),
        }
    }

    pub(super) fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Write => state.visible += 1,
            Action::WriteUnlogged => {
                state.visible += 1;
                state.unlogged = Some(state.visible);
                state.is_untold = true;
            }
            Action::Tell => {
                state.is_untold = false;
                state.mark = true;
            }
            Action::Feed => self.step_feed(state),
            Action::Restart => {
                state.restarted = true;
                state.pass = None;
                if !self.has(Guard::PassEndsWait) && matches!(state.phase, Phase::Waiting(_)) {
                    state.phase = Phase::Covered;
                }
            }
            Action::Define => {
                state.kept = true;
                state.known_mark = state.mark;
                state.invalidate();
            }
            Action::Miss => {
                state.lead(state.version);
            }
            Action::Load(index) => step_load(state, index),
            Action::Read => self.step_read(state),
            Action::GiveUp => state.phase = Phase::Load(false),
        }
    }

    fn step_feed(&self, state: &mut State) {
        let Some(mut pass) = state.pass else {
            state.begun += 1;
            state.pass = Some(Pass {
                number: state.begun,
                step: Step::Rows,
                wanted: matches!(state.phase, Phase::Waiting(_)),
                seen: 0,
            });
            return;
        };
        match pass.step {
            Step::Rows => {
                pass.seen = state.visible;
                pass.step = Step::Mark;
            }
            Step::Mark => {
                let is_wanted = pass.wanted && self.has(Guard::MarkThoughStill);
                let reads = pass.seen != state.position || is_wanted;
                if reads && state.mark != state.known_mark {
                    state.kept = false;
                    state.known_mark = state.mark;
                    state.invalidate();
                }
                let is_verified = reads || !self.has(Guard::MarkThoughStill);
                pass.step = Step::Apply(is_verified);
            }
            Step::Apply(is_verified) => {
                let mut new = state.position + 1..=pass.seen;
                let changed = new.any(|number| Some(number) != state.unlogged);
                // What is not kept is left out.
                if changed && state.kept {
                    state.invalidate();
                }
                state.position = pass.seen;
                if is_verified {
                    state.verified = pass.number;
                }
                state.pass = None;
                return;
            }
        }
        state.pass = Some(pass);
    }

    fn step_read(&self, state: &mut State) {
        state.phase = match state.phase {
            Phase::Idle => {
                state.floor = state.visible - u8::from(state.is_untold);
                for load in &mut state.loads {
                    load.old = matches!(load.stage, Stage::Sent | Stage::Read(_));
                }
                match state.memory {
                    Some(content) if !self.has(Guard::NumberFirst) => Phase::Found(content),
                    _ if !state.kept => Phase::Load(false),
                    _ => Phase::Waiting(state.begun),
                }
            }
            Phase::Found(content) => {
                state.found = Some(content);
                Phase::Waiting(state.begun)
            }
            Phase::Waiting(_) => match state.found {
                Some(content) => {
                    state.answer = Some(content);
                    Phase::Answered
                }
                None => Phase::Covered,
            },
            Phase::Covered if !state.kept => Phase::Load(false),
            Phase::Covered => {
                state.answer = state.memory;
                match state.memory {
                    Some(_) => Phase::Covered,
                    None => Phase::Load(true),
                }
            }
            Phase::Load(is_covered) => Phase::Noted(state.version, is_covered),
            Phase::Noted(version, is_covered) => match self.grant(state, version, is_covered) {
                Some(load) => Phase::Joined(load),
                None => state.phase,
            },
            phase @ (Phase::Joined(_) | Phase::Answered) => phase,
        };
    }

    /// The load that is joined or led.
    fn grant(&self, state: &mut State, version: u8, is_covered: bool) -> Option<usize> {
        if let Some(index) = state.lease {
            let load = state.loads[index];
            let by_version = is_covered && state.kept;
            let is_new = !load.old || by_version || !self.has(Guard::NotSentBefore);
            if is_new && (load.version == version || !self.has(Guard::JoinVersion)) {
                state.joined_old = load.old;
                return Some(index);
            }
        }
        state.lead(version)
    }
}

fn step_load(state: &mut State, index: usize) {
    let load = state.loads[index];
    match load.stage {
        Stage::Free => {}
        Stage::Waiting => state.loads[index].stage = Stage::Sent,
        Stage::Sent => state.loads[index].stage = Stage::Read(state.visible),
        Stage::Read(content) => {
            if state.kept && load.version == state.version {
                state.memory = Some(content);
            }
            if state.phase == Phase::Joined(index) {
                state.answer = Some(content);
            }
            state.loads[index] = FREE;
            if state.lease == Some(index) {
                state.lease = None;
            }
        }
    }
}
