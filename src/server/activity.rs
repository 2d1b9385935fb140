//! What has happened on a connection, and the command that its task has been given.
//!
//! The connection's task counts what it reads and writes. The periodic check of all connections (`connections`) reads the
//! counts, and commands the task to drain or to close. A command to close holds only while nothing has happened since the
//! check: the task compares [`Activity::expected`] with the count that the command names.
//!
//! | the connection waits for | `head` | requests in progress | unsent | limit, command |
//! | --- | --- | --- | --- | --- |
//! | its first request, or the rest of a head (HTTP/1.1) | odd | no | no | `header_timeout`, `CloseHead` |
//! | the next request | even | no | no | `idle_timeout`, `CloseIdle` |
//! | larder's answer | any | yes | no | none: the protocol limits a request and its body |
//! | the client to read its answer | any | any | yes | `write_timeout`, `CloseUnsent` |

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::Poll;

use futures_util::task::AtomicWaker;

/// The client has to read this share of what is unsent over HTTP/2 within `write_timeout`.
const UNSENT_SHARE: u64 = 64;
/// It has to read at least so many bytes.
const READ_BYTES_MIN: u64 = 1 << 10;

/// Whether the server accepts connections, or ends those that are open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Serving,
    Draining,
}

/// What a connection is to do.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ConnectionCommand {
    /// End after the requests in progress.
    Drain = 1,
    /// End at once, unless [`Activity::progress`] has changed since, or a head has begun.
    CloseIdle = 2,
    /// End at once, unless [`Activity::head`] has changed since.
    CloseHead = 3,
    /// End at once, unless the client has read enough since.
    CloseUnsent = 4,
}

/// What has happened on a connection, and the command that its task has been given.
pub struct Activity {
    /// The number of references, less one, is the number of requests in progress. The value: whether the connection has
    /// been commanded to drain.
    in_progress: Arc<AtomicBool>,
    /// Bytes of answers over HTTP/2 that hyper has not written, since the client limits how much may be sent to it; and
    /// one more for each answer that has not ended.
    unsent: Arc<AtomicU64>,
    /// The socket's buffer in the kernel is full.
    pub(crate) is_full: AtomicBool,
    /// Answers are held back, so that they can be sent together with those that may follow.
    pub(crate) is_holding: AtomicBool,
    /// Raised with each request that was read, and over HTTP/1.1 with each write. Writes over HTTP/2 do not count, since
    /// a client's pings and settings are answered even if it sends no request and reads no answer.
    pub(crate) progress: AtomicU64,
    /// Bytes that were written to the socket.
    pub(crate) sent: AtomicU64,
    /// Twice the number of requests that were read; one more while the head of the next request is awaited: before the
    /// first request, and from the first byte after the last answer.
    pub(crate) head: AtomicU64,
    /// The client has sent a request over HTTP/2.
    is_multiplexed: AtomicBool,
    /// The value that a command to close compares a count with: `progress` or `head` as the check has seen it, or the
    /// value that `sent` reaches once the client has read enough.
    pub(crate) expected: AtomicU64,
    /// A [`ConnectionCommand`], or 0.
    command: AtomicU8,
    /// Wakes the connection's task for its command.
    pub(crate) waker: AtomicWaker,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            in_progress: Arc::default(),
            unsent: Arc::default(),
            is_full: AtomicBool::default(),
            is_holding: AtomicBool::default(),
            progress: AtomicU64::default(),
            sent: AtomicU64::default(),
            head: AtomicU64::new(1),
            is_multiplexed: AtomicBool::default(),
            expected: AtomicU64::default(),
            command: AtomicU8::default(),
            waker: AtomicWaker::default(),
        }
    }
}

// Only the connection's own task changes the counts, so a load and a store lose nothing.
impl Activity {
    /// Counts a request that was read. The request is in progress until the result is dropped; the result's value says
    /// whether the connection has been commanded to drain.
    pub(crate) fn begin_request(&self) -> Arc<AtomicBool> {
        self.count_progress();
        let head = self.head.load(Ordering::Relaxed);
        self.head
            .store((head | 1).wrapping_add(1), Ordering::Relaxed);
        Arc::clone(&self.in_progress)
    }

    /// Notes that bytes were read.
    pub(crate) fn note_read(&self) {
        let head = self.head.load(Ordering::Relaxed);
        self.head.store(head | 1, Ordering::Relaxed);
    }

    /// Counts bytes that were written. Bytes that were read before belong to the request that is being answered, not to
    /// the head of another.
    pub(crate) fn note_written(&self, bytes: usize) {
        let sent = self.sent.load(Ordering::Relaxed);
        self.sent
            .store(sent.wrapping_add(bytes as u64), Ordering::Relaxed);
        if !self.is_multiplexed() {
            self.count_progress();
        }
        let head = self.head.load(Ordering::Relaxed);
        if head > 1 {
            self.head.store(head & !1, Ordering::Relaxed);
        }
    }

    /// The count of unsent bytes for the body of an answer over HTTP/2 (`multiplexed`). Over HTTP/1.1 the socket shows
    /// whether something is unsent.
    pub(crate) fn count_unsent(&self, multiplexed: bool) -> Option<UnsentBytes> {
        multiplexed.then(|| {
            self.is_multiplexed.store(true, Ordering::Relaxed);
            UnsentBytes {
                bytes: 0,
                total: Arc::clone(&self.unsent),
            }
        })
    }

    /// Whether the connection ends with an answer that has `Connection: close`. Over HTTP/1.1 the client may have sent a
    /// request that was not read yet, which would be lost if the connection ended without that header. HTTP/2 has GOAWAY.
    pub(crate) fn announces_end(&self) -> bool {
        let has_progress = self.progress.load(Ordering::Relaxed) > 0;
        has_progress && !self.is_multiplexed()
    }

    /// Whether the connection is between two requests over HTTP/1.1: the client may send another, and has not begun.
    pub(crate) fn is_kept(&self) -> bool {
        self.announces_end() && !self.awaits_head()
    }

    fn is_multiplexed(&self) -> bool {
        self.is_multiplexed.load(Ordering::Relaxed)
    }

    fn count_progress(&self) {
        let progress = self.progress.load(Ordering::Relaxed);
        self.progress
            .store(progress.wrapping_add(1), Ordering::Relaxed);
    }

    /// Gives the connection's task a command, and wakes it.
    pub(crate) fn give_command(&self, command: ConnectionCommand) {
        if command == ConnectionCommand::Drain {
            self.in_progress.store(true, Ordering::Relaxed);
        }
        self.command.store(command as u8, Ordering::Release);
        self.waker.wake();
    }

    /// Whether this is the last command that was given.
    pub(crate) fn has_command(&self, command: ConnectionCommand) -> bool {
        self.command.load(Ordering::Acquire) == command as u8
    }

    /// The output of `future`; `None` if the connection has to close before that.
    pub(crate) async fn unless_closed<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        poll_fn(|context| {
            self.waker.register(context.waker());
            match future.as_mut().poll(context) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending if self.must_close(Stage::Serving) => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// Whether the connection has to end at once: it was commanded to, and nothing has happened since.
    pub(crate) fn must_close(&self, stage: Stage) -> bool {
        let expected = self.expected.load(Ordering::Relaxed);
        let is_expected = |count: &AtomicU64| count.load(Ordering::Relaxed) == expected;
        let is_idle = (self.has_command(ConnectionCommand::CloseIdle)
            && is_expected(&self.progress)
            && !self.awaits_head())
            || (self.has_command(ConnectionCommand::CloseHead) && is_expected(&self.head));
        let is_stuck = self.has_command(ConnectionCommand::CloseUnsent)
            && self.is_unsent()
            && self.sent.load(Ordering::Relaxed) < expected;
        is_stuck || (is_idle && !self.is_busy(stage))
    }

    /// Whether the connection waits for a head and for nothing else.
    pub(crate) fn awaits_head(&self) -> bool {
        self.head.load(Ordering::Relaxed) & 1 == 1 && !self.is_multiplexed()
    }

    /// Whether the client still has to receive something. While serving, a client that does not read its answers counts as
    /// idle, and `write_timeout` limits it. While draining, the kernel reports too seldom that a slow client reads, so only
    /// `shutdown_timeout` limits it.
    pub(crate) fn is_busy(&self, stage: Stage) -> bool {
        Arc::strong_count(&self.in_progress) > 1 || (stage == Stage::Draining && self.is_unsent())
    }

    /// Whether there is an answer that the client does not read.
    pub(crate) fn is_unsent(&self) -> bool {
        self.is_full.load(Ordering::Relaxed) || self.unsent.load(Ordering::Relaxed) > 0
    }

    /// Bytes that a client with unsent answers has to read within `write_timeout`. Over HTTP/2 they are a share of what is
    /// unsent, so a client that requests much has to read much; answers to its pings alone are too few.
    pub(crate) fn bytes_to_read(&self) -> u64 {
        if !self.is_multiplexed() {
            return 1;
        }
        let share = self.unsent.load(Ordering::Relaxed) / UNSENT_SHARE;
        share.max(READ_BYTES_MIN)
    }
}

/// Bytes of an answer over HTTP/2 that hyper has not written. Dropping it takes them out of the connection's total.
pub(crate) struct UnsentBytes {
    bytes: u64,
    total: Arc<AtomicU64>,
}

impl UnsentBytes {
    /// Counts `bytes` more.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Sets the count to 0: the client has read all that there is, and does not have to read what larder still makes.
    pub(crate) fn clear(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = 0;
    }

    /// Splits off the count of a part of so many bytes. A body of unknown length may have more bytes than were counted.
    pub(crate) fn split_off(&mut self, bytes: u64) -> Self {
        self.add((bytes + 1).saturating_sub(self.bytes));
        self.bytes -= bytes;
        Self {
            bytes,
            total: Arc::clone(&self.total),
        }
    }
}

impl Drop for UnsentBytes {
    fn drop(&mut self) {
        self.clear();
    }
}
