//! `loadtest indexes`: what an index of PostgreSQL gives and costs, and whether `larder check` proposes the best one.
//!
//! A private PostgreSQL has one table of persons. Each query runs with each index (`persons`); then rows are written beside
//! a growing number of indexes. Plans, buffers and WAL are judged (`gates`); times are only told.

mod gates;
mod measure;
mod persons;
mod report;

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::bench::benchmark::FolderArgs;
use crate::harness::inspection::{Inspection, QUERIES};
use crate::harness::postgres::Postgres;
use crate::harness::progress;
use crate::harness::run_directory::RunDirectory;
use crate::harness::session::SqlSession;
use crate::labs::indexes::measure::{Read, Write};
use crate::report::results::{Folder, RunEnvironment};

/// What the rows are made of, unless `--seed` is given.
pub(crate) const SEED: u64 = 1;
const CONNECTIONS_MAX: usize = 10;
/// For `larder check`.
const CONFIGURATION: &str = "[[resource]]\nname = 'person'\ntable = 'person'\n";
/// Plans have one process, and are not compiled: indexes are compared.
const SETTINGS: &str = "set max_parallel_workers_per_gather = 0; set jit = off";

/// How large the tables are.
#[derive(Args, Clone, Debug)]
pub(crate) struct IndexesArgs {
    /// The numbers of rows.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "10000,1000000", value_parser = clap::value_parser!(u32).range(10_000..=10_000_000))]
    rows: Vec<u32>,
    #[command(flatten)]
    folder: FolderArgs,
}

/// A run, as `indexes.json` has it.
#[derive(Debug, Deserialize, Serialize)]
struct Run {
    environment: RunEnvironment,
    populations: Vec<Population>,
}

/// All figures of a table of one size.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Population {
    rows: u32,
    /// Of PostgreSQL, such as 150014.
    server_version: u32,
    reads: Vec<Read>,
    writes: Vec<Write>,
}

/// What `larder check --queries` proposes.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Advice {
    index: String,
    /// hypopg has not shown that PostgreSQL would use it.
    is_unproven: bool,
}

/// Whether all gates hold.
pub(crate) async fn run(args: &IndexesArgs, binary: PathBuf, seed: u64) -> anyhow::Result<bool> {
    println!("seed {seed}; starting PostgreSQL");
    let mut run_directory = RunDirectory::new()?;
    let mut environment = RunEnvironment::now().await;
    environment.binary("larder", &binary)?;
    let postgres = Postgres::start_durable(&mut run_directory, CONNECTIONS_MAX).await?;
    let inspection = Inspection {
        binary,
        directory: run_directory.directory().join("check"),
        url: postgres.url().to_owned(),
    };
    std::fs::create_dir(&inspection.directory)?;
    std::fs::write(inspection.directory.join("larder.toml"), CONFIGURATION)?;
    let mut session = SqlSession::new(postgres.url(), 0)?;
    let walinspect = session.run("create extension pg_walinspect").await;
    walinspect.context("WAL is measured by pg_walinspect, of PostgreSQL 15 and later")?;
    if let Err(error) = session.run("create extension hypopg").await {
        println!("without hypopg (Debian: postgresql-15-hypopg) proposals are not judged: {error}");
    }
    session.run(SETTINGS).await?;
    let version = session.texts("show server_version").await?.concat();
    environment.versions.push(("postgres".to_owned(), version));
    let rows = format!("{:?}", args.rows).replace(['[', ' ', ']'], "");
    environment.command(format!("loadtest indexes --seed {seed} --rows {rows}"));
    let mut populations = Vec::new();
    for rows in &args.rows {
        let measured = measure_all(&mut session, &inspection, *rows, seed).await;
        populations.push(measured.with_context(|| format!("{rows} rows"))?);
    }
    postgres.stop().await;
    let run = Run {
        environment,
        populations,
    };
    let name = args.folder.name.as_deref().unwrap_or("indexes");
    let folder = Folder::create(&args.folder.results, name)?;
    folder.write("indexes.json", &serde_json::to_string_pretty(&run)?)?;
    folder.write("README.md", &report::readme(&run))?;
    folder.write("indexes.chart", &report::charts(&run.populations))?;
    println!("{}", report::tables(&run.populations));
    println!("kept in {}", folder.path().display());
    let mut populations = run.populations.iter();
    Ok(populations.all(|population| gates::failures(population).is_empty()))
}

async fn measure_all(
    session: &mut SqlSession,
    inspection: &Inspection,
    rows: u32,
    seed: u64,
) -> anyhow::Result<Population> {
    session.run(&persons::create(rows, seed)).await?;
    session.run("vacuum (freeze, analyze) person").await?;
    let version = session.texts("show server_version_num").await?.concat();
    let mut reads = Vec::new();
    for (query, indexes) in persons::QUERIES {
        for index in indexes {
            progress::note(query, rows, "rows");
            let mut read = measure::read(session, query, index).await?;
            // Beside an index that does not serve the query, or serves it badly.
            if !read.turn.uses_index() || *index == persons::WRONG_ORDER {
                read.advice = Some(ask(inspection, query).await?);
            }
            reads.push(read);
            session.run("drop index if exists person_index").await?;
        }
    }
    Ok(Population {
        rows,
        server_version: version.parse()?,
        reads,
        writes: measure::writes(session, rows, seed).await?,
    })
}

/// Asks `larder check` about a query.
async fn ask(inspection: &Inspection, query: &str) -> anyhow::Result<Advice> {
    let file = inspection.directory.join(QUERIES);
    std::fs::write(file, persons::sql(query))?;
    let mut findings = inspection.report().await?.findings;
    findings.retain(|finding| finding.file.as_deref() == Some(QUERIES));
    let mut remedies = findings.iter().flat_map(|finding| &finding.remedies);
    let index = remedies.find_map(|remedy| definition(&remedy.sql));
    Ok(Advice {
        index: index.unwrap_or(persons::NONE.to_owned()),
        is_unproven: findings.iter().any(|finding| finding.is_unproven),
    })
}

/// What follows `create index on person` in a statement that creates an index, without quotes.
fn definition(sql: &str) -> Option<String> {
    let (_, table) = sql.strip_prefix("create index ")?.split_once(" on ")?;
    let (_, definition) = table.split_once(' ')?;
    Some(definition.trim_end_matches(';').replace('"', ""))
}
