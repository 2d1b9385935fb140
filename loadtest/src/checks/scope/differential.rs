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
use std::path::Path;

use anyhow::Context;
use sqlx::postgres::PgConnection;
use testkit::http::Client;
use tokio::time::Instant;

use crate::checks::scope::credentials;
use crate::checks::scope::differential::comparison::{Comparison, MARKER_KEY};
use crate::checks::scope::differential::principals::Principal;
use crate::checks::scope::differential::rows::RowDraw;
use crate::checks::scope::differential::schema::Schema;
use crate::checks::twins::{TwinDatabases, run_sql};
use crate::harness::postgres::Postgres;
use crate::harness::progress;
use crate::harness::run_directory::RunDirectory;

/// Requests of a schema, each of which may be followed by repetitions.
const STEPS: u32 = 60;
/// The schemas in one database, which one larder serves.
const BATCH: u32 = 25;
const CONNECTIONS_MAX: usize = 80;
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
        progress::note(compared, schemas, "schemas");
        let count = BATCH.min(schemas - compared);
        let seeds = (0..count).map(|number| seed.wrapping_add(u64::from(compared + number)));
        let drawn = seeds.map(|seed| {
            let schema = Schema::draw(seed);
            let principals = Principal::draw(&schema)?;
            anyhow::Ok((schema, principals))
        });
        let drawn = drawn.collect::<anyhow::Result<Vec<_>>>()?;
        let twins = TwinDatabases {
            name: format!("batch{compared}"),
            url: postgres.url(),
        };
        twins
            .create(async |connection| fill(connection, &drawn).await)
            .await?;
        let directory = run_directory.directory().join(&twins.name);
        let settings = settings(&drawn);
        let mut larder = twins.larder(binary, directory, &mut rng, MEMORY_BYTES, settings)?;
        larder.start_ready().await?;
        let listen = larder.config.listen;
        let tallies = twins.compare(drawn, |number, (schema, principals), [written, copy]| {
            let comparison = Comparison {
                // Other values than those of the schema and its rows.
                rng: fastrand::Rng::with_seed(schema.seed ^ u64::MAX),
                schema,
                principals,
                client: Client::numbered(listen, number),
                written,
                copy,
                tally: Tally::default(),
            };
            async move {
                let seed = comparison.schema.seed;
                let compared = comparison.run(STEPS).await;
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

/// Creates the tables of the schemas, their first rows, and the marker.
async fn fill(
    connection: &mut PgConnection,
    drawn: &[(Schema, Vec<Principal>)],
) -> anyhow::Result<()> {
    let marker =
        "create table marker (id integer primary key, n integer); insert into marker values (1, 0)";
    run_sql(connection, marker).await?;
    for (schema, _) in drawn {
        let ddl = schema.ddl();
        let created = run_sql(connection, &ddl).await;
        created.with_context(|| ddl.clone())?;
        let mut rng = fastrand::Rng::with_seed(schema.seed);
        let rows = RowDraw {
            rng: &mut rng,
            schema,
        }
        .fill();
        for sql in rows {
            // Some rows violate constraints.
            run_sql(connection, &sql).await.ok();
        }
    }
    Ok(())
}

/// The principals, the resources and the marker in larder's configuration.
fn settings(drawn: &[(Schema, Vec<Principal>)]) -> String {
    let mut settings = credentials::jwt_toml();
    let marker = credentials::key_hash(MARKER_KEY);
    settings += &format!("[[auth.key]]\nname = 'marker'\nhash = '{marker}'\nroles = ['marker']\n");
    for (schema, principals) in drawn {
        settings.extend(principals.iter().map(|principal| principal.toml(schema)));
    }
    settings +=
        "[[resource]]\nname = 'marker'\ntable = 'marker'\nread = ['marker']\nwrite = ['marker']\n";
    settings.extend(drawn.iter().map(|(schema, _)| schema.resource()));
    settings
}
