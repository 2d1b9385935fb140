//! Turns on the cores for checks of passwords, and the bounded queue of those that wait for one.
//!
//! Guesses from many addresses must not keep a user out who signs in for the first time. So clients from which no wrong
//! password came lately are first, then users who are not guessed at, then those that came first. If the queue is full,
//! the last in this order loses its place to a better one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

/// The most checks that wait. At about 20 ms each, the last one waits for seconds.
pub(super) const WAITING_MAX: usize = 256;
/// A check that others overtake for longer is given up.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// A client with as many recent wrong passwords may have mistyped them.
const CALM_MAX: u64 = 2;

/// The turns, and the checks that wait for one.
#[derive(Clone)]
pub(super) struct Turns(Arc<Mutex<State>>);

struct State {
    free: usize,
    /// The number of the next place.
    next: u64,
    waiting: BTreeMap<Rank, Waiting>,
}

/// The order in which checks get their turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// Its client has sent more than [`CALM_MAX`] wrong passwords lately.
    is_hot: bool,
    /// Many wrong passwords were sent for its user.
    is_slowed: bool,
    /// The recent wrong passwords of its client.
    wrong: u64,
    number: u64,
}

struct Waiting {
    grant: oneshot::Sender<Turn>,
    /// Its delay is over.
    is_ready: bool,
}

/// The right to check a password now, until it is dropped.
pub(super) struct Turn(Turns);

/// A place in the queue. Dropping it gives it up.
pub(super) struct Place {
    turns: Turns,
    rank: Rank,
    granted: oneshot::Receiver<Turn>,
}

impl Turns {
    /// As many checks run at a time.
    pub(super) fn new(count: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            free: count,
            next: 0,
            waiting: BTreeMap::new(),
        })))
    }

    /// The state is consistent even if a thread has panicked while it held the lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a check of a client that has sent so many `wrong` passwords lately, of a user who is slowed down or not.
    /// `None` if the queue is full of better ones.
    pub(super) fn enter(&self, wrong: u64, is_slowed: bool) -> Option<Place> {
        let mut state = self.state();
        let rank = Rank {
            is_hot: wrong > CALM_MAX,
            is_slowed,
            wrong,
            number: state.next,
        };
        if state.waiting.len() >= WAITING_MAX {
            let last = state.waiting.last_entry();
            last.filter(|last| *last.key() > rank)?.remove();
        }
        state.next += 1;
        let (grant, granted) = oneshot::channel();
        let waiting = Waiting {
            grant,
            is_ready: false,
        };
        state.waiting.insert(rank, waiting);
        drop(state);
        let turns = self.clone();
        Some(Place {
            turns,
            rank,
            granted,
        })
    }

    fn make_ready(&self, rank: &Rank) {
        let mut state = self.state();
        if let Some(check) = state.waiting.get_mut(rank) {
            check.is_ready = true;
        }
        self.grant(state);
    }

    /// Gives a free turn to the first check that is ready.
    fn grant(&self, mut state: MutexGuard<'_, State>) {
        let mut first = None;
        if state.free > 0 {
            let mut ready = state.waiting.iter().filter(|(_, check)| check.is_ready);
            first = ready.next().map(|(rank, _)| *rank);
        }
        let Some(check) = first.and_then(|first| state.waiting.remove(&first)) else {
            return;
        };
        state.free -= 1;
        drop(state);
        // If the check has just ended, the turn is dropped, which grants it to the next.
        let _ended = check.grant.send(Turn(self.clone()));
    }
}

impl Place {
    /// Waits for `delay`, then for the turn. `None` if the place is lost to others, or after [`WAIT_MAX`].
    pub(super) async fn turn(mut self, delay: Duration) -> Option<Turn> {
        // Before it is ready, the channel can only be closed.
        if !delay.is_zero() && timeout(delay, &mut self.granted).await.is_ok() {
            return None;
        }
        self.turns.make_ready(&self.rank);
        timeout(WAIT_MAX, &mut self.granted).await.ok()?.ok()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.turns.state().waiting.remove(&self.rank);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.free += 1;
        self.0.grant(state);
    }
}

#[cfg(test)]
impl Turns {
    pub(super) fn free(&self) -> usize {
        self.state().free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    /// The numbers of `wrong` passwords and whether the user is slowed, in the order in which they get their turn.
    async fn order(checks: &[(u64, bool)]) -> Vec<usize> {
        let turns = Turns::new(1);
        let held = turns.enter(0, false).unwrap().turn(NOW).await;
        let (sender, mut served) = tokio::sync::mpsc::channel(checks.len());
        for (number, (wrong, is_slowed)) in checks.iter().enumerate() {
            let place = turns.enter(*wrong, *is_slowed).unwrap();
            let sender = sender.clone();
            tokio::spawn(async move {
                let turn = place.turn(NOW).await;
                sender.send(number).await.unwrap();
                drop(turn);
            });
        }
        drop(sender);
        tokio::task::yield_now().await;
        drop(held);
        let mut order = Vec::new();
        while let Some(number) = served.recv().await {
            order.push(number);
        }
        assert_eq!(turns.free(), 1);
        order
    }

    #[tokio::test]
    async fn calm_clients_come_before_guesses() {
        let (calm, mistyped, guessing) = (0, 2, 3);
        let checks = [
            (guessing, false),
            (calm, true),
            (mistyped, false),
            (20, false),
            (calm, false),
            (guessing, true),
            (calm, false),
        ];
        assert_eq!(order(&checks).await, [4, 6, 2, 1, 0, 3, 5]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_is_bounded_and_guesses_lose_their_places() {
        let turns = Turns::new(1);
        let held = turns.enter(0, false).unwrap().turn(NOW).await;
        let mut guesses: Vec<Place> = (0..WAITING_MAX)
            .map(|_| turns.enter(5, false).unwrap())
            .collect();
        assert!(turns.enter(5, false).is_none());
        let calm = turns.enter(0, true).unwrap();
        assert_eq!(turns.state().waiting.len(), WAITING_MAX);
        assert!(guesses.pop().unwrap().turn(NOW).await.is_none(), "the last");
        let first = guesses.swap_remove(0);
        let calm = tokio::spawn(calm.turn(Duration::from_secs(1)));
        assert!(first.turn(NOW).await.is_none(), "waited for too long");
        drop(held);
        assert!(calm.await.unwrap().is_some());
        drop(guesses);
        assert!(turns.state().waiting.is_empty());
        assert_eq!(turns.free(), 1);
    }
}
