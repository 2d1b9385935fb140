//! A connection's socket: reports reads and writes to the activity, and sends small writes together.
//!
//! hyper writes each answer of a pipeline separately, and each frame of HTTP/2. If what was read at once leads to several
//! writes, those from the second on are held back, and sent together before the connection waits. A single answer is not
//! held back: a short one is copied and sent by the next flush, since head and body cost the kernel less as one piece; a
//! long one is sent by the write itself, from the document's own memory.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::{unconstrained, yield_now};

use crate::server::activity::Activity;
use crate::server::stream::Stream;

/// The most bytes that are gathered.
const GATHERED_BYTES_MAX: usize = 64 << 10;
/// A longer write is sent by itself: to copy it would cost more than the system call that is saved.
const COPIED_BYTES_MAX: usize = 16 << 10;
/// The same for a single answer, where copying saves the kernel only the handling of two pieces.
const COPIED_ALONE_BYTES_MAX: usize = 4 << 10;
/// After so many bytes of long writes a connection lets the worker look at its other sockets, if its socket was never full
/// meanwhile. The buffer of a socket on Linux grows to 4 MiB, which hyper would fill in one go.
const UNINTERRUPTED_BYTES_MAX: usize = 256 << 10;

thread_local! {
    /// The memory for the next connection that gathers writes. Two connections of a thread hardly ever gather at the same
    /// time, and this memory is in the core's cache.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A socket that gathers small writes, and reports to its activity.
pub struct Socket {
    stream: Stream,
    activity: Arc<Activity>,
    /// Writes that are held back, although hyper takes them for done; has no memory if there are none.
    gathered: Vec<u8>,
    /// Bytes of `gathered` that have been sent.
    sent: usize,
    /// Writes since the client has last sent something.
    writes: usize,
    /// What was read before led to several writes, so the next read is likely to as well.
    several: bool,
    /// Bytes of long writes since the socket was last full, or the connection last paused.
    uninterrupted: usize,
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
            uninterrupted: 0,
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
        if !gather || bytes > place || !self.activity.is_holding.load(Ordering::Relaxed) {
            ready!(self.poll_drain(context))?;
        }
        if !gather {
            ready!(self.poll_pause(context));
            let sent = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
            self.uninterrupted = match &sent {
                Poll::Ready(sent) => self.uninterrupted + *sent.as_ref().unwrap_or(&0),
                Poll::Pending => 0,
            };
            return self.count(sent);
        }
        if self.gathered.is_empty() {
            self.gathered = SPARE.take();
        }
        for slice in slices {
            self.gathered.extend_from_slice(slice);
        }
        self.activity.is_holding.store(hold, Ordering::Relaxed);
        Poll::Ready(Ok(bytes))
    }

    /// Waits until the worker has looked at its other sockets, if much has been written without a pause.
    fn poll_pause(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.uninterrupted < UNINTERRUPTED_BYTES_MAX {
            return Poll::Ready(());
        }
        self.uninterrupted = 0;
        // The first poll of `yield_now` is pending, and lets tokio wake the task afterwards.
        pin!(yield_now()).poll(context)
    }

    /// Sends what is gathered, and returns its memory to the thread.
    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.gathered.is_empty() {
            return Poll::Ready(Ok(()));
        }
        self.activity.is_holding.store(false, Ordering::Relaxed);
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
            self.activity.note_written(*sent.as_ref().unwrap_or(&0));
        }
        let full = sent.is_pending();
        self.activity.is_full.store(full, Ordering::Relaxed);
        sent
    }
}

impl Drop for Socket {
    /// hyper ends some connections without a shutdown: after an offer to change the protocol, or after an incomplete
    /// request. Gathered answers are still sent, as far as the socket's buffer has room; what hyper has not written by then
    /// is lost. Over TLS the client gets a close_notify, so it knows that the answer was not truncated.
    fn drop(&mut self) {
        let is_plain = matches!(self.stream, Stream::Plain(_));
        if is_plain && self.sent == self.gathered.len() {
            return;
        }
        let sent = pin!(unconstrained(poll_fn(|context| {
            ready!(self.poll_drain(context))?;
            Pin::new(&mut self.stream).poll_shutdown(context)
        })));
        let _best_effort = sent.poll(&mut Context::from_waker(Waker::noop()));
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
            self.activity.note_read();
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
        if self.activity.is_holding.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_drain(context))?;
        // TLS buffers what the socket has no room for.
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        let full = flushed.is_pending();
        self.activity.is_full.store(full, Ordering::Relaxed);
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    #[tokio::test]
    async fn long_writes_pause_before_the_socket_is_full() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_send_buffer_size(1 << 20).unwrap();
        let near = socket
            .connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (_far, _) = listener.accept().await.unwrap();
        let mut near = Socket::plain(near, Arc::default());
        let piece = vec![0; 64 << 10];
        let mut context = Context::from_waker(Waker::noop());
        let mut written = 0;
        while let Poll::Ready(sent) = Pin::new(&mut near).poll_write(&mut context, &piece) {
            written += sent.unwrap();
        }
        assert_eq!(written, UNINTERRUPTED_BYTES_MAX);
        let goes_on = Pin::new(&mut near).poll_write(&mut context, &piece);
        assert!(goes_on.is_ready(), "{goes_on:?}");
    }
}
