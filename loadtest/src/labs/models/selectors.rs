//! A thread that waits for all connections by `select`, `poll` or `epoll`: for a pool of workers that read and write,
//! or for itself, which with ready-made bytes is the practical limit of a core.
//!
//! A connection is either idle, and then the selector thread owns it, or with a worker, which gives it back and wakes
//! the selector thread. A client that does not read its answers stops a worker, or the thread that has none, so these
//! servers are for load generators only.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::iter;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;
use nix::sys::select::{FD_SETSIZE, FdSet, select};

use crate::labs::models::model::{Model, POOL_THREADS, REFUSED};
use crate::labs::models::request::{Answer, READ_BYTES};
use crate::labs::models::threads::BlockingConnection;

/// Connections that may wait for a worker: more than a load generator may open.
const QUEUE_MAX: usize = 1 << 17;

/// What the selector thread and its workers share.
struct Pool {
    work: Mutex<Receiver<BlockingConnection>>,
    /// Connections that workers give back. The worker that adds the first one wakes the selector thread.
    returned: Mutex<Vec<BlockingConnection>>,
    wake: EventFd,
}

/// Serves for ever by the system call of `model`; closes and counts the connections that the call can't wait for.
pub(super) fn serve(model: Model, listener: &TcpListener, answer: &Answer) -> anyhow::Result<()> {
    listener.set_nonblocking(true)?;
    let (busy, work) = sync_channel(QUEUE_MAX);
    let pool = Pool {
        work: Mutex::new(work),
        returned: Mutex::default(),
        wake: EventFd::new()?,
    };
    let poller = match model {
        Model::Select => Poller::Select,
        Model::Poll => Poller::Poll,
        _ => Poller::Epoll(Epoll::new(EpollCreateFlags::empty())?),
    };
    let is_alone = model == Model::EpollPerCore;
    let always = [listener.as_fd(), pool.wake.as_fd()];
    let [accepting, woken] = always.map(|descriptor| descriptor.as_raw_fd());
    for descriptor in always {
        poller.watch(descriptor, false)?;
    }
    let mut idle: HashMap<RawFd, BlockingConnection> = HashMap::new();
    let (mut input, mut output) = (vec![0; READ_BYTES], Vec::new());
    thread::scope(|scope| {
        for _ in 0..if is_alone { 0 } else { POOL_THREADS } {
            scope.spawn(|| work_off(&pool, answer));
        }
        // Workers end when it is dropped.
        let busy = busy;
        loop {
            let connections = idle.values().map(|idle| idle.stream.as_fd());
            for ready in poller.wait(always.into_iter().chain(connections))? {
                let mut new = Vec::new();
                if ready == accepting {
                    new = accept_all(listener)?;
                } else if ready == woken {
                    pool.wake.read()?;
                    new.append(&mut lock(&pool.returned));
                } else if let Some(mut connection) = idle.remove(&ready) {
                    if !is_alone {
                        busy.send(connection)?;
                    } else if connection.step(answer, &mut input, &mut output) {
                        idle.insert(ready, connection);
                    }
                }
                for connection in new {
                    if poller.watch(connection.stream.as_fd(), !is_alone).is_ok() {
                        idle.insert(connection.stream.as_fd().as_raw_fd(), connection);
                    } else {
                        REFUSED.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
    })
}

/// Advances connections as they become ready, until the selector thread ends.
fn work_off(pool: &Pool, answer: &Answer) {
    let (mut input, mut output) = (vec![0; READ_BYTES], Vec::new());
    loop {
        let next = lock(&pool.work).recv();
        let Ok(mut connection) = next else { return };
        if connection.step(answer, &mut input, &mut output) {
            let mut returned = lock(&pool.returned);
            returned.push(connection);
            let is_first = returned.len() == 1;
            drop(returned);
            if is_first && pool.wake.write(1).is_err() {
                return;
            }
        }
    }
}

/// Accepts the connections that wait.
fn accept_all(listener: &TcpListener) -> io::Result<Vec<BlockingConnection>> {
    let accepted = iter::from_fn(|| match BlockingConnection::accept(listener) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        accepted => Some(accepted),
    });
    accepted.collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The system call that waits.
enum Poller {
    Select,
    Poll,
    Epoll(Epoll),
}

impl Poller {
    /// Adds a descriptor to those that are waited for, with epoll until it has been ready once where `is_once`.
    fn watch(&self, descriptor: BorrowedFd<'_>, is_once: bool) -> nix::Result<()> {
        // Descriptors are not negative.
        let number = descriptor.as_raw_fd().unsigned_abs();
        match self {
            Self::Select if number as usize >= FD_SETSIZE => Err(Errno::EINVAL),
            Self::Select | Self::Poll => Ok(()),
            Self::Epoll(epoll) => {
                let mut flags = EpollFlags::EPOLLIN;
                flags.set(EpollFlags::EPOLLONESHOT, is_once);
                let mut event = EpollEvent::new(flags, number.into());
                let modified = epoll.modify(descriptor, &mut event);
                modified.or_else(|_| epoll.add(descriptor, event))
            }
        }
    }

    /// Waits until there is something to read, and returns the descriptors that have it; epoll knows `all` of them.
    fn wait<'a>(&self, all: impl Iterator<Item = BorrowedFd<'a>>) -> nix::Result<Vec<RawFd>> {
        Ok(match self {
            Self::Select => {
                let mut set = FdSet::new();
                all.for_each(|descriptor| set.insert(descriptor));
                select(None, &mut set, None, None, None)?;
                set.fds(None).map(|ready| ready.as_raw_fd()).collect()
            }
            Self::Poll => {
                let mut set: Vec<_> = all.map(|one| PollFd::new(one, PollFlags::POLLIN)).collect();
                poll(&mut set, PollTimeout::NONE)?;
                let ready = set.iter().filter(|one| one.any() != Some(false));
                ready.map(|one| one.as_fd().as_raw_fd()).collect()
            }
            Self::Epoll(epoll) => {
                let mut events = [EpollEvent::empty(); 128];
                // Linux ends this wait, unlike the others, where the process is stopped and goes on.
                let count = match epoll.wait(&mut events, EpollTimeout::NONE) {
                    Err(Errno::EINTR) => 0,
                    waited => waited?,
                };
                let ready = events[..count].iter();
                let numbers = ready.filter_map(|event| event.data().try_into().ok());
                numbers.collect()
            }
        })
    }
}
