//! One connection, from its first byte to its end.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind};
use std::net::TcpStream as StdStream;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use axum::http::header::{CONNECTION, STRICT_TRANSPORT_SECURITY};
use axum::http::{HeaderValue, Request, Response};
use futures_util::TryFutureExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpStream;
use tokio::time::sleep;
use tower_service::Service;

use crate::http::accept::door::Client;
use crate::http::accept::limits::Admitted;
use crate::http::accept::progress::{Counted, Order, Progress, Stage};
use crate::http::accept::socket::Socket;
use crate::http::accept::stream::Stream;
use crate::http::accept::{Arriving, Peer, proxy};
use crate::http::tls::Tls;
use crate::metrics::Metrics;

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

/// How connections are served.
#[derive(Clone)]
pub(super) struct Ways {
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) body_timeout: Duration,
    /// Proxies that are trusted say first for whom they have connected.
    pub(super) proxy_protocol: bool,
    pub(super) metrics: Arc<Metrics>,
}

/// Answers what comes from `client` by what `make` makes for it, until it ends or is told to.
pub(super) async fn serve_connection<S, B>(
    client: Client,
    mut admitted: Admitted,
    ways: Ways,
    make: impl Fn(Peer) -> S,
    progress: Arc<Progress>,
) where
    S: Service<Request<Arriving>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send,
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static,
{
    let Client { stream, mut peer } = client;
    let body_timeout = ways.body_timeout;
    peer.secure = ways.tls.is_some();
    let hsts = ways.tls.as_ref().and_then(|tls| tls.hsts.clone());
    let Some(stream) = open(stream, &mut peer, &mut admitted, &ways, &progress).await else {
        return;
    };
    drop(ways);
    let mut builder = builder();
    if stream.is_http2() {
        builder = builder.http2_only();
    }
    let io = TokioIo::new(Socket::new(stream, Arc::clone(&progress)));
    let counted = Arc::clone(&progress);
    // hyper shares it among the requests of the connection; none is called within another's call.
    let service = RefCell::new(make(peer));
    let service = service_fn(move |request: Request<Incoming>| {
        let unsent = counted.unsent(request.version());
        let answering = counted.answer();
        let hsts = hsts.clone();
        let request = request.map(|body| Arriving::new(body, body_timeout));
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
        progress.waker.register(context.waker());
        let served = poll_to_the_wire(connection.as_mut(), &progress, context);
        if served.is_ready() {
            return served;
        }
        if progress.must_close(stage) {
            return Poll::Ready(Ok(()));
        }
        if stage == Stage::Serving && progress.is_told(Order::Drain) {
            let grace = grace.get_or_insert_with(|| Box::pin(sleep(FIRST_READ_GRACE)));
            let fresh = progress.steps.load(Ordering::Relaxed) == 0;
            if fresh && grace.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            stage = Stage::Draining;
            if progress.announces_end() {
                return Poll::Pending;
            }
            connection.as_mut().graceful_shutdown();
            return poll_to_the_wire(connection.as_mut(), &progress, context);
        }
        Poll::Pending
    });
    if let Err(error) = served.await {
        tracing::debug!("a connection failed: {error}");
    }
}

/// What to read from and to write to, unless the connection is to close before.
async fn open(
    stream: StdStream,
    peer: &mut Peer,
    admitted: &mut Admitted,
    ways: &Ways,
    progress: &Progress,
) -> Option<Stream> {
    // Boxed, or every connection would have place for it.
    let prepared = Box::pin(prepare(stream, peer, admitted, ways));
    let prepared = progress.unless_closed(prepared).await?;
    prepared
        .inspect_err(|error| tracing::debug!("a connection can't be served: {error}"))
        .ok()
}

/// Finds out who `peer` is where that is behind a proxy, and shakes hands where there is TLS.
async fn prepare(
    stream: StdStream,
    peer: &mut Peer,
    admitted: &mut Admitted,
    ways: &Ways,
) -> io::Result<Stream> {
    let mut stream = TcpStream::from_std(stream)?;
    stream.set_nodelay(true)?;
    if ways.proxy_protocol && admitted.is_proxy() {
        let client = proxy::read_client(&mut stream).await.inspect_err(|error| {
            // A proxy may connect and say nothing, to see whether larder lives.
            if error.kind() == ErrorKind::InvalidData {
                let proxy = peer.address;
                tracing::warn!("{proxy} is to begin with a header of the PROXY protocol: {error}");
            }
        })?;
        if let Some(client) = client {
            peer.address = client;
            if !admitted.count(client) {
                let closed = &ways.metrics.connections_closed;
                closed.with_label_values(&["connections_per_address"]).inc();
                return Err(io::Error::other(
                    "limits.connections_per_address is reached",
                ));
            }
        }
    }
    match &ways.tls {
        None => Ok(Stream::Plain(stream)),
        Some(tls) => secure(tls, stream).await,
    }
}

async fn secure(tls: &Tls, stream: TcpStream) -> io::Result<Stream> {
    let stream = tls.acceptor().accept(stream).await?;
    Ok(Stream::Secure(Box::new(stream)))
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
    progress: &Progress,
    context: &mut Context<'_>,
) -> Poll<C::Output> {
    let mut served = connection.as_mut().poll(context);
    if served.is_pending() && progress.holds.load(Ordering::Relaxed) {
        // Every poll of a connection flushes its socket, which obeys as soon as nothing is to be held.
        progress.holds.store(false, Ordering::Relaxed);
        served = connection.poll(context);
        if progress.holds.load(Ordering::Relaxed) {
            context.waker().wake_by_ref();
        }
    }
    served
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use axum::Router;
    use axum::body::Body;
    use axum::extract::Path;
    use axum::routing::get;
    use futures_util::{StreamExt, stream};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    use super::*;

    /// A client of `router`, and the progress of its connection.
    async fn connect(router: Router) -> (TcpStream, Arc<Progress>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).await.unwrap();
        let (stream, from) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let progress = Arc::new(Progress::default());
        let accepted = Client::new((stream, from));
        let make = move |_| router.clone();
        let ways = Ways {
            tls: None,
            body_timeout: Duration::from_secs(30),
            proxy_protocol: false,
            metrics: Arc::new(Metrics::new().unwrap()),
        };
        let admitted = Admitted::uncounted();
        let counted = Arc::clone(&progress);
        tokio::spawn(serve_connection(accepted, admitted, ways, make, counted));
        (client, progress)
    }

    fn request(path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n")
    }

    async fn read_until(client: &mut TcpStream, end: impl Fn(&str) -> bool) -> String {
        let mut received = Vec::new();
        while !end(&String::from_utf8_lossy(&received)) {
            let read = timeout(Duration::from_secs(30), client.read_buf(&mut received)).await;
            assert_ne!(read.expect("an answer").unwrap(), 0);
        }
        String::from_utf8(received).unwrap()
    }

    #[tokio::test]
    async fn answers_to_a_pipeline_leave_together() {
        let (mut client, progress) = connect(Router::new().route("/", get(async || "text"))).await;
        let mut steps = 0;
        // The first answer may be the only one; who has pipelined is expected to do so again.
        for writes_max in [3, 2] {
            let requests = request("/").repeat(16);
            client.write_all(requests.as_bytes()).await.unwrap();
            let all = |received: &str| received.matches("\r\n\r\ntext").count() == 16;
            read_until(&mut client, all).await;
            let before = std::mem::replace(&mut steps, progress.steps.load(Ordering::Relaxed));
            let writes = steps - before - 16;
            assert!(writes <= writes_max, "{writes}");
        }
    }

    #[tokio::test]
    async fn answers_of_any_length_come_whole_and_in_order() {
        let router = Router::new().route(
            "/{length}",
            get(async |Path(length): Path<usize>| "x".repeat(length)),
        );
        let (mut client, _) = connect(router).await;
        let lengths = [
            1, 100_000, 16_000, 0, 16_000, 20_000, 16_000, 16_000, 16_000, 7,
        ]
        .repeat(40);
        let requests: String = lengths
            .iter()
            .map(|length| request(&format!("/{length}")))
            .collect();
        client.write_all(requests.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let mut received = String::new();
        client.read_to_string(&mut received).await.unwrap();
        let mut rest = received.as_str();
        for length in lengths {
            let (head, after) = rest.split_once("\r\n\r\n").unwrap();
            assert!(
                head.contains(&format!("content-length: {length}\r\n")),
                "{head}"
            );
            let (body, after) = after.split_at(length);
            assert!(body.bytes().all(|byte| byte == b'x'));
            rest = after;
        }
        assert_eq!(rest, "");
    }

    #[tokio::test]
    async fn answers_are_sent_however_the_connection_ends() {
        let offer = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n";
        let last = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        let half = request("/").repeat(2) + "GET / HT";
        for sent in [offer.to_owned() + last, half] {
            let router = Router::new().route("/", get(async || "text"));
            let (mut client, _) = connect(router).await;
            client.write_all(sent.as_bytes()).await.unwrap();
            client.shutdown().await.unwrap();
            let mut received = String::new();
            client.read_to_string(&mut received).await.unwrap();
            assert_eq!(received.matches("\r\n\r\ntext").count(), 2, "{received}");
        }
    }

    #[tokio::test]
    async fn an_answer_is_sent_as_far_as_it_is_there() {
        let begun = async || {
            let begin = stream::iter([Ok::<_, Infallible>("begin")]);
            Body::from_stream(begin.chain(stream::pending()))
        };
        let router = Router::new()
            .route("/", get(async || "text"))
            .route("/begun", get(begun));
        let (mut client, _) = connect(router).await;
        let requests = request("/").repeat(2) + &request("/begun");
        client.write_all(requests.as_bytes()).await.unwrap();
        read_until(&mut client, |received| received.contains("begin")).await;
    }
}
