//! Drawn schemas, principals and requests: is each answer, and are all rows, as if SQL had filtered by owner and condition?
//!
//! larder writes to one database; the oracle reads it, and writes to a copy of it. Plain SQL changes both between requests.

mod comparison;
mod contents;
mod ddl;
mod documents;
mod oracle;
mod principals;
mod read_judge;
mod reads;
mod rows;
mod schema;
mod writes;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::checks::scope::client::Client;
use crate::checks::scope::credentials;
use crate::checks::scope::differential::comparison::{Comparison, MARKER_KEY};
use crate::checks::scope::differential::principals::Principal;
use crate::checks::scope::differential::rows::RowDraw;
use crate::checks::scope::differential::schema::Schema;
use crate::harness::free_address;
use crate::harness::larder::{Larder, LarderConfig};
use crate::harness::postgres::Postgres;
use crate::harness::run_directory::RunDirectory;

/// Requests of a schema, each of which may be followed by repetitions.
const STEPS: u32 = 60;
/// The schemas in one database, which one larder serves.
const BATCH: u32 = 25;
/// Schemas that are compared at a time.
const COMPARISONS: usize = 4;
const CONNECTIONS_MAX: usize = 80;
const LARDER_CONNECTIONS: usize = 40;
/// A part of the documents is on disk alone.
const MEMORY_BYTES: u64 = 128 << 10;
/// Of further differences only the seed is printed.
const PRINTED_MAX: usize = 20;

/// What was compared.
#[derive(Debug, Default)]
pub(super) struct Tally {
    requests: u64,
    /// How many answers had each method and status.
    statuses: BTreeMap<(&'static str, u16), u64>,
    /// How many answers to the restricted were compared with those for documents that do not exist.
    absences: u64,
    /// The differences, as text.
    differences: Vec<String>,
}

/// Whether all answers and all rows were those of the oracle.
pub(super) async fn run(schemas: u32, binary: &Path, seed: u64) -> anyhow::Result<bool> {
    let began = Instant::now();
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut run_directory = RunDirectory::new()?;
    let postgres = Postgres::start(&mut run_directory, CONNECTIONS_MAX).await?;
    let mut total = Tally::default();
    let mut compared = 0;
    while compared < schemas {
        let count = BATCH.min(schemas - compared);
        let seeds = (0..count).map(|number| seed.wrapping_add(u64::from(compared + number)));
        let drawn = seeds.map(|seed| {
            let schema = Schema::draw(seed);
            let principals = Principal::draw(&schema)?;
            anyhow::Ok((schema, principals))
        });
        let mut batch = Batch {
            name: format!("batch{compared}"),
            url: postgres.url(),
            schemas: drawn.collect::<anyhow::Result<Vec<_>>>()?,
        };
        batch.create().await?;
        let addresses = [free_address(&mut rng)?, free_address(&mut rng)?];
        let directory = run_directory.directory().join(&batch.name);
        let mut larder = batch.larder(binary, directory, addresses)?;
        larder.start_ready().await?;
        for tally in batch.compare(larder.config.listen).await? {
            total.add(tally);
        }
        larder.terminate().await?;
        batch.drop_databases().await?;
        compared += count;
    }
    postgres.stop().await;
    drop(run_directory);
    let statuses = total.statuses.iter();
    let statuses: Vec<String> = statuses
        .map(|((method, status), count)| format!("{count} × {method} {status}"))
        .collect();
    println!(
        "{compared} schemas, {} answers in {:.1?}, {} of them like those for documents that do not exist: {}",
        total.requests,
        began.elapsed(),
        total.absences,
        statuses.join(", ")
    );
    println!("{} differences", total.differences.len());
    Ok(total.differences.is_empty() && total.absences > 0)
}

impl Tally {
    /// Adds what was compared for another schema, and prints its differences.
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.absences += other.absences;
        for (status, count) in other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        for difference in other.differences {
            if self.differences.len() < PRINTED_MAX {
                println!("\n{difference}");
            } else {
                println!("also {}", difference.lines().next().unwrap_or_default());
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
    schemas: Vec<(Schema, Vec<Principal>)>,
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
        run_sql(&mut server, &format!("create database {name}")).await?;
        let mut connection = self.connect(Some(name)).await?;
        let marker = "create table marker (id integer primary key, n integer); insert into marker values (1, 0)";
        run_sql(&mut connection, marker).await?;
        for (schema, _) in &self.schemas {
            let ddl = schema.ddl();
            run_sql(&mut connection, &ddl)
                .await
                .with_context(|| ddl.clone())?;
            let mut rng = fastrand::Rng::with_seed(schema.seed);
            let rows = RowDraw {
                rng: &mut rng,
                schema,
            }
            .fill();
            for sql in rows {
                // Some rows violate constraints.
                run_sql(&mut connection, &sql).await.ok();
            }
        }
        // A database with connections can't be copied.
        sqlx::Connection::close(connection).await?;
        let copy = format!("create database {} template {name}", self.copy_name());
        run_sql(&mut server, &copy).await
    }

    async fn drop_databases(&self) -> anyhow::Result<()> {
        let mut server = self.connect(None).await?;
        for name in [&self.name, &self.copy_name()] {
            run_sql(&mut server, &format!("drop database {name} with (force)")).await?;
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
        let mut settings = credentials::jwt_toml();
        let marker = credentials::key_hash(MARKER_KEY);
        settings +=
            &format!("[[auth.key]]\nname = 'marker'\nhash = '{marker}'\nroles = ['marker']\n");
        for (schema, principals) in &self.schemas {
            settings.extend(principals.iter().map(|principal| principal.toml(schema)));
        }
        settings += "[[resource]]\nname = 'marker'\ntable = 'marker'\nread = ['marker']\nwrite = ['marker']\n";
        settings.extend(self.schemas.iter().map(|(schema, _)| schema.resource()));
        Larder::new(LarderConfig {
            binary: binary.to_owned(),
            directory,
            listen,
            admin,
            url: url.clone(),
            listen_url: url,
            memory_bytes: MEMORY_BYTES,
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

    /// Compares all schemas. The results have their order.
    async fn compare(&mut self, larder: SocketAddr) -> anyhow::Result<Vec<Tally>> {
        let mut waiting = std::mem::take(&mut self.schemas).into_iter().enumerate();
        let mut running = JoinSet::new();
        let mut tallies = Vec::new();
        loop {
            while running.len() < COMPARISONS
                && let Some((number, (schema, principals))) = waiting.next()
            {
                let comparison = Comparison {
                    // Other values than those of the schema and its rows.
                    rng: fastrand::Rng::with_seed(schema.seed ^ u64::MAX),
                    schema,
                    principals,
                    client: Client::new(larder, number),
                    written: self.connect(Some(&self.name)).await?,
                    copy: self.connect(Some(&self.copy_name())).await?,
                    tally: Tally::default(),
                };
                running.spawn(async move {
                    let seed = comparison.schema.seed;
                    let compared = comparison.run(STEPS).await;
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

/// Runs statements that must succeed.
async fn run_sql(connection: &mut PgConnection, sql: &str) -> anyhow::Result<()> {
    connection
        .execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned())))
        .await?;
    Ok(())
}
