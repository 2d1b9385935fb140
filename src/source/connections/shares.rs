//! How many connections each purpose has, and which tasks wait for one.
//!
//! A purpose uses an idle connection of its own; else it opens another one, if the limit allows it; else an idle
//! connection of another purpose is closed for it; else the task waits. Reads and writes each keep at least one
//! connection, or the place for it, which no other purpose takes. A connection that becomes free goes to the purpose that
//! uses the fewest connections and waits; at a tie it keeps its purpose, since another one would have to open a new one.

use std::collections::VecDeque;

use serde::Serialize;
use tokio::sync::oneshot;

/// What a connection is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::source) enum Purpose {
    /// Loads and lists.
    Read,
    /// Writes that are not bulk writes.
    Write,
    /// A bulk write, which may take as long as its client sends documents.
    BulkWrite,
}

const PURPOSES: [Purpose; 3] = [Purpose::Read, Purpose::Write, Purpose::BulkWrite];

impl Purpose {
    fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::BulkWrite => "bulk_write",
        }
    }
}

/// The connections of one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PoolStatus {
    /// `read`, `write` or `bulk_write`.
    pub pool: &'static str,
    /// Connections that are in use or being opened.
    pub used: usize,
    /// Connections that are idle.
    pub idle: usize,
}

/// The right to have a connection of one purpose.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place<C> {
    /// This idle connection of the purpose.
    Idle(C),
    /// A new connection.
    Free,
    /// A new connection, once this one of another purpose is closed.
    InPlaceOf(C),
}

/// The connections of all purposes; `C` is an idle connection.
pub(super) struct Shares<C> {
    /// Further connections that may be opened.
    unused: usize,
    /// Connections that the server has refused for now.
    refused: usize,
    shares: [Share<C>; PURPOSES.len()],
    is_closed: bool,
}

/// The connections of one purpose.
struct Share<C> {
    /// Connections that are in use, idle, or being opened.
    held: usize,
    /// The one that was used last is at the end.
    idle: Vec<C>,
    waiting: VecDeque<oneshot::Sender<Place<C>>>,
}

impl<C> Shares<C> {
    /// For at most `connections` connections.
    pub(super) fn new(connections: usize) -> Self {
        let share = || Share {
            held: 0,
            idle: Vec::new(),
            waiting: VecDeque::new(),
        };
        Self {
            unused: connections,
            refused: 0,
            shares: [share(), share(), share()],
            is_closed: false,
        }
    }

    fn share(&self, purpose: Purpose) -> &Share<C> {
        &self.shares[purpose as usize]
    }

    fn share_mut(&mut self, purpose: Purpose) -> &mut Share<C> {
        &mut self.shares[purpose as usize]
    }

    /// The number of connections of all purposes.
    pub(super) fn held(&self) -> usize {
        self.shares.iter().map(|share| share.held).sum()
    }

    /// The connections of each purpose.
    pub(super) fn pools(&self) -> [PoolStatus; PURPOSES.len()] {
        PURPOSES.map(|purpose| {
            let share = self.share(purpose);
            let idle = share.idle.len();
            PoolStatus {
                pool: purpose.as_str(),
                used: share.held - idle,
                idle,
            }
        })
    }

    /// Takes a place for `purpose`, if there is one.
    pub(super) fn take(&mut self, purpose: Purpose) -> Option<Place<C>> {
        if let Some(idle) = self.share_mut(purpose).idle.pop() {
            return Some(Place::Idle(idle));
        }
        // The first connection of reads and of writes is always left to them.
        let reserved = [Purpose::Read, Purpose::Write]
            .into_iter()
            .filter(|&other| other != purpose && self.share(other).held == 0)
            .count();
        if self.unused > reserved {
            self.unused -= 1;
            self.share_mut(purpose).held += 1;
            return Some(Place::Free);
        }
        let needs_first = purpose != Purpose::BulkWrite && self.share(purpose).held == 0;
        let other = PURPOSES
            .into_iter()
            .filter(|&other| !self.share(other).idle.is_empty())
            // The server may have refused so many connections that reads and writes have only one together.
            .filter(|&other| self.share(other).held > 1 || needs_first)
            .max_by_key(|&other| self.share(other).held)?;
        let other = self.share_mut(other);
        other.held -= 1;
        // The one that was not used for the longest time.
        let idle = other.idle.remove(0);
        self.share_mut(purpose).held += 1;
        Some(Place::InPlaceOf(idle))
    }

    /// Waits for a place. The receiver must be dropped if the place is not needed any more.
    pub(super) fn wait(&mut self, purpose: Purpose) -> oneshot::Receiver<Place<C>> {
        let (sender, receiver) = oneshot::channel();
        self.share_mut(purpose).waiting.push_back(sender);
        receiver
    }

    /// Gives back the place of a connection, which is idle now; `None` if it was closed.
    pub(super) fn give_back(&mut self, purpose: Purpose, idle: Option<C>) {
        match idle.filter(|_| !self.is_closed) {
            Some(idle) => self.share_mut(purpose).idle.push(idle),
            None => {
                self.share_mut(purpose).held -= 1;
                self.unused += 1;
            }
        }
        self.serve_waiting(Some(purpose));
    }

    /// Gives back a place for which the server has refused a connection. No further connection is opened before
    /// [`Shares::retry_refused`]: the server would refuse it, too.
    pub(super) fn refuse(&mut self, purpose: Purpose) {
        self.share_mut(purpose).held -= 1;
        self.refused += 1 + std::mem::take(&mut self.unused);
    }

    /// Allows the connections again that the server has refused.
    pub(super) fn retry_refused(&mut self) {
        for _ in 0..std::mem::take(&mut self.refused) {
            self.unused += 1;
            self.serve_waiting(None);
        }
    }

    /// Gives a place that has become free to a task that waits. `from` is the purpose that had it.
    fn serve_waiting(&mut self, from: Option<Purpose>) {
        for share in &mut self.shares {
            share.waiting.retain(|waiting| !waiting.is_closed());
        }
        let mut order = PURPOSES;
        order.sort_by_key(|&purpose| {
            let share = self.share(purpose);
            let used = share.held - share.idle.len();
            let is_own = from == Some(purpose);
            // If neither uses a connection, the other purpose is first: it may have none.
            (used, !is_own && used > 0, is_own)
        });
        for purpose in order {
            if self.share(purpose).waiting.is_empty() {
                continue;
            }
            let Some(mut place) = self.take(purpose) else {
                continue;
            };
            while let Some(waiting) = self.share_mut(purpose).waiting.pop_front() {
                match waiting.send(place) {
                    Ok(()) => return,
                    // It has stopped waiting since.
                    Err(unsent) => place = unsent,
                }
            }
            self.put_down(purpose, place);
        }
    }

    /// Undoes [`Shares::take`].
    fn put_down(&mut self, purpose: Purpose, place: Place<C>) {
        match place {
            Place::Idle(idle) => self.share_mut(purpose).idle.push(idle),
            Place::Free | Place::InPlaceOf(_) => {
                self.share_mut(purpose).held -= 1;
                self.unused += 1;
            }
        }
    }

    /// Removes the idle connections of `purpose`, to be closed.
    pub(super) fn take_idle(&mut self, purpose: Purpose) -> Vec<C> {
        let share = self.share_mut(purpose);
        let idle = std::mem::take(&mut share.idle);
        share.held -= idle.len();
        self.unused += idle.len();
        for _ in &idle {
            self.serve_waiting(Some(purpose));
        }
        idle
    }

    /// Removes all idle connections, to be closed. From now on none is kept.
    pub(super) fn close(&mut self) -> Vec<C> {
        self.is_closed = true;
        PURPOSES
            .into_iter()
            .flat_map(|purpose| self.take_idle(purpose))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Purpose::{BulkWrite, Read, Write};

    /// Takes places until there is none; returns their number.
    fn fill(shares: &mut Shares<u32>, purpose: Purpose) -> usize {
        std::iter::from_fn(|| shares.take(purpose)).count()
    }

    #[test]
    fn reads_and_writes_leave_each_other_one_connection() {
        for connections in 2..10 {
            for (first, second) in [(Read, Write), (Write, Read)] {
                let mut shares = Shares::new(connections);
                assert_eq!(fill(&mut shares, first), connections - 1);
                assert_eq!(fill(&mut shares, second), 1);
                assert_eq!(shares.held(), connections);
            }
            let mut shares = Shares::new(connections);
            assert_eq!(fill(&mut shares, BulkWrite), connections - 2);
            assert_eq!(fill(&mut shares, Read), 1);
            assert_eq!(fill(&mut shares, Write), 1);
        }
    }

    #[test]
    fn an_idle_connection_goes_where_it_is_needed() {
        let mut shares = Shares::new(4);
        assert_eq!(fill(&mut shares, Read), 3);
        for idle in 1..=3 {
            shares.give_back(Read, Some(idle));
        }
        assert_eq!(shares.take(Write), Some(Place::Free));
        assert_eq!(shares.take(Write), Some(Place::InPlaceOf(1)));
        assert_eq!(shares.take(BulkWrite), Some(Place::InPlaceOf(2)));
        assert_eq!(shares.take(Write), None, "the last one of reads");
        assert_eq!(shares.take(Read), Some(Place::Idle(3)));
        assert_eq!(shares.held(), 4);
        shares.give_back(BulkWrite, Some(4));
        let counts = shares.pools().map(|pool| (pool.pool, pool.used, pool.idle));
        let all = [("read", 1, 0), ("write", 2, 0), ("bulk_write", 0, 1)];
        assert_eq!(counts, all);
    }

    #[test]
    fn the_purpose_with_the_fewest_connections_is_served_first() {
        let mut shares = Shares::new(6);
        assert_eq!(fill(&mut shares, Read), 5);
        assert_eq!(fill(&mut shares, Write), 1);
        let mut reads = shares.wait(Read);
        let mut writes = [shares.wait(Write), shares.wait(Write), shares.wait(Write)];
        // Five and one, four and two, three and three.
        shares.give_back(Read, Some(1));
        shares.give_back(Read, Some(2));
        assert_eq!(writes[0].try_recv(), Ok(Place::InPlaceOf(1)));
        assert_eq!(writes[1].try_recv(), Ok(Place::InPlaceOf(2)));
        shares.give_back(Read, Some(3));
        assert_eq!(reads.try_recv(), Ok(Place::Idle(3)));
        let mut bulk = shares.wait(BulkWrite);
        shares.give_back(Write, None);
        assert_eq!(bulk.try_recv(), Ok(Place::Free));
        assert!(writes[2].try_recv().is_err());
        assert_eq!(shares.held(), 6);
    }

    /// Each of them always has a task that waits, and a bulk write never ends.
    #[test]
    fn no_purpose_waits_for_ever() {
        for connections in 3..8 {
            let mut shares = Shares::<u32>::new(connections);
            let mut in_use: VecDeque<Purpose> = VecDeque::new();
            let mut waiting: Vec<(Purpose, oneshot::Receiver<Place<u32>>)> = Vec::new();
            assert!(shares.take(BulkWrite).is_some());
            for purpose in [Read, Write] {
                in_use.extend((0..fill(&mut shares, purpose)).map(|_| purpose));
                waiting.extend((0..8).map(|_| (purpose, shares.wait(purpose))));
            }
            let mut served = [0, 0];
            for turn in 0..100 {
                let done = in_use.pop_front().unwrap();
                shares.give_back(done, Some(turn));
                let mut receivers = waiting.iter_mut();
                let place = receivers.position(|(_, receiver)| receiver.try_recv().is_ok());
                let (next, _) = waiting.remove(place.unwrap());
                served[next as usize] += 1;
                in_use.push_back(next);
                waiting.push((next, shares.wait(next)));
                assert_eq!(shares.held(), connections);
            }
            let least = 100 / connections as i32 - 1;
            assert!(served.iter().all(|&count| count >= least), "{served:?}");
        }
    }

    #[test]
    fn a_refused_connection_is_not_opened_and_another_one_is_used() {
        let mut shares = Shares::new(4);
        assert_eq!(shares.take(Read), Some(Place::Free));
        assert_eq!(shares.take(Write), Some(Place::Free));
        shares.refuse(Write);
        assert_eq!(shares.take(Read), None, "the server would refuse it, too");
        assert_eq!(shares.take(Write), None);
        let mut write = shares.wait(Write);
        let read = shares.wait(Read);
        shares.give_back(Read, Some(1));
        assert_eq!(write.try_recv(), Ok(Place::InPlaceOf(1)));
        assert_eq!(shares.held(), 1, "the server allows one");
        drop(read);
        shares.give_back(Write, None);
        shares.retry_refused();
        assert_eq!(fill(&mut shares, Read), 3);
    }

    #[test]
    fn a_task_that_has_stopped_waiting_takes_no_place() {
        let mut shares = Shares::<u32>::new(2);
        assert_eq!(fill(&mut shares, Read), 1);
        drop(shares.wait(Read));
        let mut second = shares.wait(Read);
        shares.give_back(Read, Some(1));
        assert_eq!(second.try_recv(), Ok(Place::Idle(1)));
    }
}
