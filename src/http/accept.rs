//! The accept loop: connections over HTTP/1.1 and HTTP/2, how long they may idle, and their end.
//!
//! Each connection stays on the runtime it was given to: it meets no lock and no other thread on its way to an answer.
//!
//! hyper's own timeout for request heads would start a timer for each request. Here all connections are looked at now
//! and then: one that has neither asked nor taken anything since the last look is closed, whether it is idle, sends
//! its request drop by drop, or does not read its answer.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind, IoSlice};
use std::net::TcpStream as StdStream;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use axum::http::{Request, Response};
use futures_util::task::AtomicWaker;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use tower_service::Service;

/// Looks at an open connection are this far apart; nginx's `keepalive_timeout` is the same.
const IDLE_MAX: Duration = Duration::from_secs(75);
/// The same once larder is to stop.
const DRAIN_IDLE_MAX: Duration = Duration::from_secs(2);
/// Clients that the kernel lets in before they are accepted, as tokio asks for when it binds.
const BACKLOG_MAX: usize = 1_024;
/// The longest head of a request, and what a connection gathers of its answers before it writes.
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// A connection without any request may hold one that was not read yet; hyper would close it at once.
const FIRST_READ_GRACE: Duration = Duration::from_millis(50);
/// Pause after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// Serves `service` until `stop` ends; then accepts nothing more and ends when every request has been answered.
///
/// Connections are dealt out to `runtimes` in turn. One that has sent no whole request at the stop is closed within
/// 2.1 s.
pub async fn serve<S, B>(
    listener: TcpListener,
    service: S,
    runtimes: Vec<Handle>,
    stop: impl Future<Output = ()>,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let mut connections = Connections::default();
    let mut runtimes = runtimes.iter().cycle();
    let mut open = |connections: &mut Connections, stream: StdStream| {
        if let Some(runtime) = runtimes.next() {
            let progress = Arc::new(Progress::default());
            let served = serve_connection(stream, service.clone(), Arc::clone(&progress));
            connections.spawn(served, progress, runtime);
        }
    };
    let mut looks = interval_at(Instant::now() + IDLE_MAX, IDLE_MAX);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stop = pin!(stop);
    let mut refused = false;
    loop {
        tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => match accepted.and_then(|(stream, _)| stream.into_std()) {
                Ok(stream) => {
                    refused = false;
                    open(&mut connections, stream);
                }
                Err(error) if concerns_one_client(&error) => {}
                Err(error) => {
                    // Once for each spell, not for each attempt.
                    if !std::mem::replace(&mut refused, true) {
                        tracing::warn!("connections can't be accepted for now: {error}");
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(ended) = connections.tasks.join_next_with_id() => connections.forget(ended),
            _ = looks.tick() => connections.look(Stage::Serving),
        }
    }
    for stream in waiting_clients(listener) {
        open(&mut connections, stream);
    }
    connections.drain().await;
}

/// Whom the kernel has let in already: they may have asked, too. Closes the listener.
fn waiting_clients(listener: TcpListener) -> Vec<StdStream> {
    let Ok(listener) = listener.into_std() else {
        return Vec::new();
    };
    // The listener does not block, so this ends where nobody waits any more.
    std::iter::from_fn(|| listener.accept().ok())
        .take(BACKLOG_MAX)
        .filter_map(|(stream, _)| stream.set_nonblocking(true).is_ok().then_some(stream))
        .collect()
}

fn concerns_one_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset
    )
}

/// The open connections.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    looked_at: HashMap<Id, LookedAt>,
}

struct LookedAt {
    progress: Arc<Progress>,
    /// Its steps at the last look.
    steps: Option<u64>,
}

impl Connections {
    fn spawn(
        &mut self,
        served: impl Future<Output = ()> + Send + 'static,
        progress: Arc<Progress>,
        runtime: &Handle,
    ) {
        let task = self.tasks.spawn_on(served, runtime);
        let looked_at = LookedAt {
            progress,
            steps: None,
        };
        self.looked_at.insert(task.id(), looked_at);
    }

    fn forget(&mut self, ended: Result<(Id, ()), JoinError>) {
        let id = match ended {
            Ok((id, ())) => id,
            Err(error) => {
                tracing::error!("a connection's task failed: {error}");
                error.id()
            }
        };
        self.looked_at.remove(&id);
    }

    /// Closes connections that have made no progress since the last look.
    fn look(&mut self, stage: Stage) {
        for LookedAt { progress, steps } in self.looked_at.values_mut() {
            let now = progress.steps.load(Ordering::Relaxed);
            if *steps == Some(now) && !progress.owes(stage) {
                progress.idle_at.store(now, Ordering::Relaxed);
                progress.order(Order::Close);
            }
            *steps = Some(now);
        }
    }

    /// Lets each connection end after the answers at hand, and ends when all have.
    async fn drain(mut self) {
        for LookedAt { progress, steps } in self.looked_at.values_mut() {
            *steps = Some(progress.steps.load(Ordering::Relaxed));
            progress.order(Order::Drain);
        }
        let mut looks = interval_at(Instant::now() + DRAIN_IDLE_MAX, DRAIN_IDLE_MAX);
        loop {
            tokio::select! {
                ended = self.tasks.join_next_with_id() => match ended {
                    Some(ended) => self.forget(ended),
                    None => return,
                },
                _ = looks.tick() => self.look(Stage::Draining),
            }
        }
    }
}

/// Where the server is in its life.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Serving,
    Draining,
}

/// What a connection has been told.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Order {
    /// End after the answers at hand.
    Drain = 1,
    /// End at once, if nothing has happened since.
    Close = 2,
}

/// What has happened on a connection, and what it is told.
#[derive(Default)]
struct Progress {
    /// Requests that were read and whose answers are being made.
    answering: AtomicU32,
    /// The socket has no place for what has to be written.
    full: AtomicBool,
    /// Requests read, and writes that the client's side took.
    steps: AtomicU64,
    /// Steps at which it was told to close.
    idle_at: AtomicU64,
    /// An [`Order`], or 0.
    order: AtomicU8,
    /// Wakes the connection for its order.
    waker: AtomicWaker,
}

impl Progress {
    /// Only the connection's own task calls this, so that no step is lost.
    fn step(&self) {
        let steps = self.steps.load(Ordering::Relaxed);
        self.steps.store(steps.wrapping_add(1), Ordering::Relaxed);
    }

    fn order(&self, order: Order) {
        self.order.store(order as u8, Ordering::Release);
        self.waker.wake();
    }

    fn is_told(&self, order: Order) -> bool {
        self.order.load(Ordering::Acquire) == order as u8
    }

    fn is_idle(&self, stage: Stage) -> bool {
        let steps = self.steps.load(Ordering::Relaxed);
        steps == self.idle_at.load(Ordering::Relaxed) && !self.owes(stage)
    }

    /// Whether the client still has something to get. Draining has a bound of its own, so whoever reads slowly, which
    /// the kernel tells only now and then, is cut off by that alone.
    fn owes(&self, stage: Stage) -> bool {
        self.answering.load(Ordering::Relaxed) > 0
            || (stage == Stage::Draining && self.full.load(Ordering::Relaxed))
    }
}

/// An answer that is being made; dropped when it is ready, or when nobody waits for it.
struct Answering(Arc<Progress>);

impl Answering {
    fn begin(progress: &Arc<Progress>) -> Self {
        progress.step();
        progress.answering.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(progress))
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.answering.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn serve_connection<S, B>(stream: StdStream, service: S, progress: Arc<Progress>)
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

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::oneshot;

    use super::*;

    /// An address that answers `GET /` with `text`, and what stops it.
    async fn start(text: String) -> (TcpStream, oneshot::Sender<()>, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        // The answer takes long enough for the end of the client's half to come first.
        let router = Router::new().route(
            "/",
            get(async || {
                sleep(Duration::from_millis(20)).await;
                text
            }),
        );
        let here = vec![Handle::current()];
        let serving = tokio::spawn(serve(listener, router, here, async {
            let _dropped = stopped.await;
        }));
        let client = TcpStream::connect(address).await.unwrap();
        (client, stop, serving)
    }

    /// With the clock paused, time passes as soon as nobody has anything to do.
    #[tokio::test(start_paused = true)]
    async fn who_neither_asks_nor_reads_is_closed() {
        for sent in ["", "GET / HT"] {
            let (mut client, _stop, _serving) = start("text".into()).await;
            client.write_all(sent.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            // Unread bytes make the end a reset.
            let _reset = client.read_to_end(&mut answer).await;
            assert!(answer.is_empty());
        }
    }

    #[tokio::test]
    async fn a_half_closed_connection_gets_its_answer() {
        let (mut client, _stop, _serving) = start("text".into()).await;
        let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        client.write_all(request).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("\r\n\r\ntext"), "{answer}");
    }

    #[tokio::test]
    async fn a_stop_answers_those_who_wait_to_be_accepted() {
        // Stop and the client are there at once; either may be seen first.
        for _ in 0..20 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap())
                .await
                .unwrap();
            let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
            client.write_all(request).await.unwrap();
            let router = Router::new().route("/", get(async || "text"));
            let here = vec![Handle::current()];
            serve(listener, router, here, std::future::ready(())).await;
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            assert!(answer.ends_with("\r\n\r\ntext"), "{answer}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_waits_for_a_slow_reader() {
        let length = 64 << 20;
        let (mut client, stop, serving) = start("x".repeat(length)).await;
        let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        client.write_all(request).await.unwrap();
        let mut answer = vec![0; 1];
        client.read_exact(&mut answer).await.unwrap();
        stop.send(()).unwrap();
        sleep(Duration::from_secs(60)).await;
        client.read_to_end(&mut answer).await.unwrap();
        assert!(answer.len() > length);
        serving.await.unwrap();
    }

    #[tokio::test]
    async fn a_stop_ends_what_has_not_asked_and_finishes_what_has() {
        let length = 8 << 20;
        let (mut reading, stop, serving) = start("x".repeat(length)).await;
        let mut half = TcpStream::connect(reading.peer_addr().unwrap())
            .await
            .unwrap();
        half.write_all(b"GET / HT").await.unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        reading.write_all(request).await.unwrap();
        let mut answer = vec![0; 1];
        reading.read_exact(&mut answer).await.unwrap();
        stop.send(()).unwrap();
        reading.read_to_end(&mut answer).await.unwrap();
        assert!(answer.len() > length);
        serving.await.unwrap();
    }
}
