//! Apache Cassandra: a partition for each slot, and a storage-attached index of the due moments.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use async_trait::async_trait;
use fastrand::Rng;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::statement::batch::{Batch, BatchType};
use scylla::value::{CqlValue, Row};
use tokio::time::{Instant, sleep};

use crate::harness::free_address;
use crate::labs::workers::sql::matching;
use crate::labs::workers::store::{Match, Store};
use crate::labs::workers::subscriber::{Buffer, Columns, NUMBERS, Slot, Subscriber, TEXTS};

const TABLE: &str = "workers.subscriber";
const KEYSPACE: &str = "create keyspace if not exists workers with replication = \
     {'class': 'SimpleStrategy', 'replication_factor': 1}";
const INDEX: &str =
    "create index if not exists due on workers.subscriber (notify_after) using 'sai'";
/// Lists the index once it is built.
const BUILT: &str = "select index_name from system.\"IndexInfo\" where table_name = 'workers'";
const BUILT_MAX: Duration = Duration::from_secs(3_600);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Writes the configuration of a server; returns the arguments of `cassandra.sh`.
pub(super) fn line(at: &str, address: SocketAddr) -> Result<String> {
    let storage = free_address(&mut Rng::new())?;
    let text = include_str!("cassandra.yaml").replace("{at}", at);
    let text = text.replace("{storage}", &storage.port().to_string());
    let text = text.replace("{port}", &address.port().to_string());
    std::fs::write(format!("{at}/cassandra.yaml"), text)?;
    Ok(format!(
        "-Dcassandra.config=file://{at}/cassandra.yaml -Dcassandra.storagedir={at} \
         -Dcassandra.logdir={at}"
    ))
}

/// A session of its own.
pub(super) struct CassandraStore(Session);

impl CassandraStore {
    pub(super) async fn open(address: &str) -> Result<Self> {
        let session = SessionBuilder::new().known_node(address);
        Ok(Self(session.build().await?))
    }

    /// Returns how many rows the statement returned.
    async fn run(&self, statement: &str) -> Result<usize> {
        let result = self.0.query_unpaged(statement, ()).await?;
        Ok(result.into_rows_result().map_or(0, |rows| rows.rows_num()))
    }
}

#[async_trait]
impl Store for CassandraStore {
    async fn create(&mut self, is_reset: bool) -> Result<()> {
        self.run(KEYSPACE).await?;
        if is_reset {
            self.run(&format!("drop table if exists {TABLE}")).await?;
        }
        let (numbers, texts) = (NUMBERS.join(" bigint, "), TEXTS.join(" text, "));
        let key = "primary key ((worker_id, timezone), id)";
        let columns = format!("{numbers} bigint, {texts} text, {key}");
        let create = format!("create table if not exists {TABLE} ({columns})");
        self.run(&create).await.map(|_| ())
    }

    async fn fill(&mut self, rows: &[Subscriber]) -> Result<()> {
        let (columns, values) = (Columns::Full.list(), ["?"; 12].join(", "));
        let insert = format!("insert into {TABLE} ({columns}) values ({values})");
        let insert = self.0.prepare(insert).await?;
        let (mut batch, mut values) = (Batch::new(BatchType::Unlogged), Vec::new());
        for row in rows {
            batch.append_statement(insert.clone());
            let numbers = row.numbers.map(|number| CqlValue::BigInt(number.into()));
            let texts = row.texts.iter().map(|text| CqlValue::Text(text.clone()));
            values.push(numbers.into_iter().chain(texts).collect::<Vec<_>>());
        }
        self.0.batch(&batch, &values).await?;
        Ok(())
    }

    async fn index(&mut self) -> Result<()> {
        self.run(INDEX).await?;
        let deadline = Instant::now() + BUILT_MAX;
        while self.run(BUILT).await? == 0 {
            ensure!(Instant::now() < deadline, "the index is not built");
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    async fn find(&mut self, query: Match, found: &mut Buffer) -> Result<()> {
        let rows = self.0.query_unpaged(matching(TABLE, query), ()).await?;
        for row in rows.into_rows_result()?.rows::<Row>()? {
            let row = row?.columns;
            let number = |place: usize| match row.get(place) {
                Some(Some(CqlValue::BigInt(number))) => Ok(u32::try_from(*number)?),
                other => bail!("column {place} is {other:?}"),
            };
            let text = |place: usize| match row.get(place) {
                Some(Some(CqlValue::Text(text))) => Ok(text.as_str()),
                other => bail!("column {place} is {other:?}"),
            };
            found.add().read(query.columns, number, text)?;
        }
        Ok(())
    }

    /// Returns how many rows were given: Cassandra tells nothing.
    async fn move_due(&mut self, slot: Slot, ids: &[u32], due: u32) -> Result<usize> {
        let list: Vec<String> = ids.iter().map(u32::to_string).collect();
        let (Slot(worker, time_zone), list) = (slot, list.join(","));
        let slot = format!("worker_id = {worker} and timezone = {time_zone}");
        let set = format!("update {TABLE} set notify_after = {due}");
        self.run(&format!("{set} where {slot} and id in ({list})"))
            .await?;
        Ok(ids.len())
    }
}
