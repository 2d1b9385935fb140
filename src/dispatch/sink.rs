//! Where rows are sent.

mod http;
mod nats;
pub(crate) mod signature;
pub(crate) mod subject;

use std::io::{ErrorKind, Write};
use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

use crate::dispatch::batch::DueRow;
use crate::dispatch::definition::{DispatchDefinition, SinkKind};
use crate::dispatch::sink::http::HttpSink;
use crate::dispatch::sink::nats::{NatsSink, StreamError};
use crate::resource::definition::Mistake;
use crate::resource::due::DueRows;

/// What takes the rows.
pub(super) enum Sink {
    /// A web server.
    Http(Box<HttpSink>),
    /// A server of NATS.
    Nats(Box<NatsSink>),
    /// This process's output.
    Stdout,
    /// Nothing.
    Discard,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// All rows were taken but these, each by its id with the reason.
    Delivered(Vec<(String, String)>),
    /// None was taken; says why.
    Failed(String),
    /// The sink can't be connected to; says why.
    Unreachable(String),
    /// None was taken, and the sink takes nothing for a while: at least for this time, if it says so.
    Unavailable(String, Option<Duration>),
    /// The sink will never take anything again.
    Gone(String),
}

impl Sink {
    /// Reads the secrets of the sink. Blocks on the file system.
    ///
    /// # Errors
    /// A secret that can't be read.
    pub(super) fn new(definition: &DispatchDefinition) -> Result<Self, Mistake> {
        Ok(match definition.sink.kind {
            SinkKind::Http => Self::Http(Box::new(HttpSink::new(definition)?)),
            SinkKind::Nats => Self::Nats(Box::new(NatsSink::new(definition))),
            SinkKind::Stdout => Self::Stdout,
            SinkKind::Discard => Self::Discard,
        })
    }

    /// Checks that the sink fits the rows. One that can't be reached is asked again when rows are sent.
    ///
    /// # Errors
    /// The sink can't take these rows.
    pub(super) async fn check(
        &self,
        definition: &DispatchDefinition,
        rows: &DueRows,
    ) -> Result<(), Mistake> {
        let Self::Nats(sink) = self else {
            return Ok(());
        };
        match sink.check(rows).await {
            Ok(()) => Ok(()),
            Err(StreamError::Unfit(key, message)) => {
                Err(definition.mistake(&format!("sink.{key}"), message))
            }
            Err(StreamError::Unreachable(error)) => {
                let name = &definition.name.value;
                tracing::warn!("dispatch {name}: the stream was not checked: {error}");
                Ok(())
            }
        }
    }

    /// Says why the row can't be sent at any time, if so.
    pub(super) fn fault(&self, row: &DueRow) -> Option<String> {
        match self {
            Self::Nats(sink) => sink.fault(row),
            _ => None,
        }
    }

    /// Sends one request with these rows. Returns its outcome, and the status for the metrics.
    pub(super) async fn send(&self, rows: &[DueRow]) -> (Answer, String) {
        match self {
            Self::Http(sink) => sink.send(rows).await,
            Self::Nats(sink) => sink.send(rows).await,
            Self::Discard => (Answer::Delivered(Vec::new()), "discarded".to_owned()),
            Self::Stdout => {
                let lines: Vec<_> = rows.iter().map(|row| row.element.clone()).collect();
                let writing = move || {
                    let mut out = std::io::stdout().lock();
                    for line in lines {
                        out.write_all(&line)?;
                        out.write_all(b"\n")?;
                    }
                    out.flush()
                };
                match tokio::task::spawn_blocking(writing).await {
                    Ok(Ok(())) => (Answer::Delivered(Vec::new()), "written".to_owned()),
                    Ok(Err(error)) if error.kind() == ErrorKind::BrokenPipe => (
                        Answer::Gone("stdout is closed".to_owned()),
                        "error".to_owned(),
                    ),
                    Ok(Err(error)) => {
                        (Answer::Gone(format!("stdout: {error}")), "error".to_owned())
                    }
                    Err(error) => (Answer::Failed(error.to_string()), "error".to_owned()),
                }
            }
        }
    }

    /// Returns whether a sink that will never take anything again ends the process.
    pub(super) fn ends_process(&self) -> bool {
        matches!(self, Self::Stdout)
    }
}

/// The most rows per second of this process.
pub(super) struct RateLimit(Option<DefaultDirectRateLimiter>);

impl RateLimit {
    /// Creates the limit of `rate` rows per second, 0 for none; a request has at most `rows` rows.
    pub(super) fn new(rate: u32, rows: usize) -> Self {
        let rate = NonZeroU32::new(rate);
        Self(rate.map(|rate| {
            let burst = u32::try_from(rows).unwrap_or(u32::MAX).max(rate.get());
            let burst = NonZeroU32::new(burst).unwrap_or(rate);
            RateLimiter::direct(Quota::per_second(rate).allow_burst(burst))
        }))
    }

    /// Counts a request with so many rows, if it may begin; else returns how long it has to wait.
    pub(super) fn check(&self, rows: usize) -> Result<(), Duration> {
        let (Some(limiter), Some(rows)) =
            (&self.0, u32::try_from(rows).ok().and_then(NonZeroU32::new))
        else {
            return Ok(());
        };
        match limiter.check_n(rows) {
            // More rows than a burst has are never sent at a time.
            Ok(Ok(())) | Err(_) => Ok(()),
            Ok(Err(until)) => Err(until.wait_time_from(DefaultClock::default().now())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_whatever_a_request_has() {
        let unlimited = RateLimit::new(0, 100);
        assert!((0..1_000).all(|_| unlimited.check(100).is_ok()));
        let slow = RateLimit::new(10, 100);
        assert_eq!(slow.check(100), Ok(()));
        let wait = slow.check(100).unwrap_err();
        assert!(
            wait > Duration::from_secs(9) && wait <= Duration::from_secs(10),
            "{wait:?}"
        );
    }
}
