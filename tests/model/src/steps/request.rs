//! A request: `Cache::lookup` up to the lease.

use crate::{Guard, Load, Moment, Phase, Protocol, Request, Stage, State, Version};

impl Protocol {
    pub(super) fn request_can_go_on(state: &State, phase: Phase) -> bool {
        match phase {
            Phase::Idle => state.following,
            Phase::Noted(_) => {
                state.lease.is_some() || state.loads.iter().any(|load| load.stage == Stage::Free)
            }
            Phase::Waiting(_) => false,
            _ => true,
        }
    }

    pub(super) fn step_request(&self, state: &mut State, index: usize) {
        let next = match state.requests[index].phase {
            Phase::Idle => {
                state.requests[index].floor = state.position.max(state.old_commits());
                if state.is_fresh() || !self.has(Guard::FreshCheck) {
                    Phase::Memory
                } else {
                    Phase::Load
                }
            }
            Phase::Memory => match state.memory {
                Some(content) => return state.answer(index, content),
                None if state.disk_on => Phase::Clean,
                None => Phase::Load,
            },
            Phase::Clean => {
                let clean = state.clean == state.version.generation;
                if clean || !self.has(Guard::CleanCheck) {
                    Phase::Disk(state.version)
                } else {
                    Phase::Load
                }
            }
            Phase::Disk(version) => match state.disk.content {
                Some(content) => Phase::Found(content, version),
                None => Phase::Load,
            },
            Phase::Found(content, version) => {
                if version == state.version || !self.has(Guard::PromotionCheck) {
                    state.memory = Some(content);
                }
                return state.answer(index, content);
            }
            Phase::Load => Phase::Noted(state.version),
            Phase::Noted(version) => match self.grant(state, version) {
                Some(load) => Phase::Waiting(load),
                None => return,
            },
            Phase::Waiting(_) => return,
        };
        let request = &mut state.requests[index];
        *request = Request {
            phase: next,
            ..*request
        };
    }

    /// The load that is joined or led.
    fn grant(&self, state: &mut State, version: Version) -> Option<usize> {
        if let Some(load) = state.lease {
            let Load {
                stage,
                version: noted,
            } = state.loads[load];
            let young = stage == Stage::Granted || state.young.contains(&Moment::Sent(load));
            if (young || !self.has(Guard::JoinAge))
                && (noted == version || !self.has(Guard::JoinGeneration))
            {
                return Some(load);
            }
        }
        let free = |load: &Load| load.stage == Stage::Free;
        let load = state.loads.iter().position(free)?;
        state.loads[load] = Load {
            stage: Stage::Granted,
            version,
        };
        if let Some(overtaken) = state.lease.replace(load) {
            // No request can join it any more, so it does not matter when it was sent.
            let sent = Moment::Sent(overtaken);
            state.young.retain(|moment| *moment != sent);
        }
        Some(load)
    }
}
