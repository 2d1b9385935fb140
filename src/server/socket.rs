//! A connection's socket: what the client's side takes counts as activity, and small writes go out together.
//!
//! hyper writes each answer of a pipeline by itself, and each frame of HTTP/2. From the second one to what was read at
//! once they are kept back, and sent together before the connection waits. One answer to one request is sent at once:
//! a short one is copied, since its head and its body cost the kernel less as one piece, a long one goes out of the
//! document's own memory.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::unconstrained;

use crate::server::activity::Activity;
use crate::server::stream::Stream;

/// What is gathered at most.
const GATHERED_BYTES_MAX: usize = 64 << 10;
/// A longer write goes out by itself: to copy it would cost more than the system call that is saved.
const COPIED_BYTES_MAX: usize = 16 << 10;
/// The same for an answer that is sent alone: what is saved is that the kernel puts two pieces together.
const COPIED_ALONE_BYTES_MAX: usize = 4 << 10;

thread_local! {
    /// For the next connection that gathers: hardly ever do two have something unsent, and this one is in the core's
    /// cache.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A socket that gathers small writes, and tells its activity.
pub struct Socket {
    stream: Stream,
    activity: Arc<Activity>,
    /// Taken as written; without memory where nothing is gathered.
    gathered: Vec<u8>,
    /// How much of that has been sent.
    sent: usize,
    /// Since the client has sent something.
    writes: usize,
    /// What was read before led to several writes, so it is likely to do so again.
    several: bool,
}

impl Socket {
    pub(super) fn new(stream: Stream, activity: Arc<Activity>) -> Self {
        Self {
            stream,
            activity,
            gathered: Vec::new(),
            sent: 0,
            writes: 0,
            several: false,
        }
    }

    /// One without TLS.
    #[cfg(test)]
    pub(crate) fn plain(stream: tokio::net::TcpStream, activity: Arc<Activity>) -> Self {
        Self::new(Stream::Plain(stream), activity)
    }

    /// Whether HTTP/2 was agreed on in the TLS handshake.
    pub(crate) fn is_http2(&self) -> bool {
        self.stream.is_http2()
    }

    fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writes = self.writes.saturating_add(1);
        let bytes = slices.iter().map(|slice| slice.len()).sum();
        let hold = self.several || self.writes > 1;
        let copied_max = if hold {
            COPIED_BYTES_MAX
        } else {
            COPIED_ALONE_BYTES_MAX
        };
        let gather = bytes <= copied_max;
        let place = GATHERED_BYTES_MAX.saturating_sub(self.gathered.len());
        if !gather || bytes > place || !self.activity.holds.load(Ordering::Relaxed) {
            ready!(self.poll_drain(context))?;
        }
        if !gather {
            let sent = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
            return self.count(sent);
        }
        if self.gathered.is_empty() {
            self.gathered = SPARE.take();
        }
        for slice in slices {
            self.gathered.extend_from_slice(slice);
        }
        self.activity.holds.store(hold, Ordering::Relaxed);
        Poll::Ready(Ok(bytes))
    }

    /// Sends what is gathered, and gives its memory back.
    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.gathered.is_empty() {
            return Poll::Ready(Ok(()));
        }
        self.activity.holds.store(false, Ordering::Relaxed);
        while self.sent < self.gathered.len() {
            let rest = &self.gathered[self.sent..];
            let sent = Pin::new(&mut self.stream).poll_write(context, rest);
            match ready!(self.count(sent))? {
                0 => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                bytes => self.sent += bytes,
            }
        }
        self.sent = 0;
        self.gathered.clear();
        SPARE.set(std::mem::take(&mut self.gathered));
        Poll::Ready(Ok(()))
    }

    fn count(&self, sent: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(sent) = &sent {
            self.activity.send(*sent.as_ref().unwrap_or(&0));
        }
        let full = sent.is_pending();
        self.activity.full.store(full, Ordering::Relaxed);
        sent
    }
}

impl Drop for Socket {
    /// hyper ends some connections without a shutdown: after an offer to change the protocol, or half of a request.
    /// What was answered before is sent all the same, as far as the socket takes it; what hyper itself has not written
    /// by then is lost with it. Over TLS the client is told that this is the end, and nobody cuts it short.
    fn drop(&mut self) {
        let is_plain = matches!(self.stream, Stream::Plain(_));
        if is_plain && self.sent == self.gathered.len() {
            return;
        }
        let sent = pin!(unconstrained(poll_fn(|context| {
            ready!(self.poll_drain(context))?;
            Pin::new(&mut self.stream).poll_shutdown(context)
        })));
        let _as_far_as_it_goes = sent.poll(&mut Context::from_waker(Waker::noop()));
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > filled {
            self.activity.receive();
            if self.writes > 0 {
                self.several = self.writes > 1;
                self.writes = 0;
            }
        }
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.activity.holds.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_drain(context))?;
        // TLS keeps what the socket has no place for.
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        let full = flushed.is_pending();
        self.activity.full.store(full, Ordering::Relaxed);
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
