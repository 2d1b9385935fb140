//! `larder dispatch`: sends the due rows of the configured dispatches until SIGTERM, or shows their dead letters.

use std::io::stdout;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use axum::Router;
use sqlx::postgres::PgConnection;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::cli::DispatchArgs;
use crate::commands::install::with_database;
use crate::commands::output::print;
use crate::commands::serve::bind;
use crate::commands::shutdown::{Shutdown, ShutdownStage};
use crate::config::{Config, ConfigError};
use crate::dispatch::definition::DispatchDefinition;
use crate::dispatch::letters::{self, DeadLetter, Replay};
use crate::dispatch::{Dispatch, DispatchError, DispatchMetrics, DispatchSetup};
use crate::feed;
use crate::feed::establish::EstablishError;
use crate::http::admin::dispatch::{DispatchAdmin, router};
use crate::http::admin::shared::AdminShared;
use crate::http::connection::serve_http;
use crate::metrics::Metrics;
use crate::server::{ClientCounts, ServerConfig};
use crate::source::SourceError;
use crate::source::session::Database;
use crate::telemetry::LogLevel;
use crate::unseen::escaped;

/// The pause between two attempts to reach the database at the start.
const START_PAUSE: Duration = Duration::from_secs(1);

/// How long the admin address may finish requests at the end.
const OPERATORS_WAIT: Duration = Duration::from_secs(1);

/// Dispatches until SIGTERM or SIGINT, or does with dead letters what `args` say.
///
/// # Errors
/// [`ConfigError`] where the configuration does not fit the database; with `--once`, if a sink takes nothing or there are new
/// dead letters; else why larder can't go on.
pub async fn run(config: &Config, args: &DispatchArgs, log_level: LogLevel) -> anyhow::Result<()> {
    if let Some(name) = &args.dead_letters {
        let definition = chosen(config, name)?;
        return with_database(config, async |database| show(&database, definition).await).await;
    }
    if let [name, keys @ ..] = args.replay.as_slice() {
        let definition = chosen(config, name)?;
        return with_database(config, async |database| {
            replay(&database, definition, keys).await
        })
        .await;
    }
    if let [name, keys @ ..] = args.discard.as_slice() {
        let definition = chosen(config, name)?;
        return with_database(config, async |database| {
            discard(&database, definition, keys).await
        })
        .await;
    }
    let names = args.name.iter();
    let mut definitions = names
        .map(|name| chosen(config, name))
        .collect::<Result<Vec<_>, _>>()?;
    if definitions.is_empty() {
        definitions = config.dispatches.iter().collect();
    }
    if definitions.is_empty() {
        bail!("the configuration has no [[dispatch]]");
    }
    let shutdown = Shutdown::by_signals(Duration::ZERO)?;
    let run = Run {
        config,
        once: args.once,
        shutdown,
    };
    with_database(config, async |database| {
        run.on(&database, &definitions, log_level).await
    })
    .await
}

fn chosen<'c>(config: &'c Config, name: &str) -> anyhow::Result<&'c DispatchDefinition> {
    let mut dispatches = config.dispatches.iter();
    let known = || {
        let names = config
            .dispatches
            .iter()
            .map(|dispatch| dispatch.name.value.as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    let chosen = dispatches.find(|dispatch| dispatch.name.value == name);
    chosen.ok_or_else(|| anyhow!("there is no dispatch {name:?}; there are: {}", known()))
}

/// Mistakes in the configuration end larder with their own exit code.
pub(super) fn misfit(error: DispatchError) -> anyhow::Error {
    match error {
        DispatchError::Unfit(mistakes) => ConfigError { mistakes }.into(),
        error => error.into(),
    }
}

/// A run of dispatches.
struct Run<'c> {
    config: &'c Config,
    once: bool,
    shutdown: Shutdown,
}

impl Run<'_> {
    async fn on(
        &self,
        database: &Database,
        definitions: &[&DispatchDefinition],
        log_level: LogLevel,
    ) -> anyhow::Result<()> {
        let listener = match bind(self.config.dispatch_admin, "dispatch_admin") {
            Ok(listener) => Some(listener),
            // Beside a service that has the address.
            Err(error) if self.once => {
                tracing::warn!("there is no admin address: {error:#}");
                None
            }
            Err(error) => return Err(error),
        };
        let metrics = Arc::new(DispatchMetrics::new()?);
        let shared = AdminShared {
            log_level: Some(log_level),
            ..AdminShared::read(self.config)?
        };
        let Some(dispatches) = self.prepare(database, definitions, &metrics).await? else {
            return Ok(());
        };
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            admin = listener
                .as_ref()
                .and_then(|listener| listener.local_addr().ok())
                .map(tracing::field::display),
            dispatches = dispatches.len(),
            "dispatching"
        );
        let admin = router(DispatchAdmin {
            dispatches: dispatches.clone(),
            metrics,
            started_at: Instant::now(),
            shared,
        });
        let limits = ServerConfig {
            limits: self.config.limits.clone(),
            metrics: Arc::new(Metrics::new()?),
            clients: ClientCounts::default(),
            tls: None,
        };
        let ended = self.shutdown.reached(ShutdownStage::Ending);
        let admin = tokio::spawn(async move {
            if let Some(listener) = listener {
                serve(listener, admin, limits, ended).await;
            }
        });
        let outcome = self.dispatch(&dispatches).await;
        dispatches.iter().for_each(|dispatch| dispatch.log_counts());
        // An operator's request that does not end must not hold up the end.
        self.shutdown.end();
        let _answered = timeout(OPERATORS_WAIT, admin).await;
        outcome?;
        if self.once && dispatches.iter().any(|dispatch| dispatch.has_failed()) {
            bail!(
                "rows are held back (a pause, or a sink that takes nothing), or there are new dead letters"
            );
        }
        Ok(())
    }

    /// Checks the dispatches once the database can be reached; `None` if a signal comes first.
    async fn prepare(
        &self,
        database: &Database,
        definitions: &[&DispatchDefinition],
        metrics: &Arc<DispatchMetrics>,
    ) -> anyhow::Result<Option<Vec<Arc<Dispatch>>>> {
        let mut is_told = false;
        loop {
            match self.prepare_once(database, definitions, metrics).await {
                Ok(dispatches) => return Ok(Some(dispatches)),
                Err(error) if self.once || !is_transient(&error) => return Err(error),
                Err(error) => {
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::warn!("waiting for PostgreSQL: {error:#}");
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(START_PAUSE) => {}
                () = self.shutdown.reached(ShutdownStage::Draining) => return Ok(None),
            }
        }
    }

    async fn prepare_once(
        &self,
        database: &Database,
        definitions: &[&DispatchDefinition],
        metrics: &Arc<DispatchMetrics>,
    ) -> anyhow::Result<Vec<Arc<Dispatch>>> {
        let config = self.config;
        if config.install {
            feed::install_dispatch(database).await?;
        } else if !feed::has_dispatch_tables(&mut database.connect_for_feed(&[]).await?).await? {
            bail!(
                "the tables of larder dispatch do not exist, and larder may not create them (install = \"manual\"): run \
                 `larder install`, or the SQL of `larder install --print`"
            );
        }
        let mut dispatches = Vec::with_capacity(definitions.len());
        let mut mistakes = Vec::new();
        for definition in definitions {
            let setup = DispatchSetup {
                once: self.once,
                ..DispatchSetup::new(definition, database, config)
            };
            match Dispatch::prepare(setup, Arc::clone(metrics)).await {
                Ok(dispatch) => dispatches.push(dispatch),
                Err(DispatchError::Unfit(found)) => mistakes.extend(found),
                Err(error) => return Err(error.into()),
            }
        }
        if mistakes.is_empty() {
            Ok(dispatches)
        } else {
            Err(misfit(DispatchError::Unfit(mistakes)))
        }
    }

    /// Runs `dispatches` until a signal, the end of all with `--once`, or the failure of one.
    async fn dispatch(&self, dispatches: &[Arc<Dispatch>]) -> anyhow::Result<()> {
        let mut running = JoinSet::new();
        for dispatch in dispatches {
            let dispatch = Arc::clone(dispatch);
            running.spawn(async move { dispatch.run().await });
        }
        let failure = tokio::select! {
            failure = first_failure(&mut running, self.once) => failure,
            () = self.shutdown.reached(ShutdownStage::Draining) => None,
        };
        if !self.once {
            tracing::info!("stopping: requests in flight are awaited, and their rows rescheduled");
        }
        for dispatch in dispatches {
            dispatch.stop();
        }
        let limit = self.config.shutdown_timeout;
        let ended = async { while running.join_next().await.is_some() {} };
        let drained = tokio::select! {
            ended = timeout(limit, ended) => ended.map_err(|_| anyhow!("requests were still in flight after {limit:?}")),
            () = self.shutdown.reached(ShutdownStage::Ending) => Err(anyhow!("requests were still in flight at the second signal")),
        };
        failure.map_or(drained, Err)
    }
}

/// Waits until a dispatch fails, or with `once` until all have ended.
async fn first_failure(
    running: &mut JoinSet<Result<(), DispatchError>>,
    once: bool,
) -> Option<anyhow::Error> {
    while let Some(ended) = running.join_next().await {
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Some(error.into()),
            Err(error) => return Some(error.into()),
        }
    }
    if !once {
        // Sinks have said that they take nothing any more.
        std::future::pending::<()>().await;
    }
    None
}

/// Returns whether the same may succeed later: PostgreSQL can't be reached, or a lock is held.
fn is_transient(error: &anyhow::Error) -> bool {
    let of_dispatch = match error.downcast_ref() {
        Some(DispatchError::Source(error)) => Some(error),
        _ => None,
    };
    let of_tables = match error.downcast_ref() {
        Some(EstablishError::Locked(_)) => return true,
        Some(EstablishError::Source(error)) => Some(error),
        _ => None,
    };
    let source = error.downcast_ref().or(of_dispatch).or(of_tables);
    source.is_some_and(|error: &SourceError| {
        error.is_transient() || error.is_connection_error() || matches!(error, SourceError::Timeout)
    })
}

async fn serve(
    listener: tokio::net::TcpListener,
    admin: Router,
    config: ServerConfig,
    stop: impl Future<Output = ()>,
) {
    let operators = move |_| admin.clone();
    let refused = |_, _, _| {};
    serve_http(
        listener,
        operators,
        refused,
        vec![Handle::current()],
        config,
        stop,
    )
    .await;
}

async fn connect(database: &Database) -> anyhow::Result<PgConnection> {
    let mut connection = database.connect_for_feed(&[]).await?;
    if !feed::has_dispatch_tables(&mut connection).await? {
        bail!("there are no dead letters: larder dispatch has not run on this database");
    }
    Ok(connection)
}

/// Prints the dead letters of a dispatch, one a line.
async fn show(database: &Database, definition: &DispatchDefinition) -> anyhow::Result<()> {
    let mut connection = connect(database).await?;
    let name = &definition.name.value;
    let mut is_read = print(&mut stdout(), "key\tattempts\tdead at\terror\n")?;
    let count = letters::for_each(&mut connection, name, &[], async |_, letter| {
        if is_read {
            is_read = print(&mut stdout(), &line(&letter))?;
        }
        Ok(())
    });
    count.await?;
    Ok(())
}

fn line(letter: &DeadLetter) -> String {
    let stuck = if letter.is_stuck { "stuck: " } else { "" };
    let cells = [
        letter.key.as_str(),
        &letter.attempts.to_string(),
        &letter.dead_at,
        &format!("{stuck}{}", letter.error),
    ];
    format!("{}\n", cells.map(escaped).join("\t"))
}

/// Refuses keys that no dead letter has.
///
/// # Errors
/// There are such keys in `missing`.
fn check_found(missing: &[String]) -> anyhow::Result<()> {
    if !missing.is_empty() {
        bail!(
            "there is no dead letter with the key {}",
            missing.join(" or ")
        );
    }
    Ok(())
}

/// Sends dead letters again, and deletes those that the sink takes. A stuck row is matched again.
async fn replay(
    database: &Database,
    definition: &DispatchDefinition,
    keys: &[String],
) -> anyhow::Result<()> {
    let mut connection = connect(database).await?;
    let (name, replay) = (
        &definition.name.value,
        Replay::new(definition).map_err(misfit)?,
    );
    let mut refused = 0;
    let replaying = letters::for_each(&mut connection, name, keys, async |connection, letter| {
        let outcome = if letter.is_stuck {
            Ok(())
        } else {
            replay.send(letter.clone()).await
        };
        match outcome {
            Ok(()) => letters::discard(connection, name, &letter).await?,
            Err(error) => {
                refused += 1;
                tracing::warn!(
                    "the dead letter with the key {} is not taken: {error}",
                    letter.key
                );
            }
        }
        Ok(())
    });
    let (count, missing) = replaying.await.context("replaying")?;
    tracing::info!(
        "{} of {count} dead letters were sent, or released to be matched again",
        count - refused
    );
    if refused > 0 {
        bail!("{refused} of {count} dead letters were not taken");
    }
    check_found(&missing)
}

async fn discard(
    database: &Database,
    definition: &DispatchDefinition,
    keys: &[String],
) -> anyhow::Result<()> {
    let mut connection = connect(database).await?;
    let name = &definition.name.value;
    let discarding = letters::for_each(&mut connection, name, keys, async |connection, letter| {
        Ok(letters::discard(connection, name, &letter).await?)
    });
    let (count, missing) = discarding.await.context("discarding")?;
    tracing::info!("{count} dead letters were deleted");
    check_found(&missing)
}
