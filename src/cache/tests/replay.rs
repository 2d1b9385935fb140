//! Random traces of the model in `tests/model`, replayed against the real cache, to show that the cache does what the
//! model does.
//!
//! Each step of a trace is made by the real code: `Cache::lookup`, `fill`, `apply_event` and the disk tier's writer run
//! on threads that wait at the gates between the model's steps ([`super::gate`]), over a real sled store and a clock
//! that only the trace moves. After each step everything that can be seen of the cache is compared with the model's
//! state, and each answer is also checked against the times of the commits. The trace says what a load reads, in place
//! of a statement; SQL, the feed's connection and the two tasks that only wait (the writer's and the reader's loops)
//! are not in it.

mod compare;
mod real;
mod steps;

use freshness_model::{Action, Bounds, Protocol, Scene, State};

use self::real::{Run, Times};
use self::steps::Replay;
use crate::cache::disk::Store;

const SEED: u64 = 20_261_121;
const TRACES: u64 = 2_000;
const STEPS: usize = 80;
/// With each moment that expires, the distance between the others shrinks. A trace ends when it is this small, in
/// nanoseconds.
const FINEST: u64 = 64;
/// One crash in so many closes and opens the files; the others go on with them open, which is faster.
const REOPEN_EVERY: usize = 50;

const PROTOCOL: Protocol = Protocol {
    scene: Scene::Edits,
    bounds: Bounds {
        commits: 2,
        requests: 2,
        loads: 2,
        puts: 2,
        disk: true,
        crashes: 1,
    },
    normal: false,
    without: None,
};

/// How often interesting steps occurred: a sample without them would prove nothing.
#[derive(Debug, Default)]
struct Seen {
    steps: usize,
    memory_hits: usize,
    disk_hits: usize,
    disk_hits_after_crash: usize,
    joined: usize,
    refused: usize,
    bypassed: usize,
    crashes: usize,
}

/// SplitMix64 (Steele et al., 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as usize % bound
    }
}

/// Prints the steps that led to a failure.
struct Trace {
    number: u64,
    actions: Vec<Action>,
}

impl Drop for Trace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { number, actions } = self;
            eprintln!("seed {SEED}, trace {number}: {actions:?}");
        }
    }
}

/// The next action. Some are chosen rarely, so that enough has happened before them.
fn choose(state: &State, random: &mut Random) -> Option<Action> {
    let mut actions = Vec::new();
    for action in PROTOCOL.possible(state) {
        let weight = match action {
            // A real clock makes the earliest moment old first.
            Action::Expire(0) | Action::Fail(_) | Action::LeaveOut(_) => 4,
            Action::Expire(_) => 0,
            Action::Crash => 1,
            Action::Commit(_) | Action::Evict => 8,
            _ => 24,
        };
        actions.extend(std::iter::repeat_n(action, weight));
    }
    (!actions.is_empty()).then(|| actions[random.below(actions.len())])
}

#[test]
fn the_real_cache_does_what_the_model_does() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Some(Store::open(directory.path(), 1 << 30, 1 << 20).unwrap());
    let mut seen = Seen::default();
    for number in 0..TRACES {
        let mut random = Random(SEED ^ (number << 32));
        let mut trace = Trace {
            number,
            actions: Vec::new(),
        };
        let empty = store.take().expect("the trace before gave it back");
        empty.clear().unwrap();
        let mut times = Times::default();
        times.now = 1;
        let mut run = Run::start(empty, times.now());
        run.follow(0);
        let mut replay = Replay {
            run: Some(run),
            times,
            seen: &mut seen,
            directory: directory.path(),
        };
        let mut state = PROTOCOL.begin();
        for _ in 0..STEPS {
            let Some(action) = choose(&state, &mut random) else {
                break;
            };
            if replay.times.slack(&state) < FINEST {
                break;
            }
            trace.actions.push(action);
            let next = PROTOCOL.after(&state, action);
            replay.step(&state, action, &next);
            state = next;
        }
        store = replay.run.take().map(Run::crash);
        seen.steps += trace.actions.len();
    }
    eprintln!("{TRACES} traces: {seen:?}");
    let enough = [
        seen.memory_hits,
        seen.disk_hits,
        seen.disk_hits_after_crash,
        seen.joined,
        seen.refused,
        seen.bypassed,
    ];
    assert!(enough.iter().all(|&count| count >= 20), "{seen:?}");
}
