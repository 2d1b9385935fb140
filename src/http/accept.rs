//! The accept loop: HTTP/1.1 connections, how long they may idle, and their end.
//!
//! hyper's own timeout for request heads would start a timer for each request. Here each connection is looked at now
//! and then: one that has neither asked nor taken anything since the last look is closed, whether it is idle, sends
//! its request drop by drop, or does not read its answer.

use std::future::Future;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower_service::Service;

/// Looks at an open connection are this far apart; nginx's `keepalive_timeout` is the same.
const IDLE_MAX: Duration = Duration::from_secs(75);
/// The same once larder is to stop.
const DRAIN_IDLE_MAX: Duration = Duration::from_secs(2);
/// Clients that the kernel lets in before they are accepted, as tokio asks for when it binds.
const BACKLOG_MAX: usize = 1_024;
/// A connection without any request may hold one that was not read yet; hyper would close it at once.
const FIRST_READ_GRACE: Duration = Duration::from_millis(50);
/// Pause after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// Serves `router` until `stop` ends; then accepts nothing more and ends when every request has been answered.
///
/// A connection that has sent no whole request by then is closed within 2.1 s.
pub async fn serve(listener: TcpListener, router: Router, stop: impl Future<Output = ()>) {
    let (draining, drain) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    let mut refused = false;
    loop {
        tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    refused = false;
                    connections.spawn(serve_connection(stream, router.clone(), drain.clone()));
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
            Some(_) = connections.join_next() => {}
        }
    }
    for stream in waiting_clients(listener) {
        connections.spawn(serve_connection(stream, router.clone(), drain.clone()));
    }
    draining.send_replace(true);
    while connections.join_next().await.is_some() {}
}

/// Whom the kernel has let in already: they may have asked, too. Closes the listener.
fn waiting_clients(listener: TcpListener) -> Vec<TcpStream> {
    let Ok(listener) = listener.into_std() else {
        return Vec::new();
    };
    // The listener does not block, so this ends where nobody waits any more.
    std::iter::from_fn(|| listener.accept().ok())
        .take(BACKLOG_MAX)
        .filter_map(|(stream, _)| {
            stream.set_nonblocking(true).ok()?;
            TcpStream::from_std(stream).ok()
        })
        .collect()
}

fn concerns_one_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset
    )
}

/// What has happened on a connection.
#[derive(Default)]
struct Progress {
    /// A request has been read and its answer is being made.
    answering: AtomicBool,
    /// The socket has no place for what has to be written.
    full: AtomicBool,
    /// Requests read, and writes that the client's side took.
    steps: AtomicU64,
}

impl Progress {
    fn step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the client still has something to get. Draining has a bound of its own, so whoever reads slowly, which
    /// the kernel tells only now and then, is cut off by that alone.
    fn owes(&self, stage: Stage) -> bool {
        self.answering.load(Ordering::Relaxed)
            || (stage == Stage::Draining && self.full.load(Ordering::Relaxed))
    }
}

async fn serve_connection(stream: TcpStream, router: Router, mut drain: watch::Receiver<bool>) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("TCP_NODELAY: {error}");
    }
    let progress = Arc::new(Progress::default());
    let io = TokioIo::new(Watched {
        stream,
        progress: Arc::clone(&progress),
    });
    let service = service_fn(|request: Request<Incoming>| {
        progress.step();
        progress.answering.store(true, Ordering::Relaxed);
        let answer = router.clone().call(request);
        let progress = &progress;
        async move {
            let answer = answer.await;
            progress.answering.store(false, Ordering::Relaxed);
            answer
        }
    });
    // A client may say that it has no more to ask and still wait for its answer, as `nc -N` does.
    let connection = http1::Builder::new()
        .half_close(true)
        .serve_connection(io, service);
    let mut connection = pin!(connection);
    let mut look = pin!(sleep(IDLE_MAX));
    let mut seen = 0;
    let mut stage = Stage::Serving;
    loop {
        tokio::select! {
            biased;
            outcome = connection.as_mut() => {
                if let Err(error) = outcome {
                    tracing::debug!("a connection failed: {error}");
                }
                return;
            }
            _ = drain.wait_for(|&draining| draining), if stage == Stage::Serving => {
                stage = Stage::Stopping;
                let fresh = progress.steps.load(Ordering::Relaxed) == 0;
                let pause = if fresh { FIRST_READ_GRACE } else { Duration::ZERO };
                look.as_mut().reset(Instant::now() + pause);
            }
            () = &mut look => {
                let steps = progress.steps.load(Ordering::Relaxed);
                if stage == Stage::Stopping {
                    connection.as_mut().graceful_shutdown();
                    stage = Stage::Draining;
                } else if steps == seen && !progress.owes(stage) {
                    return;
                }
                seen = steps;
                let pause = match stage {
                    Stage::Serving => IDLE_MAX,
                    Stage::Stopping | Stage::Draining => DRAIN_IDLE_MAX,
                };
                look.as_mut().reset(Instant::now() + pause);
            }
        }
    }
}

/// A connection's way to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Serving,
    /// larder is to stop; hyper is told at the next look.
    Stopping,
    /// hyper ends after the answer at hand.
    Draining,
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
        let serving = tokio::spawn(serve(listener, router, async {
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
            serve(listener, router, std::future::ready(())).await;
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
