//! A thread that waits for all connections by `select`, `poll` or `epoll`: for a pool of workers that read and write, or
//! for itself, which with ready-made bytes is the practical limit of a core.
//!
//! A connection is either idle, and then the selector thread owns it, or with a worker. A worker sends it back through a
//! queue and wakes the selector thread. A client that does not read its answers stops a worker, or the thread that has
//! none, so these servers are for load generators only.

use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;
use nix::sys::select::{FD_SETSIZE, FdSet, select};

use crate::labs::models::model::Model;
use crate::labs::models::request::{Answer, READ_BYTES};
use crate::labs::models::threads::{BlockingConnection, POOL_THREADS};

/// Connections that may wait for a worker, or for the selector thread: more than a load generator may open.
const QUEUE_MAX: usize = 1 << 17;
const EVENTS: usize = 1024;
/// The first descriptor that is too large for `select`.
const SELECT_END: i32 = FD_SETSIZE as i32;

/// How workers reach the selector thread.
struct Returns {
    idle: SyncSender<BlockingConnection>,
    wake: EventFd,
    is_awake: AtomicBool,
}

/// Serves for ever by the system call of `model`; closes and counts the connections that the call can't wait for.
pub(super) fn serve(
    model: Model,
    listener: &TcpListener,
    answer: &Arc<Answer>,
    refused: &AtomicU64,
) -> anyhow::Result<()> {
    listener.set_nonblocking(true)?;
    let (busy, work) = sync_channel(QUEUE_MAX);
    let (idle, returned) = sync_channel(QUEUE_MAX);
    let returns = Arc::new(Returns {
        idle,
        wake: EventFd::new()?,
        is_awake: AtomicBool::new(false),
    });
    let work = Arc::new(Mutex::new(work));
    let is_alone = model == Model::EpollPerCore;
    for _ in 0..if is_alone { 0 } else { POOL_THREADS } {
        let (work, returns, answer) = (Arc::clone(&work), Arc::clone(&returns), Arc::clone(answer));
        thread::Builder::new().spawn(move || work_off(&work, &returns, &answer))?;
    }
    let mut selector = Selector::new(model, listener, &returns.wake)?;
    let (mut input, mut output) = (vec![0; READ_BYTES], Vec::new());
    loop {
        for place in selector.wait(listener, &returns.wake)? {
            if place == returns.wake.as_fd().as_raw_fd() {
                returns.wake.read()?;
                returns.is_awake.store(false, Ordering::SeqCst);
                for connection in returned.try_iter() {
                    selector.watch(connection, false)?;
                }
            } else if place == listener.as_raw_fd() {
                while let Some(connection) = accept(listener)? {
                    if model == Model::Select && connection.stream.as_raw_fd() >= SELECT_END {
                        refused.fetch_add(1, Ordering::Relaxed);
                    } else {
                        selector.watch(connection, true)?;
                    }
                }
            } else if let Some(mut connection) = selector.take(place) {
                if !is_alone {
                    busy.send(connection).context("no worker is left")?;
                } else if connection.advance(answer, &mut input, &mut output) {
                    selector.keep(connection)?;
                }
            }
        }
    }
}

/// Advances connections as they become ready, until the selector thread ends.
fn work_off(work: &Mutex<Receiver<BlockingConnection>>, returns: &Returns, answer: &Answer) {
    let (mut input, mut output) = (vec![0; READ_BYTES], Vec::new());
    loop {
        let next = work.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(mut connection) = next else { return };
        if !connection.advance(answer, &mut input, &mut output) {
            continue;
        }
        let is_sent = returns.idle.send(connection).is_ok();
        let is_asleep = !returns.is_awake.swap(true, Ordering::SeqCst);
        if !is_sent || (is_asleep && returns.wake.write(1).is_err()) {
            return;
        }
    }
}

/// The next connection; `None` where no client waits.
fn accept(listener: &TcpListener) -> std::io::Result<Option<BlockingConnection>> {
    match listener.accept() {
        Ok((stream, _)) => BlockingConnection::new(stream).map(Some),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// The idle connections, and what waits for them.
struct Selector {
    model: Model,
    /// By descriptor.
    idle: Vec<Option<BlockingConnection>>,
    epoll: Epoll,
    events: Vec<EpollEvent>,
}

impl Selector {
    fn new(model: Model, listener: &TcpListener, wake: &EventFd) -> nix::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::empty())?;
        for always in [listener.as_fd(), wake.as_fd()] {
            epoll.add(always, event(always, EpollFlags::EPOLLIN))?;
        }
        Ok(Self {
            model,
            idle: Vec::new(),
            epoll,
            events: vec![EpollEvent::empty(); EVENTS],
        })
    }

    /// Waits for `connection`, too, with `epoll` once.
    fn watch(&mut self, connection: BlockingConnection, is_new: bool) -> anyhow::Result<()> {
        let descriptor = connection.stream.as_fd();
        let mut readable = event(descriptor, EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT);
        match self.model {
            Model::Epoll if !is_new => self.epoll.modify(descriptor, &mut readable)?,
            Model::Epoll => self.epoll.add(descriptor, readable)?,
            Model::EpollPerCore => self
                .epoll
                .add(descriptor, event(descriptor, EpollFlags::EPOLLIN))?,
            _ => {}
        }
        self.keep(connection)
    }

    fn keep(&mut self, connection: BlockingConnection) -> anyhow::Result<()> {
        let place = usize::try_from(connection.stream.as_raw_fd())?;
        if self.idle.len() <= place {
            self.idle.resize_with(place + 1, || None);
        }
        self.idle[place] = Some(connection);
        Ok(())
    }

    fn take(&mut self, descriptor: i32) -> Option<BlockingConnection> {
        let place = usize::try_from(descriptor).ok()?;
        self.idle.get_mut(place)?.take()
    }

    /// Waits until there is something to read, and returns the descriptors that have it.
    fn wait(&mut self, listener: &TcpListener, wake: &EventFd) -> nix::Result<Vec<i32>> {
        let always = [listener.as_fd(), wake.as_fd()];
        let idle = self.idle.iter().flatten().map(|idle| idle.stream.as_fd());
        let ready = match self.model {
            Model::Select => by_select(always.into_iter().chain(idle)),
            Model::Poll => by_poll(always.into_iter().chain(idle)),
            _ => {
                let count = self.epoll.wait(&mut self.events, EpollTimeout::NONE);
                let data = |event: &EpollEvent| i32::try_from(event.data()).unwrap_or(-1);
                count.map(|count| self.events[..count].iter().map(data).collect())
            }
        };
        match ready {
            Err(Errno::EINTR) => Ok(Vec::new()),
            ready => ready,
        }
    }
}

fn event(descriptor: BorrowedFd<'_>, flags: EpollFlags) -> EpollEvent {
    // Descriptors are not negative.
    EpollEvent::new(flags, u64::from(descriptor.as_raw_fd().unsigned_abs()))
}

fn by_select<'fd>(descriptors: impl Iterator<Item = BorrowedFd<'fd>>) -> nix::Result<Vec<i32>> {
    let mut set = FdSet::new();
    descriptors.for_each(|descriptor| set.insert(descriptor));
    select(None, &mut set, None, None, None)?;
    Ok(set
        .fds(None)
        .map(|descriptor| descriptor.as_raw_fd())
        .collect())
}

fn by_poll<'fd>(descriptors: impl Iterator<Item = BorrowedFd<'fd>>) -> nix::Result<Vec<i32>> {
    let mut descriptors: Vec<PollFd<'_>> = descriptors
        .map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN))
        .collect();
    poll(&mut descriptors, PollTimeout::NONE)?;
    let is_ready = |descriptor: &&PollFd<'_>| descriptor.any().unwrap_or(true);
    let ready = descriptors.iter().filter(is_ready);
    Ok(ready
        .map(|descriptor| descriptor.as_fd().as_raw_fd())
        .collect())
}
