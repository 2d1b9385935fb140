//! Foreign tables below tables that larder follows, or beside them below an ancestor: PostgreSQL refuses statements
//! that change a foreign table through a parent whose triggers have transition tables.

use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::time::Instant;

use super::Injection;
use super::ancestors::{self, Lineage, Through, define};
use crate::harness::session::SqlSession;
use crate::harness::testbed::Testbed;
use crate::workload::{SCHEMA, TABLES};

/// Where the foreign tables' rows are, another database of the same server.
const DATABASE: &str = "elsewhere";
/// One in each table, of a document that is never read: PostgreSQL refuses only statements that meet such a row.
const ROWS: &str = "insert into site values (2000000000, 1); insert into root values (2000000000, 2000000000, 1, ''); \
    insert into child values (2000000000, 2000000000, 1); insert into grandchild values (2000000000, 2000000000, 1)";
const AVAILABLE: &str =
    "select name::text from pg_available_extensions where name = 'postgres_fdw'";
const TAKE_BACK: &str = "drop extension if exists postgres_fdw cascade";
/// Transactions through the parent, or directly.
const WRITES: usize = 25;

/// So long larder may take to see that a table has another one below it.
const SEEN_MAX: Duration = Duration::from_secs(30);

/// Where a foreign table comes.
#[derive(Clone, Copy, Debug)]
enum ForeignTablePosition {
    /// Below an ancestor that a followed table was attached to.
    Beside,
    /// Below a followed table that has another table below it already. One that has none has triggers with transition
    /// tables, and statements fail until larder has put others in their place.
    Below,
}

/// Attaches a foreign table while larder runs, changes documents by statements that name its parent, and takes it away.
pub(super) async fn attach(testbed: &mut Testbed) -> anyhow::Result<Injection> {
    if testbed.session.texts(AVAILABLE).await?.is_empty() {
        let reason = "postgres_fdw is not installed (Debian: apt-get install postgresql)";
        return Ok(Injection::Impossible(reason.into()));
    }
    prepare(testbed).await?;
    let outcome = attach_and_write(testbed).await;
    testbed.renew_session().await;
    take_back(testbed).await?;
    outcome?;
    testbed.hold(1.2).await;
    Ok(Injection::Done)
}

/// The URL of another database of the server, which has the same tables.
pub(super) async fn other_database(testbed: &mut Testbed) -> anyhow::Result<String> {
    let url = testbed
        .postgres
        .url()
        .replace("/larder?", &format!("/{DATABASE}?"));
    let there = format!("select datname::text from pg_database where datname = '{DATABASE}'");
    if testbed.session.texts(&there).await?.is_empty() {
        let create = format!("create database {DATABASE}");
        testbed.session.run(&create).await?;
        let mut session = SqlSession::new(&url, 0)?;
        session.run(SCHEMA).await?;
        session.run(ROWS).await?;
    }
    Ok(url)
}

async fn prepare(testbed: &mut Testbed) -> anyhow::Result<()> {
    let url = other_database(testbed).await?;
    take_back(testbed).await?;
    // postgres://user:password@host:port/database
    let parts = url.split_once("://").and_then(|(_, rest)| {
        let (user, rest) = rest.split_once('@')?;
        let (user, password) = user.split_once(':')?;
        let (host, port) = rest.split_once('/')?.0.rsplit_once(':')?;
        Some([user, password, host, port])
    });
    let [user, password, host, port] = parts.context("PostgreSQL's URL")?;
    let sql = format!(
        "create extension postgres_fdw; \
         create server {DATABASE} foreign data wrapper postgres_fdw \
           options (host '{host}', port '{port}', dbname '{DATABASE}', sslmode 'disable'); \
         create user mapping for public server {DATABASE} options (user '{user}', password '{password}')"
    );
    Ok(testbed.session.run(&sql).await?)
}

async fn take_back(testbed: &mut Testbed) -> anyhow::Result<()> {
    define(testbed, TAKE_BACK).await?;
    let below = TABLES.map(|table| format!("{table}_below")).join(", ");
    define(testbed, &format!("drop table if exists {below}")).await?;
    ancestors::take_back(testbed).await
}

/// Waits until larder has seen that the table has another one below it.
async fn await_row_triggers(testbed: &mut Testbed, table: &str) -> anyhow::Result<()> {
    let statement_triggers = format!(
        "select tgname::text from pg_trigger where tgrelid = '{table}'::regclass \
         and (tgoldtable is not null or tgnewtable is not null)"
    );
    let until = Instant::now() + SEEN_MAX;
    while !testbed.session.texts(&statement_triggers).await?.is_empty() {
        let waited = format!("{table} has triggers with transition tables for {SEEN_MAX:?}");
        ensure!(Instant::now() < until, waited);
        testbed.hold(0.1).await;
    }
    Ok(())
}

async fn attach_and_write(testbed: &mut Testbed) -> anyhow::Result<()> {
    let place = [ForeignTablePosition::Beside, ForeignTablePosition::Below][testbed.rng.usize(..2)];
    let line = match place {
        ForeignTablePosition::Beside => Lineage::draw(&mut testbed.rng).remove(0),
        ForeignTablePosition::Below => Lineage::itself(TABLES[testbed.rng.usize(..TABLES.len())]),
    };
    line.attach_all(testbed).await?;
    let (above, table) = (line.name(line.levels), line.table);
    let pause = match place {
        // larder gets to know the ancestors, or not.
        ForeignTablePosition::Beside => [0.0, 1.5][testbed.rng.usize(..2)],
        ForeignTablePosition::Below => {
            let create = format!("create table {table}_below () inherits ({table})");
            define(testbed, &create).await?;
            await_row_triggers(testbed, table).await?;
            0.0
        }
    };
    testbed.hold(pause).await;
    let below = if line.is_partitioned() {
        format!("partition of {above} default")
    } else {
        format!("() inherits ({above})")
    };
    let sql = format!(
        "create foreign table foreign_{table} {below} server {DATABASE} options (table_name '{table}')"
    );
    define(testbed, &sql).await?;
    let all = |revision| format!("update {above} set revision = {revision}");
    let mut through = match place {
        ForeignTablePosition::Beside => Some(Through::new(testbed, vec![line.clone()])?),
        ForeignTablePosition::Below => None,
    };
    for _ in 0..2 {
        match &mut through {
            Some(through) => {
                let mut written = 0;
                for _ in 0..WRITES {
                    written += u32::from(through.write().await?);
                }
                ensure!(written > 0, "nothing was written through {above}");
            }
            None => testbed.write(WRITES, "").await?,
        }
        testbed.revise_all(&[table], all).await?;
        testbed.hold(1.2).await;
    }
    Ok(())
}
