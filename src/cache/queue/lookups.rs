//! Lookups on their way to the thread that reads from disk, and back.
//!
//! Waking a thread, or a runtime from another thread, costs as much as a read whose pages are in memory. So the first
//! lookup of a turn of a worker's runtime leads: it lets the turn's other requests come, hands all their lookups over
//! at once, and tells the others what was found, on the thread that they share.
//!
//! Reads that are slow make misses of what waits; many that are fast do not: PostgreSQL takes longer for each, so that
//! misses would make an overload worse.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::cache::disk::layout::Entry;
use crate::cache::generation::Epoch;
use crate::cache::orders::Shared;

/// Lookups that are handed over at once; more go in parts, so that none waits for too many others.
const LOOKUPS_MAX: usize = 64;
/// Of such, as many may wait.
const HANDED_OVER_MAX: usize = 256;
/// Where reading stands still for so long, or lookups that were handed over at once take so long, they and what waits
/// behind them are misses.
const SLOW: Duration = Duration::from_millis(20);
/// A lookup that takes longer is a miss, however many are before it.
const LOOKUP_TIMEOUT: Duration = Duration::from_millis(200);

/// A key that is looked for.
pub(in crate::cache) struct Lookup {
    pub(super) prefix: u64,
    pub(super) key: Arc<str>,
    pub(super) epoch: Epoch,
}

/// Keys that are looked for at once.
pub(in crate::cache) struct Lookups {
    pub(super) lookups: Vec<Lookup>,
    handed_over: Instant,
    /// Counts lookups that were answered.
    answered: Arc<AtomicU64>,
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
    /// Lookups that were answered.
    answered: Arc<AtomicU64>,
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
        let gatherer = Self {
            gathered: Mutex::default(),
            handed_over,
            answered: Arc::default(),
        };
        (gatherer, lookups)
    }

    /// What is found. Once it is handed over it waits as long as lookups are answered, at most 200 ms; a leader that
    /// goes makes a miss of those who wait for it.
    pub(super) async fn get(&self, lookup: Lookup) -> Option<Entry> {
        let (tell, told) = oneshot::channel();
        if let Some(mut lead) = self.gather((lookup, tell)) {
            // Until every request that is at hand has had its turn.
            tokio::task::yield_now().await;
            // Whom it has not told by then it does not tell any more.
            self.ask_in_time(lead.end()).await;
        }
        told.await.ok()?
    }

    /// Asks until the time is over, or nothing was answered for long.
    async fn ask_in_time(&self, gathered: Vec<Waiting>) {
        let began = Instant::now();
        let mut asked = pin!(self.ask(gathered));
        let mut answered = self.answered.load(Ordering::Relaxed);
        while tokio::time::timeout(SLOW, &mut asked).await.is_err() {
            let before = std::mem::replace(&mut answered, self.answered.load(Ordering::Relaxed));
            if before == answered || began.elapsed() >= LOOKUP_TIMEOUT {
                return;
            }
        }
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
                answered: Arc::clone(&self.answered),
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

/// Answers lookups by `find` until nobody is left to ask.
pub(super) fn answer_all(
    find: impl Fn(&Lookup) -> Option<Entry>,
    mut handed_over: mpsc::Receiver<Lookups>,
) {
    let mut slow_until = None;
    while let Some(lookups) = handed_over.blocking_recv() {
        // Without a reply they are misses.
        if slow_until.is_none_or(|until| lookups.handed_over > until) {
            slow_until = answer(&find, lookups).or(slow_until);
        }
    }
}

/// Answers lookups that were handed over at once. Returns when it was done if reading was slow.
pub(in crate::cache) fn answer(
    find: impl Fn(&Lookup) -> Option<Entry>,
    asked: Lookups,
) -> Option<Instant> {
    let began = Instant::now();
    let is_slow = || began.elapsed() > SLOW * 9 / 10;
    let mut found = Vec::with_capacity(asked.lookups.len());
    for lookup in &asked.lookups {
        // Whoever asked gave up; under overload the thread must not fall behind for them.
        if asked.reply.is_closed() {
            break;
        }
        // The rest are misses, so that what was found is not too late.
        if is_slow() || asked.handed_over.elapsed() > LOOKUP_TIMEOUT * 9 / 10 {
            break;
        }
        found.push(find(lookup));
        asked.answered.fetch_add(1, Ordering::Relaxed);
    }
    // Nobody waits any more: the lookups took too long.
    let _gone = asked.reply.send(found);
    is_slow().then(Instant::now)
}

/// Reads from disk.
pub(in crate::cache) fn find(shared: &Shared, lookup: &Lookup) -> Option<Entry> {
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
            epoch: Epoch::alike(1),
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

    /// Of what waits behind others, misses are made only where reading stands still, or for too long.
    #[tokio::test(start_paused = true)]
    async fn who_waits_is_answered_as_long_as_others_are() {
        for (others, pause, is_found) in [(12, 15, true), (1, 45, false), (30, 15, false)] {
            let (gatherer, mut lookups) = Gatherer::new();
            let answered = async {
                let asked = lookups.recv().await.unwrap();
                for _ in 0..others {
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                    asked.answered.fetch_add(1, Ordering::Relaxed);
                }
                // The one who asked may have gone.
                let _gone = asked.reply.send(vec![absent()]);
            };
            let (found, ()) = tokio::join!(gatherer.get(lookup("1")), answered);
            assert_eq!(found.is_some(), is_found, "{others} of {pause} ms");
        }
    }

    #[test]
    fn a_slow_read_makes_misses_of_what_waits_behind_it() {
        let (handed_over, lookups) = mpsc::channel(HANDED_OVER_MAX);
        let ask = |keys: &[&str]| {
            let (reply, told) = oneshot::channel();
            let asked = Lookups {
                lookups: keys.iter().copied().map(lookup).collect(),
                handed_over: Instant::now(),
                answered: Arc::default(),
                reply,
            };
            assert!(handed_over.try_send(asked).is_ok());
            told
        };
        let slow = ask(&["slow", "2"]);
        let behind = ask(&["3"]);
        let find = |lookup: &Lookup| {
            if &*lookup.key == "slow" {
                std::thread::sleep(SLOW);
            }
            absent()
        };
        let reading = std::thread::spawn(move || answer_all(find, lookups));
        assert_eq!(slow.blocking_recv().unwrap(), [absent()]);
        assert!(behind.blocking_recv().is_err());
        let later = ask(&["4"]);
        assert_eq!(later.blocking_recv().unwrap(), [absent()]);
        drop(handed_over);
        reading.join().unwrap();
    }

    #[test]
    fn what_has_waited_too_long_is_not_read() {
        let (reply, mut told) = oneshot::channel();
        let handed_over = Instant::now().checked_sub(LOOKUP_TIMEOUT).unwrap();
        let asked = Lookups {
            lookups: vec![lookup("1")],
            handed_over,
            answered: Arc::default(),
            reply,
        };
        assert_eq!(answer(|_| absent(), asked), None);
        assert_eq!(told.try_recv().unwrap(), []);
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
