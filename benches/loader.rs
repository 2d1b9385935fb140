//! How many documents does the loader read in a second, by the number of keys that share a statement?
//!
//! It reads 1, 16 and 256 random departments at a time, of one `dept` and ten `emp` rows, from PostgreSQL's rows to
//! JSON, over a private PostgreSQL of the bench's own. The last step, from one record to its JSON, is also measured
//! alone.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use criterion::{Criterion, Throughput};
use fastrand::Rng;
use larder::clock::Boottime;
use larder::config::Config;
use larder::resource::Resource;
use larder::resource::resolve::resolve;
use larder::source::catalogue::read_catalogue;
use larder::source::connections::Connections;
use larder::source::loader::{Load, Loader, SentAt};
use larder::source::session::{Database, read_identity};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection, Row, ValueRef};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc;

mod postgres;

use crate::postgres::{DEMO, with_postgres};

const DEPTS: u32 = 10_000;

fn main() -> anyhow::Result<()> {
    // On one thread all keys are queued before the loader takes them.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    with_postgres(&runtime, DEPTS, |url| measure(&runtime, url))
}

fn measure(runtime: &Runtime, url: &str) -> anyhow::Result<()> {
    let mut criterion = Criterion::default().configure_from_args();
    let config = Config::from_toml(DEMO, &[])?;
    let database = Database::new(url, false, config.source.statement_timeout)?;
    let _entered = runtime.enter();
    let (resource, loader, record) = runtime.block_on(async {
        larder::feed::install(&database, &config.resources, &config.feed).await?;
        let mut connection = database.connect().await?.connection;
        let resource = Arc::new(resource(&mut connection, &config).await?);
        let record = record(&mut connection, &resource).await?;
        let identity = read_identity(&mut connection).await?;
        connection.close().await?;
        let wait_max = config.request_timeout;
        let loader = Loader::start(
            Connections::new(database.clone(), config.source.connections, wait_max),
            usize::MAX,
            Duration::ZERO,
            &[Handle::current()],
            |_| {},
        );
        loader.follow(Some(identity));
        anyhow::Ok((resource, loader, record))
    })?;
    let mut rng = Rng::with_seed(42);
    let mut group = criterion.benchmark_group("documents");
    for keys in [1, 16, 256] {
        group.throughput(Throughput::Elements(keys));
        group.bench_function(format!("{keys} keys a statement"), |bencher| {
            bencher.iter(|| runtime.block_on(load(&loader, &resource, keys, &mut rng)));
        });
    }
    group.throughput(Throughput::Elements(1));
    let mut json = Vec::new();
    group.bench_function("rendering", |bencher| {
        bencher.iter(|| {
            json.clear();
            resource.template.render(&record, usize::MAX, &mut json)
        });
    });
    ensure!(json.len() > 1_000, "the document is too short");
    group.finish();
    runtime.block_on(loader.stop());
    criterion.final_summary();
    Ok(())
}

async fn resource(connection: &mut PgConnection, config: &Config) -> anyhow::Result<Resource> {
    let names = ["public.dept".to_owned(), "public.emp".to_owned()];
    let catalogue = read_catalogue(connection, &names).await?;
    let resources = resolve(&config.resources, &catalogue);
    let resources = resources.map_err(|mistakes| anyhow!("{mistakes:?}"))?;
    resources.into_iter().next().context("no resource")
}

async fn record(connection: &mut PgConnection, resource: &Resource) -> anyhow::Result<Vec<u8>> {
    let rows = sqlx::query(AssertSqlSafe(resource.documents_sql.as_str()))
        .bind(vec![1_i64])
        .bind(i64::MAX)
        .fetch_all(connection)
        .await?;
    // The row without a key is the proof.
    let document = |row: &&PgRow| matches!(row.try_get_raw(0), Ok(key) if !key.is_null());
    let row = rows.iter().find(document).context("no document")?;
    let record = row.try_get_raw(1)?.as_bytes();
    Ok(record.map_err(|error| anyhow!("{error}"))?.to_vec())
}

/// Gives `keys` keys to the loader and waits for their documents.
async fn load(
    loader: &Loader,
    resource: &Arc<Resource>,
    keys: u64,
    rng: &mut Rng,
) -> anyhow::Result<()> {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    for _ in 0..keys {
        let sender = sender.clone();
        let key = 1 + rng.usize(..DEPTS as usize);
        loader.load(Load {
            resource: Arc::clone(resource),
            key: key.to_string().into(),
            asked_at: Boottime::now(),
            until: None,
            sent_at: SentAt::default(),
            done: Box::new(move |loaded, _| {
                // The receiver waits for every document.
                let _received = sender.send(loaded);
            }),
        });
    }
    drop(sender);
    let mut documents = 0;
    while let Some(loaded) = receiver.recv().await {
        documents += u64::from(loaded?.is_some());
    }
    ensure!(documents == keys, "{documents} documents for {keys} keys");
    Ok(())
}
