//! The access log: a line for each answer of the public address, written by a thread of its own.
//!
//! Whoever answers hands over what is to be told and waits for nothing: where the thread can't follow, lines are dropped
//! and counted. No credentials are told: no cookie, no `Authorization`, and of a query only what larder itself asks for.

mod line;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::SystemTime;

use axum::body::HttpBody;
use axum::http::header::{CACHE_STATUS, HeaderName, REFERER, USER_AGENT};
use axum::http::{HeaderMap, Response};
use prometheus::IntCounter;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::auth::Principal;
use crate::http::middleware::access_log::line::{Line, cut, target};
use crate::http::request::Request;

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

/// A line whose answer is not there yet.
pub(super) struct Entry {
    line: Line,
    began: Instant,
}

impl Entry {
    /// What is known of a request before its answer.
    pub(super) fn begin(request: &Request<'_>) -> Self {
        let headers = request.headers;
        let line = Line {
            time: SystemTime::now(),
            client: request.client(),
            user: None,
            method: cut(request.method.as_str()).to_owned(),
            target: target(request.uri),
            version: request.version,
            status: 0,
            bytes: None,
            seconds: 0.0,
            cache: None,
            referer: text(headers, &REFERER).map(without_query),
            agent: text(headers, &USER_AGENT),
        };
        Self {
            line,
            began: Instant::now(),
        }
    }

    /// Notes the sender of the request.
    pub(super) fn set_user(&mut self, principal: Option<&Principal>) {
        self.line.user = principal.map(|principal| cut(&principal.name).to_owned());
    }
}

impl AccessLog {
    /// Writes the line of an answer, or counts that it can't.
    pub(super) fn end<B: HttpBody>(&self, entry: Entry, answer: &Response<B>) {
        let Entry { mut line, began } = entry;
        line.status = answer.status().as_u16();
        line.bytes = answer.body().size_hint().exact();
        line.seconds = began.elapsed().as_secs_f64();
        line.cache = text(answer.headers(), &CACHE_STATUS);
        if self.lines.try_send(line).is_err() {
            self.dropped.inc();
        }
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

    use super::*;
    use crate::http::request::{Head, Target};

    fn entry(request: &axum::http::Request<()>) -> Entry {
        let target = Target::parse("/", |_| None);
        let peer = [192, 0, 2, 1].into();
        Entry::begin(&Request::new(Head::of(request), target, peer, &[]))
    }

    fn log_one(log: &AccessLog) {
        let entry = entry(&axum::http::Request::default());
        log.end(entry, &Response::new(Body::from("text")));
    }

    #[test]
    fn no_request_waits_for_a_log_that_does_not_follow() {
        let (lines, waiting) = sync_channel(2);
        let log = AccessLog {
            lines,
            dropped: IntCounter::new("dropped", "Lines.").unwrap(),
            rotated: None,
        };
        for _ in 0..5 {
            log_one(&log);
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
        let (log, written) = AccessLog::start(&config, dropped.clone()).unwrap().unwrap();
        for _ in 0..5 {
            log_one(&log);
        }
        drop(log);
        let _ended = written.await;
        assert_eq!(dropped.get(), 5);
    }

    #[test]
    fn no_text_that_waits_is_long() {
        let long = "x".repeat(16 << 10);
        let request = axum::http::Request::get(format!("/{long}?{long}"))
            .method(long.as_str())
            .header(REFERER, format!("http://a/?{long}"))
            .header(USER_AGENT, &long)
            .body(())
            .unwrap();
        let line = entry(&request).line;
        let mut text = String::new();
        line.write(Format::Json, &mut text);
        assert!(text.len() < 4 << 10, "{}", text.len());
        assert_eq!(line.referer.as_deref(), Some("http://a/"));
    }
}
