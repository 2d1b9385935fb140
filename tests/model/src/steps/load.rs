//! A load: from the lease to the tiers.

use crate::{Guard, Moment, Order, Phase, Protocol, Stage, State};

impl Protocol {
    pub(super) fn load_can_go_on(&self, state: &State, stage: Stage) -> bool {
        let puts = state.queue.iter();
        let puts = puts.filter(|order| matches!(order, Order::Put(..))).count();
        !matches!(stage, Stage::Putting(_)) || puts < self.bounds.puts
    }

    pub(super) fn step_load(&self, state: &mut State, index: usize) {
        let load = state.loads[index];
        let valid = load.version == state.version;
        let next = match load.stage {
            Stage::Free => return,
            Stage::Granted => {
                if state.lease == Some(index) {
                    state.young.push(Moment::Sent(index));
                }
                Stage::Sent
            }
            Stage::Sent => Stage::Read(state.commits()),
            Stage::Read(content) if !self.has(Guard::GenerationBeforeRead) => {
                state.loads[index].version = state.version;
                Stage::Between(content)
            }
            Stage::Read(content) if !self.has(Guard::AtomicInstall) => {
                if valid {
                    Stage::Between(content)
                } else {
                    Stage::Ending(content)
                }
            }
            Stage::Between(content) if !self.has(Guard::AtomicInstall) => {
                self.install(state, content)
            }
            Stage::Read(content) | Stage::Between(content) => {
                if valid || !self.has(Guard::GenerationAtInstall) {
                    self.install(state, content)
                } else {
                    Stage::Ending(content)
                }
            }
            Stage::Installed(content) if valid => Stage::Putting(content),
            Stage::Installed(content) => Stage::Ending(content),
            Stage::Putting(content) => {
                if state.disk_on {
                    state.queue.push(Order::Put(content, load.version));
                }
                return state.complete(index, content);
            }
            Stage::Ending(content) => return state.complete(index, content),
        };
        state.loads[index].stage = next;
    }

    fn install(&self, state: &mut State, content: u8) -> Stage {
        state.memory = Some(content);
        if self.bounds.disk {
            Stage::Installed(content)
        } else {
            Stage::Ending(content)
        }
    }
}

impl State {
    pub(crate) fn complete(&mut self, index: usize, content: u8) {
        for request in self.waiting(index) {
            self.answer(request, content);
        }
        self.end_load(index);
    }

    pub(super) fn fail(&mut self, index: usize) {
        for request in self.waiting(index) {
            self.requests[request].phase = Phase::Load;
        }
        self.end_load(index);
    }
}
