//! The normal form of a state: states with the same possible futures have the same normal form.
//!
//! It is correct only for the protocol with all guards. It relies on this: a version that has changed never returns, so
//! what was read under it is installed, promoted or written nowhere.

use crate::{Load, Moment, Order, Phase, Request, Stage, State, Version};

/// Replaces every version that has changed since and is not compared with another such version.
const PAST: Version = Version {
    generation: u8::MAX,
    epoch: 0,
};

impl State {
    pub(crate) fn normalise(&mut self) {
        self.forget_what_is_past();
        self.answer_what_is_settled();
        for index in 0..self.requests.len() {
            if !self.floor_matters(index) {
                self.requests[index].floor = 0;
            }
        }
        self.sort();
    }

    /// Gives answers at once that can't change any more and that affect only the request.
    fn answer_what_is_settled(&mut self) {
        for index in 0..self.requests.len() {
            if let Phase::Found(content, PAST) = self.requests[index].phase {
                self.answer(index, content);
            }
        }
        for index in 0..self.loads.len() {
            if let Stage::Ending(content) = self.loads[index].stage
                && self.lease != Some(index)
            {
                self.complete(index, content);
            }
        }
    }

    /// Whether the request's floor can still matter: what a load will read is new enough for every present request.
    fn floor_matters(&self, index: usize) -> bool {
        let Request { phase, floor } = self.requests[index];
        let too_old = |load: usize| match self.loads[load].stage {
            Stage::Free | Stage::Granted | Stage::Sent => false,
            Stage::Read(content)
            | Stage::Between(content)
            | Stage::Installed(content)
            | Stage::Putting(content)
            | Stage::Ending(content) => content < floor,
        };
        match phase {
            Phase::Idle => false,
            Phase::Memory | Phase::Clean | Phase::Disk(_) => true,
            Phase::Found(content, _) => content < floor,
            Phase::Load | Phase::Noted(_) => self.lease.is_some_and(too_old),
            Phase::Waiting(load) => too_old(load),
        }
    }

    fn forget_what_is_past(&mut self) {
        let now = self.version;
        self.queue
            .retain(|order| !matches!(order, Order::Put(_, version) if *version != now));
        for request in &mut self.requests {
            if let Phase::Disk(version) | Phase::Found(_, version) = &mut request.phase
                && *version != now
            {
                *version = PAST;
            }
        }
        for index in 0..self.loads.len() {
            let Load { stage, version } = self.loads[index];
            if stage == Stage::Free || version == now {
                continue;
            }
            let stage = match stage {
                Stage::Read(content) | Stage::Installed(content) | Stage::Putting(content) => {
                    Stage::Ending(content)
                }
                stage => stage,
            };
            let noted = |request: &Request| request.phase == Phase::Noted(version);
            let joinable = self.lease == Some(index) && self.requests.iter().any(noted);
            self.loads[index].stage = stage;
            if !joinable {
                self.loads[index].version = PAST;
                self.young.retain(|moment| *moment != Moment::Sent(index));
                self.lease = self.lease.filter(|lease| *lease != index);
            }
        }
    }

    /// Sorts what has no order of its own: requests, loads, and moments between two commits.
    fn sort(&mut self) {
        if self.loads.len() == 2 && self.rank(1) < self.rank(0) {
            self.loads.swap(0, 1);
            self.lease = self.lease.map(|load| 1 - load);
            for moment in &mut self.young {
                if let Moment::Sent(load) = moment {
                    *load = 1 - *load;
                }
            }
            for request in &mut self.requests {
                if let Phase::Waiting(load) = &mut request.phase {
                    *load = 1 - *load;
                }
            }
        }
        self.requests.sort_unstable();
        for moments in self.young.split_mut(|moment| *moment == Moment::Commit) {
            moments.sort_unstable();
        }
    }

    /// The sort key of a load. If both loads have the same, both orders stay: more states, but no wrong ones.
    fn rank(&self, load: usize) -> (Load, bool, Option<usize>, usize) {
        let sent = Moment::Sent(load);
        let sent = self.young.iter().position(|moment| *moment == sent);
        let waits = |request: &&Request| request.phase == Phase::Waiting(load);
        let waiting = self
            .requests
            .iter()
            .filter(waits)
            .map(|request| usize::from(request.floor) + 1);
        (
            self.loads[load],
            self.lease == Some(load),
            sent,
            waiting.sum(),
        )
    }
}
