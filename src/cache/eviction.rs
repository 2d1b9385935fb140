//! Which entry of the memory tier goes when space runs out: S3-FIFO (Yang et al., "FIFO queues are all you need for
//! cache eviction", SOSP 2023), made to stand a loop.
//!
//! New entries pass a small queue; those touched there move on to the main queue, the others leave and are remembered
//! as ghosts. The main queue gives each entry another round for every touch. A scan passes through the small queue and
//! leaves the main one alone. A hit moves nothing: it only counts touches in the entry.
//!
//! Two things differ from the paper, where keys that come round in a loop slightly larger than the cache push each
//! other out, each shortly before it is asked for again:
//!
//! - A ghost that comes back has to find an untouched entry among the next few of the main queue, whose place it takes.
//!   Where all are in use it passes the small queue again, so that of a loop most stays, and is hit.
//! - The small queue has a tenth of the space only where that pays: each entry that leaves it touched lets it grow,
//!   each other one shrink. It shrinks to 1/200 under a loop, which has no use for it.
//!
//! Traces with the hit ratios of this, of moka and of LRU: `cargo bench --bench tiers`.

use std::collections::VecDeque;
use std::sync::PoisonError;

use crate::cache::ghosts::Ghosts;
use crate::resource::ResourceId;
use crate::sync::{Mutex, MutexGuard};

/// Queues shorter than this are never swept for tickets of entries that are gone, and so many ghosts are always kept.
const TICKETS_MIN: usize = 1_024;

/// Tickets that a sweep looks at for each entry that comes: all of some millions at once would hold up whoever fills.
const SWEPT_AT_ONCE: usize = 8;

/// Entries of the main queue that a returning ghost may find untouched. With one, a new hot set takes over slowly; with
/// four, a loop half again as large as the cache wears its touches off.
const CONTESTED: usize = 2;

/// Parts of the space that the small queue has at most and at least.
const SMALL_PART_MAX: u64 = 10;
const SMALL_PART_MIN: u64 = 200;

/// An entry's place in a queue. It keeps nothing alive, and there is one for each document in memory.
pub(super) struct Ticket {
    /// The entry's place in its map.
    pub(super) hash: u64,
    pub(super) weight: u32,
    pub(super) resource: u16,
    /// Tells the entry from others that have had its place.
    pub(super) id: u16,
}

impl Ticket {
    pub(super) fn resource(&self) -> ResourceId {
        ResourceId::new(usize::from(self.resource))
    }
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
    /// What the sweep under way has looked at and kept; it stands before the others.
    swept: VecDeque<Ticket>,
    tickets: VecDeque<Ticket>,
    bytes: u64,
}

/// Where sweeping is.
enum Sweep {
    /// It begins at so many tickets.
    Due(usize),
    Small,
    Main,
}

struct Queues {
    small: Queue,
    main: Queue,
    small_bytes_max: u64,
    ghosts: Ghosts,
    sweep: Sweep,
}

/// The queues of one memory tier.
pub(super) struct Eviction {
    bytes_max: u64,
    queues: Mutex<Queues>,
}

impl Eviction {
    pub(super) fn new(bytes_max: u64) -> Self {
        let queues = Queues {
            small: Queue::default(),
            main: Queue::default(),
            small_bytes_max: bytes_max / SMALL_PART_MAX,
            ghosts: Ghosts::new(),
            sweep: Sweep::Due(TICKETS_MIN),
        };
        Self {
            bytes_max,
            queues: Mutex::new(queues),
        }
    }

    /// Queues a new entry. `judge` uses up a touch of another or evicts it; `is_live` tells which tickets still have
    /// their entry, should the queues need a sweep.
    pub(super) fn admit(
        &self,
        ticket: Ticket,
        judge: impl Fn(&Ticket) -> Verdict,
        is_live: impl Fn(&Ticket) -> bool,
    ) {
        let mut queues = self.lock();
        let returns = queues.ghosts.take(ticket.hash);
        if returns && (queues.has_room(&ticket, self.bytes_max) || queues.contest(judge)) {
            queues.main.push(ticket);
        } else {
            queues.small.push(ticket);
        }
        queues.fill_main(self.bytes_max);
        queues.sweep(is_live);
    }

    /// Lets entries take their turn until one is evicted. `judge` uses up a touch or evicts.
    /// Returns false where there is nothing left to evict.
    pub(super) fn evict(&self, judge: impl Fn(&Ticket) -> Verdict) -> bool {
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
            let verdict = judge(&ticket);
            if from_small && verdict != Verdict::Gone {
                self.adapt(&mut queues, verdict, ticket.weight);
            }
            match verdict {
                Verdict::Gone => {}
                Verdict::Spared => queues.main.push(ticket),
                Verdict::Evicted => {
                    if from_small {
                        let count = queues.main.len().max(TICKETS_MIN);
                        queues.ghosts.remember(ticket.hash, count);
                    }
                    return true;
                }
            }
        }
    }

    /// One touched entry in 32 keeps the small queue's share as it is.
    fn adapt(&self, queues: &mut Queues, verdict: Verdict, weight: u32) {
        let (min, max) = (
            self.bytes_max / SMALL_PART_MIN,
            self.bytes_max / SMALL_PART_MAX,
        );
        let weight = u64::from(weight);
        let share = match verdict {
            Verdict::Spared => queues.small_bytes_max + 4 * weight,
            Verdict::Gone | Verdict::Evicted => queues.small_bytes_max.saturating_sub(weight / 8),
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
        let of = |queue: &Queue| queue.swept.capacity() + queue.tickets.capacity();
        of(&queues.small) + of(&queues.main)
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn len(&self) -> usize {
        self.swept.len() + self.tickets.len()
    }

    fn push(&mut self, ticket: Ticket) {
        self.bytes += u64::from(ticket.weight);
        append(&mut self.tickets, ticket);
    }

    fn pop(&mut self) -> Option<Ticket> {
        let ticket = take(&mut self.swept).or_else(|| take(&mut self.tickets))?;
        self.bytes -= u64::from(ticket.weight);
        Some(ticket)
    }

    /// Looks at some more tickets; returns whether it has looked at all.
    fn sweep(&mut self, is_live: impl Fn(&Ticket) -> bool) -> bool {
        for _ in 0..SWEPT_AT_ONCE {
            let Some(ticket) = take(&mut self.tickets) else {
                self.tickets = std::mem::take(&mut self.swept);
                return true;
            };
            if is_live(&ticket) {
                append(&mut self.swept, ticket);
            } else {
                self.bytes -= u64::from(ticket.weight);
            }
        }
        false
    }
}

fn append(tickets: &mut VecDeque<Ticket>, ticket: Ticket) {
    let count = tickets.len();
    if count == tickets.capacity() {
        // Doubled, half of it could lie idle: another 16 bytes for each document.
        tickets.reserve_exact(count / 8 + 64);
    }
    tickets.push_back(ticket);
}

fn take(tickets: &mut VecDeque<Ticket>) -> Option<Ticket> {
    let ticket = tickets.pop_front()?;
    let count = tickets.len().max(TICKETS_MIN);
    if tickets.capacity() > 4 * count {
        tickets.shrink_to(2 * count);
    }
    Some(ticket)
}

impl Queues {
    fn tickets(&self) -> usize {
        self.small.len() + self.main.len()
    }

    /// Whether the main queue has less than its share, by more than what entries never fill.
    fn has_room(&self, ticket: &Ticket, bytes_max: u64) -> bool {
        self.main.bytes + self.small_bytes_max + u64::from(ticket.weight) < bytes_max
    }

    /// Takes the place of the first untouched entry of the main queue, if it comes soon.
    fn contest(&mut self, judge: impl Fn(&Ticket) -> Verdict) -> bool {
        let mut spared = 0;
        while spared < CONTESTED
            && let Some(ticket) = self.main.pop()
        {
            match judge(&ticket) {
                Verdict::Gone => {}
                Verdict::Spared => {
                    self.main.push(ticket);
                    spared += 1;
                }
                Verdict::Evicted => return true,
            }
        }
        spared < CONTESTED
    }

    /// While the tier fills, what the small queue has above its share moves on.
    fn fill_main(&mut self, bytes_max: u64) {
        // Not further: the space that a large entry leaves is no reason to let a scan into the main queue.
        let main_bytes_min = bytes_max - bytes_max / SMALL_PART_MAX;
        while self.small.bytes + self.main.bytes <= bytes_max
            && self.main.bytes < main_bytes_min
            && self.small.bytes > self.small_bytes_max
            && let Some(ticket) = self.small.pop()
        {
            self.main.push(ticket);
        }
    }

    /// Drops tickets whose entries were invalidated or replaced, some at a time: without it, churn would pile them up.
    fn sweep(&mut self, is_live: impl Fn(&Ticket) -> bool) {
        match self.sweep {
            Sweep::Due(count) if self.tickets() < count => {}
            Sweep::Due(_) => self.sweep = Sweep::Small,
            Sweep::Small => {
                if self.small.sweep(is_live) {
                    self.sweep = Sweep::Main;
                }
            }
            Sweep::Main => {
                if self.main.sweep(is_live) {
                    self.sweep = Sweep::Due(TICKETS_MIN.max(2 * self.tickets()));
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
        let looked = Cell::new(0);
        let is_live = |ticket: &Ticket| {
            looked.set(looked.get() + 1);
            ticket.hash.is_multiple_of(4)
        };
        for hash in 0..count {
            let ticket = Ticket {
                hash,
                weight: 1,
                resource: 0,
                id: 0,
            };
            looked.set(0);
            eviction.admit(ticket, |_| Verdict::Gone, is_live);
            assert!(looked.get() <= SWEPT_AT_ONCE);
        }
        assert!((eviction.tickets() as u64) < count * 3 / 4);
        let left = RefCell::new(Vec::new());
        let evict = |ticket: &Ticket| {
            left.borrow_mut().push(ticket.hash);
            Verdict::Evicted
        };
        while eviction.evict(evict) {}
        let left = left.into_inner();
        assert!(left.is_sorted());
        let live = left.iter().filter(|hash| hash.is_multiple_of(4));
        assert_eq!(live.count() as u64, count / 4);
    }
}
