//! The steps of a trace, made by the real code.

use std::sync::atomic::Ordering;

use freshness_model::{Action, PassStep, Phase, Stage, State};

use super::compare::content;
use super::real::{Answered, Loading, Run, Times, Written, position};
use super::{REOPEN_EVERY, Seen};
use crate::cache::disk::Store;
use crate::cache::disk_tier::lookups::{read_entry, serve_batch};
use crate::cache::orders::DiskOrder;
use crate::cache::tests::gate::{Arrival, GatedThread, Point};
use crate::cache::{Answer, Provenance};
use crate::resource::testing::ITEMS;

/// The cache under replay.
pub(super) struct Replay<'t> {
    pub(super) run: Option<Run>,
    pub(super) times: Times,
    pub(super) seen: &'t mut Seen,
    pub(super) directory: &'t std::path::Path,
}

impl Replay<'_> {
    pub(super) fn run(&mut self) -> &mut Run {
        self.run.as_mut().expect("it runs")
    }

    pub(super) fn step(&mut self, before: &State, action: Action, after: &State) {
        let now = self.times.now();
        match action {
            Action::Commit(_) | Action::Write(_) => self.times.commit(before),
            Action::Expire(_) => self.times.expire(before),
            Action::Request(index) => self.request(index, before, after),
            Action::Load(index) => self.load(index, before, after),
            Action::LeaveOut(index) => {
                let run = self.run.as_mut().expect("it runs");
                run.shared
                    .queued_bytes
                    .fetch_add(1 << 40, Ordering::Relaxed);
                self.fill(index, Point::Ending);
                let run = self.run();
                run.shared
                    .queued_bytes
                    .fetch_sub(1 << 40, Ordering::Relaxed);
            }
            Action::Fail(index) => {
                self.run().loads[index] = None;
                for request in waiting(before, index) {
                    self.go(request, before, after);
                }
            }
            Action::Evict => self.run().cache.memory.sweep(ITEMS, |_| true),
            Action::Feed | Action::Resume => self.feed(before, after),
            Action::Follow => self.run().follow(after.position),
            Action::Gather(count) => {
                let run = self.run();
                let orders = run.queue.drain(..count).collect();
                let mut writer = run.writer.take().expect("no batch is under way");
                let (thread, arrival) = GatedThread::start(now, move || {
                    writer.make_mark_due();
                    writer.apply_orders(orders);
                    Written(writer)
                });
                assert!(
                    matches!(arrival, Arrival::At(Point::Gathered)),
                    "{arrival:?}"
                );
                run.writing = Some(thread);
                if after.batch.is_none() {
                    self.apply();
                }
            }
            Action::Apply => self.apply(),
            Action::Crash => self.crash(),
        }
        self.compare(
            after,
            matches!(action, Action::Apply | Action::Gather(_) | Action::Crash),
        );
    }

    fn apply(&mut self) {
        let now = self.times.now();
        let run = self.run();
        let mut thread = run.writing.take().expect("a batch is under way");
        match thread.go(now) {
            Arrival::Ended(written) => run.writer = Some(written.0),
            other => panic!("the writer came to {other:?}"),
        }
    }

    fn crash(&mut self) {
        let mut store = self.run.take().expect("it runs").crash();
        self.seen.crashes += 1;
        if self.seen.crashes.is_multiple_of(REOPEN_EVERY) {
            drop(store);
            store = Store::open(self.directory, 1 << 30, 1 << 20).unwrap();
        }
        self.run = Some(Run::start(store, self.times.now()));
    }

    fn request(&mut self, index: usize, before: &State, after: &State) {
        let now = self.times.now();
        match before.requests[index].phase {
            Phase::Idle => {
                let old = self.times.old_commits();
                let run = self.run();
                let applied = run.cache.freshness.position();
                let applied = (0..=2).find(|commits| applied.as_ref() == Some(&position(*commits)));
                run.floors[index] = old.max(applied.expect("it follows"));
                let (thread, arrival) = run.request(now);
                run.requests[index] = Some(thread);
                self.arrived(index, arrival, before, after);
            }
            Phase::Disk(_) => {
                let run = self.run();
                let batch = run.disk_lookups[index].take().expect("it asked the disk");
                serve_batch(
                    |lookup, goes_on| read_entry(&run.shared, lookup, goes_on),
                    batch,
                );
                if !matches!(after.requests[index].phase, Phase::Found(..)) {
                    self.go(index, before, after);
                }
            }
            // It wants to lead, and the model has no place for another load.
            Phase::Noted(_) if before == after => {}
            _ => self.go(index, before, after),
        }
    }

    fn go(&mut self, index: usize, before: &State, after: &State) {
        let now = self.times.now();
        let request = self.run().requests[index].as_mut();
        let arrival = request.expect("it is under way").go(now);
        self.arrived(index, arrival, before, after);
    }

    fn arrived(&mut self, index: usize, arrival: Arrival<Answered>, before: &State, after: &State) {
        match (arrival, after.requests[index].phase) {
            (Arrival::At(Point::Memory), Phase::Memory)
            | (Arrival::At(Point::Clean), Phase::Clean)
            | (Arrival::At(Point::Load), Phase::Load)
            | (Arrival::At(Point::Noted), Phase::Noted(_)) => {}
            (Arrival::Pending, Phase::Disk(_)) => {
                let now = self.times.now();
                let run = self.run();
                // It has let others join it, and there are none.
                let request = run.requests[index].as_mut();
                let arrival = request.expect("it is under way").go(now);
                assert!(matches!(arrival, Arrival::Pending), "{arrival:?}");
                run.disk_lookups[index] = Some(run.lookups.try_recv().expect("it asked the disk"));
            }
            (Arrival::Pending, Phase::Waiting(load)) => {
                let leads = before.loads[load].stage == Stage::Free;
                self.seen.joined += usize::from(!leads);
                let run = self.run();
                let mut loads = run.cache.loader.take_waiting();
                assert_eq!(loads.len(), usize::from(leads), "loads sent");
                if let Some(led) = loads.pop() {
                    run.loads[load] = Some(Loading::Waits(led));
                }
            }
            (Arrival::Ended(answer), Phase::Idle) => {
                let answer = answer.expect("an answer");
                self.answered(index, &answer, before);
            }
            (arrival, phase) => panic!("request {index} came to {arrival:?} in place of {phase:?}"),
        }
    }

    fn answered(&mut self, index: usize, answer: &Answer, before: &State) {
        let run = self.run();
        run.requests[index] = None;
        let floor = run.floors[index];
        let content = content(answer.found.as_ref());
        assert!(
            content >= floor,
            "a stale answer: {content} where {floor} was due"
        );
        let expected = match before.requests[index].phase {
            Phase::Memory => (before.memory, answer.provenance == Provenance::Memory),
            Phase::Found(content, _) => (Some(content), answer.provenance == Provenance::Disk),
            Phase::Waiting(load) => {
                let provenance = matches!(
                    answer.provenance,
                    Provenance::Miss { .. } | Provenance::Bypass { .. }
                );
                (read(before.loads[load].stage), provenance)
            }
            phase => panic!("an answer from {phase:?}"),
        };
        assert_eq!(expected, (Some(content), true), "the answer {answer:?}");
        self.seen.memory_hits += usize::from(answer.provenance == Provenance::Memory);
        let disk = usize::from(answer.provenance == Provenance::Disk);
        self.seen.disk_hits += disk;
        self.seen.disk_hits_after_crash += disk * usize::from(before.crashes > 0);
        self.seen.bypassed += usize::from(matches!(answer.provenance, Provenance::Bypass { .. }));
    }

    fn load(&mut self, index: usize, before: &State, after: &State) {
        let now = self.times.now();
        match before.loads[index].stage {
            Stage::Granted => {
                let sent = self.times.send(index, before);
                match &self.run().loads[index] {
                    Some(Loading::Waits(load)) => load.sent_at.mark(sent),
                    _ => panic!("load {index} does not wait"),
                }
            }
            Stage::Read(content) => {
                let run = self.run();
                let Some(Loading::Waits(load)) = run.loads[index].take() else {
                    panic!("load {index} does not wait")
                };
                let (thread, arrival) = Run::fill(load, content, now);
                assert!(
                    matches!(arrival, Arrival::At(Point::Installed)),
                    "{arrival:?}"
                );
                run.loads[index] = Some(Loading::Fills(thread));
                let refused = matches!(after.loads[index].stage, Stage::Ending(_));
                self.seen.refused += usize::from(refused);
            }
            Stage::Installed(_) => match after.loads[index].stage {
                Stage::Putting(_) => self.fill(index, Point::Putting),
                _ => self.fill(index, Point::Ending),
            },
            Stage::Putting(_) => {
                self.fill(index, Point::Ending);
                self.complete(index, before, after);
            }
            Stage::Ending(_) => {
                if self.filling(index).at == Some(Point::Installed) {
                    self.fill(index, Point::Ending);
                }
                self.complete(index, before, after);
            }
            Stage::Free | Stage::Sent | Stage::Between(_) => {}
        }
    }

    fn filling(&mut self, index: usize) -> &mut GatedThread<()> {
        match &mut self.run().loads[index] {
            Some(Loading::Fills(thread)) => thread,
            _ => panic!("load {index} does not fill"),
        }
    }

    /// The fill goes on to `point`.
    fn fill(&mut self, index: usize, point: Point) {
        let now = self.times.now();
        let arrival = self.filling(index).go(now);
        assert!(
            matches!(arrival, Arrival::At(at) if at == point),
            "{arrival:?} in place of {point:?}"
        );
    }

    fn complete(&mut self, index: usize, before: &State, after: &State) {
        let now = self.times.now();
        let arrival = self.filling(index).go(now);
        assert!(matches!(arrival, Arrival::Ended(())), "{arrival:?}");
        self.run().loads[index] = None;
        for request in waiting(before, index) {
            self.go(request, before, after);
        }
    }

    fn feed(&mut self, before: &State, after: &State) {
        let now = self.times.now();
        let Some(pass) = before.pass else {
            return self.times.begin_pass(before);
        };
        let mut arrival = if pass.step == PassStep::Read {
            let found = after.pass.expect("a pass does not end with its reading");
            let run = self.run.as_mut().expect("it runs");
            let (thread, arrival) = run.pass(&self.times, found);
            run.pass = Some(thread);
            arrival
        } else {
            self.run().pass.as_mut().expect("a pass").go(now)
        };
        if pass.step == PassStep::Complete {
            self.times.complete_pass();
        }
        let expected = after.pass.map(|pass| point(pass.step));
        // A mark that says nothing new may be left out, and the model leaves it out.
        if expected != Some(Point::QueueMark) && matches!(arrival, Arrival::At(Point::QueueMark)) {
            let run = self.run();
            run.drain();
            arrival = run.pass.as_mut().expect("a pass").go(now);
            let repeated = run.orders.try_recv();
            assert!(matches!(repeated, Ok(DiskOrder::Mark(_))), "no mark");
        }
        match (arrival, expected) {
            (Arrival::At(at), Some(point)) if at == point => {}
            (Arrival::Ended(()), None) => self.run().pass = None,
            (arrival, expected) => panic!("the pass came to {arrival:?} in place of {expected:?}"),
        }
    }
}

/// The gate in front of a step of a pass.
fn point(step: PassStep) -> Point {
    match step {
        PassStep::Read => panic!("reading has no gate"),
        PassStep::TakeEpoch => Point::TakeEpoch,
        PassStep::Raise => Point::Raise,
        PassStep::Forget => Point::Forget,
        PassStep::QueueDrop => Point::QueueDrop,
        PassStep::QueueMark => Point::QueueMark,
        PassStep::Complete => Point::Complete,
        PassStep::QueueEnable => Point::QueueEnable,
    }
}

fn waiting(state: &State, load: usize) -> Vec<usize> {
    let waits = |index: &usize| state.requests[*index].phase == Phase::Waiting(load);
    (0..state.requests.len()).filter(waits).collect()
}

fn read(stage: Stage) -> Option<u8> {
    match stage {
        Stage::Putting(content) | Stage::Ending(content) => Some(content),
        _ => None,
    }
}
