//! What a match costs its client, its plan, and how long workers take to read their rows into memory.

use alloc_tracker::Session;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::labs::workers::fill;
use crate::labs::workers::round::{LARGE_ROWS, Setting};
use crate::labs::workers::store::{Match, Place};
use crate::labs::workers::subscriber::{Buffer, Columns, Population, Slot};

/// Matches of each time zone.
const PASSES: u32 = 2;
/// With which workers read their rows, besides that of the ids.
const INDEXES: [Option<&str>; 3] = [None, Some("(worker_id)"), Some("(worker_id, id)")];

/// Measures matches of all due rows of the first worker, one after the other on one connection: short and full rows, into
/// fresh and into reused buffers.
pub(super) async fn measure(place: &Place, setting: &Setting) -> Result<Vec<Value>> {
    let (mut store, mut lines) = (place.open().await?, Vec::new());
    let time_zones = setting.values[2];
    let (matches, name) = (PASSES * time_zones, place.kind.name());
    let all = [Columns::Short, Columns::Full].map(|of| [(of, "fresh"), (of, "reused")]);
    for (columns, buffer_name) in all.into_iter().flatten() {
        let session = Session::new().no_file().no_stdout();
        let operation = session.operation("match");
        let (mut buffer, mut documents) = (Buffer::default(), 0);
        // What is prepared once is not counted.
        store.find(query(setting, 0, columns), &mut buffer).await?;
        let began = Instant::now();
        {
            let _span = operation.measure_process().iterations(matches.into());
            for number in 0..matches {
                buffer.clear();
                if buffer_name == "fresh" {
                    buffer = Buffer::default();
                }
                let query = query(setting, number % time_zones, columns);
                store.find(query, &mut buffer).await?;
                documents += buffer.rows().len();
            }
        }
        let ns = began.elapsed().as_secs_f64() * 1e9 / f64::from(matches);
        let report = session.to_report();
        let (_, counted) = report.operations().next().context("nothing was counted")?;
        // Counts are far below 2^52, so the cast is exact.
        lines.push(json!({
            "rows": setting.rows(), "store": name, "row": format!("{columns:?}").to_lowercase(), "buffer": buffer_name,
            "ns": ns, "bytes": counted.bytes(), "allocations": counted.allocations(),
            "documents": documents as f64 / f64::from(matches)
        }));
    }
    Ok(lines)
}

fn query(setting: &Setting, time_zone: u32, columns: Columns) -> Match {
    Match::new(Slot(0, time_zone), u32::MAX, setting.batch(), columns)
}

/// Returns the plans of a match with and without a limit, if the store tells them.
pub(super) async fn plans(place: &Place, setting: &Setting) -> Result<Vec<Value>> {
    let (mut store, mut lines) = (place.open().await?, Vec::new());
    for limit in [None, setting.batch()] {
        let query = Match {
            limit,
            ..query(setting, 0, Columns::Short)
        };
        if let Some((plan, examined)) = store.plan(query).await? {
            let mut found = Buffer::default();
            store.find(query, &mut found).await?;
            let (rows, name, documents) = (setting.rows(), place.kind.name(), found.rows().len());
            lines.push(json!({
                "rows": rows, "store": name, "limit": limit, "plan": plan, "examined": examined,
                "documents": documents
            }));
        }
    }
    Ok(lines)
}

/// Fills a table and measures how long workers take to read their rows at once, by pages, with each index of a SQL server; of
/// PostgreSQL, only the reference is measured.
pub(super) async fn loadings(place: &Place, all: Population, rows: u32) -> Result<Vec<Value>> {
    let (mut store, mut lines, mut plain_s) = (place.open().await?, Vec::new(), None);
    let sql = store.sql().filter(|sql| sql.table == "subscriber");
    let Some(sql) = sql else { return Ok(lines) };
    let name = place.kind.name();
    let workers = if rows < LARGE_ROWS { all.workers } else { 2 };
    fill::reset(place).await?;
    fill::fill(place, Population { workers, ..all }, &[(0, rows)]).await?;
    for index in INDEXES {
        if let Some(columns) = index {
            sql.create_loading(columns).await?;
        }
        sql.analyze().await?;
        let (seconds, documents) = load(place, workers).await?;
        let (plan, examined) = sql.connection.explain(&sql.page(0, 0)).await?;
        if index.is_some() {
            sql.drop_loading().await?;
        }
        let ratio = seconds / *plain_s.get_or_insert(seconds);
        lines.push(json!({
            "rows": rows, "workers": workers, "store": name, "index": index.unwrap_or("no index"),
            "s": seconds, "ratio": ratio, "documents": documents, "plan": plan,
            "examined": examined
        }));
    }
    Ok(lines)
}

/// Returns the seconds until all workers have their rows, and how many the first one has.
async fn load(place: &Place, workers: u32) -> Result<(f64, usize)> {
    let (mut tasks, began, mut first) = (JoinSet::new(), Instant::now(), 0);
    for worker in 0..workers {
        let place = place.clone();
        tasks.spawn(async move {
            let mut store = place.open().await?;
            let rows = store.sql().context("no SQL")?.load(worker).await?;
            anyhow::Ok((worker, rows.iter().map(Vec::len).sum()))
        });
    }
    while let Some(ended) = tasks.join_next().await {
        let (worker, count) = ended??;
        first = if worker == 0 { count } else { first };
    }
    Ok((began.elapsed().as_secs_f64(), first))
}
