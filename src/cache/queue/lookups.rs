//! Lookups on their way to the thread that reads from disk, and back.
//!
//! Waking a thread, or a runtime from another thread, costs as much as a read whose pages are in memory. So the first
//! lookup of a turn of a worker's runtime leads: it lets the turn's other requests come, hands all their lookups over
//! at once, and tells the others what was found, on the thread that they share.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::cache::disk::layout::Entry;
use crate::cache::queue::Shared;

/// Lookups that are handed over at once; more go in parts, so that none waits for too many others.
const LOOKUPS_MAX: usize = 64;
/// Of such, as many may wait.
const HANDED_OVER_MAX: usize = 256;
/// A lookup that takes longer is a miss.
const LOOKUP_TIMEOUT: Duration = Duration::from_millis(20);

/// A key that is looked for.
pub(in crate::cache) struct Lookup {
    pub(super) prefix: u64,
    pub(super) key: Arc<str>,
    pub(super) epoch: u64,
}

/// Keys that are looked for at once.
pub(in crate::cache) struct Lookups {
    pub(super) lookups: Vec<Lookup>,
    handed_over: Instant,
    /// What was found, in the same order; what is left out at the end is missing.
    pub(super) reply: oneshot::Sender<Vec<Option<Entry>>>,
}

/// A lookup, and whom to tell.
type Waiting = (Lookup, oneshot::Sender<Option<Entry>>);

/// Gathers lookups, and hands them over.
pub(super) struct Gatherer {
    /// By thread: a leader tells those who wait without waking another.
    gathered: Mutex<HashMap<ThreadId, Vec<Waiting>>>,
    handed_over: mpsc::Sender<Lookups>,
}

/// The duty to end a gathering: who waits in it has no timer, and nobody else may lead meanwhile.
struct Lead<'g> {
    gatherer: &'g Gatherer,
    thread: Option<ThreadId>,
}

impl Gatherer {
    /// With the end at which lookups come out.
    pub(super) fn new() -> (Self, mpsc::Receiver<Lookups>) {
        let (handed_over, lookups) = mpsc::channel(HANDED_OVER_MAX);
        let gathered = Mutex::default();
        let gatherer = Self {
            gathered,
            handed_over,
        };
        (gatherer, lookups)
    }

    /// What is found. Waits at most 20 ms once it is handed over; a leader that goes makes a miss of those who wait for
    /// it.
    pub(super) async fn get(&self, lookup: Lookup) -> Option<Entry> {
        let (tell, told) = oneshot::channel();
        if let Some(mut lead) = self.gather((lookup, tell)) {
            // Until every request that is at hand has had its turn.
            tokio::task::yield_now().await;
            let asked = self.ask(lead.end());
            // Whom it has not told by then it does not tell any more.
            let _late = tokio::time::timeout(LOOKUP_TIMEOUT, asked).await.is_err();
        }
        told.await.ok()?
    }

    /// Joins what this thread gathers, or leads.
    fn gather(&self, waiting: Waiting) -> Option<Lead<'_>> {
        let thread = std::thread::current().id();
        match self.gathered().entry(thread) {
            Place::Occupied(mut gathered) => {
                gathered.get_mut().push(waiting);
                None
            }
            Place::Vacant(place) => {
                place.insert(vec![waiting]);
                Some(Lead {
                    gatherer: self,
                    thread: Some(thread),
                })
            }
        }
    }

    async fn ask(&self, gathered: Vec<Waiting>) {
        let mut parts = Vec::with_capacity(1);
        let mut gathered = gathered.into_iter().peekable();
        while gathered.peek().is_some() {
            let part = gathered.by_ref().take(LOOKUPS_MAX);
            let (lookups, tell): (Vec<_>, Vec<_>) = part.unzip();
            let (reply, answer) = oneshot::channel();
            // Where too much waits already they are misses.
            let asked = Lookups {
                lookups,
                handed_over: Instant::now(),
                reply,
            };
            if self.handed_over.try_send(asked).is_ok() {
                parts.push((tell, answer));
            }
        }
        for (tell, answer) in parts {
            for (tell, found) in tell.into_iter().zip(answer.await.unwrap_or_default()) {
                // The request may have gone.
                let _gone = tell.send(found);
            }
        }
    }

    fn gathered(&self) -> MutexGuard<'_, HashMap<ThreadId, Vec<Waiting>>> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lead<'_> {
    /// Takes what was gathered; the next lookup leads anew.
    fn end(&mut self) -> Vec<Waiting> {
        let thread = self.thread.take();
        let gathered = thread.and_then(|thread| self.gatherer.gathered().remove(&thread));
        gathered.unwrap_or_default()
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        drop(self.end());
    }
}

/// Answers lookups until nobody is left to ask.
pub(super) fn answer_all(shared: &Shared, mut handed_over: mpsc::Receiver<Lookups>) {
    while let Some(lookups) = handed_over.blocking_recv() {
        answer(shared, lookups);
    }
}

/// Answers lookups that were handed over at once.
pub(in crate::cache) fn answer(shared: &Shared, asked: Lookups) {
    let Lookups {
        lookups,
        handed_over,
        reply,
    } = asked;
    let mut found = Vec::with_capacity(lookups.len());
    for lookup in &lookups {
        // Whoever asked gave up; under overload the thread must not fall behind for them.
        if reply.is_closed() {
            return;
        }
        // Where reads are slow the rest are misses, so that what was found is not too late.
        if handed_over.elapsed() > LOOKUP_TIMEOUT * 9 / 10 {
            break;
        }
        found.push(find(shared, lookup));
    }
    // Nobody waits any more: the lookups took too long.
    let _gone = reply.send(found);
}

fn find(shared: &Shared, lookup: &Lookup) -> Option<Entry> {
    // Loaded for each lookup: one that was asked for after a swap must not see what was before it.
    match &*shared.store.load() {
        Some(store) if shared.on.load(Ordering::SeqCst) => store
            .get(lookup.prefix, &lookup.key, lookup.epoch)
            .unwrap_or_else(|error| {
                shared.give_up(&error.to_string());
                None
            }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn lookup(key: &str) -> Lookup {
        Lookup {
            prefix: 0,
            key: Arc::from(key),
            epoch: 1,
        }
    }

    fn poll(get: &mut Pin<&mut impl Future<Output = Option<Entry>>>) -> Poll<Option<Entry>> {
        get.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    fn absent() -> Option<Entry> {
        Some(Entry {
            found: None,
            since: std::time::SystemTime::UNIX_EPOCH,
        })
    }

    fn keys(lookups: &Lookups) -> Vec<&str> {
        let lookups = lookups.lookups.iter();
        lookups.map(|lookup| &*lookup.key).collect()
    }

    #[tokio::test]
    async fn lookups_of_one_turn_are_handed_over_at_once_and_told_apart() {
        let (gatherer, mut lookups) = Gatherer::new();
        let asked = async {
            tokio::join!(
                gatherer.get(lookup("1")),
                gatherer.get(lookup("2")),
                gatherer.get(lookup("3"))
            )
        };
        let answered = async {
            let lookups = lookups.recv().await.unwrap();
            assert_eq!(keys(&lookups), ["1", "2", "3"]);
            lookups.reply.send(vec![absent(), None, absent()]).unwrap();
        };
        let (found, ()) = tokio::join!(asked, answered);
        assert_eq!(found, (absent(), None, absent()));
    }

    #[tokio::test]
    async fn more_lookups_than_go_at_once_go_in_parts() {
        let (gatherer, mut lookups) = Gatherer::new();
        let asked = (0..=LOOKUPS_MAX).map(|key| gatherer.get(lookup(&key.to_string())));
        let answered = async {
            for count in [LOOKUPS_MAX, 1] {
                let lookups = lookups.recv().await.unwrap();
                assert_eq!(lookups.lookups.len(), count);
                lookups.reply.send(vec![absent(); count]).unwrap();
            }
        };
        let (found, ()) = tokio::join!(futures_util::future::join_all(asked), answered);
        assert!(found.iter().all(Option::is_some));
    }

    /// Who waits for it has no timer of its own, and the next lookup must not wait for it.
    #[tokio::test]
    async fn a_leader_that_goes_makes_a_miss_of_the_others_and_the_next_leads() {
        for handed_over in [false, true] {
            let (gatherer, mut lookups) = Gatherer::new();
            let mut other = pin!(gatherer.get(lookup("2")));
            {
                let mut leader = pin!(gatherer.get(lookup("1")));
                assert!(poll(&mut leader).is_pending());
                assert!(poll(&mut other).is_pending());
                if handed_over {
                    assert!(poll(&mut leader).is_pending());
                    assert_eq!(keys(&lookups.try_recv().unwrap()), ["1", "2"]);
                }
            }
            assert_eq!(poll(&mut other), Poll::Ready(None));
            let mut next = pin!(gatherer.get(lookup("3")));
            assert!(poll(&mut next).is_pending());
            assert!(poll(&mut next).is_pending());
            assert_eq!(keys(&lookups.try_recv().unwrap()), ["3"]);
        }
    }
}
