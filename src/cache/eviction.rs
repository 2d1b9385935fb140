//! Chooses which entry of the memory tier is evicted when space runs out: S3-FIFO (Yang et al., "FIFO queues are all
//! you need for cache eviction", SOSP 2023), changed for keys that are read in a loop.
//!
//! New entries pass a small queue. Entries touched there move on to the main queue; the others are evicted and
//! remembered as ghosts. The main queue gives each entry another round for every touch. A scan passes through the small
//! queue and leaves the main queue alone. A hit moves nothing: it only counts a touch in the entry.
//!
//! By the paper's rules, keys read in a loop slightly larger than the cache evict each other, each shortly before it is
//! read again. Two things are different here:
//!
//! - A ghost that returns goes to the main queue only if one of the next few entries there is untouched, and evicts it.
//!   Otherwise the ghost passes the small queue again, so that most of a loop stays in the cache.
//! - The small queue has a tenth of the space only if that helps: it grows with each entry that leaves it touched, and
//!   shrinks with each other one. Under a loop it shrinks to 1/200.
//!
//! `cargo bench --bench tiers` compares its hit ratios with those of moka and of LRU.

use std::collections::VecDeque;
use std::sync::PoisonError;

use crate::cache::ghosts::Ghosts;
use crate::resource::ResourceId;
use crate::sync::{Mutex, MutexGuard};

/// Shorter queues are never swept for tickets whose entries are gone. At least so many ghosts are remembered.
const TICKETS_MIN: usize = 1_024;

/// Tickets that a sweep looks at for each new entry: to look at some millions at once would delay a fill.
const TICKETS_PER_SWEEP_STEP: usize = 8;

/// Entries of the main queue among which a returning ghost looks for an untouched one. With one, a new hot set takes
/// over slowly. With four, a loop half again as large as the cache uses up the touches of its entries.
const CONTESTED_MAX: usize = 2;

/// The small queue has at most one part in so many of the space.
const SMALL_PART_MAX: u64 = 10;
/// It has at least one part in so many.
const SMALL_PART_MIN: u64 = 200;

/// An entry's place in a queue. It holds no reference to the document.
pub(super) struct Ticket {
    /// The entry's key in its map.
    pub(super) hash: u64,
    pub(super) weight: u32,
    pub(super) resource: u16,
    /// [`Document::id`](crate::cache::document::Document::id), to tell it from other entries of the same key.
    pub(super) id: u16,
}

impl Ticket {
    pub(super) fn resource(&self) -> ResourceId {
        ResourceId::new(usize::from(self.resource))
    }
}

/// What the memory tier did with an entry that was to be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictionOutcome {
    /// It had been removed before.
    AlreadyGone,
    /// It was touched, and stays.
    Spared,
    /// It was removed.
    Evicted,
}

/// Tickets, the oldest first. Those whose entries are gone count until they are popped or swept.
#[derive(Default)]
struct TicketQueue {
    /// Tickets that the present sweep has kept. They are older than `tickets`.
    swept: VecDeque<Ticket>,
    tickets: VecDeque<Ticket>,
    bytes: u64,
}

/// The state of the sweep for tickets whose entries are gone.
enum SweepState {
    /// The next begins at so many tickets.
    Due(usize),
    /// It is in the small queue.
    Small,
    /// It is in the main queue.
    Main,
}

struct TicketQueues {
    small: TicketQueue,
    main: TicketQueue,
    small_bytes_max: u64,
    ghosts: Ghosts,
    sweep: SweepState,
}

/// The queues of one memory tier.
pub(super) struct Eviction {
    bytes_max: u64,
    queues: Mutex<TicketQueues>,
}

impl Eviction {
    pub(super) fn new(bytes_max: u64) -> Self {
        let queues = TicketQueues {
            small: TicketQueue::default(),
            main: TicketQueue::default(),
            small_bytes_max: bytes_max / SMALL_PART_MAX,
            ghosts: Ghosts::new(),
            sweep: SweepState::Due(TICKETS_MIN),
        };
        Self {
            bytes_max,
            queues: Mutex::new(queues),
        }
    }

    /// Queues a new entry. `try_evict` evicts another entry or uses up a touch of it; `is_live` tells whether a ticket
    /// still has its entry.
    pub(super) fn admit(
        &self,
        ticket: Ticket,
        try_evict: impl Fn(&Ticket) -> EvictionOutcome,
        is_live: impl Fn(&Ticket) -> bool,
    ) {
        let mut queues = self.lock();
        let returns = queues.ghosts.remove(ticket.hash);
        if returns
            && (queues.has_room(&ticket, self.bytes_max) || queues.evict_untouched(try_evict))
        {
            queues.main.push(ticket);
        } else {
            queues.small.push(ticket);
        }
        queues.fill_main(self.bytes_max);
        queues.sweep(is_live);
    }

    /// Evicts one entry. `try_evict` evicts the entry of a ticket or uses up a touch of it.
    /// Returns false if there is nothing left to evict.
    pub(super) fn evict(&self, try_evict: impl Fn(&Ticket) -> EvictionOutcome) -> bool {
        let mut queues = self.lock();
        loop {
            let small_is_full = queues.small.bytes > queues.small_bytes_max;
            let from_small = small_is_full || queues.main.len() == 0;
            let queue = if from_small {
                &mut queues.small
            } else {
                &mut queues.main
            };
            let Some(ticket) = queue.pop() else {
                return false;
            };
            let outcome = try_evict(&ticket);
            if from_small && outcome != EvictionOutcome::AlreadyGone {
                self.adapt_small_share(&mut queues, outcome, ticket.weight);
            }
            match outcome {
                EvictionOutcome::AlreadyGone => {}
                EvictionOutcome::Spared => queues.main.push(ticket),
                EvictionOutcome::Evicted => {
                    if from_small {
                        let count = queues.main.len().max(TICKETS_MIN);
                        queues.ghosts.remember(ticket.hash, count);
                    }
                    return true;
                }
            }
        }
    }

    /// Adapts the small queue's share to an entry that leaves it. One touched entry in 32 keeps the share as it is.
    fn adapt_small_share(&self, queues: &mut TicketQueues, outcome: EvictionOutcome, weight: u32) {
        let (min, max) = (
            self.bytes_max / SMALL_PART_MIN,
            self.bytes_max / SMALL_PART_MAX,
        );
        let weight = u64::from(weight);
        let share = match outcome {
            EvictionOutcome::Spared => queues.small_bytes_max + 4 * weight,
            EvictionOutcome::AlreadyGone | EvictionOutcome::Evicted => {
                queues.small_bytes_max.saturating_sub(weight / 8)
            }
        };
        queues.small_bytes_max = share.clamp(min, max);
    }

    #[cfg(test)]
    pub(super) fn tickets(&self) -> usize {
        self.lock().tickets()
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        let queues = self.lock();
        let of = |queue: &TicketQueue| queue.swept.capacity() + queue.tickets.capacity();
        of(&queues.small) + of(&queues.main)
    }

    fn lock(&self) -> MutexGuard<'_, TicketQueues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TicketQueue {
    fn len(&self) -> usize {
        self.swept.len() + self.tickets.len()
    }

    fn push(&mut self, ticket: Ticket) {
        self.bytes += u64::from(ticket.weight);
        push_ticket(&mut self.tickets, ticket);
    }

    fn pop(&mut self) -> Option<Ticket> {
        let ticket = pop_ticket(&mut self.swept).or_else(|| pop_ticket(&mut self.tickets))?;
        self.bytes -= u64::from(ticket.weight);
        Some(ticket)
    }

    /// Looks at some more tickets. Returns true when it has looked at all.
    fn sweep(&mut self, is_live: impl Fn(&Ticket) -> bool) -> bool {
        for _ in 0..TICKETS_PER_SWEEP_STEP {
            let Some(ticket) = pop_ticket(&mut self.tickets) else {
                self.tickets = std::mem::take(&mut self.swept);
                return true;
            };
            if is_live(&ticket) {
                push_ticket(&mut self.swept, ticket);
            } else {
                self.bytes -= u64::from(ticket.weight);
            }
        }
        false
    }
}

fn push_ticket(tickets: &mut VecDeque<Ticket>, ticket: Ticket) {
    let count = tickets.len();
    if count == tickets.capacity() {
        // To double it could leave half of it unused: another 16 bytes for each document.
        tickets.reserve_exact(count / 8 + 64);
    }
    tickets.push_back(ticket);
}

fn pop_ticket(tickets: &mut VecDeque<Ticket>) -> Option<Ticket> {
    let ticket = tickets.pop_front()?;
    let count = tickets.len().max(TICKETS_MIN);
    if tickets.capacity() > 4 * count {
        tickets.shrink_to(2 * count);
    }
    Some(ticket)
}

impl TicketQueues {
    fn tickets(&self) -> usize {
        self.small.len() + self.main.len()
    }

    /// Whether the main queue has room for the ticket within its share.
    fn has_room(&self, ticket: &Ticket, bytes_max: u64) -> bool {
        self.main.bytes + self.small_bytes_max + u64::from(ticket.weight) < bytes_max
    }

    /// Evicts the first untouched entry of the main queue, if it is among the next few. Returns false if those are all
    /// touched.
    fn evict_untouched(&mut self, try_evict: impl Fn(&Ticket) -> EvictionOutcome) -> bool {
        let mut spared = 0;
        while spared < CONTESTED_MAX
            && let Some(ticket) = self.main.pop()
        {
            match try_evict(&ticket) {
                EvictionOutcome::AlreadyGone => {}
                EvictionOutcome::Spared => {
                    self.main.push(ticket);
                    spared += 1;
                }
                EvictionOutcome::Evicted => return true,
            }
        }
        spared < CONTESTED_MAX
    }

    /// While the tier is not full, moves what the small queue has above its share to the main queue.
    fn fill_main(&mut self, bytes_max: u64) {
        // Not beyond that: the space that a large entry leaves must not let a scan into the main queue.
        let main_bytes_min = bytes_max - bytes_max / SMALL_PART_MAX;
        while self.small.bytes + self.main.bytes <= bytes_max
            && self.main.bytes < main_bytes_min
            && self.small.bytes > self.small_bytes_max
            && let Some(ticket) = self.small.pop()
        {
            self.main.push(ticket);
        }
    }

    /// Drops tickets whose entries were invalidated or replaced, some at a time. Without it, churn would accumulate
    /// them.
    fn sweep(&mut self, is_live: impl Fn(&Ticket) -> bool) {
        match self.sweep {
            SweepState::Due(count) if self.tickets() < count => {}
            SweepState::Due(_) => self.sweep = SweepState::Small,
            SweepState::Small => {
                if self.small.sweep(is_live) {
                    self.sweep = SweepState::Main;
                }
            }
            SweepState::Main => {
                if self.main.sweep(is_live) {
                    self.sweep = SweepState::Due(TICKETS_MIN.max(2 * self.tickets()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    #[test]
    fn a_sweep_looks_at_few_tickets_at_a_time_and_keeps_their_order() {
        let count = 8 * TICKETS_MIN as u64;
        let eviction = Eviction::new(100 * count);
        let seen = Cell::new(0);
        let is_live = |ticket: &Ticket| {
            seen.set(seen.get() + 1);
            ticket.hash.is_multiple_of(4)
        };
        for hash in 0..count {
            let ticket = Ticket {
                hash,
                weight: 1,
                resource: 0,
                id: 0,
            };
            seen.set(0);
            eviction.admit(ticket, |_| EvictionOutcome::AlreadyGone, is_live);
            assert!(seen.get() <= TICKETS_PER_SWEEP_STEP);
        }
        assert!((eviction.tickets() as u64) < count * 3 / 4);
        let left = RefCell::new(Vec::new());
        let evict = |ticket: &Ticket| {
            left.borrow_mut().push(ticket.hash);
            EvictionOutcome::Evicted
        };
        while eviction.evict(evict) {}
        let left = left.into_inner();
        assert!(left.is_sorted());
        let live = left.iter().filter(|hash| hash.is_multiple_of(4));
        assert_eq!(live.count() as u64, count / 4);
    }
}
