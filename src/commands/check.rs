//! `larder check`: what makes documents slow or could make them stale, with the SQL that mends it. `serve` warns of a part
//! of it.
//!
//! All facts are read in one transaction that is read only, so a check writes nothing and locks no writer out.

mod queries;

use std::collections::BTreeMap;
use std::io::stdout;

use anyhow::bail;
use sqlx::Connection;
use sqlx::postgres::PgConnection;

use crate::check::queries::QueryError;
use crate::check::report::{Report, Unchecked};
use crate::check::{Finding, Ignored, Remedy, Rule, Severity, indexes, upkeep};
use crate::cli::{CheckArgs, FailOn};
pub use crate::commands::check::queries::QueryErrors;
use crate::commands::check::queries::read_queries;
use crate::commands::install::with_database;
use crate::commands::output::print;
use crate::config::{Config, ConfigError};
use crate::dispatch::{DispatchError, DispatchSetup};
use crate::feed::backlog::read_change_log;
use crate::feed::inspect::{Inspected, Lack, inspect};
use crate::resource::definition::{Mistake, Place};
use crate::source::SourceError;
use crate::source::facts::read_facts;
use crate::source::plans::{PlanOptions, check_plans, matching_tables};
use crate::source::session::{Database, READ_ONLY};

/// No statement of a check takes longer, or waits longer for a lock.
const LIMITS: &str = "set local statement_timeout = '5s'; set local lock_timeout = '250ms'";
/// The lock that `create trigger` takes.
const TRIGGER_LOCK: &str = "SHARE ROW EXCLUSIVE";

/// Checks the configured database and writes the report to stdout.
///
/// # Errors
/// If something was found that `args` take for a failure, or could not be checked; [`ConfigError`] where the
/// configuration does not fit the database; [`QueryErrors`]; what PostgreSQL said.
pub async fn run(config: &Config, args: &CheckArgs) -> anyhow::Result<()> {
    if args.list {
        print(&mut stdout(), &list())?;
        return Ok(());
    }
    let options = PlanOptions {
        queries: read_queries(&args.queries)?,
        statements: args.statements.unwrap_or_default(),
        hypothetical: args.hypothetical,
        ..PlanOptions::default()
    };
    let check = async |database| check(config, &database, options, &args.table).await;
    let (mut report, mistakes) = with_database(config, check).await?;
    report.finish(&[ignored(config), args.ignore.clone()].concat());
    print(&mut stdout(), &report.text(args.format))?;
    if !mistakes.is_empty() {
        return Err(ConfigError { mistakes }.into());
    }
    let limit = match args.fail_on {
        FailOn::Error => Some(Severity::Error),
        FailOn::Warning => Some(Severity::Warning),
        FailOn::Info => Some(Severity::Info),
        FailOn::Never => None,
    };
    if limit.is_some_and(|limit| report.has(limit)) {
        bail!("the check has findings");
    }
    if !report.is_complete() {
        bail!("not all could be checked");
    }
    Ok(())
}

/// Logs once `serve` serves what users can mend while it runs.
pub(super) async fn warn(config: &Config, url: &str) {
    const WARNED: [Rule; 5] = [
        Rule::Rights,
        Rule::Pooler,
        Rule::MissingIndex,
        Rule::InvalidIndex,
        Rule::ChangeLog,
    ];
    let url = config.listen_url.as_deref().unwrap_or(url);
    let checking = async {
        let database = Database::new(url, false, config.source.statement_timeout)?;
        check(config, &database, PlanOptions::default(), &[]).await
    };
    let mut report = match checking.await {
        Ok((report, _)) => report,
        Err(error) => return tracing::warn!("the database can't be checked: {error:#}"),
    };
    report.finish(&ignored(config));
    let findings = report.findings().iter();
    for finding in findings.filter(|finding| WARNED.contains(&finding.rule)) {
        let sql: Vec<&str> = finding.remedies.iter().map(|remedy| &*remedy.sql).collect();
        let run = match sql.as_slice() {
            [] => String::new(),
            sql => format!("; run: {}", sql.join(" ")),
        };
        let Finding {
            rule,
            severity,
            object,
            reason,
            ..
        } = finding;
        if *severity == Severity::Info {
            tracing::info!("{rule} {object}: {reason}{run}");
        } else {
            tracing::warn!("{rule} {object}: {reason}{run}");
        }
    }
}

/// The findings that the configuration leaves out. It was checked when it was read.
fn ignored(config: &Config) -> Vec<Ignored> {
    let ignored = config.check_ignore.iter();
    ignored
        .filter_map(|text| Ignored::parse(text).ok())
        .collect()
}

/// Checks the database. Returns the mistakes of resources that do not fit it as well.
async fn check(
    config: &Config,
    database: &Database,
    mut options: PlanOptions,
    patterns: &[String],
) -> anyhow::Result<(Report, Vec<Mistake>)> {
    let mut report = Report::default();
    if let Some(reason) = database.find_pooler().await? {
        report.add([pooler("database.listen_url, else database.url", &reason)]);
        report.unchecked.push(Unchecked {
            name: "all but the pooler".to_owned(),
            place: None,
            reason: "a check needs a direct connection".to_owned(),
        });
        return Ok((report, Vec::new()));
    }
    if let (Some(url), Some(_), false) = (
        &config.database_url,
        &config.listen_url,
        config.source.pooler,
    ) {
        let requests = Database::new(url, false, config.source.statement_timeout)?;
        let found = requests.find_pooler().await?;
        report.add(found.map(|reason| pooler("database.url", &reason)));
    }
    let requesting = match requesting_role(config).await {
        Ok(role) => role,
        Err(error) => {
            report.unchecked.push(Unchecked {
                name: "privileges of larder's role over database.url".to_owned(),
                place: None,
                reason: error.to_string(),
            });
            None
        }
    };
    let mut connection = database.connect_for_feed(&[]).await?;
    let mut transaction = connection
        .begin_with(READ_ONLY)
        .await
        .map_err(SourceError::from)?;
    sqlx::raw_sql(LIMITS)
        .execute(&mut *transaction)
        .await
        .map_err(SourceError::from)?;
    options.tables = matching_tables(&mut transaction, patterns).await?;
    let requesting = requesting.as_deref();
    let read = read(config, requesting, &mut transaction, &mut report, &options).await;
    transaction.rollback().await.map_err(SourceError::from)?;
    let (mistakes, rejected) = read?;
    let mut mistakes = mistakes;
    mistakes.extend(check_dispatches(config, database, &mut report).await?);
    if rejected.is_empty() {
        Ok((report, mistakes))
    } else {
        Err(QueryErrors(rejected).into())
    }
}

/// Adds what is found of dispatches. Returns the mistakes of those that do not fit.
async fn check_dispatches(
    config: &Config,
    database: &Database,
    report: &mut Report,
) -> anyhow::Result<Vec<Mistake>> {
    let mut mistakes = Vec::new();
    for definition in &config.dispatches {
        match DispatchSetup::new(definition, database, config)
            .check()
            .await
        {
            Ok(checked) => {
                let object = format!("dispatch {}", definition.name.value);
                let find = |rule, severity, reason: String, sql: Vec<String>| Finding {
                    place: Some(definition.place.clone()),
                    remedies: (sql.into_iter().map(|sql| Remedy { sql, lock: None })).collect(),
                    ..Finding::new(rule, severity, object.clone(), reason)
                };
                if !checked.grants.is_empty() {
                    let reason = "larder's role may not do what the dispatch needs".to_owned();
                    report.add([find(Rule::Rights, Severity::Error, reason, checked.grants)]);
                }
                let index = checked.missing_index.into_iter();
                report.add(index.map(|(reason, sql)| {
                    find(Rule::MissingIndex, Severity::Info, reason, vec![sql])
                }));
            }
            Err(DispatchError::Unfit(found)) => {
                report.add(found.iter().map(unfit));
                mistakes.extend(found);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(mistakes)
}

/// The role over `database.url`, if the feed has a URL of its own.
async fn requesting_role(config: &Config) -> Result<Option<String>, SourceError> {
    let (Some(url), Some(_)) = (&config.database_url, &config.listen_url) else {
        return Ok(None);
    };
    let requests = Database::new(url, config.source.pooler, config.source.statement_timeout)?;
    requests.role().await.map(Some)
}

/// Adds what the rules find in the snapshot of `transaction`.
async fn read(
    config: &Config,
    requesting: Option<&str>,
    transaction: &mut PgConnection,
    report: &mut Report,
    options: &PlanOptions,
) -> Result<(Vec<Mistake>, Vec<QueryError>), SourceError> {
    let inspected = if config.resources.is_empty() {
        Inspected::default()
    } else {
        inspect(transaction, &config.resources, &config.feed, requesting).await?
    };
    report.add(inspected.mistakes.iter().map(unfit));
    let not_installed = inspected.not_installed.iter();
    report.add(not_installed.map(|missing| {
        let place = place_of(&inspected, &missing.object);
        lack(Rule::Triggers, missing, place, Some(TRIGGER_LOCK))
    }));
    let not_allowed = inspected.not_allowed.iter();
    report.add(not_allowed.map(|missing| {
        let place = place_of(&inspected, &missing.object);
        lack(Rule::Rights, missing, place, None)
    }));
    let not_needed = inspected.not_needed.iter();
    report.add(not_needed.map(|missing| Finding {
        severity: Severity::Info,
        ..lack(Rule::Rights, missing, None, None)
    }));
    let planning = async |connection: &mut PgConnection| {
        check_plans(connection, &inspected.resources, options).await
    };
    let plans = attempt(transaction, report, "plans of statements", planning).await?;
    let plans = plans.unwrap_or_default();
    report.add(plans.findings);
    report.unchecked.extend(plans.unchecked);
    report.skipped.extend(plans.skipped);
    let named = named_tables(&inspected, &options.tables);
    let reading = async |connection: &mut PgConnection| read_facts(connection, &named).await;
    if let Some(facts) = attempt(transaction, report, "tables and indexes", reading).await? {
        report.add(indexes::findings(&facts, &plans.indexes));
        report.add(upkeep::findings(&facts));
        let locked = facts.locked.iter();
        report.unchecked.extend(locked.map(|table| Unchecked {
            name: format!("indexes of {table}"),
            place: named.get(&table.oid).cloned(),
            reason: "another transaction has locked the table".to_owned(),
        }));
    }
    let log = attempt(transaction, report, "the change log", read_change_log).await?;
    report.add(log.flatten().and_then(upkeep::change_log));
    Ok((inspected.mistakes, plans.rejected))
}

/// The oids of the tables of resources and of `--table`, with the place that names them first.
fn named_tables(inspected: &Inspected, more: &[u32]) -> BTreeMap<u32, Place> {
    let mut named = BTreeMap::new();
    for resource in &inspected.resources {
        for row in resource.rows() {
            let place = || row.place.clone();
            named.entry(row.table.oid).or_insert_with(place);
        }
    }
    for oid in more {
        named.entry(*oid).or_insert_with(|| Place {
            origin: "command line".into(),
            line: 0,
            key: "--table".to_owned(),
        });
    }
    named
}

/// What `read` returns, which runs under a savepoint. If PostgreSQL refuses it or it takes too long, that ends nothing else.
///
/// # Errors
/// If the connection fails.
async fn attempt<T>(
    transaction: &mut PgConnection,
    report: &mut Report,
    name: &str,
    read: impl AsyncFnOnce(&mut PgConnection) -> Result<T, SourceError>,
) -> Result<Option<T>, SourceError> {
    let mut savepoint = transaction.begin().await?;
    let outcome = read(&mut savepoint).await;
    match outcome {
        Ok(read) => {
            savepoint.commit().await?;
            Ok(Some(read))
        }
        Err(error) if error.is_connection_error() => Err(error),
        Err(error) => {
            savepoint.rollback().await?;
            report.unchecked.push(Unchecked {
                name: name.to_owned(),
                place: None,
                reason: error.to_string(),
            });
            Ok(None)
        }
    }
}

fn unfit(mistake: &Mistake) -> Finding {
    let Mistake { place, message } = mistake;
    Finding {
        place: Some(place.clone()),
        ..Finding::new(
            Rule::Unfit,
            Severity::Error,
            place.key.clone(),
            message.clone(),
        )
    }
}

fn lack(rule: Rule, lack: &Lack, place: Option<Place>, lock: Option<&'static str>) -> Finding {
    let sql = Some(lack.sql.clone()).filter(|sql| !sql.is_empty());
    Finding {
        place,
        remedies: sql.map(|sql| Remedy { sql, lock }).into_iter().collect(),
        ..Finding::new(
            rule,
            Severity::Error,
            lack.object.clone(),
            lack.reason.clone(),
        )
    }
}

fn pooler(setting: &str, reason: &str) -> Finding {
    let reason = format!(
        "{reason}: it leads to a pooler; set pooler = true and let listen_url lead to PostgreSQL itself"
    );
    Finding::new(Rule::Pooler, Severity::Error, setting.to_owned(), reason)
}

/// The first place that names the table `object`.
fn place_of(inspected: &Inspected, object: &str) -> Option<Place> {
    let resources = inspected.resources.iter();
    let mut rows = resources.flat_map(|resource| resource.rows());
    let row = rows.find(|row| row.table.to_string() == object)?;
    Some(row.place.clone())
}

/// All rules, a line each.
fn list() -> String {
    let lines = Rule::ALL.map(|rule| format!("{:<16} {}\n", rule.id(), rule.summary()));
    lines.concat()
}
