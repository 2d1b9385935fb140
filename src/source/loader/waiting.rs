//! The keys that wait for a worker, and which worker takes them.
//!
//! They wait in lines, one for each resource, so that one resource's trouble stays its own. Slow statements of a
//! resource leave workers to the others, and keys that wait for it leave places: each line may have at most as many as
//! are free then, so the first gets half, and there is always something left for the next (Choudhury and Hahne,
//! "Dynamic queue length thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking 6, 1998). A
//! line whose statement met a locked table pauses, and is then tried by one statement at a time until one comes
//! through.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Boottime;
use crate::source::loader::{Load, PAUSE_MAX, PAUSE_MIN};

/// Keys in one statement, at most: measured, 16 to 256 keys a statement serve equally well.
const KEYS_PER_STATEMENT: usize = 256;

/// So many keys that wait are worth a further statement beside those that are under way. Fewer join the next one:
/// measured on 2 cores, 64 clients got 1.3 times as many documents in one or two statements at a time as in eight.
const KEYS_WORTH_A_STATEMENT: usize = 32;

/// Keys that may wait for a statement; of one resource half of them.
const WAITING_KEYS_MAX: usize = 20_000;

pub(super) struct Waiting {
    lines: Vec<Line>,
    /// The line of each resource, by its name.
    numbers: HashMap<Arc<str>, usize>,
    /// Lines in which keys wait and that do not pause, in the order in which they get their turn.
    turns: VecDeque<usize>,
    pub(super) count: usize,
    /// Workers with nothing to do. The last one is the next: its connection and what serves it are warm.
    idle: Vec<usize>,
    /// Workers that have been called and have not come yet.
    called: usize,
    /// Statements that may still begin beside those under way: workers that run none.
    free: usize,
    /// Statements under way that are not late.
    prompt: usize,
    closed: bool,
}

/// The keys of one resource.
#[derive(Default)]
struct Line {
    loads: VecDeque<Load>,
    /// Statements under way.
    statements: usize,
    /// The last pause; zero where no lock was in the way of the last statement.
    pause: Duration,
    resumes_at: Option<Instant>,
}

/// Loads of one resource, all by one definition of it.
pub(super) struct Taken {
    /// The number of their line.
    pub(super) line: usize,
    pub(super) loads: Vec<Load>,
}

impl Waiting {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            lines: Vec::new(),
            numbers: HashMap::new(),
            turns: VecDeque::new(),
            count: 0,
            idle: Vec::new(),
            called: 0,
            free: workers,
            prompt: 0,
            closed: false,
        }
    }

    pub(super) fn push(&mut self, load: Load) -> Result<(), Load> {
        let number = match self.numbers.get(load.resource.name.as_str()) {
            Some(&number) => number,
            None => {
                let name = load.resource.name.as_str().into();
                self.numbers.insert(name, self.lines.len());
                self.lines.push(Line::default());
                self.lines.len() - 1
            }
        };
        let line = &mut self.lines[number];
        if self.closed || line.loads.len() >= WAITING_KEYS_MAX.saturating_sub(self.count) {
            return Err(load);
        }
        if line.loads.is_empty() && line.resumes_at.is_none() {
            self.turns.push_back(number);
        }
        line.loads.push_back(load);
        self.count += 1;
        Ok(())
    }

    /// Whether a further statement may begin for a line.
    fn may_begin(&self, line: &Line) -> bool {
        if line.pause.is_zero() {
            line.statements < self.free
        } else {
            line.statements == 0
        }
    }

    /// Keys that a statement could be begun for now.
    fn ready(&self) -> usize {
        let lines = self.turns.iter().map(|&number| &self.lines[number]);
        let ready = lines.filter(|line| self.may_begin(line));
        ready.map(|line| line.loads.len()).sum()
    }

    /// A worker that must be called for what waits.
    pub(super) fn call(&mut self) -> Option<usize> {
        let ready = self.ready();
        let alone = usize::from(self.prompt == 0 && ready > 0);
        let wanted = alone.max(ready / KEYS_WORTH_A_STATEMENT);
        if self.called >= wanted {
            return None;
        }
        let worker = self.idle.pop()?;
        self.called += 1;
        Some(worker)
    }

    /// What `worker` is to ask for; none where it has to wait until it is called.
    pub(super) fn begin(&mut self, worker: usize) -> Option<Taken> {
        let ready = self.ready();
        let worthwhile = self.prompt == 0 || ready >= KEYS_WORTH_A_STATEMENT;
        let Some(taken) = worthwhile.then(|| self.take()).flatten() else {
            self.idle.push(worker);
            return None;
        };
        self.lines[taken.line].statements += 1;
        self.free -= 1;
        self.prompt += 1;
        Some(taken)
    }

    /// A worker that was called is there.
    pub(super) fn came(&mut self) {
        self.called -= 1;
    }

    /// A statement that was begun is late.
    pub(super) fn is_late(&mut self) {
        self.prompt -= 1;
    }

    /// A statement that was begun for `line` is done.
    pub(super) fn end(&mut self, line: usize, was_late: bool) {
        let line = &mut self.lines[line];
        line.statements -= 1;
        if line.resumes_at.is_none() {
            line.pause = Duration::ZERO;
        }
        self.free += 1;
        self.prompt -= usize::from(!was_late);
    }

    /// The keys of the line whose turn it is.
    pub(super) fn take(&mut self) -> Option<Taken> {
        let mut turns = self.turns.iter();
        let turn = turns.position(|&number| self.may_begin(&self.lines[number]))?;
        let number = self.turns.remove(turn)?;
        let queue = &mut self.lines[number].loads;
        let definition = Arc::clone(&queue.front()?.resource);
        let same = queue
            .iter()
            .take(KEYS_PER_STATEMENT)
            .take_while(|load| Arc::ptr_eq(&load.resource, &definition))
            .count();
        let loads: Vec<Load> = queue.drain(..same).collect();
        if !queue.is_empty() {
            self.turns.push_back(number);
        }
        self.count -= loads.len();
        Some(Taken {
            line: number,
            loads,
        })
    }

    /// Takes back what a lock kept a statement from reading. Its line pauses, longer each time.
    ///
    /// Returns the loads of the line that have waited for `patience` since they were asked for.
    #[must_use]
    pub(super) fn put_back(&mut self, taken: Taken, patience: Duration) -> Vec<Load> {
        let line = &mut self.lines[taken.line];
        let had_turn = !line.loads.is_empty() && line.resumes_at.is_none();
        self.count += taken.loads.len();
        for load in taken.loads.into_iter().rev() {
            load.sent_at.clear();
            line.loads.push_front(load);
        }
        let now = Boottime::now();
        let is_over = |load: &Load| now.since(load.asked_at) >= patience;
        let over = line.loads.iter().take_while(|load| is_over(load)).count();
        let over: Vec<Load> = line.loads.drain(..over).collect();
        self.count -= over.len();
        // Statements that were under way together met the same lock.
        if line.resumes_at.is_none() {
            line.pause = (line.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            line.resumes_at = Some(Instant::now() + line.pause);
        }
        if had_turn {
            self.turns.retain(|&number| number != taken.line);
        }
        if self.closed {
            self.close();
        }
        over
    }

    /// Gives those lines their turn whose pause is over. Returns when the next one is.
    pub(super) fn resume(&mut self) -> Option<Instant> {
        let now = Instant::now();
        for (number, line) in self.lines.iter_mut().enumerate() {
            if line.resumes_at.take_if(|at| *at <= now).is_some() && !line.loads.is_empty() {
                self.turns.push_back(number);
            }
        }
        self.lines.iter().filter_map(|line| line.resumes_at).min()
    }

    /// Drops what waits; nothing more is taken in.
    pub(super) fn close(&mut self) {
        self.turns.clear();
        for line in &mut self.lines {
            line.loads.clear();
        }
        self.count = 0;
        self.closed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Resource;
    use crate::resource::testing::named;
    use crate::source::loader::SentAt;

    const PATIENCE: Duration = Duration::from_secs(60);

    struct Table(Arc<Resource>);

    impl Table {
        fn new(name: &str) -> Self {
            Self(Arc::new(named(name)))
        }

        fn load(&self) -> Load {
            Load {
                resource: Arc::clone(&self.0),
                key: Arc::from("1"),
                asked_at: Boottime::now(),
                sent_at: SentAt::default(),
                done: Box::new(|_, _| ()),
            }
        }

        /// Has keys wait that are worth a statement whatever is under way.
        fn wait(&self, waiting: &mut Waiting) {
            for _ in 0..KEYS_PER_STATEMENT {
                assert!(waiting.push(self.load()).is_ok());
            }
        }
    }

    #[test]
    fn each_resource_leaves_workers_to_the_next() {
        for (workers, shares) in [(1, &[1][..]), (2, &[1, 1]), (3, &[2, 1]), (8, &[4, 2, 1])] {
            let mut waiting = Waiting::new(workers);
            for (number, &share) in shares.iter().enumerate() {
                let table = Table::new(&number.to_string());
                for _ in 0..8 {
                    table.wait(&mut waiting);
                }
                let begun = std::iter::from_fn(|| waiting.begin(0)).count();
                assert_eq!(begun, share, "of {workers}");
            }
        }
    }

    #[test]
    fn each_resource_leaves_places_to_the_next() {
        let mut waiting = Waiting::new(1);
        for half in [WAITING_KEYS_MAX / 2, WAITING_KEYS_MAX / 4] {
            let table = Table::new(&half.to_string());
            let taken_in = std::iter::from_fn(|| waiting.push(table.load()).ok());
            assert_eq!(taken_in.count(), half);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_locked_is_tried_by_one_statement_after_longer_and_longer_pauses() {
        let mut waiting = Waiting::new(8);
        let (locked, other) = (Table::new("locked"), Table::new("other"));
        locked.wait(&mut waiting);
        locked.wait(&mut waiting);
        let mut expected = PAUSE_MIN;
        for _ in 0..8 {
            let taken = waiting.begin(0).unwrap();
            assert_eq!(taken.loads.len(), KEYS_PER_STATEMENT);
            let line = taken.line;
            if expected > PAUSE_MIN {
                assert!(waiting.begin(1).is_none(), "a second statement");
            }
            assert!(waiting.put_back(taken, PATIENCE).is_empty());
            waiting.end(line, false);
            assert_eq!(waiting.count, 2 * KEYS_PER_STATEMENT);
            assert!(waiting.call().is_none(), "called in the pause");
            // Others are not kept waiting.
            other.wait(&mut waiting);
            let taken = waiting.begin(0).unwrap();
            assert_eq!(taken.loads[0].resource.name, "other");
            waiting.end(taken.line, false);
            let resumes_at = waiting.resume().unwrap();
            assert_eq!(resumes_at - Instant::now(), expected);
            tokio::time::advance(expected).await;
            assert_eq!(waiting.resume(), None);
            expected = (expected * 2).min(PAUSE_MAX);
        }
        let taken = waiting.begin(0).unwrap();
        waiting.end(taken.line, false);
        assert!(waiting.begin(0).is_some() && waiting.lines[0].pause.is_zero());
    }

    #[tokio::test]
    async fn what_has_waited_too_long_for_a_lock_comes_back_with_all_behind_it() {
        let mut waiting = Waiting::new(1);
        let table = Table::new("locked");
        table.wait(&mut waiting);
        table.wait(&mut waiting);
        let taken = waiting.begin(0).unwrap();
        taken.loads[0].sent_at.mark(Boottime::now());
        let over = waiting.put_back(taken, Duration::ZERO);
        assert_eq!(over.len(), 2 * KEYS_PER_STATEMENT);
        assert!(over[0].sent_at.get().is_none(), "nobody could join it");
        assert_eq!(waiting.count, 0);
    }
}
