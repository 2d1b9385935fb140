//! Requests whose work would delay the other requests of a worker.
//!
//! A worker runs its tasks one after another. tokio looks for what has arrived on sockets when no task is ready, or after 61
//! tasks (`event_interval`). If many requests are long, a short one that arrives meanwhile waits for 61 of them: with 20
//! connections that pipeline requests for 1,000 documents each, 300 ms. So long requests wait in [`wait_for_turn`] before
//! each part of their work, and work on many bytes is done by other threads ([`run`]).

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::{JoinError, spawn_blocking, yield_now};

/// Work on more bytes is done by tokio's threads for blocking work.
const INLINE_BYTES_MAX: usize = 16 << 10;

/// Such work that is done at the same time; other work waits.
static BLOCKING: Semaphore = Semaphore::const_new(2);

thread_local! {
    static TURN: Arc<Semaphore> = Arc::new(Semaphore::new(1));
}

/// Waits until the worker has looked for what has arrived on its sockets since the last request left here. Requests leave in
/// the order in which they came. It is to be called before some 100 µs of work. Cancel safe.
pub(crate) async fn wait_for_turn() {
    let turn = TURN.with(Arc::clone);
    // The semaphore is never closed.
    let _permit = turn.acquire_owned().await;
    // tokio resumes a task that yields only after it has looked at the sockets.
    yield_now().await;
}

/// Does `work`, which reads or makes so many bytes. If it is dropped before its end, the work is still done.
///
/// # Errors
/// If the work panics.
pub(crate) async fn run<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    if bytes <= INLINE_BYTES_MAX {
        return Ok(work());
    }
    // The semaphore is never closed.
    let permit = BLOCKING.acquire().await;
    spawn_blocking(move || {
        let _permit = permit;
        work()
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Write;
    use std::os::unix::net::UnixStream as StdStream;
    use std::rc::Rc;

    use tokio::io::AsyncReadExt;
    use tokio::net::UnixStream;
    use tokio::task::{LocalSet, spawn_local};

    use super::*;

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
                        wait_for_turn().await;
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
