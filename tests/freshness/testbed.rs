//! Larders on one database, and what their documents must be.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::{Instant, timeout};

use crate::documents::oracle::{self, DocumentedResource, DocumentsByPath};
use crate::documents::shapes::documented;
use crate::documents::{CONFIG, ROWS, SCHEMA};
use crate::harness::cluster::TestCluster;
use crate::harness::eventually;
use crate::harness::service::{TestResponse, TestService, execute};

/// A change that is not seen within this time counts as lost.
const SEEN_WITHIN: Duration = Duration::from_secs(10);

/// The document that is updated to find out that a pass has been applied.
const SENTINEL: &str = "/people/sentinel";

/// A database, its larders, and the oracle's connection.
pub(crate) struct FreshnessTestbed {
    pub(crate) url: String,
    pub(crate) larders: Vec<CheckedLarder>,
    oracle: PgConnection,
}

/// A larder and what it held when everything was last right.
pub(crate) struct CheckedLarder {
    pub(crate) service: TestService,
    documented: Vec<DocumentedResource>,
    /// Also of documents that are gone or to come.
    known: BTreeSet<String>,
    before: DocumentsByPath,
}

impl FreshnessTestbed {
    /// One larder with every resource, all documents in its tiers.
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// As [`Self::start`], with settings as flags would give them.
    pub(crate) async fn start_with(overrides: &[(&str, &str)]) -> Self {
        let mut testbed = Self::without_larder(&format!("{SCHEMA}{ROWS}")).await;
        testbed.add(CONFIG, documented(), overrides).await;
        testbed.warm().await;
        testbed
    }

    /// A database after `sql`.
    pub(crate) async fn without_larder(sql: &str) -> Self {
        let url = TestCluster::database().await.url;
        execute(&url, sql).await;
        let oracle = PgConnection::connect(&url).await.unwrap();
        Self {
            url,
            larders: Vec::new(),
            oracle,
        }
    }

    /// Starts one more larder.
    pub(crate) async fn add(
        &mut self,
        config: &str,
        documented: Vec<DocumentedResource>,
        overrides: &[(&str, &str)],
    ) {
        let service = TestService::start_on(&self.url, config, overrides).await;
        self.larders.push(CheckedLarder {
            service,
            documented,
            known: BTreeSet::new(),
            before: DocumentsByPath::new(),
        });
    }

    pub(crate) async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.unwrap()
    }

    /// Brings every document, and every absence of one, into the tiers.
    pub(crate) async fn warm(&mut self) {
        for larder in &mut self.larders {
            larder.warm(&mut self.oracle).await;
        }
    }

    /// Remembers that there is nothing at `paths`, in the first larder.
    pub(crate) async fn warm_absent(&mut self, paths: &[&str]) {
        let paths = paths.iter().map(|&path| path.to_owned());
        self.larders[0].known.extend(paths);
        self.warm().await;
    }

    /// Runs `sql` and checks that the touched documents alone are read again.
    pub(crate) async fn step(&mut self, what: &str, sql: &str) {
        execute(&self.url, sql).await;
        self.settle(what).await;
    }

    /// As [`Self::step`], but documents under these prefixes may become misses without having been touched.
    /// A `merge` is left out by versions that have none.
    pub(crate) async fn step_beyond(&mut self, what: &str, sql: &str, beyond: &[&str]) {
        if sql.contains("merge into ") && !TestCluster::has(15, "merge") {
            return;
        }
        execute(&self.url, sql).await;
        self.settle_beyond(what, beyond).await;
    }

    pub(crate) async fn settle(&mut self, what: &str) {
        self.settle_beyond(what, &[]).await;
    }

    /// Waits for a pass over all that was committed, checks every document, and warms the tiers again.
    pub(crate) async fn settle_beyond(&mut self, what: &str, beyond: &[&str]) {
        self.pass(what).await;
        for larder in &mut self.larders {
            let wrong = larder.wrong(&mut self.oracle, Some(beyond)).await;
            assert!(wrong.is_empty(), "after {what}:\n{}", wrong.join("\n"));
        }
        self.warm().await;
    }

    /// Waits until every document is right, from a tier or from PostgreSQL.
    pub(crate) async fn become_right(&mut self, what: &str) {
        let deadline = Instant::now() + SEEN_WITHIN;
        for larder in &mut self.larders {
            loop {
                let wrong = larder.wrong(&mut self.oracle, None).await;
                if wrong.is_empty() {
                    break;
                }
                assert!(
                    Instant::now() < deadline,
                    "after {what}:\n{}",
                    wrong.join("\n")
                );
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        self.settle_beyond(what, &["/"]).await;
    }

    /// The table behind a resource has changed: from now on the oracle expects this of the first larder.
    pub(crate) fn expect(&mut self, documented: Vec<DocumentedResource>) {
        self.larders[0].documented = documented;
    }

    async fn pass(&mut self, what: &str) {
        let services: Vec<&TestService> =
            self.larders.iter().map(|larder| &larder.service).collect();
        pass(&mut self.oracle, &services, what).await;
    }
}

/// Waits until every service has applied a pass that began after all that is committed by now.
///
/// A pass drops one document after the other, so the second pass proves that the first is applied whole.
pub(crate) async fn pass(connection: &mut PgConnection, services: &[&TestService], what: &str) {
    for _ in 0..2 {
        let visits: i64 = sqlx::query_scalar(
            "update \"Sales\".person set visits = visits + 1 where name = 'sentinel' returning visits",
        )
        .fetch_one(&mut *connection)
        .await
        .unwrap();
        for service in services {
            let seeing = eventually("the sentinel", async || {
                let answer = service.get(SENTINEL).await;
                // While a resource is being checked it may not answer.
                (answer.status == 200 && answer.json()["visits"] == visits).then_some(())
            });
            let seen = timeout(SEEN_WITHIN, seeing).await;
            assert!(seen.is_ok(), "after {what}: the feed stands still");
        }
    }
}

impl CheckedLarder {
    async fn warm(&mut self, oracle: &mut PgConnection) {
        let now = oracle::documents(oracle, &self.documented).await;
        self.known.extend(now.keys().cloned());
        for path in &self.known {
            let answer = eventually(&format!("a hit of {path}"), async || {
                let answer = self.service.get(path).await;
                is_hit(&answer).then_some(answer)
            })
            .await;
            if let Some(wrong) = difference(path, &answer, now.get(path)) {
                panic!("while warming: {wrong}");
            }
        }
        self.before = self.wide(oracle).await;
    }

    async fn wide(&self, oracle: &mut PgConnection) -> DocumentsByPath {
        let wide: Vec<DocumentedResource> = self
            .documented
            .iter()
            .map(DocumentedResource::wide)
            .collect();
        oracle::documents(oracle, &wide).await
    }

    /// What is not right. With `beyond`, untouched documents outside these prefixes must be hits.
    async fn wrong(&mut self, oracle: &mut PgConnection, beyond: Option<&[&str]>) -> Vec<String> {
        let now = oracle::documents(oracle, &self.documented).await;
        let wide = self.wide(oracle).await;
        self.known.extend(now.keys().cloned());
        let mut wrong = Vec::new();
        for path in &self.known {
            let answer = self.service.get(path).await;
            wrong.extend(difference(path, &answer, now.get(path)));
            // A lookup on disk that takes long is a miss, and these are on disk alone.
            let slow = path.starts_with("/meters/") || path == SENTINEL;
            let spared =
                beyond.is_none_or(|beyond| beyond.iter().any(|&prefix| path.starts_with(prefix)));
            let touched = self.before.get(path) != wide.get(path);
            if !(touched || spared || slow || is_hit(&answer)) {
                let status = answer.cache_status();
                wrong.push(format!("{path} was not touched, and is no hit: {status}"));
            }
        }
        wrong
    }
}

pub(crate) fn is_hit(answer: &TestResponse) -> bool {
    answer.cache_status().starts_with("larder; hit; ")
}

fn difference(path: &str, answer: &TestResponse, expected: Option<&String>) -> Option<String> {
    let right = match expected {
        Some(document) => answer.status == 200 && answer.body == *document,
        None => answer.status == 404,
    };
    let expected = expected.map_or("none", String::as_str);
    let TestResponse { status, body, .. } = answer;
    let source = answer.cache_status();
    (!right).then(|| {
        format!("{path}\n  larder {status} {source}\n    {body}\n  oracle\n    {expected}")
    })
}

/// Runs statements on an open connection.
pub(crate) async fn run(connection: &mut PgConnection, sql: &str) {
    let sql = format!("set search_path = \"Sales\"; {sql}");
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(connection)
        .await
        .unwrap();
}
