//! The feed: a pass, step by step.

use crate::{Action, Guard, Moment, Order, Pass, PassStep, Protocol, State, Txn};

impl Protocol {
    pub(super) fn feed_actions(&self, state: &State, actions: &mut Vec<Action>) {
        if !state.following {
            actions.push(Action::Follow);
        } else if state.pass.is_some() {
            actions.push(Action::Feed);
        } else {
            let behind = state.position < state.commits();
            // A pass that finds nothing, right after another pass, changes nothing.
            if behind || state.young.last() != Some(&Moment::Fresh) {
                actions.push(Action::Feed);
            }
            if self.bounds.disk && !state.disk_on && !state.is_enabling() {
                actions.push(Action::Resume);
            }
        }
    }

    pub(super) fn begin_pass(&self, state: &mut State, resumes: bool) {
        if self.has(Guard::FreshAtEnd) {
            state.young.push(Moment::Began);
        } else {
            state.young.retain(|moment| *moment != Moment::Fresh);
            state.young.push(Moment::Fresh);
        }
        state.pass = Some(Pass {
            step: PassStep::Read,
            seen: 0,
            changed: false,
            resumes,
        });
    }

    pub(super) fn step_feed(&self, state: &mut State) {
        let Some(mut pass) = state.pass else {
            return self.begin_pass(state, false);
        };
        match pass.step {
            PassStep::Read => {
                let mark = state.disk.mark.filter(|_| pass.resumes);
                pass.seen = state.commits();
                pass.changed = self.reads(state, mark.unwrap_or(state.position));
            }
            PassStep::TakeEpoch => {
                state.version.epoch = 0;
                // The entry in memory has another epoch.
                state.memory = None;
            }
            PassStep::Raise => state.version.generation += 1,
            PassStep::Forget => state.memory = None,
            PassStep::QueueDrop => state.queue.push(Order::Drop(state.version.generation)),
            PassStep::QueueMark => state.queue.push(Order::Mark(pass.seen)),
            PassStep::Complete => {
                state.position = pass.seen;
                state.forget_covered_commits();
                self.freshen(state);
            }
            PassStep::QueueEnable => {
                let order = Order::Enable(pass.seen, state.version.generation);
                state.queue.push(order);
            }
        }
        state.pass = self.next(state, pass);
    }

    /// Whether the document is among what the log says since `position`.
    fn reads(&self, state: &State, position: u8) -> bool {
        let database = &state.database;
        let now = database.commits();
        let log = database.committed.iter().skip(usize::from(position));
        let mut touches = log.map(|txn| match txn.txn {
            Txn::Edit | Txn::Move => true,
            Txn::Retitle if self.has(Guard::MapInPass) => database.at_second(now),
            Txn::Retitle => txn.mapped,
        });
        touches.any(|touched| touched)
    }

    fn freshen(&self, state: &mut State) {
        if !self.has(Guard::FreshAtEnd) {
            return;
        }
        let young = &mut state.young;
        young.retain(|moment| *moment != Moment::Fresh);
        if self.has(Guard::FreshFromStart) {
            let began = young.iter_mut().find(|moment| **moment == Moment::Began);
            if let Some(began) = began {
                *began = Moment::Fresh;
            }
        } else {
            young.retain(|moment| *moment != Moment::Began);
            young.push(Moment::Fresh);
        }
    }

    /// The pass before its next step; `None` if it has ended.
    fn next(&self, state: &State, pass: Pass) -> Option<Pass> {
        use PassStep::{
            Complete, Forget, QueueDrop, QueueEnable, QueueMark, Raise, Read, TakeEpoch,
        };
        let mut order = [
            Read,
            TakeEpoch,
            Raise,
            Forget,
            QueueDrop,
            QueueMark,
            Complete,
            QueueEnable,
        ];
        if !self.has(Guard::RaiseBeforeDrop) {
            order.swap(2, 3);
        }
        if !self.has(Guard::MarkAfterDrop) {
            order.swap(4, 5);
        }
        let marks = state.crashes < self.bounds.crashes && state.last_mark() != Some(pass.seen);
        let applies = |step: &PassStep| match step {
            TakeEpoch | QueueEnable => pass.resumes,
            Raise | Forget => pass.changed,
            QueueDrop => pass.changed && self.bounds.disk,
            QueueMark => self.bounds.disk && marks,
            Read | Complete => true,
        };
        let rest = order.into_iter().skip_while(|step| *step != pass.step);
        let step = rest.skip(1).find(applies)?;
        Some(Pass { step, ..pass })
    }
}

impl State {
    /// Every answer has to reflect the position, so the age of a commit in it does not matter any more.
    pub(super) fn forget_covered_commits(&mut self) {
        let mut covered = self.position - self.old_commits().min(self.position);
        self.young.retain(|moment| {
            let forget = *moment == Moment::Commit && covered > 0;
            covered -= u8::from(forget);
            !forget
        });
    }

    /// Whether the order to use the disk tier's content is queued or in the writer's batch.
    fn is_enabling(&self) -> bool {
        let queued = self.queue.iter();
        let queued = queued.filter(|order| matches!(order, Order::Enable(..)));
        self.batch.is_some_and(|batch| batch.enable) || queued.count() > 0
    }
}
