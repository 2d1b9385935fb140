//! Writers and readers of rows that name their table, and the check of each answer.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout};

use crate::harness::http::HttpConnection;
use crate::harness::session::SqlSession;

/// The resources, each of a table of its name. Anonymous readers may not read the last one.
pub(crate) const RESOURCES: [&str; 3] = ["alpha", "beta", "secret"];
/// The API key with which the last one may be read.
const KEY: &str = "test";

/// Documents of each resource: more than memory holds, so that most reads go to PostgreSQL.
pub(crate) const ROWS: usize = 5_000;
/// The constant value of the readers' own rows.
const OWN_VERSION: u64 = 1;
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// `max_staleness`, with room for delays of this program.
const STALENESS_MAX: Duration = Duration::from_millis(1_050);
const WRITE_PAUSE: Duration = Duration::from_millis(2);
const RETRY_PAUSE: Duration = Duration::from_millis(20);

#[derive(Deserialize)]
struct OwnedDocument {
    id: usize,
    owner: String,
    n: u64,
}

/// What was committed to each row, and how the answers compared.
pub(crate) struct AnswerCounters {
    /// By resource and row: when each version was acknowledged.
    versions: Vec<Mutex<Vec<(Instant, u64)>>>,
    pub(crate) compared: [AtomicU64; RESOURCES.len()],
    /// Documents of another resource.
    pub(crate) strange: AtomicU64,
    pub(crate) stale: AtomicU64,
    /// Documents or statuses that never existed.
    pub(crate) made_up: AtomicU64,
    pub(crate) unavailable: AtomicU64,
    pub(crate) ended: AtomicBool,
}

impl AnswerCounters {
    pub(crate) fn new() -> Self {
        let rows = RESOURCES.len() * ROWS;
        Self {
            versions: (0..rows).map(|_| Mutex::default()).collect(),
            compared: [const { AtomicU64::new(0) }; RESOURCES.len()],
            strange: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            made_up: AtomicU64::new(0),
            unavailable: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        }
    }

    fn versions(
        &self,
        resource: usize,
        id: usize,
    ) -> std::sync::MutexGuard<'_, Vec<(Instant, u64)>> {
        let place = resource * ROWS + id - 1;
        let versions = self.versions[place].lock();
        versions.unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn violations(&self) -> u64 {
        [&self.strange, &self.stale, &self.made_up]
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .sum()
    }

    /// Compares a document whose request was sent at `asked`.
    fn compare(&self, resource: usize, document: &OwnedDocument, asked: Instant) {
        self.compared[resource].fetch_add(1, Ordering::Relaxed);
        if document.owner != RESOURCES[resource] {
            self.strange.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if !(1..=ROWS).contains(&document.id) {
            let made_up = u64::from(document.n != OWN_VERSION);
            self.made_up.fetch_add(made_up, Ordering::Relaxed);
            return;
        }
        let versions = self.versions(resource, document.id);
        let old = versions.iter().rev();
        let due = old
            .clone()
            .find(|(at, _)| asked.saturating_duration_since(*at) > STALENESS_MAX);
        if due.is_some_and(|(_, version)| document.n < *version) {
            self.stale.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Counts rows of a resource up, over plain SQL.
pub(crate) async fn write(
    counters: Arc<AnswerCounters>,
    resource: usize,
    url: String,
) -> anyhow::Result<()> {
    let mut session = SqlSession::new(&url, 0)?;
    let mut version = 0;
    while !counters.ended.load(Ordering::Relaxed) {
        version += 1;
        let id = fastrand::usize(1..=ROWS / 10);
        let table = RESOURCES[resource];
        session
            .run(&format!("update {table} set n = {version} where id = {id}"))
            .await?;
        counters
            .versions(resource, id)
            .push((Instant::now(), version));
        sleep(WRITE_PAUSE).await;
    }
    Ok(())
}

/// Reads documents and lists of a resource, one after the other, and writes one now and then.
pub(crate) async fn read(counters: Arc<AnswerCounters>, resource: usize, target: SocketAddr) {
    let mut connection = None;
    while !counters.ended.load(Ordering::Relaxed) {
        let open = match connection.take() {
            Some(open) => Ok(open),
            None => HttpConnection::connect(target).await,
        };
        let Ok(mut open) = open else {
            sleep(RETRY_PAUSE).await;
            continue;
        };
        if timeout(ANSWER_MAX, send(&counters, resource, &mut open))
            .await
            .is_ok_and(|kept| kept)
        {
            connection = Some(open);
        }
    }
}

/// Sends one request; returns whether the connection can still be used.
async fn send(counters: &AnswerCounters, resource: usize, connection: &mut HttpConnection) -> bool {
    let name = RESOURCES[resource];
    let key = if resource == RESOURCES.len() - 1 {
        format!("Authorization: Bearer {KEY}\r\n")
    } else {
        String::new()
    };
    let asked = Instant::now();
    // The rows that change, and as many that do not.
    let id = fastrand::usize(1..=ROWS);
    let list = fastrand::u8(..) < 16;
    let write = fastrand::u8(..) < 8;
    let request = match (list, write) {
        (_, true) => {
            // Above those that change: rows of the readers' own.
            let id = ROWS + fastrand::usize(1..=ROWS);
            let body = format!("{{\"id\":{id},\"owner\":\"{name}\",\"n\":{OWN_VERSION}}}");
            format!(
                "PUT /{name}/{id} HTTP/1.1\r\nHost: localhost\r\n{key}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
        }
        (true, false) => {
            format!("GET /{name}?limit=10&after={id} HTTP/1.1\r\nHost: localhost\r\n{key}\r\n")
        }
        (false, false) => format!("GET /{name}/{id} HTTP/1.1\r\nHost: localhost\r\n{key}\r\n"),
    };
    if connection.send(request.as_bytes()).await.is_err() {
        return false;
    }
    let Ok(answer) = connection.receive().await else {
        return false;
    };
    match answer.status {
        503 | 504 => {
            counters.unavailable.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        200 | 201 | 204 if write => return true,
        200 => {}
        _ => {
            counters.made_up.fetch_add(1, Ordering::Relaxed);
            return true;
        }
    }
    let documents: Result<Vec<OwnedDocument>, _> = if list {
        serde_json::from_slice(answer.body)
    } else {
        serde_json::from_slice(answer.body).map(|document| vec![document])
    };
    let Ok(documents) = documents else {
        counters.made_up.fetch_add(1, Ordering::Relaxed);
        return true;
    };
    if !list && documents.iter().any(|document| document.id != id) {
        counters.made_up.fetch_add(1, Ordering::Relaxed);
    }
    for document in &documents {
        counters.compare(resource, document, asked);
    }
    true
}
