//! Requests whose work would delay the other requests of a worker.
//!
//! A worker runs its tasks one after another. tokio looks for what has arrived on sockets when no task is ready, or after 61
//! tasks (`event_interval`). If many requests are long, a short one that arrives meanwhile waits for 61 of them: with 20
//! connections that pipeline requests for 1,000 documents each, 300 ms. So long requests wait in [`wait_for_turn`] before
//! each part of their work, and work on many bytes is done by other threads ([`run`]). Where requests wait, clients take
//! turns, so that the requests of one client delay those of another by one each.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::{JoinError, spawn_blocking, yield_now};
use tokio::time::timeout;

use crate::http::problem::Problem;
use crate::server::client_network;

/// Work on more bytes is done by tokio's threads for blocking work.
const INLINE_BYTES_MAX: usize = 16 << 10;

/// Such work that is done at the same time; other work waits.
const BLOCKING_MAX: usize = 2;

static BLOCKING: LazyLock<Arc<Turns>> = LazyLock::new(|| Turns::new(BLOCKING_MAX));

thread_local! {
    static WORKER: Arc<Turns> = Turns::new(1);
}

/// The client of a request, and how long the request may wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) client: IpAddr,
    pub(super) wait_max: Duration,
}

/// A request's turn on its worker. No other request of the worker begins its turn before this one is dropped.
pub(super) struct WorkerTurn {
    _permit: Permit,
}

impl WorkerTurn {
    /// Lets the worker look for what has arrived on its sockets.
    pub(super) async fn pause(&self) {
        // tokio resumes a task that yields only after it has looked at the sockets.
        yield_now().await;
    }
}

/// Waits for a turn, until the worker has looked for what has arrived on its sockets since the turn before. It is to be
/// called before some 100 µs of work. Cancel safe.
///
/// # Errors
/// 503 after `wait_max`.
pub(super) async fn wait_for_turn(waiting: Waiting) -> Result<WorkerTurn, Problem> {
    let turns = WORKER.with(Arc::clone);
    let permit = take_turn(turns, waiting).await?;
    let turn = WorkerTurn { _permit: permit };
    turn.pause().await;
    Ok(turn)
}

/// Does `work`, which reads or makes so many bytes. If it is dropped after the work has begun, the work is still done.
///
/// # Errors
/// 503 if the work could not begin within `wait_max`; `failed` if it panics.
pub(super) async fn run<T: Send + 'static>(
    waiting: Waiting,
    bytes: usize,
    failed: Problem,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    if bytes <= INLINE_BYTES_MAX {
        Ok(work())
    } else {
        run_elsewhere(waiting, failed, work).await
    }
}

/// As [`run`], for work that takes long however few bytes there are.
///
/// # Errors
/// See [`run`].
pub(super) async fn run_elsewhere<T: Send + 'static>(
    waiting: Waiting,
    failed: Problem,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let permit = take_turn(Arc::clone(&BLOCKING), waiting).await?;
    let done = run_blocking(move || {
        let _permit = permit;
        work()
    });
    done.await.map_err(|_| failed)
}

/// Does `work` on a thread for blocking work. If it is dropped after the work has begun, the work is still done.
///
/// The worker looks at its sockets before the request goes on: requests with many such parts, each of which is done soon,
/// would keep it busy (gzip bodies in parts of 64 KiB: 61 parts, 5 to 24 ms).
///
/// # Errors
/// If `work` panics.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let done = spawn_blocking(work).await;
    yield_now().await;
    done
}

async fn take_turn(turns: Arc<Turns>, waiting: Waiting) -> Result<Permit, Problem> {
    let Err(receiver) = turns.try_take(client_network(waiting.client)) else {
        return Ok(Permit(Some(turns)));
    };
    let permit = timeout(waiting.wait_max, receiver).await;
    // A sender is dropped only after it has sent.
    permit
        .ok()
        .and_then(Result::ok)
        .ok_or(Problem::LONG_REQUESTS)
}

/// Permits that clients take by turns, each client in the order of its requests.
struct Turns(Mutex<TurnQueue>);

struct TurnQueue {
    free: usize,
    /// The clients that wait, the next one first. Each is there once.
    clients: VecDeque<IpAddr>,
    waiting: HashMap<IpAddr, VecDeque<oneshot::Sender<Permit>>>,
}

/// Dropping it gives it to the next request that waits.
struct Permit(Option<Arc<Turns>>);

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(turns) = self.0.take() {
            turns.give_back();
        }
    }
}

impl Turns {
    fn new(permits: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(TurnQueue {
            free: permits,
            clients: VecDeque::new(),
            waiting: HashMap::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, TurnQueue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a permit, or a place in the queue of `client`.
    fn try_take(&self, client: IpAddr) -> Result<(), oneshot::Receiver<Permit>> {
        let mut queue = self.lock();
        if queue.free > 0 {
            queue.free -= 1;
            return Ok(());
        }
        let (sender, receiver) = oneshot::channel();
        let waiting = queue.waiting.entry(client).or_default();
        waiting.push_back(sender);
        if waiting.len() == 1 {
            queue.clients.push_back(client);
        }
        Err(receiver)
    }

    fn give_back(self: Arc<Self>) {
        let mut queue = self.lock();
        let mut permit = Permit(Some(Arc::clone(&self)));
        while let Some(sender) = queue.pop() {
            match sender.send(permit) {
                Ok(()) => return,
                // The request has been dropped.
                Err(unsent) => permit = unsent,
            }
        }
        permit.0 = None;
        queue.free += 1;
    }
}

impl TurnQueue {
    /// The next request.
    fn pop(&mut self) -> Option<oneshot::Sender<Permit>> {
        let client = self.clients.pop_front()?;
        let waiting = self.waiting.get_mut(&client)?;
        let next = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&client);
        } else {
            self.clients.push_back(client);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Write;
    use std::os::unix::net::UnixStream as StdStream;
    use std::pin::pin;
    use std::rc::Rc;
    use std::task::{Context, Wake};

    use tokio::io::AsyncReadExt;
    use tokio::net::UnixStream;
    use tokio::task::{LocalSet, spawn_local};

    use super::*;

    fn waiting(address: [u8; 4]) -> Waiting {
        Waiting {
            client: address.into(),
            wait_max: Duration::from_secs(60),
        }
    }

    #[tokio::test]
    async fn clients_take_turns() {
        let turns = Turns::new(1);
        let first = turns.try_take([127, 0, 0, 1].into());
        assert!(first.is_ok());
        let held = Permit(Some(Arc::clone(&turns)));
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for client in [1, 1, 1, 1, 2, 3, 2] {
            let receiver = turns.try_take([127, 0, 0, client].into()).unwrap_err();
            if tasks.len() == 1 {
                // A request that does not wait any more.
                drop(turns.try_take([127, 0, 0, 1].into()));
            }
            let order = Arc::clone(&order);
            tasks.push(tokio::spawn(async move {
                let _permit = receiver.await.unwrap();
                order.lock().unwrap().push(client);
            }));
        }
        drop(held);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [1, 2, 3, 1, 2, 1, 1]);
        assert_eq!(turns.lock().free, 1);
        assert!(turns.lock().waiting.is_empty());
    }

    #[tokio::test]
    async fn a_request_waits_no_longer_than_it_may() {
        let held: Vec<Permit> = std::iter::from_fn(|| {
            let taken = BLOCKING.try_take([127, 0, 0, 1].into());
            taken.ok().map(|()| Permit(Some(Arc::clone(&BLOCKING))))
        })
        .collect();
        let waiting = Waiting {
            wait_max: Duration::ZERO,
            ..waiting([127, 0, 0, 2])
        };
        let failed = run(waiting, INLINE_BYTES_MAX + 1, Problem::NOT_PARSED, || ()).await;
        assert_eq!(failed.unwrap_err().status().as_u16(), 503);
        assert!(
            run(waiting, INLINE_BYTES_MAX, Problem::NOT_PARSED, || ())
                .await
                .is_ok()
        );
        drop(held);
    }

    #[tokio::test]
    async fn the_worker_looks_at_its_sockets_after_blocking_work() {
        struct Woken(std::sync::mpsc::Sender<()>);
        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                let _ended = self.0.send(());
            }
        }
        let (woken, wakes) = std::sync::mpsc::channel();
        let waker = Arc::new(Woken(woken)).into();
        let mut context = Context::from_waker(&waker);
        let (begin, begun) = std::sync::mpsc::channel();
        let mut running = pin!(run_blocking(move || begun.recv().unwrap()));
        assert!(running.as_mut().poll(&mut context).is_pending());
        begin.send(()).unwrap();
        wakes.recv().unwrap();
        assert!(running.as_mut().poll(&mut context).is_pending(), "no pause");
        assert!(running.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn arrived_bytes_are_read_before_the_next_turn() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(LocalSet::new().run_until(async {
            let (mut near, far) = StdStream::pair().unwrap();
            far.set_nonblocking(true).unwrap();
            let mut far = UnixStream::from_std(far).unwrap();
            let turns = Rc::new(Cell::new(0));
            let counter = Rc::clone(&turns);
            let reader = spawn_local(async move {
                far.read_u8().await.unwrap();
                counter.get()
            });
            for _ in 0..50 {
                let turns = Rc::clone(&turns);
                let mut near = near.try_clone().unwrap();
                spawn_local(async move {
                    for _ in 0..10 {
                        wait_for_turn(waiting([127, 0, 0, 1])).await.unwrap();
                        turns.set(turns.get() + 1);
                        if turns.get() == 120 {
                            near.write_all(b"!").unwrap();
                        }
                    }
                });
            }
            near.flush().unwrap();
            let seen = reader.await.unwrap();
            assert!((120..=122).contains(&seen), "{seen}");
        }));
    }
}
