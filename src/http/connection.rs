//! HTTP/1.1 and HTTP/2 over the connections of [`crate::server`], by hyper.

mod counted;
mod refusal;
mod request_body;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use axum::http::header::{CONNECTION, STRICT_TRANSPORT_SECURITY};
use axum::http::{HeaderValue, Request, Response, StatusCode, Version};
use futures_util::TryFutureExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio::time::sleep;
use tower_service::Service;

pub use crate::http::connection::request_body::{BodyTimeout, RequestBody};

use crate::http::connection::counted::CountedBody;
use crate::http::connection::refusal::RefusingSocket;
use crate::server::{self, Activity, ConnectionCommand, Peer, ServerConfig, Socket, Stage};

/// The longest head of a request, and the most bytes that hyper buffers of an answer of unknown length.
const BUFFER_BYTES_MAX: usize = 64 << 10;
const CLOSE: HeaderValue = HeaderValue::from_static("close");
/// Concurrent requests of an HTTP/2 connection. RFC 9113, section 6.5.2, recommends no fewer.
const STREAMS_MAX: u32 = 100;
/// Requests that a client may reset before they are handled; one more ends the connection (CVE-2023-44487, "rapid reset").
/// h2 itself limits the frames of a header list (CONTINUATION flood, h2 0.4.4).
const RESET_STREAMS_MAX: usize = 20;
/// The same for requests that larder resets because they violate the protocol (RUSTSEC-2024-0003).
const ERROR_STREAMS_MAX: usize = 256;
/// How long a connection without any request may still send one when draining begins: hyper would close it at once, and
/// a request that was sent but not read would be lost.
const FIRST_READ_GRACE: Duration = Duration::from_millis(50);

/// Serves each connection by the service that `make` creates for it, over HTTP/1.1 or HTTP/2, until `stop` ends and every
/// request has been answered: see [`server::serve`].
///
/// A request over HTTP/1.1 whose head can't be parsed does not reach the service. It is answered with a problem, and
/// `refused` gets the peer, the status and the length of the body.
pub async fn serve_http<S, B>(
    listener: TcpListener,
    make: impl Fn(Peer) -> S + Clone + Send + 'static,
    refused: impl Fn(Peer, StatusCode, usize) + Clone + Unpin + Send + 'static,
    runtimes: Vec<Handle>,
    config: ServerConfig,
    stop: impl Future<Output = ()>,
) where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send,
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static,
{
    let body_timeout = config.limits.body_timeout;
    let hsts = config.tls.as_ref().and_then(|tls| tls.hsts.clone());
    let protocol = move |socket: Socket, peer, activity| {
        let refused = refused.clone();
        let is_http2 = socket.is_http2();
        let socket = RefusingSocket::new(socket, move |status, bytes| refused(peer, status, bytes));
        let config = HttpConfig {
            is_http2,
            body_timeout,
            hsts: hsts.clone(),
        };
        serve_connection(socket, make(peer), config, activity)
    };
    server::serve(listener, protocol, runtimes, config, stop).await;
}

/// How the requests of a connection are read and answered.
struct HttpConfig {
    /// HTTP/2 was agreed on in the TLS handshake.
    is_http2: bool,
    body_timeout: Duration,
    hsts: Option<Arc<HeaderValue>>,
}

/// Answers the requests of `socket` by `service`, until the connection ends or is commanded to.
async fn serve_connection<S, B>(
    socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: S,
    config: HttpConfig,
    activity: Arc<Activity>,
) where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send,
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static,
{
    let HttpConfig {
        is_http2,
        body_timeout,
        hsts,
    } = config;
    let mut builder = builder();
    if is_http2 {
        builder = builder.http2_only();
    }
    let io = TokioIo::new(socket);
    let counted = Arc::clone(&activity);
    // hyper shares the service among the requests of a connection, and calls it for one request at a time.
    let service = RefCell::new(service);
    let service = service_fn(move |request: Request<Incoming>| {
        let unsent = counted.count_unsent(request.version() == Version::HTTP_2);
        let in_progress = counted.begin_request();
        let hsts = hsts.clone();
        let request = request.map(|body| RequestBody::new(body, body_timeout));
        let is_unread = request.body().is_unread();
        service
            .borrow_mut()
            .call(request)
            .map_ok(move |mut answer| {
                let is_unread = is_unread.is_some_and(|unread| unread.load(Ordering::Relaxed));
                // hyper ends the connection after a request whose body was not read, unless the rest has arrived.
                let is_last = in_progress.load(Ordering::Relaxed)
                    || (is_unread && !answer.status().is_success());
                if unsent.is_none() && is_last {
                    answer.headers_mut().insert(CONNECTION, CLOSE);
                }
                if let Some(hsts) = hsts {
                    let headers = answer.headers_mut();
                    headers.insert(STRICT_TRANSPORT_SECURITY, HeaderValue::clone(&hsts));
                }
                answer.map(|body| CountedBody::new(body, unsent, in_progress))
            })
    });
    let mut connection = pin!(builder.serve_connection(io, service));
    let mut stage = Stage::Serving;
    let mut grace = None;
    let mut turn = None;
    // Before a command is obeyed, the connection reads what the client has already sent.
    let served = poll_fn(|context| {
        activity.waker.register(context.waker());
        let served = poll_and_send(connection.as_mut(), &activity, context);
        if served.is_ready() {
            return served;
        }
        if activity.must_close(stage) {
            // The runtime asks the kernel for events before it polls the connection again, which then reads what has
            // arrived.
            let turn = turn.get_or_insert_with(|| Box::pin(yield_now()));
            return turn.as_mut().poll(context).map(Ok);
        }
        turn = None;
        if stage == Stage::Serving && activity.has_command(ConnectionCommand::Drain) {
            let grace = grace.get_or_insert_with(|| Box::pin(sleep(FIRST_READ_GRACE)));
            let is_fresh = activity.progress.load(Ordering::Relaxed) == 0;
            if is_fresh && grace.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            stage = Stage::Draining;
            if activity.announces_end() {
                return Poll::Pending;
            }
            connection.as_mut().graceful_shutdown();
            return poll_and_send(connection.as_mut(), &activity, context);
        }
        Poll::Pending
    });
    if let Err(error) = served.await {
        tracing::debug!("a connection failed: {error}");
    }
}

/// hyper's builder for both versions of HTTP, with the limits of larder.
fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    let mut http1 = builder.http1();
    // A client may close its sending side and still wait for the answer, as `nc -N` does.
    http1.half_close(true).max_buf_size(BUFFER_BYTES_MAX);
    builder
        .http2()
        .max_header_list_size(BUFFER_BYTES_MAX as u32)
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(RESET_STREAMS_MAX)
        .max_local_error_reset_streams(ERROR_STREAMS_MAX);
    builder
}

/// Polls `connection`; before it waits, answers that were held back are sent.
fn poll_and_send<C: Future>(
    mut connection: Pin<&mut C>,
    activity: &Activity,
    context: &mut Context<'_>,
) -> Poll<C::Output> {
    let mut served = connection.as_mut().poll(context);
    if served.is_pending() && activity.is_holding.load(Ordering::Relaxed) {
        // Every poll of a connection flushes its socket, which sends all once nothing is held back.
        activity.is_holding.store(false, Ordering::Relaxed);
        served = connection.poll(context);
        if activity.is_holding.load(Ordering::Relaxed) {
            context.waker().wake_by_ref();
        }
    }
    served
}
