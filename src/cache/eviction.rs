//! Which entry of the memory tier goes when space runs out: S3-FIFO (Yang et al., "FIFO queues are all you need for
//! cache eviction", SOSP 2023).
//!
//! New entries pass a small queue, a tenth of the space; those touched there move on to the main queue, the others
//! leave and are remembered as ghosts, so that they enter the main queue when they come back. A scan passes through
//! the small queue and leaves the main one alone. A hit moves nothing: it only counts touches in the entry.

use std::collections::VecDeque;
use std::sync::PoisonError;

use crate::cache::ghosts::Ghosts;
use crate::sync::{Mutex, MutexGuard};

/// Queues shorter than this are never swept for tickets of entries that are gone, and so many ghosts are always kept.
const TICKETS_MIN: usize = 1_024;

/// An entry's place in a queue. It keeps nothing alive, and there is one for each document in memory.
pub(super) struct Ticket {
    /// The entry's place in its map.
    pub(super) hash: u64,
    pub(super) weight: u32,
    pub(super) resource: u16,
    /// Tells the entry from others that have had its place.
    pub(super) id: u16,
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

/// Tickets in their order. The weight of those whose entries are gone counts until they are popped or swept.
#[derive(Default)]
struct Queue {
    tickets: VecDeque<Ticket>,
    bytes: u64,
}

struct Queues {
    small: Queue,
    main: Queue,
    ghosts: Ghosts,
    /// Tickets at which the next sweep is due.
    sweep_at: usize,
}

/// The queues of one memory tier.
pub(super) struct Eviction {
    small_bytes_max: u64,
    queues: Mutex<Queues>,
}

impl Eviction {
    pub(super) fn new(bytes_max: u64) -> Self {
        let queues = Queues {
            small: Queue::default(),
            main: Queue::default(),
            ghosts: Ghosts::new(),
            sweep_at: TICKETS_MIN,
        };
        Self {
            small_bytes_max: bytes_max / 10,
            queues: Mutex::new(queues),
        }
    }

    /// Queues a new entry. `is_live` tells which tickets still have theirs, should the queues need a sweep.
    pub(super) fn admit(&self, ticket: Ticket, is_live: impl Fn(&Ticket) -> bool) {
        let mut queues = self.lock();
        let returns = queues.ghosts.take(ticket.hash);
        match returns {
            true => queues.main.push(ticket),
            false => queues.small.push(ticket),
        }
        if queues.tickets() >= queues.sweep_at {
            queues.sweep(is_live);
        }
    }

    /// Lets entries take their turn until one is evicted. `judge` uses up a touch or evicts.
    /// Returns false where there is nothing left to evict.
    pub(super) fn evict(&self, judge: impl Fn(&Ticket) -> Verdict) -> bool {
        let mut queues = self.lock();
        loop {
            let small_is_full = queues.small.bytes > self.small_bytes_max;
            let from_small = small_is_full || queues.main.tickets.is_empty();
            let queue = match from_small {
                true => &mut queues.small,
                false => &mut queues.main,
            };
            let Some(ticket) = queue.pop() else {
                return false;
            };
            match judge(&ticket) {
                Verdict::Gone => {}
                Verdict::Spared => queues.main.push(ticket),
                Verdict::Evicted => {
                    if from_small {
                        let count = queues.main.tickets.len().max(TICKETS_MIN);
                        queues.ghosts.remember(ticket.hash, count);
                    }
                    return true;
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn tickets(&self) -> usize {
        self.lock().tickets()
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn push(&mut self, ticket: Ticket) {
        let count = self.tickets.len();
        if count == self.tickets.capacity() {
            // Doubled, half of it could lie idle: another 16 bytes for each document.
            self.tickets.reserve_exact(count / 8 + 64);
        }
        self.bytes += u64::from(ticket.weight);
        self.tickets.push_back(ticket);
    }

    fn pop(&mut self) -> Option<Ticket> {
        let ticket = self.tickets.pop_front()?;
        self.bytes -= u64::from(ticket.weight);
        Some(ticket)
    }

    fn sweep(&mut self, is_live: impl Fn(&Ticket) -> bool) {
        self.tickets.retain(is_live);
        let weights = self.tickets.iter().map(|ticket| u64::from(ticket.weight));
        self.bytes = weights.sum();
    }
}

impl Queues {
    fn tickets(&self) -> usize {
        self.small.tickets.len() + self.main.tickets.len()
    }

    /// Drops tickets whose entries were invalidated or replaced: without it, churn would pile them up.
    fn sweep(&mut self, is_live: impl Fn(&Ticket) -> bool) {
        self.small.sweep(&is_live);
        self.main.sweep(&is_live);
        self.sweep_at = TICKETS_MIN.max(2 * self.tickets());
    }
}
