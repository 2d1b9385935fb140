//! `loadtest schemas`: is what `larder check` says of the schemas of real applications true, and does its SQL mend it?
//!
//! What `larder init` writes for it names each table and is accepted.
//!
//! Each schema is checked twice, on empty tables and on filled ones. All SQL of the report is run by psql, as a user would;
//! then nothing may be found any more, and PostgreSQL has to use each index that was asked for.

mod configuration;
mod plans;
mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use sqlx::Connection;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::checks::schemas::plans::used_indexes;
use crate::checks::twins::run_sql;
use crate::harness::inspection::{Finding, Inspection, QUERIES, Report};
use crate::harness::postgres::Postgres;
use crate::harness::progress;
use crate::harness::run_directory::RunDirectory;

const CONNECTIONS_MAX: usize = 20;
/// An index of texts in their own order serves no `like 'x%'` in it.
const COLLATION: &str = "C.UTF-8";

/// Schemas that are checked at a time.
const CHECKS: usize = 2;

/// The applications, and statements such as theirs; the largest one first.
const SCHEMAS: [(&str, &str); 7] = [
    ("zabbix", include_str!("schemas/queries/zabbix.sql")),
    ("kea", include_str!("schemas/queries/kea.sql")),
    ("tt-rss", include_str!("schemas/queries/tt-rss.sql")),
    (
        "icinga2-ido",
        include_str!("schemas/queries/icinga2-ido.sql"),
    ),
    ("bacula", include_str!("schemas/queries/bacula.sql")),
    ("pdns", include_str!("schemas/queries/pdns.sql")),
    ("roundcube", include_str!("schemas/queries/roundcube.sql")),
];

/// Where the schemas are.
#[derive(Args, Clone, Debug)]
pub(crate) struct SchemasArgs {
    /// Has kea.sql, tt-rss.sql, icinga2-ido.sql, bacula.sql, pdns.sql, zabbix.sql and roundcube.sql, as `.ci/schemas` gets
    /// them from Debian's packages.
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
    /// Writes the reports of the filled tables to this directory, as JSON and SARIF.
    #[arg(long, value_name = "DIRECTORY")]
    reports: Option<PathBuf>,
    /// Prints each finding.
    #[arg(long)]
    findings: bool,
}

/// Whether nothing was refuted.
pub(crate) async fn run(args: &SchemasArgs, binary: PathBuf) -> anyhow::Result<bool> {
    let mut run_directory = RunDirectory::new()?;
    let postgres = Postgres::start(&mut run_directory, CONNECTIONS_MAX).await?;
    let mut waiting = SCHEMAS.into_iter();
    let mut running = JoinSet::new();
    let (mut refuted, mut checked) = (0, 0);
    loop {
        while running.len() < CHECKS
            && let Some((name, queries)) = waiting.next()
        {
            let schema = Schema {
                name,
                sql: read(&args.directory, name)?,
                queries,
                directory: run_directory.directory().join(name),
                binary: binary.clone(),
                server: postgres.url().to_owned(),
            };
            let args = args.clone();
            running.spawn(async move {
                let outcome = schema.check(&args).await;
                outcome.with_context(|| format!("schema {name}"))
            });
        }
        match running.join_next().await {
            Some(outcome) => {
                refuted += outcome??;
                checked += 1;
                progress::note(checked, SCHEMAS.len(), "schemas");
            }
            None => break,
        }
    }
    postgres.stop().await;
    println!("{refuted} refuted");
    Ok(refuted == 0)
}

fn read(directory: &Path, name: &str) -> anyhow::Result<String> {
    let file = directory.join(format!("{name}.sql"));
    std::fs::read_to_string(&file).with_context(|| format!("{}", file.display()))
}

/// The schema of an application.
struct Schema {
    name: &'static str,
    sql: String,
    queries: &'static str,
    /// Has the configuration, the statements and the scripts.
    directory: PathBuf,
    binary: PathBuf,
    /// The URL of any database of the server.
    server: String,
}

impl Schema {
    /// Checks both databases and prints a line. Returns how much was refuted.
    async fn check(&self, args: &SchemasArgs) -> anyhow::Result<usize> {
        let began = Instant::now();
        std::fs::create_dir_all(&self.directory)?;
        let (empty, filled) = self.databases().await?;
        let mut connection = sqlx::PgConnection::connect(&empty).await?;
        let configuration = configuration::read(&mut connection).await?;
        std::fs::write(self.directory.join("larder.toml"), &configuration.toml)?;
        std::fs::write(self.directory.join(QUERIES), self.queries)?;
        connection.close().await?;
        let inspection = |url: &str| Inspection {
            binary: self.binary.clone(),
            directory: self.directory.clone(),
            url: url.to_owned(),
        };
        let (of_empty, mut refuted) = mend(&inspection(&empty)).await?;
        let filled_tables = rows::fill(&filled).await?;
        let before = plans::indexes(&filled).await?;
        self.write_reports(&inspection(&filled), args.reports.as_deref())
            .await?;
        let (of_filled, of_filled_refuted) = mend(&inspection(&filled)).await?;
        refuted.extend(of_filled_refuted);
        refuted.extend(differences(&of_empty, &of_filled));
        for url in [&empty, &filled] {
            refuted.extend(inspection(url).init(&configuration.tables).await?);
        }
        let created = plans::indexes(&filled).await?;
        let used = used_indexes(&filled, &configuration.toml, self.queries).await?;
        let unused = created
            .difference(&before)
            .filter(|name| !used.contains(*name));
        refuted.extend(unused.map(|name| format!("PostgreSQL does not use {name}")));
        println!(
            "{:<12} {:>3} tables ({filled_tables} filled), {:>3} resources; {}; {} applied, {} refuted, {:.1?}",
            self.name,
            configuration.tables.len(),
            configuration.resources,
            by_rule(&of_filled),
            of_filled.findings.len(),
            refuted.len(),
            began.elapsed()
        );
        if args.findings {
            for finding in &of_filled.findings {
                println!("  {}", finding.line());
            }
        }
        for line in &refuted {
            println!("  refuted: {line}");
        }
        Ok(refuted.len())
    }

    /// The URLs of two databases with the schema.
    async fn databases(&self) -> anyhow::Result<(String, String)> {
        let mut server = sqlx::PgConnection::connect(&self.server).await?;
        let (base, parameters) = self.server.split_once('?').unwrap_or((&self.server, ""));
        let (base, _) = base.rsplit_once('/').context("no database in the URL")?;
        let url = |database: &str| format!("{base}/{database}?{parameters}");
        let empty = format!("{}-empty", self.name);
        let filled = format!("{}-filled", self.name);
        let create = format!(
            "create database \"{empty}\" template template0 lc_collate '{COLLATION}' lc_ctype '{COLLATION}'"
        );
        run_sql(&mut server, &create).await?;
        let mut connection = sqlx::PgConnection::connect(&url(&empty)).await?;
        run_sql(&mut connection, &self.sql).await?;
        // A database with connections can't be copied.
        connection.close().await?;
        let copy = format!("create database \"{filled}\" template \"{empty}\"");
        run_sql(&mut server, &copy).await?;
        server.close().await?;
        Ok((url(&empty), url(&filled)))
    }

    /// Has the report in each format but `sql`, and writes those that have a schema to `directory`.
    async fn write_reports(
        &self,
        inspection: &Inspection,
        directory: Option<&Path>,
    ) -> anyhow::Result<()> {
        for format in ["human", "github", "json", "sarif"] {
            let text = inspection.check(format).await?;
            ensure!(!text.is_empty(), "the report as {format} is empty");
            if let (Some(directory), "json" | "sarif") = (directory, format) {
                std::fs::create_dir_all(directory)?;
                std::fs::write(directory.join(format!("{}.{format}", self.name)), text)?;
            }
        }
        Ok(())
    }
}

/// Checks a database, runs the SQL, and checks it again. Returns the first report, and what contradicts it.
async fn mend(inspection: &Inspection) -> anyhow::Result<(Report, Vec<String>)> {
    let report = inspection.report().await?;
    inspection.apply().await?;
    let left = inspection.report().await?;
    let left = left.findings.iter();
    let left = left.map(|finding| format!("found after all was applied: {}", finding.line()));
    Ok((report, left.collect()))
}

/// Findings of only one of two reports.
fn differences(empty: &Report, filled: &Report) -> Vec<String> {
    let lines = |report: &Report| -> BTreeSet<String> {
        report.findings.iter().map(Finding::line).collect()
    };
    let (empty, filled) = (lines(empty), lines(filled));
    let only = |one: &BTreeSet<String>, other: &BTreeSet<String>, tables: &str| -> Vec<String> {
        one.difference(other)
            .map(|line| format!("found in {tables} tables only: {line}"))
            .collect()
    };
    [
        only(&empty, &filled, "empty"),
        only(&filled, &empty, "filled"),
    ]
    .concat()
}

/// How many findings each rule has.
fn by_rule(report: &Report) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for finding in &report.findings {
        *counts.entry(&finding.id).or_default() += 1;
    }
    let counts: Vec<String> = counts
        .iter()
        .map(|(rule, count)| format!("{rule} {count}"))
        .collect();
    counts.join(", ")
}
