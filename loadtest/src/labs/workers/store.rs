//! What every store does, and which stores there are.

use anyhow::{Context, Result};
use async_trait::async_trait;
use clap::ValueEnum;

use crate::labs::workers;
use crate::labs::workers::postgres::Postgresql;
use crate::labs::workers::sql::SqlStore;
use crate::labs::workers::subscriber::{Buffer, Columns, Slot, Subscriber};

/// A question for due rows of one slot.
#[derive(Clone, Copy)]
pub(super) struct Match {
    pub(super) slot: Slot,
    /// Rows that are due then, in seconds since 1970.
    pub(super) due: u32,
    /// Rows at most.
    pub(super) limit: Option<u32>,
    pub(super) columns: Columns,
}

impl Match {
    pub(super) fn new(slot: Slot, due: u32, limit: Option<u32>, columns: Columns) -> Self {
        Self {
            slot,
            due,
            limit,
            columns,
        }
    }
}

/// How a store finds rows, and how many entries of an index or rows it looked at, if it counts them.
pub(super) type Plan = (String, Option<f64>);

/// One connection to a store.
#[async_trait]
pub(super) trait Store: Send {
    /// Creates the table where it is missing; if `is_reset`, removes rows and indexes first.
    async fn create(&mut self, is_reset: bool) -> Result<()>;

    /// Adds rows; returns when they are committed.
    async fn fill(&mut self, rows: &[Subscriber]) -> Result<()>;

    /// Creates the index of the match, where there is one, and gathers what plans rest on.
    async fn index(&mut self) -> Result<()>;

    /// Adds the rows of a match to `found`.
    async fn find(&mut self, query: Match, found: &mut Buffer) -> Result<()>;

    /// Moves the due moment of rows of one slot; returns how many were moved.
    async fn move_due(&mut self, slot: Slot, ids: &[u32], due: u32) -> Result<usize>;

    /// Returns the plan of a match, if the store tells it.
    async fn plan(&mut self, _query: Match) -> Result<Option<Plan>> {
        Ok(None)
    }

    /// Returns what a SQL server can do beyond that.
    fn sql(&mut self) -> Option<&mut SqlStore> {
        None
    }
}

/// A store with its index.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum StoreKind {
    /// PostgreSQL, index (worker_id, timezone, notify_after): the reference.
    Postgresql,
    /// PostgreSQL, the same index descending, as in the original experiment.
    PostgresqlDescending,
    /// PostgreSQL, index (worker_id, timezone), fillfactor 45.
    PostgresqlSlots,
    /// Rows in memory of the workers, and PostgreSQL: one statement for each batch.
    Native,
    /// MariaDB, index (worker_id, timezone, notify_after).
    #[cfg(feature = "mariadb")]
    Mariadb,
    /// Redis: a sorted set for each slot, a string for each row.
    #[cfg(feature = "redis")]
    Redis,
    /// Two of these Redis behind twemproxy.
    #[cfg(feature = "redis")]
    Twemproxy,
    /// Apache Cassandra: a partition for each slot, an index of notify_after. On demand.
    #[cfg(feature = "cassandra")]
    Cassandra,
    /// FerretDB over SQLite, index (worker_id, timezone, notify_after). On demand.
    #[cfg(feature = "ferretdb")]
    Ferretdb,
}

impl StoreKind {
    /// Those whose servers Debian has.
    pub(crate) const DEFAULT: &[Self] = &[
        Self::Postgresql,
        Self::PostgresqlDescending,
        Self::PostgresqlSlots,
        Self::Native,
        #[cfg(feature = "mariadb")]
        Self::Mariadb,
        #[cfg(feature = "redis")]
        Self::Redis,
        #[cfg(feature = "redis")]
        Self::Twemproxy,
    ];

    pub(super) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Where a store is.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) kind: StoreKind,
    /// Where clients connect; then, with twemproxy, the servers behind it.
    pub(super) addresses: Vec<String>,
}

impl Place {
    /// Connects.
    pub(super) async fn open(&self) -> Result<Box<dyn Store>> {
        let address = self.addresses.first().context("no address")?;
        Ok(match self.kind {
            #[cfg(feature = "mariadb")]
            StoreKind::Mariadb => {
                let connection = workers::mariadb::Mariadb::open(address).await?;
                Box::new(SqlStore::new(connection, self.kind))
            }
            #[cfg(feature = "redis")]
            StoreKind::Redis | StoreKind::Twemproxy => {
                Box::new(workers::redis::RedisStore::open(&self.addresses).await?)
            }
            #[cfg(feature = "cassandra")]
            StoreKind::Cassandra => {
                Box::new(workers::cassandra::CassandraStore::open(address).await?)
            }
            #[cfg(feature = "ferretdb")]
            StoreKind::Ferretdb => Box::new(workers::ferretdb::FerretdbStore::open(address).await?),
            kind => Box::new(SqlStore::new(Postgresql::open(address).await?, kind)),
        })
    }
}
