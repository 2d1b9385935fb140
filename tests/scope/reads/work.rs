//! What larder does before it says that a document is absent is the same for one of another owner: the same statements in
//! the same order, the same lookups, and while PostgreSQL is out of reach, a pause that hides the lookup on disk.
//!
//! A difference would show in the time of the answer, which no test can compare on a machine that does other things.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::StatusCode;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use testkit::fault_proxy::{FaultProxy, NetworkFault};
use tokio::time::Instant;

use super::outage::{LASTING, warm};
use super::{RESOURCES, SCHEMA, config, customer};
use crate::harness::cluster::start_postgres;
use crate::harness::service::{TestService, execute};
use crate::harness::{eventually, reachable_directory};

/// Of documents that customer 17 must not see: one that the tiers have, one that they have not, an absent one that the tiers
/// remember, and an absent one that nobody has asked for.
const KEYS: [u32; 4] = [5, 8, 11, 12];

/// The feed's statements would stand between those of requests.
const RARE_PASSES: [(&str, &str); 3] = [
    ("feed.poll_interval", "5min"),
    ("feed.max_staleness", "10min"),
    ("feed.notify", "false"),
];

/// A lookup on disk takes at most 200 ms.
const PAUSE: Duration = Duration::from_millis(250);

/// Names a document by its key, by its alias, or among others.
fn paths(resource: &str, key: u32) -> [String; 5] {
    [
        format!("/{resource}/{key}"),
        format!("/{resource}/by/number/N%2F{key}"),
        format!("/{resource}?keys={key}"),
        format!("/{resource}?keys=1,{key}"),
        format!("/{resource}?by=number&keys=N%2F1,N%2F{key}"),
    ]
}

/// The log of a PostgreSQL that logs each statement.
struct StatementLog {
    directory: PathBuf,
    connection: PgConnection,
    marks: usize,
}

impl StatementLog {
    /// The statements that came to an end since the last call, without their parameters.
    async fn take(&mut self) -> Vec<String> {
        let [last, next] =
            [self.marks, self.marks + 1].map(|mark| format!("select 'mark {mark} of the test'"));
        self.marks += 1;
        sqlx::raw_sql(AssertSqlSafe(next.clone()))
            .execute(&mut self.connection)
            .await
            .unwrap();
        let log = eventually("the log has the mark", async || {
            let mut log = String::new();
            for file in fs::read_dir(&self.directory).ok()? {
                log += &fs::read_to_string(file.unwrap().path()).unwrap();
            }
            let (before, _) = log.split_once(&next)?;
            let (_, since) = before.split_once(&last).unwrap_or(("", before));
            Some(since.to_owned())
        })
        .await;
        let entries = log.split("\nLOG:  ").skip(1);
        let executed = entries.filter_map(|entry| entry.split_once(": "));
        let statements = executed.map(|(_, statement)| {
            let (statement, _) = statement
                .split_once("\nDETAIL:  ")
                .unwrap_or((statement, ""));
            statement.to_owned()
        });
        // The last one is the mark's own.
        let mut statements: Vec<String> = statements.collect();
        statements.pop();
        statements
    }
}

/// The lookups of a resource, and those that a tier has answered.
async fn lookups(larder: &TestService, resource: &str) -> [u64; 3] {
    let status = larder.admin("/status").await.json();
    let mut resources = status["resources"].as_array().unwrap().iter();
    let found = resources.find(|found| found["name"] == resource).unwrap();
    ["lookups", "hits_memory", "hits_disk"].map(|count| found[count].as_u64().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_is_done_for_a_document_of_another_owner_as_for_an_absent_one() {
    let base = reachable_directory();
    let settings = [
        ("logging_collector", "on"),
        ("log_statement", "all"),
        ("log_line_prefix", ""),
    ];
    let postgres = start_postgres(base.path(), &settings).await;
    execute(postgres.url(), SCHEMA).await;
    let settings = [&LASTING[2..], &RARE_PASSES].concat();
    let larder = TestService::start_on(postgres.url(), &config(), &settings).await;
    warm(&larder).await;
    larder.feed_rests().await;
    let mut log = StatementLog {
        directory: postgres.data_directory().join("log"),
        connection: larder.connect().await,
        marks: 0,
    };
    let who = customer(17);
    for (resource, _) in RESOURCES {
        // Connections are opened, and the documents of the customer have come to the tiers.
        for path in paths(resource, 2) {
            who.get(&larder, &path).await;
        }
        let mut work = Vec::new();
        for key in KEYS {
            for path in paths(resource, key) {
                log.take().await;
                let before = lookups(&larder, resource).await;
                let answer = who.get(&larder, &path).await;
                let after = lookups(&larder, resource).await;
                let statements = log.take().await;
                assert!(!statements.is_empty(), "{path}");
                let looked_up: Vec<u64> = after
                    .iter()
                    .zip(before)
                    .map(|(after, before)| after - before)
                    .collect();
                work.push((answer.status, looked_up, statements));
            }
        }
        let absent = work.split_off(work.len() - paths(resource, 1).len());
        for (number, done) in work.iter().enumerate() {
            assert_eq!(*done, absent[number % absent.len()], "{resource}: {number}");
        }
    }
    log.connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_hides_the_lookups_by_a_pause() {
    let base = reachable_directory();
    let postgres = start_postgres(base.path(), &[]).await;
    execute(postgres.url(), SCHEMA).await;
    let proxy = FaultProxy::start(postgres.url()).await.unwrap();
    let larder = TestService::start_on(&proxy.url, &config(), &LASTING).await;
    warm(&larder).await;
    proxy.set(NetworkFault::Cut);
    for (resource, _) in RESOURCES {
        for key in KEYS {
            let [path, ..] = paths(resource, key);
            let began = Instant::now();
            let answer = customer(17).get(&larder, &path).await;
            assert!(began.elapsed() >= PAUSE, "{path}: {:?}", began.elapsed());
            assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        }
    }
}
