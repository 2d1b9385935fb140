//! `larder init`: writes a configuration file for the tables of a database.
//!
//! All is read in one transaction that is read only, by a number of statements that does not depend on the number of tables.

mod choice;
mod file;
mod summary;

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::{ErrorKind, IsTerminal, Write, stderr, stdin, stdout};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressFinish};
use sqlx::Connection;
use sqlx::postgres::PgConnection;

use crate::cli::InitArgs;
use crate::commands::output::print;
use crate::config::Config;
use crate::resource::catalogue::Catalogue;
use crate::resource::suggest::survey::{Survey, SurveyedTable};
use crate::resource::suggest::{SuggestOptions, Suggestion, suggest};
use crate::resource::suggestion::nearest;
use crate::source::SourceError;
use crate::source::catalogue::read_catalogue;
use crate::source::session::{Database, READ_ONLY};
use crate::source::survey::read_survey;

/// A statement reads the whole catalogue, but waits for no lock.
const LIMITS: &str = "set local statement_timeout = '60s'; set local lock_timeout = '1s'";

/// Reads the database of `config` and writes the file that `args` name, else `path`.
///
/// # Errors
/// If the file exists, nothing could be served, a flag names what is not there, or the database can't be read.
pub async fn run(config: &Config, path: &Path, args: &InitArgs) -> anyhow::Result<()> {
    let path = args.output.as_deref().unwrap_or(path);
    let target = (path != Path::new("-")).then_some(path);
    if let Some(path) = target.filter(|path| !args.force && path.symlink_metadata().is_ok()) {
        return Err(exists(path));
    }
    let spinner = spinner();
    let (survey, catalogue) = read(config).await?;
    spinner.set_message("looking for resources");
    let options = SuggestOptions {
        depth: args.depth.into(),
        is_writable: args.writable,
        schemas: args.schema.clone(),
        tables: named_tables(&survey, args)?,
        keys_per_statement: config.feed.keys_per_statement,
    };
    let mut suggestion = suggest(&survey, &catalogue, &options);
    spinner.finish_and_clear();
    let is_interactive = stdin().is_terminal() && stderr().is_terminal();
    if is_interactive && !args.yes && options.tables.is_none() && suggestion.active().count() > 0 {
        let chosen = choice::ask(&suggestion, &survey, &mut stdin().lock(), &mut stderr())?;
        if let Some(tables) = chosen {
            let tables = Some(tables);
            suggestion = suggest(&survey, &catalogue, &SuggestOptions { tables, ..options });
        }
    }
    finish(&suggestion, &catalogue, target, args)
}

/// Writes the file and tells what is in it.
fn finish(
    suggestion: &Suggestion,
    catalogue: &Catalogue,
    target: Option<&Path>,
    args: &InitArgs,
) -> anyhow::Result<()> {
    let told = summary::text(suggestion, catalogue, target);
    if suggestion.active().count() == 0 {
        print(&mut stderr(), &told)?;
        bail!("nothing can be served, so nothing was written");
    }
    let text = file::text(suggestion, args.writable);
    if let Err(error) = Config::from_toml(&text, &[]) {
        bail!("the file would be wrong, and was not written; this is a bug of larder: {error}");
    }
    match target {
        Some(path) => {
            write_file(path, &text, args.force)?;
            print(&mut stdout(), &told)?;
        }
        None => {
            print(&mut stdout(), &text)?;
            print(&mut stderr(), &told)?;
        }
    }
    Ok(())
}

/// Reads survey and catalogue.
async fn read(config: &Config) -> anyhow::Result<(Survey, Catalogue)> {
    let url = config.listen_url.as_ref().or(config.database_url.as_ref());
    let Some(url) = url else {
        bail!("no database is named: DATABASE_URL=postgres://USER@HOST/DATABASE larder init");
    };
    let database = Database::new(url, false, config.source.statement_timeout)?;
    let mut connection = database.connect_for_feed(&[]).await?;
    let mut transaction = connection
        .begin_with(READ_ONLY)
        .await
        .map_err(SourceError::from)?;
    let read = read_all(&mut transaction).await;
    // There is nothing to be rolled back, and what matters is known.
    drop(transaction.rollback().await);
    Ok(read?)
}

/// Shows on a terminal that something is done.
fn spinner() -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let spinner = ProgressBar::new_spinner()
        .with_message("reading the catalogue")
        .with_finish(ProgressFinish::AndClear);
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

async fn read_all(transaction: &mut PgConnection) -> Result<(Survey, Catalogue), SourceError> {
    sqlx::raw_sql(LIMITS).execute(&mut *transaction).await?;
    let survey = read_survey(transaction).await?;
    let served = survey
        .tables
        .iter()
        .filter(|table| matches!(table.kind, 'r' | 'p'));
    let names: Vec<String> = served.map(|table| table.name.written()).collect();
    let catalogue = read_catalogue(transaction, &names).await?;
    Ok((survey, catalogue))
}

/// The oids of the tables that `--table` names; `None` without it. Checks `--schema`, too.
fn named_tables(survey: &Survey, args: &InitArgs) -> anyhow::Result<Option<BTreeSet<u32>>> {
    for schema in &args.schema {
        let schemas = survey.tables.iter().map(|table| table.name.schema.as_str());
        if !schemas.clone().any(|known| known == schema) {
            bail!("schema {schema} has no tables{}", hint(schema, schemas));
        }
    }
    let mut named = BTreeSet::new();
    for name in &args.table {
        let is_named = |table: &&SurveyedTable| {
            let known = &table.name;
            known.name == *name || known.to_string() == *name || known.written() == *name
        };
        let found = survey.tables.iter().filter(is_named);
        let found: Vec<&SurveyedTable> = found.collect();
        if found.is_empty() {
            let names = survey.tables.iter().map(|table| table.name.name.as_str());
            let hint = hint(name, names);
            bail!("there is no table {name}{hint}; of a partition name the partitioned table");
        }
        let is_of_schema = |table: &&&SurveyedTable| args.schema.contains(&table.name.schema);
        if !args.schema.is_empty() && !found.iter().any(|table| is_of_schema(&table)) {
            bail!("table {name} is in no schema that --schema names");
        }
        named.extend(found.iter().map(|table| table.name.oid));
    }
    Ok((!args.table.is_empty()).then_some(named))
}

/// The end of a message about an unknown name.
fn hint<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> String {
    let near = nearest(name, known);
    near.map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

fn exists(path: &Path) -> anyhow::Error {
    anyhow::anyhow!(
        "{} exists; --force replaces it, and --output - writes to stdout",
        path.display()
    )
}

/// Writes a file whole or not at all. Without `force` a file that is there stays. What is no regular file, a device or a
/// pipe, stays what it is and is written to; a link stays, and leads to the new file.
fn write_file(path: &Path, text: &str, force: bool) -> anyhow::Result<()> {
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let is_special = target
        .metadata()
        .is_ok_and(|known| !known.is_file() && !known.is_dir());
    let written = if is_special {
        std::fs::write(&target, text)
    } else {
        replace_file(&target, text, force)
    };
    match written {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(exists(path)),
        written => written.with_context(|| format!("{} can't be written", path.display())),
    }
}

fn replace_file(path: &Path, text: &str, force: bool) -> std::io::Result<()> {
    let directory = path.parent().filter(|parent| *parent != Path::new(""));
    // As of any new file; those of the crate are their owner's alone.
    let permissions = Permissions::from_mode(0o666);
    let mut file = tempfile::Builder::new()
        .permissions(permissions)
        .tempfile_in(directory.unwrap_or(Path::new(".")))?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    let placed = if force {
        file.persist(path)
    } else {
        file.persist_noclobber(path)
    };
    placed.map(drop).map_err(|error| error.error)
}
