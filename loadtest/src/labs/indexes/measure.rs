//! Runs statements, each after a checkpoint: medians of time, buffers and WAL.

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use crate::harness::progress;
use crate::harness::session::SqlSession;
use crate::labs::indexes::{Advice, persons};
use crate::report::statistics::Spread;

const TURNS: usize = 20;
/// Each turn writes so many.
pub(super) const ROWS: u32 = 1_000;
/// Rows are written with so many indexes, and these are the next ones.
pub(super) const STEPS: [(usize, &[&str]); 4] = [
    (0, &[]),
    (1, &["(age)"]),
    (3, &["(lastname)", "(number)"]),
    (5, &["(lastname, age)", "(firstname)"]),
];
pub(super) const INSERT: &str = "insert";
pub(super) const UPDATE: &str = "update, not HOT";
pub(super) const HOT_UPDATE: &str = "update, HOT";
pub(super) const DELETE: &str = "delete";
pub(super) const VACUUM: &str = "vacuum after it";
pub(super) const OPERATIONS: [&str; 5] = [INSERT, HOT_UPDATE, UPDATE, DELETE, VACUUM];

/// One run of a statement, or the medians of several.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Turn {
    /// The nodes of the plan, from the top.
    pub(super) nodes: Vec<String>,
    /// Pages that were found in PostgreSQL's cache or read.
    pub(super) buffers: f64,
    pub(super) planning_ms: f64,
    pub(super) execution_ms: f64,
    /// With full-page images.
    pub(super) wal_bytes: f64,
    /// Full-page images: PostgreSQL writes a page at its first change after a checkpoint.
    pub(super) image_bytes: f64,
}

/// A query with an index. `enable_seqscan = off`: an index is used if it can serve.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Read {
    pub(super) query: String,
    pub(super) index: String,
    /// PostgreSQL uses the index without that setting, too.
    pub(super) is_chosen: bool,
    pub(super) turn: Turn,
    pub(super) build: Turn,
    pub(super) index_bytes: f64,
    /// What `larder check` says beside the index, if it was asked.
    pub(super) advice: Option<Advice>,
}

/// An operation with so many indexes.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Write {
    pub(super) operation: String,
    pub(super) indexes: usize,
    pub(super) turn: Turn,
}

impl Turn {
    /// Reads the JSON of `explain`.
    fn parse(json: &str) -> Option<Self> {
        let json: Value = serde_json::from_str(json).ok()?;
        let figure = |place: &str| json.pointer(place)?.as_f64();
        let mut nodes = Vec::new();
        let mut plan = json.pointer("/0/Plan");
        while let Some(node) = plan {
            nodes.push(node.get("Node Type")?.as_str()?.to_owned());
            plan = node.pointer("/Plans/0");
        }
        Some(Self {
            nodes,
            buffers: figure("/0/Plan/Shared Hit Blocks")? + figure("/0/Plan/Shared Read Blocks")?,
            planning_ms: figure("/0/Planning Time")?,
            execution_ms: figure("/0/Execution Time")?,
            wal_bytes: figure("/0/Plan/WAL Bytes")?,
            image_bytes: 0.0,
        })
    }

    /// The medians, with the last plan.
    fn median(turns: &[Self]) -> Option<Self> {
        let median = |of: fn(&Self) -> f64| Some(Spread::of(turns.iter().map(of))?.median);
        Some(Self {
            nodes: turns.last()?.nodes.clone(),
            buffers: median(|turn| turn.buffers)?,
            planning_ms: median(|turn| turn.planning_ms)?,
            execution_ms: median(|turn| turn.execution_ms)?,
            wal_bytes: median(|turn| turn.wal_bytes)?,
            image_bytes: median(|turn| turn.image_bytes)?,
        })
    }

    pub(super) fn uses_index(&self) -> bool {
        self.nodes.iter().any(|node| node.contains("Index"))
    }

    /// WAL without full-page images, for each written row.
    pub(super) fn record_bytes(&self) -> f64 {
        (self.wal_bytes - self.image_bytes) / f64::from(ROWS)
    }
}

fn explained(sql: &str) -> String {
    format!("explain (analyze, buffers, wal, format json) {sql}")
}

/// Runs a statement. What returns no plan is timed from here, and its WAL is that of tables and indexes.
async fn turn(session: &mut SqlSession, sql: &str) -> anyhow::Result<Turn> {
    session.run("checkpoint").await?;
    let from = "select pg_current_wal_insert_lsn()";
    let from = session.texts(from).await?.concat();
    let began = Instant::now();
    let plan = session.texts(sql).await.with_context(|| sql.to_owned())?;
    let took = began.elapsed();
    // This commit waits until all WAL before it is on disk; VACUUM does not.
    let flush = "select pg_logical_emit_message(true, '', '')";
    session.run(flush).await?;
    let wal = format!(
        "select unnest(array[sum(record_size + fpi_size), sum(fpi_size)]) \
         from pg_get_wal_stats('{from}', pg_current_wal_flush_lsn()) \
         where \"resource_manager/record_type\" in ('Heap', 'Heap2', 'Btree', 'Hash', 'XLOG')"
    );
    let wal = session.texts(&wal).await?;
    let [wal_bytes, image_bytes] = wal.as_slice() else {
        anyhow::bail!("PostgreSQL returned {wal:?} for the sizes of WAL");
    };
    let mut turn = Turn {
        execution_ms: took.as_secs_f64() * 1e3,
        wal_bytes: wal_bytes.parse()?,
        ..Turn::default()
    };
    if !plan.is_empty() {
        let parsed = Turn::parse(&plan.concat());
        turn = parsed.with_context(|| format!("the plan of {sql} was not understood"))?;
    }
    turn.image_bytes = image_bytes.parse()?;
    Ok(turn)
}

/// Takes turns of each statement, one after the other.
async fn medians<const N: usize>(
    session: &mut SqlSession,
    statements: &[String; N],
) -> anyhow::Result<[Turn; N]> {
    let mut turns = [const { Vec::new() }; N];
    for _ in 0..TURNS {
        for (turns, sql) in turns.iter_mut().zip(statements) {
            turns.push(turn(session, sql).await?);
        }
    }
    Ok(turns.map(|turns| Turn::median(&turns).unwrap_or_default()))
}

/// Creates an index and measures a query with it.
pub(super) async fn read(
    session: &mut SqlSession,
    query: &str,
    index: &str,
) -> anyhow::Result<Read> {
    let (mut build, mut index_bytes) = (Turn::default(), 0.0);
    if index != persons::NONE {
        let create = format!("create index person_index on person {index}");
        build = turn(session, &create).await?;
        let bytes = "select pg_relation_size('person_index')";
        index_bytes = session.texts(bytes).await?.concat().parse()?;
    }
    let sql = explained(&persons::sql(query));
    let is_chosen = turn(session, &sql).await?.uses_index();
    session.run("set enable_seqscan = off").await?;
    let [turn] = medians(session, &[sql]).await?;
    session.run("reset enable_seqscan").await?;
    Ok(Read {
        query: query.to_owned(),
        index: index.to_owned(),
        is_chosen,
        turn,
        build,
        index_bytes,
        advice: None,
    })
}

/// Drops the primary key and measures all operations, which leave the table as it was.
pub(super) async fn writes(
    session: &mut SqlSession,
    rows: u32,
    seed: u64,
) -> anyhow::Result<Vec<Write>> {
    session
        .run("alter table person drop constraint person_pkey")
        .await?;
    // A page has room for a second version of each of its rows: an update can be HOT.
    session
        .run("alter table person set (fillfactor = 40)")
        .await?;
    let pages = "select pg_relation_size('person') / current_setting('block_size')::int - 1";
    let pages = session.texts(pages).await?.concat();
    let place = format!("where ctid >= '({pages},0)' and id > {rows}");
    let statements = [
        explained(&persons::insert(rows + 1, rows + ROWS, rows, seed)),
        explained(&format!("update person set visits = visits + 1 {place}")),
        explained(&format!("update person set age = age + 1 {place}")),
        explained(&format!("delete from person {place}")),
        // PostgreSQL leaves the entries of few rows in indexes otherwise.
        "vacuum (index_cleanup on) person".to_owned(),
    ];
    let mut writes = Vec::new();
    for (indexes, added) in STEPS {
        progress::note(indexes, "5", "indexes, for writes");
        for index in added {
            session
                .run(&format!("create index on person {index}"))
                .await?;
        }
        let turns = medians(session, &statements).await?.into_iter();
        writes.extend(OPERATIONS.iter().zip(turns).map(|(name, turn)| Write {
            operation: (*name).to_owned(),
            indexes,
            turn,
        }));
    }
    Ok(writes)
}
