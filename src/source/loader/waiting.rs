//! The keys that wait for a worker, and which worker takes them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::resource::Resource;
use crate::source::loader::Load;

/// Keys in one statement, at most: measured, 16 to 256 keys a statement serve equally well.
const KEYS_PER_STATEMENT: usize = 256;

/// So many keys that wait are worth a further statement beside those that are under way. Fewer join the next one:
/// measured on 2 cores, 64 clients got 1.3 times as many documents in one or two statements at a time as in eight.
const KEYS_WORTH_A_STATEMENT: usize = 32;

/// Keys that may wait for a statement.
const WAITING_KEYS_MAX: usize = 10_000;

#[derive(Default)]
pub(super) struct Waiting {
    /// By resource, in the order in which they get their turn.
    turns: VecDeque<Arc<Resource>>,
    loads: HashMap<Arc<str>, VecDeque<Load>>,
    pub(super) count: usize,
    /// Workers with nothing to do. The last one is the next: its connection and what serves it are warm.
    idle: Vec<usize>,
    /// Workers that have been called and have not come yet.
    called: usize,
    /// Statements under way that are not late.
    prompt: usize,
    closed: bool,
}

impl Waiting {
    pub(super) fn push(&mut self, load: Load) -> Result<(), Load> {
        if self.count >= WAITING_KEYS_MAX || self.closed {
            return Err(load);
        }
        let queue = match self.loads.get_mut(&*load.resource.name) {
            Some(queue) => queue,
            None => self
                .loads
                .entry(load.resource.name.as_str().into())
                .or_default(),
        };
        if queue.is_empty() {
            self.turns.push_back(Arc::clone(&load.resource));
        }
        queue.push_back(load);
        self.count += 1;
        Ok(())
    }

    /// A worker that must be called for what waits.
    pub(super) fn call(&mut self) -> Option<usize> {
        let alone = usize::from(self.prompt == 0 && self.count > 0);
        let wanted = alone.max(self.count / KEYS_WORTH_A_STATEMENT);
        if self.called >= wanted {
            return None;
        }
        let worker = self.idle.pop()?;
        self.called += 1;
        Some(worker)
    }

    /// What `worker` is to ask for; none where it has to wait until it is called.
    pub(super) fn begin(&mut self, worker: usize) -> Option<Vec<Load>> {
        if self.prompt > 0 && self.count < KEYS_WORTH_A_STATEMENT || self.count == 0 {
            self.idle.push(worker);
            return None;
        }
        self.prompt += 1;
        Some(self.take())
    }

    /// A worker that was called is there.
    pub(super) fn came(&mut self) {
        self.called -= 1;
    }

    /// A statement that was begun is late or done.
    pub(super) fn release(&mut self) {
        self.prompt -= 1;
    }

    /// Loads of one resource, all by one definition of it.
    pub(super) fn take(&mut self) -> Vec<Load> {
        let Some(turn) = self.turns.pop_front() else {
            return Vec::new();
        };
        let Some(queue) = self.loads.get_mut(turn.name.as_str()) else {
            return Vec::new();
        };
        let Some(definition) = queue.front().map(|load| Arc::clone(&load.resource)) else {
            return Vec::new();
        };
        let same = queue
            .iter()
            .take(KEYS_PER_STATEMENT)
            .take_while(|load| Arc::ptr_eq(&load.resource, &definition))
            .count();
        let batch: Vec<Load> = queue.drain(..same).collect();
        if !queue.is_empty() {
            self.turns.push_back(turn);
        }
        self.count -= batch.len();
        batch
    }

    /// Drops what waits; nothing more is taken in.
    pub(super) fn close(&mut self) {
        self.turns.clear();
        self.loads.clear();
        self.count = 0;
        self.closed = true;
    }
}
