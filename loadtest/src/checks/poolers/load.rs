//! Writers and readers of rows that name their table, and the check of each answer.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use testkit::http::{Client, Request};
use tokio::time::{Instant, sleep};

use crate::harness::session::SqlSession;

/// The resources, each of a table of its name. Anonymous readers may not read the last one.
pub(crate) const RESOURCES: [&str; 3] = ["alpha", "beta", "secret"];
/// The API key with which the last one may be read.
const KEY: &str = "test";

/// Documents of each resource: more than memory holds, so that most reads go to PostgreSQL.
pub(crate) const ROWS: usize = 5_000;
/// The constant value of the readers' own rows.
const OWN_VERSION: u64 = 1;
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
    let mut client = Client::new(target);
    while !counters.ended.load(Ordering::Relaxed) {
        if send(&counters, resource, &mut client).await.is_err() {
            sleep(RETRY_PAUSE).await;
        }
    }
}

/// Sends one request, and counts its answer.
async fn send(
    counters: &AnswerCounters,
    resource: usize,
    client: &mut Client,
) -> anyhow::Result<()> {
    let name = RESOURCES[resource];
    let asked = Instant::now();
    // The rows that change, and as many that do not.
    let id = fastrand::usize(1..=ROWS);
    let list = fastrand::u8(..) < 16;
    let write = fastrand::u8(..) < 8;
    let mut request = match (list, write) {
        (_, true) => {
            // Above those that change: rows of the readers' own.
            let id = ROWS + fastrand::usize(1..=ROWS);
            let body = format!("{{\"id\":{id},\"owner\":\"{name}\",\"n\":{OWN_VERSION}}}");
            Request::new("PUT", format!("/{name}/{id}")).with_body("application/json", body)
        }
        (true, false) => Request::get(format!("/{name}?limit=10&after={id}")),
        (false, false) => Request::get(format!("/{name}/{id}")),
    };
    if resource == RESOURCES.len() - 1 {
        request = request.with("authorization", format!("Bearer {KEY}"));
    }
    let answer = client.send(&request).await?;
    match answer.status {
        503 | 504 => {
            counters.unavailable.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        200 | 201 | 204 if write => return Ok(()),
        200 => {}
        _ => {
            counters.made_up.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
    }
    let documents: Result<Vec<OwnedDocument>, _> = if list {
        serde_json::from_slice(&answer.body)
    } else {
        serde_json::from_slice(&answer.body).map(|document| vec![document])
    };
    let Ok(documents) = documents else {
        counters.made_up.fetch_add(1, Ordering::Relaxed);
        return Ok(());
    };
    if !list && documents.iter().any(|document| document.id != id) {
        counters.made_up.fetch_add(1, Ordering::Relaxed);
    }
    for document in &documents {
        counters.compare(resource, document, asked);
    }
    Ok(())
}
