//! `loadtest differential-writes`: after each of many drawn writes, is the database as if an expert had run plain statements
//! in one transaction?
//!
//! Schemas, their triggers and requests are drawn from a seed. larder writes to one database, the oracle to a copy of it;
//! after each request the answers and all rows are compared.

mod comparison;
mod contents;
mod ddl;
mod oracle;
mod requests;
mod schema;
mod state;
mod triggers;

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use testkit::http::local_address;
use tokio::time::Instant;

use crate::checks::differential_writes::comparison::{Comparison, Tally};
use crate::checks::differential_writes::schema::Schema;
use crate::checks::twins::TwinDatabases;
use crate::harness::postgres::Postgres;
use crate::harness::progress;
use crate::harness::run_directory::RunDirectory;

/// The schemas in one database, which one larder serves.
const BATCH: u32 = 50;
const CONNECTIONS_MAX: usize = 80;
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
        progress::note(compared, args.schemas, "schemas");
        let count = BATCH.min(args.schemas - compared);
        let seeds = (0..count).map(|number| seed.wrapping_add(u64::from(compared + number)));
        let schemas: Vec<Schema> = seeds.map(Schema::draw).collect();
        let twins = TwinDatabases {
            name: format!("batch{compared}"),
            url: postgres.url(),
        };
        twins
            .create(async |connection| {
                for schema in &schemas {
                    let created = comparison::create(connection, schema).await;
                    created.with_context(|| format!("schema {}", schema.seed))?;
                }
                Ok(())
            })
            .await?;
        let directory = run_directory.directory().join(&twins.name);
        let resources = schemas.iter().map(Schema::resource).collect();
        let mut larder = twins.larder(&binary, directory, &mut rng, MEMORY_BYTES, resources)?;
        larder.start_ready().await?;
        let (listen, requests) = (larder.config.listen, args.requests);
        let tallies = twins.compare(schemas, |number, schema, [written, copy]| {
            let comparison = Comparison {
                schema,
                larder: listen,
                // A client may have only a quarter of the bulk writes. Few run at a time, so these differ.
                own: local_address(number),
                written,
                copy,
            };
            async move {
                let seed = comparison.schema.seed;
                let compared = comparison.run(requests).await;
                compared.with_context(|| format!("schema {seed}"))
            }
        });
        for tally in tallies.await? {
            total.add(tally);
        }
        larder.terminate().await?;
        twins.drop().await?;
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
