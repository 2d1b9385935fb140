//! The keys that wait for a worker, and who is next.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::resource::Resource;
use crate::source::loader::Load;

/// Keys in one statement, at most: measured, 16 to 256 keys a statement serve equally well.
const KEYS_PER_STATEMENT: usize = 256;

/// Keys that may wait for a statement.
const WAITING_KEYS_MAX: usize = 10_000;

#[derive(Default)]
pub(super) struct Waiting {
    /// By resource, in the order in which they get their turn.
    turns: VecDeque<Arc<Resource>>,
    loads: HashMap<String, VecDeque<Load>>,
    pub(super) count: usize,
    closed: bool,
}

impl Waiting {
    pub(super) fn push(&mut self, load: Load) -> Result<(), Load> {
        if self.count >= WAITING_KEYS_MAX || self.closed {
            return Err(load);
        }
        let queue = self.loads.entry(load.resource.name.clone()).or_default();
        if queue.is_empty() {
            self.turns.push_back(Arc::clone(&load.resource));
        }
        queue.push_back(load);
        self.count += 1;
        Ok(())
    }

    /// Loads of one resource, all by one definition of it.
    pub(super) fn take(&mut self) -> Vec<Load> {
        let Some(turn) = self.turns.pop_front() else {
            return Vec::new();
        };
        let Some(queue) = self.loads.get_mut(&turn.name) else {
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
        *self = Self {
            closed: true,
            ..Self::default()
        };
    }
}
