//! What the configuration says about a dispatch, before it is checked against the database. Does no I/O.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::auth::config::Secret;
use crate::resource::definition::{Located, Mistake, Place};

/// `[[dispatch]]`: due rows of a table, and where they are sent.
#[derive(Clone, Debug)]
pub struct DispatchDefinition {
    /// The header of its table in the file.
    pub place: Place,
    /// The name, which no other dispatch has.
    pub name: Located<String>,
    /// The table with the rows; `None`: that of `resource`.
    pub table: Option<Located<String>>,
    /// The resource whose documents are the rows.
    pub resource: Option<Located<String>>,
    /// The columns of the key; `None`: the primary key of `table`.
    pub key: Option<Located<Vec<String>>>,
    /// The column with the moment at which a row is due.
    pub due: Located<String>,
    /// The columns whose combinations are slots; `None`: all rows are one slot.
    pub partition: Option<Located<Vec<String>>>,
    /// A delivered row is due again after this time.
    pub interval: Option<Duration>,
    /// SQL for the moment at which a delivered row is due again.
    pub next: Option<Located<String>>,
    /// A delivered row is deleted.
    pub delete: bool,
    /// What `interval` counts from.
    pub interval_from: IntervalFrom,
    /// Whether a row is rescheduled before or after it is sent.
    pub delivery: Delivery,
    /// The most rows that a statement matches.
    pub batch: usize,
    /// Slots that are worked on at once.
    pub connections: usize,
    /// The pause between two looks for due rows.
    pub poll_interval: Duration,
    /// After this time without a sign of life a process has lost its slots.
    pub takeover: Duration,
    /// The most rows per second; 0: no limit.
    pub rate: u32,
    /// Pauses before the attempts after the first.
    pub retry: Vec<Duration>,
    /// Where the rows are sent.
    pub sink: SinkDefinition,
}

/// `[dispatch.sink]`
#[derive(Clone, Debug)]
pub struct SinkDefinition {
    /// The header of its table in the file.
    pub place: Place,
    /// What takes the rows.
    pub kind: SinkKind,
    /// The address of the server. It may contain a password.
    pub url: Option<Secret>,
    /// The most rows of a request.
    pub rows: usize,
    /// The most requests in flight.
    pub concurrency: usize,
    /// The longest wait for a response.
    pub timeout: Duration,
    /// The most bytes of a request that has more than one row.
    pub bytes: u64,
    /// Headers of each request.
    pub headers: BTreeMap<String, Secret>,
    /// Keys that sign each request.
    pub secret: Vec<Secret>,
    /// A file with such keys, one a line.
    pub secret_file: Option<PathBuf>,
    /// The subject of messages; `{member}` stands for a value of the row.
    pub subject: Option<String>,
    /// A file with the JWT and the key of a user of NATS.
    pub credentials_file: Option<PathBuf>,
    /// Certificates of authorities that the server of NATS is checked by, instead of the system's.
    pub ca_file: Option<PathBuf>,
}

/// What takes the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkKind {
    /// Requests as Standard Webhooks 1.0 has them.
    Http,
    /// Messages to JetStream.
    Nats,
    /// Lines of JSON on stdout.
    Stdout,
    /// Nothing: each row counts as delivered.
    Discard,
}

/// What `interval` counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntervalFrom {
    /// The moment of the statement that reschedules.
    Now,
    /// The due moment. Moments that were missed are skipped.
    Due,
}

/// Whether a row is rescheduled before or after it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// After it: a row is sent again if the process ends in between.
    AtLeastOnce,
    /// Before it: a row is lost if the process ends in between.
    AtMostOnce,
}

impl DispatchDefinition {
    /// Makes a mistake in the property `key`, at its line, or at that of the table which should have it.
    pub(crate) fn mistake(&self, key: &str, message: impl Into<String>) -> Mistake {
        fn at<T>(located: Option<&Located<T>>) -> Option<&Place> {
            located.map(|located| &located.place)
        }
        let place = match key {
            "name" => Some(&self.name.place),
            "table" => at(self.table.as_ref()),
            "resource" => at(self.resource.as_ref()),
            "key" => at(self.key.as_ref()),
            "due" => Some(&self.due.place),
            "partition" => at(self.partition.as_ref()),
            "next" => at(self.next.as_ref()),
            key => key.starts_with("sink.").then_some(&self.sink.place),
        };
        let place = Place {
            key: format!("{}.{key}", self.place.key),
            ..place.unwrap_or(&self.place).clone()
        };
        Mistake {
            place,
            message: message.into(),
        }
    }
}
