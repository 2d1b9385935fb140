//! `loadtest differential-writes`: after each of many drawn writes, is the database as if an expert had run plain statements
//! in one transaction?
//!
//! Schemas, their triggers and requests are drawn from a seed. larder writes to one database, the oracle to a copy of it;
//! after each request the answers and all rows are compared.

mod client;
mod comparison;
mod contents;
mod ddl;
mod oracle;
mod requests;
mod schema;
mod state;
mod triggers;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use clap::Args;
use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::checks::differential_writes::client::Client;
use crate::checks::differential_writes::comparison::{Comparison, Tally};
use crate::checks::differential_writes::schema::Schema;
use crate::harness::free_address;
use crate::harness::larder::{Larder, LarderConfig};
use crate::harness::postgres::Postgres;
use crate::harness::run_directory::RunDirectory;

/// The schemas in one database, which one larder serves.
const BATCH: u32 = 50;
/// Schemas that are compared at a time.
const COMPARISONS: usize = 4;
const CONNECTIONS_MAX: usize = 80;
/// So many that two bulk writes of a client may run at a time.
const LARDER_CONNECTIONS: usize = 40;
const MEMORY_BYTES: u64 = 64 << 20;
/// Of further differences only the seed is printed.
const PRINTED_MAX: usize = 20;

/// What is drawn.
#[derive(Args, Clone, Debug)]
pub(crate) struct DifferentialWritesArgs {
    /// How many.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(crate) schemas: u32,
    /// For each schema.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) requests: u32,
}

/// Whether all answers and all rows were those of the oracle.
pub(crate) async fn run(
    args: &DifferentialWritesArgs,
    binary: PathBuf,
    seed: u64,
) -> anyhow::Result<bool> {
    println!("seed {seed}");
    let began = Instant::now();
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut run_directory = RunDirectory::new()?;
    let postgres = Postgres::start(&mut run_directory, CONNECTIONS_MAX).await?;
    let mut total = Tally::default();
    let mut compared = 0;
    while compared < args.schemas {
        let count = BATCH.min(args.schemas - compared);
        let seeds = (0..count).map(|number| seed.wrapping_add(u64::from(compared + number)));
        let schemas: Vec<Schema> = seeds.map(Schema::draw).collect();
        let mut batch = Batch {
            name: format!("batch{compared}"),
            url: postgres.url(),
            schemas,
        };
        batch.create().await?;
        let addresses = [free_address(&mut rng)?, free_address(&mut rng)?];
        let directory = run_directory.directory().join(&batch.name);
        let mut larder = batch.larder(&binary, directory, addresses)?;
        larder.start_ready().await?;
        for tally in batch.compare(args.requests, larder.config.listen).await? {
            total.add(tally);
        }
        larder.terminate().await?;
        batch.drop_databases().await?;
        compared += count;
    }
    postgres.stop().await;
    drop(run_directory);
    let statuses: Vec<String> = total
        .statuses
        .iter()
        .map(|(status, count)| format!("{count} × {status}"))
        .collect();
    println!(
        "{compared} schemas, {} answers in {:.1?}: {}",
        total.requests,
        began.elapsed(),
        statuses.join(", ")
    );
    println!("{} differences", total.differences.len());
    Ok(total.differences.is_empty() && total.requests > 0)
}

impl Tally {
    /// Adds what was compared for another schema, and prints its differences.
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        for (status, count) in other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        for difference in other.differences {
            if self.differences.len() < PRINTED_MAX {
                println!("\n{difference}");
            } else {
                let repetition = difference.lines().next().unwrap_or_default();
                let mut lines = difference.lines();
                let statuses = lines.find(|line| line.starts_with("expected"));
                println!("also {repetition}: {}", statuses.unwrap_or_default());
            }
            self.differences.push(difference);
        }
    }
}

/// Schemas that share a database.
struct Batch<'b> {
    /// Of the database that larder writes to.
    name: String,
    /// Of another database of the server.
    url: &'b str,
    schemas: Vec<Schema>,
}

impl Batch<'_> {
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

    /// Creates the database, its tables, and the copy.
    async fn create(&self) -> anyhow::Result<()> {
        let mut server = self.connect(None).await?;
        let name = &self.name;
        comparison::run(&mut server, &format!("create database {name}")).await?;
        let mut connection = self.connect(Some(name)).await?;
        for schema in &self.schemas {
            let created = comparison::create(&mut connection, schema).await;
            created.with_context(|| format!("schema {}", schema.seed))?;
        }
        // A database with connections can't be copied.
        sqlx::Connection::close(connection).await?;
        let copy = format!("create database {} template {name}", self.copy_name());
        comparison::run(&mut server, &copy).await
    }

    async fn drop_databases(&self) -> anyhow::Result<()> {
        let mut server = self.connect(None).await?;
        for name in [&self.name, &self.copy_name()] {
            comparison::run(&mut server, &format!("drop database {name} with (force)")).await?;
        }
        Ok(())
    }

    fn larder(
        &self,
        binary: &Path,
        directory: PathBuf,
        [listen, admin]: [SocketAddr; 2],
    ) -> anyhow::Result<Larder> {
        let (server, parameters) = self.url.split_once('?').unwrap_or((self.url, ""));
        let (server, _) = server.rsplit_once('/').context("no database in the URL")?;
        let url = format!("{server}/{}?{parameters}", self.name);
        let resources: String = self.schemas.iter().map(Schema::resource).collect();
        Larder::new(LarderConfig {
            binary: binary.to_owned(),
            directory,
            listen,
            admin,
            url: url.clone(),
            listen_url: url,
            memory_bytes: MEMORY_BYTES,
            settings: resources,
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

    /// Compares all schemas. The results have their order.
    async fn compare(&mut self, requests: u32, larder: SocketAddr) -> anyhow::Result<Vec<Tally>> {
        let mut waiting = std::mem::take(&mut self.schemas).into_iter().enumerate();
        let mut running = JoinSet::new();
        let mut tallies = Vec::new();
        loop {
            while running.len() < COMPARISONS
                && let Some((number, schema)) = waiting.next()
            {
                // A client may have only a quarter of the bulk writes. Few run at a time, so these differ.
                let own = Ipv4Addr::new(127, 0, 1, u8::try_from(number % 200).unwrap_or(0));
                let comparison = Comparison {
                    schema,
                    client: Client { larder, own },
                    written: self.connect(Some(&self.name)).await?,
                    copy: self.connect(Some(&self.copy_name())).await?,
                };
                running.spawn(async move {
                    let seed = comparison.schema.seed;
                    let compared = comparison.run(requests).await;
                    let compared = compared.with_context(|| format!("schema {seed}"));
                    compared.map(|tally| (number, tally))
                });
            }
            match running.join_next().await {
                Some(compared) => tallies.push(compared??),
                None => break,
            }
        }
        tallies.sort_by_key(|(number, _)| *number);
        Ok(tallies.into_iter().map(|(_, tally)| tally).collect())
    }
}
