//! HTTP/1.1 and HTTP/2 over the connections of [`crate::server`], by hyper.

mod counted;
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
use axum::http::{HeaderValue, Request, Response, Version};
use futures_util::TryFutureExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::time::sleep;
use tower_service::Service;

pub use crate::http::connection::request_body::{BodyTimeout, RequestBody};

use crate::http::connection::counted::Counted;
use crate::server::{self, Activity, Order, Peer, ServerConfig, Socket, Stage};

/// The longest head of a request, and what hyper buffers of an answer whose parts come one by one.
const BUFFER_BYTES_MAX: usize = 64 << 10;
const CLOSE: HeaderValue = HeaderValue::from_static("close");
/// Requests over HTTP/2 that one connection has at a time; fewer are not recommended (RFC 9113, section 6.5.2).
const STREAMS_MAX: u32 = 100;
/// Requests that a client may take back before they were looked at; one more and the connection ends (CVE-2023-44487,
/// "rapid reset"). h2 bounds by itself the frames that a list of headers comes in (CONTINUATION flood, h2 0.4.4).
const RESET_STREAMS_MAX: usize = 20;
/// The same for requests that larder has to reset, since they break the protocol (RUSTSEC-2024-0003).
const ERROR_STREAMS_MAX: usize = 256;
/// A connection without any request may hold one that was not read yet; hyper would close it at once.
const FIRST_READ_GRACE: Duration = Duration::from_millis(50);

/// Serves each connection by the service that `make` makes for it, over HTTP/1.1 or HTTP/2, until `stop` ends and every
/// request has been answered: see [`server::serve`].
pub async fn serve<S, B>(
    listener: TcpListener,
    make: impl Fn(Peer) -> S + Clone + Send + 'static,
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
    let protocol = move |socket, peer, activity| {
        serve_connection(socket, make(peer), body_timeout, hsts.clone(), activity)
    };
    server::serve(listener, protocol, runtimes, config, stop).await;
}

/// Answers the requests that come over `socket` by `service`, until the connection ends or is told to.
async fn serve_connection<S, B>(
    socket: Socket,
    service: S,
    body_timeout: Duration,
    hsts: Option<Arc<HeaderValue>>,
    activity: Arc<Activity>,
) where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send,
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static,
{
    let mut builder = builder();
    if socket.is_http2() {
        builder = builder.http2_only();
    }
    let io = TokioIo::new(socket);
    let counted = Arc::clone(&activity);
    // hyper shares it among the requests of the connection; none is called within another's call.
    let service = RefCell::new(service);
    let service = service_fn(move |request: Request<Incoming>| {
        let unsent = counted.unsent(request.version() == Version::HTTP_2);
        let answering = counted.answer();
        let hsts = hsts.clone();
        let request = request.map(|body| RequestBody::new(body, body_timeout));
        service
            .borrow_mut()
            .call(request)
            .map_ok(move |mut answer| {
                if unsent.is_none() && answering.load(Ordering::Relaxed) {
                    answer.headers_mut().insert(CONNECTION, CLOSE);
                }
                if let Some(hsts) = hsts {
                    let headers = answer.headers_mut();
                    headers.insert(STRICT_TRANSPORT_SECURITY, HeaderValue::clone(&hsts));
                }
                answer.map(|body| Counted::new(body, unsent, answering))
            })
    });
    let mut connection = pin!(builder.serve_connection(io, service));
    let mut stage = Stage::Serving;
    let mut grace = None;
    // Before any order is obeyed, the connection takes in what has come by then.
    let served = poll_fn(|context| {
        activity.waker.register(context.waker());
        let served = poll_to_the_wire(connection.as_mut(), &activity, context);
        if served.is_ready() {
            return served;
        }
        if activity.must_close(stage) {
            return Poll::Ready(Ok(()));
        }
        if stage == Stage::Serving && activity.is_told(Order::Drain) {
            let grace = grace.get_or_insert_with(|| Box::pin(sleep(FIRST_READ_GRACE)));
            let fresh = activity.steps.load(Ordering::Relaxed) == 0;
            if fresh && grace.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            stage = Stage::Draining;
            if activity.announces_end() {
                return Poll::Pending;
            }
            connection.as_mut().graceful_shutdown();
            return poll_to_the_wire(connection.as_mut(), &activity, context);
        }
        Poll::Pending
    });
    if let Err(error) = served.await {
        tracing::debug!("a connection failed: {error}");
    }
}

/// Both versions of HTTP, with their bounds.
fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    let mut http1 = builder.http1();
    // A client may say that it has no more to ask and still wait for its answer, as `nc -N` does.
    http1.half_close(true).max_buf_size(BUFFER_BYTES_MAX);
    builder
        .http2()
        .max_header_list_size(BUFFER_BYTES_MAX as u32)
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(RESET_STREAMS_MAX)
        .max_local_error_reset_streams(ERROR_STREAMS_MAX);
    builder
}

/// Polls `connection`; before it waits, what it has kept back of its answers is sent.
fn poll_to_the_wire<C: Future>(
    mut connection: Pin<&mut C>,
    activity: &Activity,
    context: &mut Context<'_>,
) -> Poll<C::Output> {
    let mut served = connection.as_mut().poll(context);
    if served.is_pending() && activity.holds.load(Ordering::Relaxed) {
        // Every poll of a connection flushes its socket, which obeys as soon as nothing is to be held.
        activity.holds.store(false, Ordering::Relaxed);
        served = connection.poll(context);
        if activity.holds.load(Ordering::Relaxed) {
            context.waker().wake_by_ref();
        }
    }
    served
}
