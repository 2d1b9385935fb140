//! Runs `larder check` and the SQL that it prints, and `larder init`.

use std::path::PathBuf;
use std::process::Output;

use anyhow::{Context, ensure};
use serde::Deserialize;
use tokio::process::Command;

use crate::harness::process::find_program;

/// The exit codes of a check that could be done.
const DONE: [i32; 2] = [0, 1];

/// The file of statements.
pub(crate) const QUERIES: &str = "queries.sql";

/// A report, as far as it is looked at.
#[derive(Debug, Deserialize)]
pub(crate) struct Report {
    complete: bool,
    pub(crate) findings: Vec<Finding>,
}

/// A finding, as far as it is looked at.
#[derive(Debug, Deserialize)]
pub(crate) struct Finding {
    pub(crate) id: String,
    severity: String,
    object: String,
    /// The file that leads to it.
    pub(crate) file: Option<String>,
    reason: String,
    pub(crate) remedies: Vec<Remedy>,
    #[serde(rename = "unproven")]
    pub(crate) is_unproven: bool,
}

/// A statement that mends a finding.
#[derive(Debug, Deserialize)]
pub(crate) struct Remedy {
    pub(crate) sql: String,
}

impl Finding {
    /// What a user has to know, in a line.
    pub(crate) fn line(&self) -> String {
        let Self {
            id,
            severity,
            object,
            reason,
            ..
        } = self;
        let sql: Vec<&str> = self.remedies.iter().map(|remedy| &*remedy.sql).collect();
        let sql = match id.as_str() {
            "triggers" => "SQL of larder install".to_owned(),
            _ => sql.join(" "),
        };
        format!("{severity} {id} {object}: {reason}; {sql}")
    }
}

/// A database, and where its configuration is.
pub(crate) struct Inspection {
    pub(crate) binary: PathBuf,
    /// Has `larder.toml` and the statements in [`QUERIES`].
    pub(crate) directory: PathBuf,
    pub(crate) url: String,
}

impl Inspection {
    /// The report, if all could be checked.
    pub(crate) async fn report(&self) -> anyhow::Result<Report> {
        let text = self.check("json").await?;
        let report: Report = serde_json::from_str(&text).context("the report")?;
        ensure!(report.complete, "not all could be checked:\n{text}");
        Ok(report)
    }

    /// The report in a format.
    pub(crate) async fn check(&self, format: &str) -> anyhow::Result<String> {
        let mut command = Command::new(&self.binary);
        command
            .args(["check", "--table", "public.*", "--queries", QUERIES])
            .args(["--format", format])
            .env_clear()
            .env("DATABASE_URL", &self.url)
            .env("LARDER_STATE_DIR", self.directory.join("state"));
        let output = self.run(command).await?;
        let code = output.status.code();
        ensure!(
            code.is_some_and(|code| DONE.contains(&code)),
            "larder check ended with {}:\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs the SQL of the report, statement by statement.
    pub(crate) async fn apply(&self) -> anyhow::Result<()> {
        let script = self.directory.join("mend.sql");
        std::fs::write(&script, self.check("sql").await?)?;
        let psql = find_program("psql", "apt-get install postgresql-client")?;
        let mut command = Command::new(psql);
        command
            .args(["--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1"])
            .arg("--file")
            .arg(&script)
            .arg(&self.url);
        let output = self.run(command).await?;
        ensure!(
            output.status.success(),
            "psql ended with {}:\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Has `larder init` write a configuration. Returns which of `tables` it does not name, and whether larder refuses it.
    pub(crate) async fn init(&self, tables: &[String]) -> anyhow::Result<Vec<String>> {
        let mut command = Command::new(&self.binary);
        command
            .args(["init", "--force", "--output", "init.toml"])
            .env_clear()
            .env("DATABASE_URL", &self.url);
        let output = self.run(command).await?;
        ensure!(
            output.status.success(),
            "larder init ended with {}:\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        let text = std::fs::read_to_string(self.directory.join("init.toml"))?;
        let is_named = |table: &String| {
            text.contains(&format!("\"public.{table}\""))
                || text.contains(&format!("\n# public.{table} "))
        };
        let unnamed = tables.iter().filter(|table| !is_named(table));
        let mut refuted: Vec<String> = unnamed
            .map(|table| format!("larder init does not name {table}"))
            .collect();
        let mut command = Command::new(&self.binary);
        command
            .args(["check", "--config", "init.toml", "--fail-on", "never"])
            .env_clear()
            .env("DATABASE_URL", &self.url)
            .env("LARDER_STATE_DIR", self.directory.join("state"));
        let output = self.run(command).await?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            refuted.push(format!("larder refuses what larder init wrote: {why}"));
        }
        Ok(refuted)
    }

    async fn run(&self, mut command: Command) -> anyhow::Result<Output> {
        let command = command.current_dir(&self.directory).kill_on_drop(true);
        Ok(command.output().await?)
    }
}
