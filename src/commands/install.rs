//! `larder install` and `larder uninstall`.

use std::collections::BTreeSet;
use std::io::stdout;

use anyhow::bail;

use crate::cli::UninstallArgs;
use crate::commands::database::CommandDatabase;
use crate::commands::dispatch;
use crate::commands::output::print;
use crate::config::{Config, ConfigError};
use crate::dispatch::{DispatchSetup, letters};
use crate::feed;
use crate::feed::establish::EstablishError;
use crate::resource::sql::printable;
use crate::source::session::Database;

/// Installs schema and triggers, or with `prints` writes the SQL to stdout and changes nothing.
///
/// # Errors
/// [`ConfigError`] where the configuration does not fit the database; else what PostgreSQL said.
pub async fn install(config: &Config, prints: bool) -> anyhow::Result<()> {
    with_database(config, async |database| {
        let (dispatches, serves) = (!config.dispatches.is_empty(), !config.resources.is_empty());
        if prints {
            let mut script = String::new();
            if serves {
                let sql = feed::install_script(&database, &config.resources, &config.feed).await;
                script = sql.map_err(misfit)?;
            }
            if dispatches {
                script.push_str(&feed::dispatch_script());
                let mut grants = BTreeSet::new();
                for definition in &config.dispatches {
                    let setup = DispatchSetup::new(definition, &database, config);
                    let lacking = setup.script_grants().await;
                    grants.extend(lacking.map_err(dispatch::misfit)?);
                }
                grants.iter().for_each(|grant| {
                    script.push_str(grant);
                    script.push('\n');
                });
            }
            print(&mut stdout(), &printable(&script))?;
            return Ok(());
        }
        if serves {
            feed::install(&database, &config.resources, &config.feed)
                .await
                .map_err(misfit)?;
        }
        if dispatches {
            feed::install_dispatch(&database).await?;
        }
        tracing::info!("schema larder and its triggers are in place");
        Ok(())
    })
    .await
}

/// Removes all that larder added, or with `prints` writes the SQL to stdout and changes nothing.
///
/// # Errors
/// What PostgreSQL said; dead letters, unless they may be removed.
pub async fn uninstall(config: &Config, args: &UninstallArgs) -> anyhow::Result<()> {
    with_database(config, async |database| {
        if !args.dead_letters {
            check_dead_letters(&database).await?;
        }
        if args.print {
            let script = feed::uninstall_script(&database).await?;
            print(&mut stdout(), &printable(&script))?;
            return Ok(());
        }
        feed::uninstall(&database).await?;
        tracing::info!("schema larder and its triggers were removed");
        Ok(())
    })
    .await
}

/// # Errors
/// If there are dead letters of `larder dispatch`; what PostgreSQL said.
async fn check_dead_letters(database: &Database) -> anyhow::Result<()> {
    let mut connection = database.connect_for_feed(&[]).await?;
    if !feed::has_dispatch_tables(&mut connection).await? {
        return Ok(());
    }
    let counts = letters::count(&mut connection).await?;
    if let Some((name, count)) = counts.first() {
        bail!(
            "there are {count} dead letters of dispatch {name}: see `larder dispatch --dead-letters {name}`, or remove them \
             with `larder uninstall --dead-letters`"
        );
    }
    Ok(())
}

/// Runs `work` on the database that the feed would follow.
pub(super) async fn with_database<T>(
    config: &Config,
    work: impl AsyncFnOnce(Database) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let opened = CommandDatabase::join(config).await?;
    let url = config.listen_url.as_deref().unwrap_or(opened.url());
    let outcome = match Database::new(url, false, config.source.statement_timeout) {
        Ok(database) => work(database).await,
        Err(error) => Err(error.into()),
    };
    opened.close().await;
    outcome
}

/// Mistakes in the configuration end larder with their own exit code.
fn misfit(error: EstablishError) -> anyhow::Error {
    match error {
        EstablishError::Unfit(mistakes) => ConfigError { mistakes }.into(),
        error => error.into(),
    }
}
