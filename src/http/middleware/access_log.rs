//! The access log: a line for each answer of the public address, written by a thread of its own.
//!
//! The threads that answer requests put lines into a queue and never wait. If the queue is full, lines are dropped and
//! counted. Credentials are not logged: no cookie, no `Authorization`, and of a query only larder's own parameters.

mod line;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::SystemTime;

use axum::body::HttpBody;
use axum::http::header::{CACHE_STATUS, HeaderName, REFERER, USER_AGENT};
use axum::http::{HeaderMap, Response, StatusCode, Version};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use prometheus::IntCounter;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::auth::Principal;
use crate::http::middleware::access_log::line::{LogLine, cut, target};
use crate::http::request::Request;

/// Lines that wait to be written. Each has a few texts, whose lengths are limited.
const LINES_MAX: usize = 8_192;
/// Lines that wait are written together, up to about so many bytes.
const BATCH_BYTES: usize = 64 << 10;

/// The format of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// One JSON object a line.
    Json,
    /// Apache's `combined` format.
    Combined,
}

/// The format of the access log, and its file.
#[derive(Clone, Debug)]
pub struct AccessLogConfig {
    /// `None`: there is no access log.
    pub format: Option<AccessLogFormat>,
    /// The file that lines are appended to; `None` for stderr.
    pub file: Option<PathBuf>,
}

/// A running access log.
#[derive(Clone)]
pub struct AccessLog {
    lines: SyncSender<LogLine>,
    dropped: IntCounter,
    /// `None` for stderr.
    reopen: Option<Arc<ReopenSignal>>,
}

/// Tells the access log to open its file again before the next line, since the file may have been renamed.
#[derive(Default)]
pub struct ReopenSignal(AtomicBool);

impl ReopenSignal {
    /// Has the file opened again.
    pub fn send(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was sent; clears it.
    fn reset(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl AccessLog {
    /// Starts the thread; `None` if there is no access log. `dropped` counts lines that are not written.
    ///
    /// When the last clone has been dropped, the lines that wait are written, and then the receiver ends.
    ///
    /// # Errors
    /// The file can't be opened for appending, or the thread can't be started.
    pub fn start(
        config: &AccessLogConfig,
        dropped: IntCounter,
    ) -> io::Result<Option<(Self, oneshot::Receiver<()>)>> {
        let Some(format) = config.format else {
            return Ok(None);
        };
        let (lines, waiting) = sync_channel(LINES_MAX);
        let reopen = Arc::<ReopenSignal>::default();
        let writer = LogWriter {
            out: open(config.file.as_deref())?,
            file: config.file.clone(),
            reopen: Arc::clone(&reopen),
            must_reopen: false,
            format,
            dropped: dropped.clone(),
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
            reopen: config.file.is_some().then_some(reopen),
        };
        Ok(Some((log, written)))
    }

    /// The signal to open the file again; `None` for stderr. A clone of it does not keep the log from ending.
    pub fn reopen_signal(&self) -> Option<Arc<ReopenSignal>> {
        self.reopen.clone()
    }
}

/// Opens the file, or stderr. Never waits: a FIFO that nothing reads would hold up the start, and the stop with it.
fn open(file: Option<&Path>) -> io::Result<Box<dyn Write + Send>> {
    let Some(file) = file else {
        return Ok(Box::new(io::stderr()));
    };
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    let opened = options
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(file)
        .map_err(|error| match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENXIO) => {
                io::Error::new(error.kind(), "it is a FIFO that nothing reads, or a socket")
            }
            _ => error,
        })?;
    // The thread that writes may wait: a line that a full pipe takes in part only would be broken.
    fcntl(&opened, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
    Ok(Box::new(opened))
}

/// The state of the thread that writes.
struct LogWriter {
    out: Box<dyn Write + Send>,
    file: Option<PathBuf>,
    reopen: Arc<ReopenSignal>,
    /// `out` may be a renamed file, and the new one could not be opened yet.
    must_reopen: bool,
    format: AccessLogFormat,
    dropped: IntCounter,
}

impl LogWriter {
    /// Writes lines until all senders are dropped. Lines that can't be written, to a full disk for example, are dropped and
    /// counted.
    fn write_all(mut self, waiting: &Receiver<LogLine>) {
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
            self.reopen_if_needed();
            if let Err(error) = self.out.write_all(text.as_bytes()) {
                self.dropped.inc_by(count);
                tracing::debug!("the access log can't be written: {error}");
            }
        }
    }

    /// Opens the file again if that was requested, or if it failed before. A failure is logged once for each request.
    fn reopen_if_needed(&mut self) {
        let is_signalled = self.reopen.reset();
        if !is_signalled && !self.must_reopen {
            return;
        }
        match open(self.file.as_deref()) {
            Ok(out) => (self.out, self.must_reopen) = (out, false),
            Err(error) => {
                self.must_reopen = true;
                if is_signalled {
                    tracing::error!(
                        "the access log's file can't be opened again; the old file stays in use: {error}"
                    );
                }
            }
        }
    }
}

/// The line of a request that has no response yet.
pub(super) struct PendingLine {
    line: LogLine,
    began: Instant,
}

impl PendingLine {
    /// Begins the line of a request.
    pub(super) fn begin(request: &Request<'_>) -> Self {
        let headers = request.headers;
        let line = LogLine {
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

    /// Sets the user: the name of the request's principal.
    pub(super) fn set_user(&mut self, principal: Option<&Principal>) {
        self.line.user = principal.map(|principal| cut(&principal.name).to_owned());
    }
}

impl AccessLog {
    /// Completes the line from the response and queues it; if the queue is full, the line is dropped and counted.
    pub(super) fn complete<B: HttpBody>(&self, pending: PendingLine, answer: &Response<B>) {
        let PendingLine { mut line, began } = pending;
        line.status = answer.status().as_u16();
        line.bytes = answer.body().size_hint().exact();
        line.seconds = began.elapsed().as_secs_f64();
        line.cache = text(answer.headers(), &CACHE_STATUS);
        self.queue(line);
    }

    /// Queues the line of a request whose head could not be parsed, with `-` for its method and target.
    pub(super) fn log_refusal(&self, client: IpAddr, status: StatusCode, bytes: usize) {
        self.queue(LogLine {
            time: SystemTime::now(),
            client,
            user: None,
            method: "-".to_owned(),
            target: "-".to_owned(),
            version: Version::HTTP_11,
            status: status.as_u16(),
            bytes: Some(bytes as u64),
            seconds: 0.0,
            cache: None,
            referer: None,
            agent: None,
        });
    }

    fn queue(&self, line: LogLine) {
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

/// `url` without query and fragment, which may contain a secret of another site.
fn without_query(mut url: String) -> String {
    url.truncate(url.find(['?', '#']).unwrap_or(url.len()));
    url
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;
    use crate::http::request::{RequestHead, RequestTarget};

    fn entry(request: &axum::http::Request<()>) -> PendingLine {
        let target = RequestTarget::parse("/", |_| None);
        let peer = [192, 0, 2, 1].into();
        PendingLine::begin(&Request::new(RequestHead::of(request), target, peer, &[]))
    }

    fn log_one(log: &AccessLog) {
        let entry = entry(&axum::http::Request::default());
        log.complete(entry, &Response::new(Body::from("text")));
    }

    #[test]
    fn lines_beyond_the_queue_are_dropped_and_counted() {
        let (lines, waiting) = sync_channel(2);
        let log = AccessLog {
            lines,
            dropped: IntCounter::new("dropped", "Lines.").unwrap(),
            reopen: None,
        };
        for _ in 0..5 {
            log_one(&log);
        }
        assert_eq!(log.dropped.get(), 3);
        assert_eq!(waiting.try_iter().count(), 2);
    }

    #[tokio::test]
    async fn lines_that_a_full_disk_loses_are_counted() {
        let config = AccessLogConfig {
            format: Some(AccessLogFormat::Combined),
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
    fn long_texts_are_cut_before_they_are_queued() {
        let long = "x".repeat(16 << 10);
        let request = axum::http::Request::get(format!("/{long}?{long}"))
            .method(long.as_str())
            .header(REFERER, format!("http://a/?{long}"))
            .header(USER_AGENT, &long)
            .body(())
            .unwrap();
        let line = entry(&request).line;
        let mut text = String::new();
        line.write(AccessLogFormat::Json, &mut text);
        assert!(text.len() < 4 << 10, "{}", text.len());
        assert_eq!(line.referer.as_deref(), Some("http://a/"));
    }
}
