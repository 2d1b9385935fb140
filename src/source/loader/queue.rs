//! The keys that wait for a worker, and which worker takes them.
//!
//! Each resource has a queue of its own, so that a slow or locked table does not hold up other resources. A resource
//! may have at most as many statements, and as many waiting keys, as are still free: the first gets half, and something
//! is always left for the next (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
//! switches", IEEE/ACM Transactions on Networking 6, 1998). The queue pauses after a statement met a locked table. Then
//! one statement at a time is tried until one succeeds.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Boottime;
use crate::source::loader::{Load, PAUSE_MAX, PAUSE_MIN};

/// The most keys in one statement. 16 to 256 keys were measured to serve equally well.
const KEYS_PER_STATEMENT: usize = 256;

/// A further statement begins beside the running ones if so many keys wait. Fewer keys wait for the next statement:
/// measured on 2 cores, 64 clients got 1.3 times as many documents with one or two statements at a time as with eight.
const KEYS_WORTH_A_STATEMENT: usize = 32;

/// The most bytes of the documents that a statement for several keys returns.
const STATEMENT_BYTES_MAX: usize = 16 << 20;

/// A statement gets so few keys that each has this many times the mean length of the resource's documents. At most one
/// document in eight is longer, since lengths are not negative.
const TIMES_MEAN: usize = 8;

/// After so many documents, those before count half.
const RECENT_DOCUMENTS: usize = 1_024;

/// The most keys that may wait. One resource may have half of them.
const WAITING_KEYS_MAX: usize = 20_000;

pub(super) struct LoadQueue {
    queues: Vec<ResourceQueue>,
    /// The queue of each resource, by its name.
    numbers: HashMap<Arc<str>, usize>,
    /// The queues that hold keys and do not pause, in the order in which they get their turn.
    turns: VecDeque<usize>,
    /// In all queues.
    pub(super) waiting_keys: usize,
    /// Workers that wait to be woken. The last one is woken first, since its connection is warm.
    idle_workers: Vec<usize>,
    /// Workers that have been woken and have not run yet.
    woken_workers: usize,
    /// Workers that run no statement.
    free_workers: usize,
    /// Running statements that are not late.
    on_time: usize,
    closed: bool,
}

/// The keys of one resource.
#[derive(Default)]
struct ResourceQueue {
    loads: VecDeque<Load>,
    lengths: RecentLengths,
    /// Running statements.
    statements: usize,
    /// The length of the last pause; zero if the last statement met no lock.
    pause: Duration,
    /// The end of the pause, while the queue pauses.
    resumes_at: Option<Instant>,
}

/// The most bytes of each document that a statement for `keys` keys returns. A longer one is not sent, and is read by a
/// statement of its own.
pub(super) fn share(keys: usize) -> usize {
    match keys {
        0 | 1 => usize::MAX,
        keys => STATEMENT_BYTES_MAX / keys,
    }
}

/// The lengths of the documents that were read recently.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecentLengths {
    documents: usize,
    bytes: usize,
}

impl RecentLengths {
    /// Notes a document that was read.
    pub(super) fn note(&mut self, bytes: usize) {
        self.documents += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn add(&mut self, later: Self) {
        self.documents += later.documents;
        self.bytes = self.bytes.saturating_add(later.bytes);
        while self.documents > RECENT_DOCUMENTS {
            self.documents /= 2;
            self.bytes /= 2;
        }
    }

    /// The number of keys of the next statement.
    fn keys_max(self) -> usize {
        match self.bytes.checked_div(self.documents) {
            None => KEYS_PER_STATEMENT,
            Some(mean) => {
                (STATEMENT_BYTES_MAX / TIMES_MEAN / mean.max(1)).clamp(1, KEYS_PER_STATEMENT)
            }
        }
    }
}

/// Loads of one resource, all under the same definition of it.
pub(super) struct Batch {
    /// The number of the resource's queue.
    pub(super) queue: usize,
    pub(super) loads: Vec<Load>,
}

impl LoadQueue {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            queues: Vec::new(),
            numbers: HashMap::new(),
            turns: VecDeque::new(),
            waiting_keys: 0,
            idle_workers: Vec::new(),
            woken_workers: 0,
            free_workers: workers,
            on_time: 0,
            closed: false,
        }
    }

    /// # Errors
    /// The load itself if too many keys wait.
    pub(super) fn push(&mut self, load: Load) -> Result<(), Load> {
        let number = match self.numbers.get(load.resource.name.as_str()) {
            Some(&number) => number,
            None => {
                let name = load.resource.name.as_str().into();
                self.numbers.insert(name, self.queues.len());
                self.queues.push(ResourceQueue::default());
                self.queues.len() - 1
            }
        };
        let queue = &mut self.queues[number];
        if self.closed || queue.loads.len() >= WAITING_KEYS_MAX.saturating_sub(self.waiting_keys) {
            return Err(load);
        }
        if queue.loads.is_empty() && queue.resumes_at.is_none() {
            self.turns.push_back(number);
        }
        queue.loads.push_back(load);
        self.waiting_keys += 1;
        Ok(())
    }

    /// Whether a further statement may begin for a queue.
    fn may_begin(&self, queue: &ResourceQueue) -> bool {
        if queue.pause.is_zero() {
            queue.statements < self.free_workers
        } else {
            queue.statements == 0
        }
    }

    /// The number of keys for which a statement may begin now.
    fn ready_keys(&self) -> usize {
        let queues = self.turns.iter().map(|&number| &self.queues[number]);
        let ready = queues.filter(|queue| self.may_begin(queue));
        ready.map(|queue| queue.loads.len()).sum()
    }

    /// Takes an idle worker that must be woken, if enough keys wait for a further statement.
    pub(super) fn worker_to_wake(&mut self) -> Option<usize> {
        let ready = self.ready_keys();
        let alone = usize::from(self.on_time == 0 && ready > 0);
        let wanted = alone.max(ready / KEYS_WORTH_A_STATEMENT);
        if self.woken_workers >= wanted {
            return None;
        }
        let worker = self.idle_workers.pop()?;
        self.woken_workers += 1;
        Some(worker)
    }

    /// Takes the keys of the next statement for `worker`. If there are none, the worker is idle until it is woken.
    pub(super) fn begin_statement(&mut self, worker: usize) -> Option<Batch> {
        let ready = self.ready_keys();
        let worthwhile = self.on_time == 0 || ready >= KEYS_WORTH_A_STATEMENT;
        let Some(batch) = worthwhile.then(|| self.take_batch()).flatten() else {
            self.idle_workers.push(worker);
            return None;
        };
        self.queues[batch.queue].statements += 1;
        self.free_workers -= 1;
        self.on_time += 1;
        Some(batch)
    }

    /// A woken worker runs.
    pub(super) fn worker_woke(&mut self) {
        self.woken_workers -= 1;
    }

    /// A running statement is late.
    pub(super) fn note_late(&mut self) {
        self.on_time -= 1;
    }

    /// A statement of the queue with the number `queue` has ended.
    pub(super) fn end_statement(&mut self, queue: usize, was_late: bool) {
        let queue = &mut self.queues[queue];
        queue.statements -= 1;
        if queue.resumes_at.is_none() {
            queue.pause = Duration::ZERO;
        }
        self.free_workers += 1;
        self.on_time -= usize::from(!was_late);
    }

    /// Takes keys of the queue whose turn it is.
    pub(super) fn take_batch(&mut self) -> Option<Batch> {
        let mut turns = self.turns.iter();
        let turn = turns.position(|&number| self.may_begin(&self.queues[number]))?;
        let number = self.turns.remove(turn)?;
        let keys_max = self.queues[number].lengths.keys_max();
        let queue = &mut self.queues[number].loads;
        let definition = Arc::clone(&queue.front()?.resource);
        let same = queue
            .iter()
            .take(keys_max)
            .take_while(|load| Arc::ptr_eq(&load.resource, &definition))
            .count();
        let loads: Vec<Load> = queue.drain(..same).collect();
        if !queue.is_empty() {
            self.turns.push_back(number);
        }
        self.waiting_keys -= loads.len();
        Some(Batch {
            queue: number,
            loads,
        })
    }

    /// Notes the lengths of the documents that a statement of the queue with the number `queue` has returned.
    pub(super) fn note_lengths(&mut self, queue: usize, lengths: RecentLengths) {
        self.queues[queue].lengths.add(lengths);
    }

    /// Puts back the keys of a statement that met a lock. Their queue pauses, longer each time.
    ///
    /// Returns the loads of the queue that have waited for `wait_max` since they were requested.
    #[must_use]
    pub(super) fn put_back(&mut self, batch: Batch, wait_max: Duration) -> Vec<Load> {
        let queue = &mut self.queues[batch.queue];
        let had_turn = !queue.loads.is_empty() && queue.resumes_at.is_none();
        self.waiting_keys += batch.loads.len();
        for load in batch.loads.into_iter().rev() {
            load.sent_at.clear();
            queue.loads.push_front(load);
        }
        let now = Boottime::now();
        let is_over = |load: &Load| now.since(load.asked_at) >= wait_max;
        let over = queue.loads.iter().take_while(|load| is_over(load)).count();
        let over: Vec<Load> = queue.loads.drain(..over).collect();
        self.waiting_keys -= over.len();
        // If the queue pauses already, another statement that ran at the same time met the same lock.
        if queue.resumes_at.is_none() {
            queue.pause = (queue.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            queue.resumes_at = Some(Instant::now() + queue.pause);
        }
        if had_turn {
            self.turns.retain(|&number| number != batch.queue);
        }
        if self.closed {
            self.close();
        }
        over
    }

    /// Puts the queues whose pause is over into the order of turns. Returns when the next pause ends.
    pub(super) fn end_pauses(&mut self) -> Option<Instant> {
        let now = Instant::now();
        for (number, queue) in self.queues.iter_mut().enumerate() {
            if queue.resumes_at.take_if(|at| *at <= now).is_some() && !queue.loads.is_empty() {
                self.turns.push_back(number);
            }
        }
        self.queues
            .iter()
            .filter_map(|queue| queue.resumes_at)
            .min()
    }

    /// Drops all keys that wait, and refuses further ones.
    pub(super) fn close(&mut self) {
        self.turns.clear();
        for queue in &mut self.queues {
            queue.loads.clear();
        }
        self.waiting_keys = 0;
        self.closed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Resource;
    use crate::resource::testing::named;
    use crate::source::loader::SentAt;

    const WAIT_MAX: Duration = Duration::from_secs(60);

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
                until: None,
                sent_at: SentAt::default(),
                done: Box::new(|_, _| ()),
            }
        }

        /// Adds enough keys for a further statement.
        fn push_many(&self, queue: &mut LoadQueue) {
            for _ in 0..KEYS_PER_STATEMENT {
                assert!(queue.push(self.load()).is_ok());
            }
        }
    }

    #[test]
    fn each_resource_leaves_workers_to_the_next() {
        for (workers, shares) in [(1, &[1][..]), (2, &[1, 1]), (3, &[2, 1]), (8, &[4, 2, 1])] {
            let mut queue = LoadQueue::new(workers);
            for (number, &share) in shares.iter().enumerate() {
                let table = Table::new(&number.to_string());
                for _ in 0..8 {
                    table.push_many(&mut queue);
                }
                let begun = std::iter::from_fn(|| queue.begin_statement(0)).count();
                assert_eq!(begun, share, "of {workers}");
            }
        }
    }

    #[test]
    fn each_resource_leaves_places_to_the_next() {
        let mut queue = LoadQueue::new(1);
        for half in [WAITING_KEYS_MAX / 2, WAITING_KEYS_MAX / 4] {
            let table = Table::new(&half.to_string());
            let taken_in = std::iter::from_fn(|| queue.push(table.load()).ok());
            assert_eq!(taken_in.count(), half);
        }
    }

    #[test]
    fn the_documents_of_a_statement_are_bounded_together() {
        assert_eq!(share(1), usize::MAX);
        for keys in 2..=KEYS_PER_STATEMENT {
            assert!(keys * share(keys) <= STATEMENT_BYTES_MAX, "{keys}");
        }
    }

    #[test]
    fn long_documents_share_a_statement_with_few_others() {
        let mut queue = LoadQueue::new(1);
        let table = Table::new("long");
        for (documents, bytes, keys) in [
            (1, 1_000, KEYS_PER_STATEMENT),
            // The one before still counts.
            (15, 64 << 10, 34),
            (RECENT_DOCUMENTS, 1 << 20, 2),
            (RECENT_DOCUMENTS, 8 << 20, 1),
            (RECENT_DOCUMENTS, usize::MAX, 1),
        ] {
            table.push_many(&mut queue);
            let mut lengths = RecentLengths::default();
            for _ in 0..documents {
                lengths.note(bytes);
            }
            queue.note_lengths(0, lengths);
            let batch = queue.begin_statement(0).unwrap();
            queue.end_statement(batch.queue, false);
            assert_eq!(batch.loads.len(), keys, "{documents} of {bytes}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_locked_is_tried_by_one_statement_after_longer_and_longer_pauses() {
        let mut queue = LoadQueue::new(8);
        let (locked, other) = (Table::new("locked"), Table::new("other"));
        locked.push_many(&mut queue);
        locked.push_many(&mut queue);
        let mut expected = PAUSE_MIN;
        for _ in 0..8 {
            let batch = queue.begin_statement(0).unwrap();
            assert_eq!(batch.loads.len(), KEYS_PER_STATEMENT);
            let number = batch.queue;
            if expected > PAUSE_MIN {
                assert!(queue.begin_statement(1).is_none(), "a second statement");
            }
            assert!(queue.put_back(batch, WAIT_MAX).is_empty());
            queue.end_statement(number, false);
            assert_eq!(queue.waiting_keys, 2 * KEYS_PER_STATEMENT);
            assert!(queue.worker_to_wake().is_none(), "woken in the pause");
            // Other resources need not wait.
            other.push_many(&mut queue);
            let batch = queue.begin_statement(0).unwrap();
            assert_eq!(batch.loads[0].resource.name, "other");
            queue.end_statement(batch.queue, false);
            let resumes_at = queue.end_pauses().unwrap();
            assert_eq!(resumes_at - Instant::now(), expected);
            tokio::time::advance(expected).await;
            assert_eq!(queue.end_pauses(), None);
            expected = (expected * 2).min(PAUSE_MAX);
        }
        let batch = queue.begin_statement(0).unwrap();
        queue.end_statement(batch.queue, false);
        assert!(queue.begin_statement(0).is_some() && queue.queues[0].pause.is_zero());
    }

    #[tokio::test]
    async fn what_has_waited_too_long_for_a_lock_comes_back_with_all_behind_it() {
        let mut queue = LoadQueue::new(1);
        let table = Table::new("locked");
        table.push_many(&mut queue);
        table.push_many(&mut queue);
        let batch = queue.begin_statement(0).unwrap();
        batch.loads[0].sent_at.mark(Boottime::now());
        let over = queue.put_back(batch, Duration::ZERO);
        assert_eq!(over.len(), 2 * KEYS_PER_STATEMENT);
        assert!(over[0].sent_at.get().is_none(), "no request could join it");
        assert_eq!(queue.waiting_keys, 0);
    }
}
