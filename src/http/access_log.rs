//! The access log: a line for each answer of the public address, written by a thread of its own.
//!
//! Whoever answers hands over what is to be told and waits for nothing: where the thread can't follow, lines are dropped
//! and counted. No credentials are told: no cookie, no `Authorization`, and of a query only what larder itself asks for.

mod line;

use std::convert::Infallible;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::thread;
use std::time::SystemTime;

use axum::body::HttpBody;
use axum::http::header::{HeaderName, REFERER, USER_AGENT};
use axum::http::{HeaderMap, Request, Response};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either};
use ipnet::IpNet;
use prometheus::IntCounter;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tower_service::Service;

use crate::auth::Principal;
use crate::http::access_log::line::{Line, cut, target};
use crate::http::forwarded::client;
use crate::server::Peer;

const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");
/// Lines that wait to be written; each has four texts at most, which are cut.
const LINES_MAX: usize = 8_192;
/// Lines are written together up to this.
const BATCH_BYTES: usize = 64 << 10;

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line.
    Json,
    /// As the web servers have it: Apache's `combined`.
    Combined,
}

/// What is logged, and where.
#[derive(Clone, Debug)]
pub struct AccessLogConfig {
    /// `None`: nothing.
    pub format: Option<Format>,
    /// What lines are appended to; `None` for stderr.
    pub file: Option<PathBuf>,
}

/// A running access log.
#[derive(Clone)]
pub struct AccessLog {
    lines: SyncSender<Line>,
    dropped: IntCounter,
    /// `None` for stderr.
    rotated: Option<Arc<Rotated>>,
    /// Whose word is taken for the client's address.
    trusted: Arc<[IpNet]>,
}

/// Whether the file may have been moved away, so that the next line begins a new one.
#[derive(Default)]
pub struct Rotated(AtomicBool);

impl Rotated {
    /// It has been.
    pub fn tell(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl AccessLog {
    /// Starts the thread; `None` where nothing is to be logged. `dropped` counts lines that could not be written.
    ///
    /// What is left is written once the last clone is gone; then the receiver ends.
    ///
    /// # Errors
    /// A file that can't be appended to; a thread that can't be started.
    pub fn start(
        config: &AccessLogConfig,
        trusted: &[IpNet],
        dropped: IntCounter,
    ) -> io::Result<Option<(Self, oneshot::Receiver<()>)>> {
        let Some(format) = config.format else {
            return Ok(None);
        };
        let (lines, waiting) = sync_channel(LINES_MAX);
        let rotated = Arc::<Rotated>::default();
        let writer = Writer {
            out: open(config.file.as_deref())?,
            file: config.file.clone(),
            rotated: Arc::clone(&rotated),
            moved: false,
            format,
            lost: dropped.clone(),
        };
        let (ended, written) = oneshot::channel();
        let writing = move || {
            writer.write_all(&waiting);
            drop(ended);
        };
        thread::Builder::new()
            .name("access-log".into())
            .spawn(writing)?;
        let log = Self {
            lines,
            dropped,
            rotated: config.file.is_some().then_some(rotated),
            trusted: trusted.into(),
        };
        Ok(Some((log, written)))
    }

    /// What to tell when the file has been moved away, if there is one. It does not keep the log from ending.
    pub fn rotated(&self) -> Option<Arc<Rotated>> {
        self.rotated.clone()
    }
}

fn open(file: Option<&Path>) -> io::Result<Box<dyn Write + Send>> {
    Ok(match file {
        Some(file) => Box::new(OpenOptions::new().append(true).create(true).open(file)?),
        None => Box::new(io::stderr()),
    })
}

/// What the thread has.
struct Writer {
    out: Box<dyn Write + Send>,
    file: Option<PathBuf>,
    rotated: Arc<Rotated>,
    /// `out` is a file that was moved away, and there is no other yet.
    moved: bool,
    format: Format,
    lost: IntCounter,
}

impl Writer {
    /// Writes what comes until nobody can send more. A full disk costs lines, not the log.
    fn write_all(mut self, waiting: &Receiver<Line>) {
        let mut text = String::new();
        while let Ok(first) = waiting.recv() {
            text.clear();
            let mut count = 1;
            first.write(self.format, &mut text);
            while text.len() < BATCH_BYTES
                && let Ok(line) = waiting.try_recv()
            {
                line.write(self.format, &mut text);
                count += 1;
            }
            self.follow_the_name();
            if let Err(error) = self.out.write_all(text.as_bytes()) {
                self.lost.inc_by(count);
                tracing::debug!("the access log can't be written: {error}");
            }
        }
    }

    /// Opens the file anew where it was moved away, or tries that again; it is said once for each move.
    fn follow_the_name(&mut self) {
        let told = self.rotated.take();
        if !told && !self.moved {
            return;
        }
        match open(self.file.as_deref()) {
            Ok(out) => (self.out, self.moved) = (out, false),
            Err(error) => {
                self.moved = true;
                if told {
                    tracing::error!(
                        "the access log's file can't be opened again; the old file stays in use: {error}"
                    );
                }
            }
        }
    }
}

/// Where a service that knows says who sent a request.
#[derive(Clone, Default)]
pub(super) struct Who(Arc<OnceLock<Arc<Principal>>>);

impl Who {
    pub(super) fn is(&self, principal: &Arc<Principal>) {
        // It is told once.
        let _told = self.0.set(Arc::clone(principal));
    }
}

/// A service for one connection whose answers are logged, if they are.
pub struct Logged<S> {
    service: S,
    log: Option<AccessLog>,
    peer: IpAddr,
}

impl<S> Logged<S> {
    /// Without `log` it is `service`.
    pub fn new(service: S, log: Option<AccessLog>, peer: Peer) -> Self {
        let peer = peer.address;
        Self { service, log, peer }
    }
}

impl<S, B, A> Service<Request<B>> for Logged<S>
where
    S: Service<Request<B>, Response = Response<A>, Error = Infallible, Future: Send + 'static>,
    A: HttpBody + Send + 'static,
{
    type Response = Response<A>;
    type Error = Infallible;
    /// That of the service itself where nothing is logged.
    type Future = Either<S::Future, BoxFuture<'static, Result<Response<A>, Infallible>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let Some(log) = &self.log else {
            return Either::Left(self.service.call(request));
        };
        let log = log.clone();
        let began = Instant::now();
        let mut line = begin(&request, self.peer, &log.trusted);
        let who = Who::default();
        request.extensions_mut().insert(who.clone());
        let answering = self.service.call(request);
        let logged = async move {
            let Ok(answer) = answering.await;
            line.user = who.0.get().map(|who| cut(&who.name).to_owned());
            line.status = answer.status().as_u16();
            line.bytes = answer.body().size_hint().exact();
            line.seconds = began.elapsed().as_secs_f64();
            line.cache = text(answer.headers(), &CACHE_STATUS);
            if log.lines.try_send(line).is_err() {
                log.dropped.inc();
            }
            Ok(answer)
        };
        Either::Right(logged.boxed())
    }
}

/// What is known of a request before its answer.
fn begin<B>(request: &Request<B>, peer: IpAddr, trusted: &[IpNet]) -> Line {
    let headers = request.headers();
    Line {
        time: SystemTime::now(),
        client: client(peer, headers, trusted),
        user: None,
        method: cut(request.method().as_str()).to_owned(),
        target: target(request.uri()),
        version: request.version(),
        status: 0,
        bytes: None,
        seconds: 0.0,
        cache: None,
        referer: text(headers, &REFERER).map(without_query),
        agent: text(headers, &USER_AGENT),
    }
}

fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let value = headers.get(name)?;
    let text = String::from_utf8_lossy(value.as_bytes());
    Some(cut(&text).to_owned())
}

/// What comes after the path may be a secret of another site.
fn without_query(mut url: String) -> String {
    url.truncate(url.find(['?', '#']).unwrap_or(url.len()));
    url
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use tower::{ServiceExt, service_fn};

    use super::*;

    async fn ask(log: &AccessLog) -> Response<Body> {
        let service = service_fn(async |_: Request<Body>| Ok(Response::new(Body::from("text"))));
        let peer = Peer {
            address: "192.0.2.1".parse().unwrap(),
            secure: false,
        };
        let logged = Logged::new(service, Some(log.clone()), peer);
        logged.oneshot(Request::default()).await.unwrap()
    }

    #[tokio::test]
    async fn nobody_waits_for_a_log_that_does_not_follow() {
        let (lines, waiting) = sync_channel(2);
        let log = AccessLog {
            lines,
            dropped: IntCounter::new("dropped", "Lines.").unwrap(),
            rotated: None,
            trusted: Arc::new([]),
        };
        for _ in 0..5 {
            ask(&log).await;
        }
        assert_eq!(log.dropped.get(), 3);
        assert_eq!(waiting.try_iter().count(), 2);
    }

    #[tokio::test]
    async fn what_a_full_disk_costs_is_counted() {
        let config = AccessLogConfig {
            format: Some(Format::Combined),
            file: Some("/dev/full".into()),
        };
        let dropped = IntCounter::new("dropped", "Lines.").unwrap();
        let (log, written) = AccessLog::start(&config, &[], dropped.clone())
            .unwrap()
            .unwrap();
        for _ in 0..5 {
            ask(&log).await;
        }
        drop(log);
        let _ended = written.await;
        assert_eq!(dropped.get(), 5);
    }

    #[test]
    fn no_text_that_waits_is_long() {
        let long = "x".repeat(16 << 10);
        let request = Request::get(format!("/{long}?{long}"))
            .method(long.as_str())
            .header(REFERER, format!("http://a/?{long}"))
            .header(USER_AGENT, &long)
            .body(())
            .unwrap();
        let line = begin(&request, "192.0.2.1".parse().unwrap(), &[]);
        let mut text = String::new();
        line.write(Format::Json, &mut text);
        assert!(text.len() < 4 << 10, "{}", text.len());
        assert_eq!(line.referer.as_deref(), Some("http://a/"));
    }
}
