//! One connection, from its first byte to its end, and its socket.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::TcpStream as StdStream;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tower_service::Service;

use crate::http::accept::progress::{Answering, Order, Progress, Stage};

/// The longest head of a request, and what a connection gathers of its answers before it writes.
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// A connection without any request may hold one that was not read yet; hyper would close it at once.
const FIRST_READ_GRACE: Duration = Duration::from_millis(50);

/// Answers what comes on `stream`, until it ends or is told to.
pub(super) async fn serve_connection<S, B>(stream: StdStream, service: S, progress: Arc<Progress>)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let stream = match TcpStream::from_std(stream) {
        Ok(stream) => stream,
        Err(error) => {
            tracing::warn!("a connection can't be served: {error}");
            return;
        }
    };
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("TCP_NODELAY: {error}");
    }
    let io = TokioIo::new(Watched {
        stream,
        progress: Arc::clone(&progress),
    });
    let answering = Arc::clone(&progress);
    let service = service_fn(move |request: Request<Incoming>| {
        let answering = Answering::begin(&answering);
        let answer = service.clone().call(request);
        async move {
            let answer = answer.await;
            drop(answering);
            answer
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    let mut http1 = builder.http1();
    // A client may say that it has no more to ask and still wait for its answer, as `nc -N` does.
    http1.half_close(true).max_buf_size(BUFFER_BYTES_MAX);
    builder
        .http2()
        .max_header_list_size(BUFFER_BYTES_MAX as u32);
    let mut connection = pin!(builder.serve_connection(io, service));
    let mut stage = Stage::Serving;
    let mut grace = None;
    // Before any order is obeyed, the connection takes in what has come by then.
    let served = poll_fn(|context| {
        progress.waker.register(context.waker());
        let served = connection.as_mut().poll(context);
        if served.is_ready() {
            return served;
        }
        if progress.is_told(Order::Close) && progress.is_idle(stage) {
            return Poll::Ready(Ok(()));
        }
        if stage == Stage::Serving && progress.is_told(Order::Drain) {
            let grace = grace.get_or_insert_with(|| Box::pin(sleep(FIRST_READ_GRACE)));
            let fresh = progress.steps.load(Ordering::Relaxed) == 0;
            if fresh && grace.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            stage = Stage::Draining;
            connection.as_mut().graceful_shutdown();
            return connection.as_mut().poll(context);
        }
        Poll::Pending
    });
    if let Err(error) = served.await {
        tracing::debug!("a connection failed: {error}");
    }
}

/// A socket whose writes count as progress.
struct Watched {
    stream: TcpStream,
    progress: Arc<Progress>,
}

impl Watched {
    fn count(&self, outcome: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if outcome.is_ready() {
            self.progress.step();
        }
        let full = outcome.is_pending();
        self.progress.full.store(full, Ordering::Relaxed);
        outcome
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.count(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.count(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
