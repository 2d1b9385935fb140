//! Logs to stderr, as text or JSON, with a level that can be changed while larder runs.
//!
//! Reads no environment variables; the command line passes them.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing_subscriber::field::{MakeVisitor, VisitFmt, VisitOutput};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{DefaultVisitor, Writer};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry};

use crate::unseen::{escaped, escaped_json};

/// The level if no filter is configured.
const DEFAULT_LEVEL: LevelFilter = LevelFilter::INFO;
/// A longer filter is refused: it is a mistake, or an attack on the admin address.
const FILTER_BYTES_MAX: usize = 4096;

/// The format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Text for people, in colour on a terminal.
    Human,
    /// One JSON object per line.
    Json,
}

/// The level and format of the log.
#[derive(Clone, Debug)]
pub struct TelemetryConfig {
    /// `--log-level`: a level, or directives such as `larder=debug,info`.
    pub level: Option<String>,
    /// `RUST_LOG`, used if `level` is absent.
    pub rust_log: Option<String>,
    /// The format of a line.
    pub format: LogFormat,
    /// Colours in text lines.
    pub ansi: bool,
}

/// Why a filter is refused.
#[derive(Debug, thiserror::Error)]
pub enum LogLevelError {
    /// The text is not a filter.
    #[error(
        "expected trace, debug, info, warn, error or off, or directives such as larder=debug,info"
    )]
    Malformed,
    /// It is longer than a filter may be.
    #[error("a filter has at most {FILTER_BYTES_MAX} bytes")]
    TooLong,
    /// The logs have been shut down.
    #[error("logging has been shut down")]
    Gone,
}

/// Why logging can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The level is not valid.
    #[error(transparent)]
    Level(#[from] LogLevelError),
    /// Logging was set up before in this process.
    #[error("logging is already set up in this process")]
    AlreadySetUp(#[from] tracing_subscriber::util::TryInitError),
}

/// The log level of a running larder, which can be read and changed; clones refer to the same level.
#[derive(Clone)]
pub struct LogLevel {
    handle: Arc<reload::Handle<Targets, Registry>>,
}

impl LogLevel {
    /// The filter in force, in the form that [`LogLevel::set`] takes.
    pub fn current(&self) -> String {
        self.handle
            .with_current(ToString::to_string)
            .unwrap_or_else(|_| LevelFilter::OFF.to_string())
    }

    /// Changes the filter from the next event on.
    /// # Errors
    /// [`LogLevelError::Malformed`] and [`LogLevelError::TooLong`] leave the old filter in force.
    pub fn set(&self, filter: &str) -> Result<(), LogLevelError> {
        let filter = parse_filter(filter)?;
        self.handle.reload(filter).map_err(|_| LogLevelError::Gone)
    }
}

/// Starts logging to stderr, for the whole process.
///
/// A malformed `RUST_LOG` is logged and otherwise ignored: it is often meant for another program.
/// # Errors
/// [`TelemetryError::Level`] if `--log-level` is no filter; [`TelemetryError::AlreadySetUp`] the second time.
pub fn init(config: &TelemetryConfig) -> Result<LogLevel, TelemetryError> {
    let (filter, ignored) = initial_filter(config)?;
    let (filter, handle) = reload::Layer::new(filter);
    tracing_subscriber::registry()
        .with(filter)
        .with(lines(config.format, config.ansi, io::stderr))
        .try_init()?;
    if let Some(ignored) = ignored {
        tracing::warn!(
            filter = ignored,
            "RUST_LOG is not a valid filter and is ignored; the filter is {DEFAULT_LEVEL}"
        );
    }
    Ok(LogLevel {
        handle: Arc::new(handle),
    })
}

/// Writes a line for each event. Both formats escape what a terminal would obey or not show.
fn lines<S, W>(
    format: LogFormat,
    ansi: bool,
    writer: impl Fn() -> W + Send + Sync + 'static,
) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    W: io::Write + 'static,
{
    let lines = tracing_subscriber::fmt::layer();
    match format {
        LogFormat::Human => lines
            .with_writer(writer)
            .with_ansi(ansi)
            .fmt_fields(EscapedFields)
            .boxed(),
        LogFormat::Json => lines
            .json()
            .flatten_event(true)
            .with_writer(move || EscapedJson(writer()))
            .boxed(),
    }
}

/// Writes the message and the fields of a text line. Both may have text of the database or of a client: no line break in it
/// begins another line of the log, and a terminal obeys none of it.
struct EscapedFields;

impl<'w> MakeVisitor<Writer<'w>> for EscapedFields {
    type Visitor = EscapedVisitor<'w>;

    fn make_visitor(&self, writer: Writer<'w>) -> Self::Visitor {
        EscapedVisitor(DefaultVisitor::new(writer, true))
    }
}

struct EscapedVisitor<'w>(DefaultVisitor<'w>);

impl Visit for EscapedVisitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.record_debug(field, &format_args!("{value}"));
        } else {
            self.record_debug(field, &value);
        }
    }

    fn record_error(&mut self, field: &Field, error: &(dyn Error + 'static)) {
        let chain = std::iter::successors(Some(error), |&error| error.source());
        let chain: Vec<String> = chain.map(ToString::to_string).collect();
        self.record_debug(field, &format_args!("{}", chain.join(": ")));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = escaped(&format!("{value:?}"));
        self.0.record_debug(field, &format_args!("{text}"));
    }
}

impl VisitOutput<fmt::Result> for EscapedVisitor<'_> {
    fn finish(self) -> fmt::Result {
        self.0.finish()
    }
}

impl VisitFmt for EscapedVisitor<'_> {
    fn writer(&mut self) -> &mut dyn fmt::Write {
        self.0.writer()
    }
}

/// Writes JSON lines with their text escaped. What is written at once are whole lines.
struct EscapedJson<W>(W);

impl<W: io::Write> io::Write for EscapedJson<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let lines = String::from_utf8_lossy(bytes);
        self.0.write_all(escaped_json(&lines).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Checks a filter without using it.
/// # Errors
/// As [`LogLevel::set`].
pub fn check_filter(filter: &str) -> Result<(), LogLevelError> {
    parse_filter(filter).map(drop)
}

/// The filter to start with, and a `RUST_LOG` that could not be used.
fn initial_filter(config: &TelemetryConfig) -> Result<(Targets, Option<&str>), LogLevelError> {
    if let Some(level) = &config.level {
        return Ok((parse_filter(level)?, None));
    }
    let default = || Targets::new().with_default(DEFAULT_LEVEL);
    match config.rust_log.as_deref().filter(|text| !text.is_empty()) {
        Some(text) => match text.parse() {
            Ok(filter) => Ok((filter, None)),
            Err(_) => Ok((default(), Some(text))),
        },
        None => Ok((default(), None)),
    }
}

/// Parses a filter more strictly than [`Targets`], which takes a misspelt level as the name of a module.
fn parse_filter(text: &str) -> Result<Targets, LogLevelError> {
    if text.len() > FILTER_BYTES_MAX {
        return Err(LogLevelError::TooLong);
    }
    let directives: Vec<&str> = text.split(',').map(str::trim).collect();
    // The empty text passes for a level.
    let is_known = |directive: &&str| {
        directive.contains('=')
            || (!directive.is_empty() && directive.parse::<LevelFilter>().is_ok())
    };
    if !directives.iter().all(is_known) {
        return Err(LogLevelError::Malformed);
    }
    let directives = directives.join(",");
    directives.parse().map_err(|_| LogLevelError::Malformed)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn config(level: Option<&str>, rust_log: Option<&str>) -> TelemetryConfig {
        TelemetryConfig {
            level: level.map(str::to_owned),
            rust_log: rust_log.map(str::to_owned),
            format: LogFormat::Human,
            ansi: false,
        }
    }

    fn initial(level: Option<&str>, rust_log: Option<&str>) -> String {
        initial_filter(&config(level, rust_log))
            .unwrap()
            .0
            .to_string()
    }

    #[test]
    fn the_flag_beats_rust_log_beats_info() {
        assert_eq!(initial(Some("debug"), Some("warn")), "debug");
        assert_eq!(initial(None, Some("warn")), "warn");
        assert_eq!(initial(None, Some("")), "info");
        assert_eq!(initial(None, None), "info");
    }

    #[test]
    fn a_malformed_rust_log_is_told_and_ignored() {
        let config = config(None, Some("larder=loud"));
        let (filter, ignored) = initial_filter(&config).unwrap();
        assert_eq!(
            (filter.to_string().as_str(), ignored),
            ("info", Some("larder=loud"))
        );
    }

    #[test]
    fn a_misspelt_level_is_refused() {
        for text in ["inof", "", "debug,", "larder=loud", "debug,inof"] {
            assert!(
                matches!(parse_filter(text), Err(LogLevelError::Malformed)),
                "{text}"
            );
        }
        let long = "larder=debug,".repeat(1000) + "info";
        assert!(matches!(parse_filter(&long), Err(LogLevelError::TooLong)));
        for text in [
            "info",
            "OFF",
            "larder=debug,info",
            "larder::feed=trace, warn",
        ] {
            assert!(parse_filter(text).is_ok(), "{text}");
        }
    }

    /// The line of an event whose message and fields have `text`.
    fn line(text: &str, format: LogFormat) -> String {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let writer = Lines(Arc::clone(&lines));
        let layer = super::lines(format, false, move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            let error = std::io::Error::other(text);
            let error = &error as &dyn Error;
            tracing::error!(shown = %text, debug = ?text, string = text, error, "refused: {text}");
        });
        let lines = lines.lock().unwrap();
        String::from_utf8(lines.clone()).unwrap()
    }

    #[derive(Clone)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    const HOSTILE: &str = "x\n2026-01-01 ERROR forged \u{202e}\u{1b}[2J";

    #[test]
    fn a_text_forges_no_line_and_a_terminal_obeys_none() {
        let line = line(HOSTILE, LogFormat::Human);
        let (_time, line) = line.split_once(' ').unwrap();
        let text = r"x\n2026-01-01 ERROR forged \u{202e}\u{1b}[2J";
        let head = "ERROR larder::telemetry::tests:";
        let fields = format!(r#"shown={text} debug="{text}" string="{text}" error={text}"#);
        assert_eq!(line, format!("{head} refused: {text} {fields}\n"));
    }

    #[test]
    fn a_terminal_obeys_no_json_line() {
        let line = line(HOSTILE, LogFormat::Json);
        assert!(line.ends_with("}\n") && line.matches('\n').count() == 1);
        assert!(!line.contains(['\u{202e}', '\u{1b}']), "{line}");
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["message"], format!("refused: {HOSTILE}"));
        assert_eq!(read["string"], HOSTILE);
    }

    #[test]
    fn the_level_changes_while_running() {
        let (_layer, handle) = reload::Layer::new(Targets::new().with_default(DEFAULT_LEVEL));
        let level = LogLevel {
            handle: Arc::new(handle),
        };
        assert_eq!(level.current(), "info");
        level.set("larder=debug,warn").unwrap();
        assert!(
            level.current().contains("larder=debug"),
            "{}",
            level.current()
        );
        assert!(level.set("loud").is_err());
        assert!(
            level.current().contains("larder=debug"),
            "a refused level changes nothing"
        );
    }
}
