//! Which entry of the memory tier goes when space runs out: S3-FIFO (Yang et al., "FIFO queues are all you need for
//! cache eviction", SOSP 2023).
//!
//! New entries pass a small queue, a tenth of the space; those touched there move on to the main queue, the others
//! leave and are remembered as ghosts, so that they enter the main queue when they come back. A scan passes through
//! the small queue and leaves the main one alone. A hit moves nothing: it only counts touches in the entry.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, PoisonError};

use crate::sync::{Mutex, MutexGuard};

/// Queues shorter than this are never swept for tickets of entries that are gone.
const SWEEP_TICKETS_MIN: usize = 1_024;

/// An entry's place in a queue.
pub(super) struct Ticket {
    pub(super) resource: usize,
    pub(super) key: Arc<str>,
    pub(super) id: u64,
    pub(super) weight: u64,
}

/// What the memory tier did with the entry whose turn it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It had gone already.
    Gone,
    /// It was touched and stays.
    Spared,
    /// It has gone now.
    Evicted,
}

#[derive(Default)]
struct Queues {
    small: VecDeque<Ticket>,
    main: VecDeque<Ticket>,
    small_bytes: u64,
    /// Hashes of keys that left the small queue untouched, oldest first, each with its turn.
    ghosts: VecDeque<(u64, u64)>,
    ghost_turns: HashMap<u64, u64>,
    ghost_turn: u64,
    /// Tickets at which the next sweep is due.
    sweep_at: usize,
}

/// The queues of one memory tier.
pub(super) struct Eviction {
    hasher: RandomState,
    small_bytes_max: u64,
    queues: Mutex<Queues>,
}

impl Eviction {
    pub(super) fn new(bytes_max: u64) -> Self {
        let queues = Queues {
            sweep_at: SWEEP_TICKETS_MIN,
            ..Queues::default()
        };
        Self {
            hasher: RandomState::new(),
            small_bytes_max: bytes_max / 10,
            queues: Mutex::new(queues),
        }
    }

    /// Queues a new entry. `is_live` tells which tickets still have theirs, should the queues need a sweep.
    pub(super) fn admit(&self, ticket: Ticket, is_live: impl Fn(&Ticket) -> bool) {
        let hash = self.hash(&ticket);
        let mut queues = self.lock();
        if queues.ghost_turns.remove(&hash).is_some() {
            queues.main.push_back(ticket);
        } else {
            queues.small_bytes += ticket.weight;
            queues.small.push_back(ticket);
        }
        if queues.small.len() + queues.main.len() >= queues.sweep_at {
            queues.sweep(is_live);
        }
    }

    /// Lets entries take their turn until one is evicted. `judge` uses up a touch or evicts.
    /// Returns false where there is nothing left to evict.
    pub(super) fn evict(&self, judge: impl Fn(&Ticket) -> Verdict) -> bool {
        let mut queues = self.lock();
        loop {
            let from_small = queues.small_bytes > self.small_bytes_max || queues.main.is_empty();
            if from_small && !queues.small.is_empty() {
                let Some(ticket) = queues.small.pop_front() else {
                    return false;
                };
                queues.small_bytes = queues.small_bytes.saturating_sub(ticket.weight);
                match judge(&ticket) {
                    Verdict::Gone => {}
                    Verdict::Spared => queues.main.push_back(ticket),
                    Verdict::Evicted => {
                        let hash = self.hash(&ticket);
                        queues.remember(hash);
                        return true;
                    }
                }
            } else {
                let Some(ticket) = queues.main.pop_front() else {
                    return false;
                };
                match judge(&ticket) {
                    Verdict::Gone => {}
                    Verdict::Spared => queues.main.push_back(ticket),
                    Verdict::Evicted => return true,
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn tickets(&self) -> usize {
        let queues = self.lock();
        queues.small.len() + queues.main.len()
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hash(&self, ticket: &Ticket) -> u64 {
        self.hasher.hash_one((ticket.resource, &*ticket.key))
    }
}

impl Queues {
    /// Remembers as many ghosts as the main queue has entries.
    fn remember(&mut self, hash: u64) {
        self.ghost_turn += 1;
        let turn = self.ghost_turn;
        self.ghosts.push_back((hash, turn));
        self.ghost_turns.insert(hash, turn);
        while self.ghosts.len() > self.main.len().max(SWEEP_TICKETS_MIN) {
            if let Some((hash, turn)) = self.ghosts.pop_front()
                && self.ghost_turns.get(&hash) == Some(&turn)
            {
                self.ghost_turns.remove(&hash);
            }
        }
    }

    /// Drops tickets whose entries were invalidated or replaced: without it, churn would pile them up.
    fn sweep(&mut self, is_live: impl Fn(&Ticket) -> bool) {
        self.small.retain(&is_live);
        self.main.retain(&is_live);
        self.small_bytes = self.small.iter().map(|ticket| ticket.weight).sum();
        self.sweep_at = SWEEP_TICKETS_MIN.max(2 * (self.small.len() + self.main.len()));
    }
}
