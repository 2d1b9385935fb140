//! What both differential checks have in common: two databases with the same rows, of which larder writes to one and the
//! oracle to the other, and how drawn writes are sent.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor};
use tokio::task::JoinSet;

use crate::harness::free_address;
use crate::harness::larder::{Larder, LarderConfig};

/// Schemas that are compared at a time.
const COMPARISONS: usize = 4;
/// So many that two bulk writes of a client may run at a time.
const LARDER_CONNECTIONS: usize = 40;

/// Two databases of one server.
pub(crate) struct TwinDatabases<'t> {
    /// Of the database that larder writes to.
    pub(crate) name: String,
    /// Of another database of the server.
    pub(crate) url: &'t str,
}

/// How a POST carries its documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    One,
    Array,
    Lines,
    /// Lines, each of which is written by itself.
    Lenient,
}

/// A precondition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    None,
    /// `If-Match` with the entity tag of the document.
    Match,
    /// `If-Match` with another one.
    MatchOther,
    /// `If-Match: *`
    MatchAny,
    /// `If-None-Match: *`
    MatchNone,
}

impl TwinDatabases<'_> {
    fn copy_name(&self) -> String {
        format!("{}_copy", self.name)
    }

    async fn connect(&self, database: Option<&str>) -> anyhow::Result<PgConnection> {
        let options = PgConnectOptions::from_str(self.url)?
            .application_name("loadtest")
            .disable_statement_logging();
        let options = match database {
            Some(database) => options.database(database),
            None => options,
        };
        Ok(options.connect().await?)
    }

    /// Creates the first database, has `fill` make its tables, and copies it.
    pub(crate) async fn create(
        &self,
        fill: impl AsyncFnOnce(&mut PgConnection) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut server = self.connect(None).await?;
        let name = &self.name;
        run_sql(&mut server, &format!("create database {name}")).await?;
        let mut connection = self.connect(Some(name)).await?;
        fill(&mut connection).await?;
        // A database with connections can't be copied.
        sqlx::Connection::close(connection).await?;
        let copy = format!("create database {} template {name}", self.copy_name());
        run_sql(&mut server, &copy).await
    }

    /// Drops both.
    pub(crate) async fn drop(&self) -> anyhow::Result<()> {
        let mut server = self.connect(None).await?;
        for name in [&self.name, &self.copy_name()] {
            run_sql(&mut server, &format!("drop database {name} with (force)")).await?;
        }
        Ok(())
    }

    /// A larder of the first database, at free addresses.
    pub(crate) fn larder(
        &self,
        binary: &Path,
        directory: PathBuf,
        rng: &mut fastrand::Rng,
        memory_bytes: u64,
        settings: String,
    ) -> anyhow::Result<Larder> {
        let (server, parameters) = self.url.split_once('?').unwrap_or((self.url, ""));
        let (server, _) = server.rsplit_once('/').context("no database in the URL")?;
        let url = format!("{server}/{}?{parameters}", self.name);
        Larder::new(LarderConfig {
            binary: binary.to_owned(),
            directory,
            listen: free_address(rng)?,
            admin: free_address(rng)?,
            url: url.clone(),
            listen_url: url,
            memory_bytes,
            settings,
            arguments: Vec::new(),
            cores: None,
            environment: vec![
                ("LARDER_IDEMPOTENCY_KEYS".to_owned(), "true".to_owned()),
                (
                    "LARDER_DATABASE__CONNECTIONS".to_owned(),
                    LARDER_CONNECTIONS.to_string(),
                ),
            ],
        })
    }

    /// Runs a comparison of each of `drawn`, some at a time. `start` is called with its number and connections to the first
    /// database and the copy. The results have their order.
    pub(crate) async fn compare<D, T, C>(
        &self,
        drawn: Vec<D>,
        start: impl Fn(usize, D, [PgConnection; 2]) -> C,
    ) -> anyhow::Result<Vec<T>>
    where
        T: Send + 'static,
        C: Future<Output = anyhow::Result<T>> + Send + 'static,
    {
        let mut waiting = drawn.into_iter().enumerate();
        let mut running = JoinSet::new();
        let mut compared = Vec::new();
        loop {
            while running.len() < COMPARISONS
                && let Some((number, drawn)) = waiting.next()
            {
                let written = self.connect(Some(&self.name)).await?;
                let copy = self.connect(Some(&self.copy_name())).await?;
                let comparison = start(number, drawn, [written, copy]);
                running.spawn(async move { anyhow::Ok((number, comparison.await?)) });
            }
            match running.join_next().await {
                Some(result) => compared.push(result??),
                None => break,
            }
        }
        compared.sort_by_key(|(number, _)| *number);
        Ok(compared.into_iter().map(|(_, result)| result).collect())
    }
}

/// Runs statements that must succeed.
pub(crate) async fn run_sql(connection: &mut PgConnection, sql: &str) -> anyhow::Result<()> {
    connection
        .execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned())))
        .await?;
    Ok(())
}
