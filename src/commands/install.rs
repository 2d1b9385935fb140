//! `larder install` and `larder uninstall`.

use std::io::stdout;

use crate::commands::database::CommandDatabase;
use crate::commands::output::print;
use crate::config::{Config, ConfigError};
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
        if prints {
            let script = feed::install_script(&database, &config.resources, &config.feed).await;
            print(&mut stdout(), &printable(&script.map_err(misfit)?))?;
            return Ok(());
        }
        feed::install(&database, &config.resources, &config.feed)
            .await
            .map_err(misfit)?;
        tracing::info!("schema larder and its triggers are in place");
        Ok(())
    })
    .await
}

/// Removes all that larder added, or with `prints` writes the SQL to stdout and changes nothing.
///
/// # Errors
/// What PostgreSQL said.
pub async fn uninstall(config: &Config, prints: bool) -> anyhow::Result<()> {
    with_database(config, async |database| {
        if prints {
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
