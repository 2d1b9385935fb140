//! `larder serve`: starts all parts of larder, and stops them in order.

mod banner;
mod secret_files;
mod service;
mod workers;

use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, anyhow, bail};
use futures_util::future;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal as NixSignal;
use sqlx::Connection;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use crate::commands::check;
use crate::commands::database::CommandDatabase;
use crate::commands::output;
use crate::commands::seed::seed;
use crate::commands::serve::banner::{Banner, Proposal};
pub use crate::commands::serve::service::Service;
use crate::commands::serve::workers::Workers;
use crate::commands::shutdown::{Shutdown, ShutdownStage};
use crate::config::{Config, ConfigError};
use crate::feed::FirstOutcome;
use crate::http::connection::serve_http;
use crate::http::middleware::stack::PublicService;
use crate::metrics::Metrics;
use crate::server::tls::Tls;
use crate::server::{self, ClientCounts, ServerConfig};
use crate::source::session::Database;
use crate::source::session::url::ConnectionUrl;
use crate::state::StateLock;
use crate::telemetry::LogLevel;

/// The demo's size on the first start.
const DEMO_DEPTS: u32 = 1_000;
const DEMO_EMPS_PER_DEPT: u32 = 10;

/// The most names of resources in the first line of the log.
const LOGGED_NAMES_MAX: usize = 20;

/// How long the first lines on stdout wait for the first pass.
const BANNER_WAIT: Duration = Duration::from_secs(5);

/// How long they wait for keys of documents then.
const KEYS_WAIT: Duration = Duration::from_secs(1);

/// Time between two warnings that a file has reached the limit of its size.
const FILE_SIZE_WARNING_PAUSE: Duration = Duration::from_secs(60);

/// How long a drain waits for requests of the admin address, if those for documents are answered before. They take
/// milliseconds, unless a client does not send the rest.
const OPERATORS_WAIT: Duration = Duration::from_secs(1);

/// One part in this many of `shutdown_timeout` is reserved for what follows the last response.
const STOPPING_SHARE: u32 = 10;

/// Runs until SIGTERM or SIGINT, then drains.
///
/// # Errors
/// [`ConfigError`] where the configuration does not fit the database; else why larder can't run.
pub async fn run(config: &Config, log_level: Option<LogLevel>) -> anyhow::Result<()> {
    let shutdown = Shutdown::by_signals(config.shutdown_delay)?;
    // A SIGHUP that comes before the certificate is read is handled after that.
    let hangup = signal(SignalKind::hangup()).context("SIGHUP")?;
    let too_large = signal(SignalKind::from_raw(NixSignal::SIGXFSZ as i32)).context("SIGXFSZ")?;
    tokio::spawn(warn_of_file_size(too_large));
    raise_descriptor_limit();
    secret_files::warn_of_readable(config);
    let lock = StateLock::acquire(&config.state_dir)?;
    let node = lock.node()?;
    let database = CommandDatabase::open(config, &lock).await?;
    let outcome = run_on(config, &database, node, log_level, shutdown, hangup).await;
    database.close().await;
    outcome
}

async fn run_on(
    config: &Config,
    database: &CommandDatabase,
    node: Uuid,
    log_level: Option<LogLevel>,
    shutdown: Shutdown,
    hangup: Signal,
) -> anyhow::Result<()> {
    if database.is_private() {
        seed_once(database.url())
            .await
            .context("creating the demo tables")?;
    }
    let public = bind(config.listen, "listen")?;
    let private = bind(config.admin, "admin")?;
    let banner = Banner {
        config,
        listen: public.local_addr()?,
        admin: private.local_addr()?,
        private: database.is_private().then(|| database.url()),
    };
    log_start(&banner, database);
    let workers = Workers::start(config.workers).context("starting the workers")?;
    let runtimes = workers.runtimes();
    let mut service = Service::start(config, database.url(), node, runtimes)?;
    let draining = || shutdown.reached(ShutdownStage::Draining);
    let stopping = || shutdown.reached(ShutdownStage::Delaying);
    let tls = load_certificate(config, &service.metrics)?;
    let mut plain = service.server_config(config);
    let secure = ServerConfig {
        tls: tls.clone(),
        ..plain.clone()
    };
    // The admin address is not behind a load balancer.
    plain.limits.proxy_protocol = Vec::new();
    // Connections of the public address must not keep an operator out who has the same address.
    plain.clients = ClientCounts::default();
    let logged = service.log_written();
    handle_hangups(hangup, tls, &service, shutdown.clone());
    let documents = service.public();
    let serving = serve_documents(documents, public, runtimes.to_vec(), secure, draining());
    let operators = service.admin_router(log_level);
    let operators = move |_| operators.clone();
    let here = vec![Handle::current()];
    let refused = |_, _, _| {};
    let admin = serve_http(private, operators, refused, here, plain, draining());
    let admin = tokio::spawn(admin);
    let mut first = service.first_outcome();
    let checked = tokio::select! {
        outcome = announce(&mut first, &banner, &service) => outcome,
        () = stopping() => Ok(()),
    };
    if checked.is_err() {
        shutdown.drain();
    }
    tokio::select! {
        () = log_progress(config, database.url(), first, &service) => {}
        () = stopping() => {}
    }
    service.announce_stop();
    shutdown.delay().await;
    tracing::info!("stopping: requests are finished, and the disk tier is written");
    let began = Instant::now();
    let (limit, ending) = (
        config.shutdown_timeout,
        shutdown.reached(ShutdownStage::Ending),
    );
    let drained = drain(service, serving, admin, limit, ending).await;
    if let (Ok(()), Some(logged)) = (&drained, logged) {
        let written = timeout_at(began + limit, logged).await;
        if written.is_err() {
            tracing::error!("the access log was not written in time");
        }
    }
    workers.stop();
    checked?;
    drained
}

/// Logs what this larder is and reaches, without passwords.
fn log_start(banner: &Banner<'_>, database: &CommandDatabase) {
    let config = banner.config;
    let names = config.resources.iter().take(LOGGED_NAMES_MAX);
    let names: Vec<&str> = names.map(|resource| resource.name.value.as_str()).collect();
    let target = ConnectionUrl::parse(database.url()).map(|url| url.target());
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        file = ?config.file.as_deref().unwrap_or(Path::new("")),
        database = target.unwrap_or_default(),
        private = database.is_private(),
        listen = %banner.listen,
        admin = %banner.admin,
        resources = config.resources.len(),
        names = ?names,
        "starting"
    );
}

/// Logs once that larder is ready, and warns of what a check finds once the configuration has been checked. Never ends.
async fn log_progress(
    config: &Config,
    url: &str,
    mut first: watch::Receiver<Option<FirstOutcome>>,
    service: &Service,
) {
    let warning = async {
        if first.wait_for(Option::is_some).await.is_ok() {
            check::warn(config, url).await;
        }
    };
    future::join(service.log_ready(), warning).await;
    std::future::pending().await
}

/// Serves the public address on `runtimes` until `stop` ends.
fn serve_documents(
    documents: PublicService,
    listener: TcpListener,
    runtimes: Vec<Handle>,
    config: ServerConfig,
    stop: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<()> {
    let refusing = documents.clone();
    let refused = move |peer, status, bytes| refusing.log_refusal(peer, status, bytes);
    let documents = move |peer| documents.for_connection(peer);
    let serving = serve_http(listener, documents, refused, runtimes, config, stop);
    tokio::spawn(serving)
}

/// Finishes the accepted requests, or ends the wait for them at `ending`; then writes what is pending for the disk tier.
/// Both take at most `limit`.
///
/// # Errors
/// If not all of it was done in time.
async fn drain(
    service: Service,
    serving: JoinHandle<()>,
    admin: JoinHandle<()>,
    limit: Duration,
    ending: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let began = Instant::now();
    // A client that never ends its request must not use up the time that the disk tier needs.
    let answering = limit.saturating_sub(limit / STOPPING_SHARE);
    let answered = answer_all(serving, admin, answering, ending).await;
    timeout_at(began + limit, service.stop())
        .await
        .map_err(|_| anyhow!("the disk tier was not written within {limit:?}"))?;
    answered
}

/// Waits until the requests for documents have been answered, and then those of the admin address: at most for
/// `answering`, and not beyond `ending`.
///
/// # Errors
/// If a request for a document was not answered.
async fn answer_all(
    serving: JoinHandle<()>,
    admin: JoinHandle<()>,
    answering: Duration,
    ending: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let mut ending = pin!(ending);
    let operators_end = Instant::now() + answering.min(OPERATORS_WAIT);
    tokio::select! {
        biased;
        served = serving => served.context("serving")?,
        () = tokio::time::sleep(answering) => bail!("clients were still connected after {answering:?}"),
        () = &mut ending => bail!("clients were still connected at the second signal"),
    }
    // An operator's request that does not end must not hold up the stop.
    tokio::select! {
        biased;
        ended = timeout_at(operators_end, admin) => {
            ended.map_or(Ok(()), |ended| ended.context("serving the admin address"))
        }
        () = ending => Ok(()),
    }
}

/// Prints the banner when the configuration has been checked, or when that takes long; fails if it does not fit.
async fn announce(
    first: &mut watch::Receiver<Option<FirstOutcome>>,
    banner: &Banner<'_>,
    service: &Service,
) -> anyhow::Result<()> {
    let early = tokio::time::timeout(BANNER_WAIT, first.wait_for(Option::is_some))
        .await
        .is_ok();
    if !early {
        print(&banner.text(&[]));
    }
    let outcome = first
        .wait_for(Option::is_some)
        .await
        .context("the feed ended")?
        .clone();
    match outcome {
        Some(Err(mistakes)) => Err(ConfigError { mistakes }.into()),
        _ => {
            if early {
                print(&banner.text(&proposed_keys(banner, service).await));
            }
            Ok(())
        }
    }
}

/// Encoded keys of documents of the resource that the banner proposes; none if they can't be read in time.
async fn proposed_keys(banner: &Banner<'_>, service: &Service) -> Vec<String> {
    let proposal = banner.proposal().filter(Proposal::is_of_one_document);
    let Some(proposal) = proposal else {
        return Vec::new();
    };
    let reading = service.first_keys(&proposal.resource.name.value);
    let read = tokio::time::timeout(KEYS_WAIT, reading).await;
    read.unwrap_or_default()
}

/// That stdout can't be written is no reason to stop.
fn print(text: &str) {
    if let Err(error) = output::print(&mut std::io::stdout(), text) {
        tracing::warn!("{error:#}");
    }
}

pub(super) fn bind(address: SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    server::listen(address).with_context(|| format!("{key} = \"{address}\" can't be bound"))
}

/// Fills the demo tables of a new private database; one that was changed since is left as it is.
async fn seed_once(url: &str) -> anyhow::Result<()> {
    let database = Database::new(url, false, Duration::ZERO)?;
    let mut connection = database.connect_plain().await?;
    let there: bool = sqlx::query_scalar("select to_regclass('public.dept') is not null")
        .fetch_one(&mut connection)
        .await?;
    connection.close().await?;
    if !there {
        seed(url, DEMO_DEPTS, DEMO_EMPS_PER_DEPT).await?;
    }
    Ok(())
}

/// Logs that a file has reached the limit of its size. Without a handler the signal ends larder; with it the write fails,
/// as on a full disk, and the disk tier is turned off.
async fn warn_of_file_size(mut too_large: Signal) {
    let mut warned_at = None;
    while too_large.recv().await.is_some() {
        // Every further write is such a signal; so is a write to the log's file.
        if warned_at.is_none_or(|at: Instant| at.elapsed() > FILE_SIZE_WARNING_PAUSE) {
            warned_at = Some(Instant::now());
            tracing::warn!(
                "a file has reached the limit of its size (ulimit -f, LimitFSIZE); raise it, or lower disk.max_bytes"
            );
        }
    }
}

/// Raises the limit of open files to the hard limit, so that idle clients leave enough of them to the tiers.
fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::debug!("RLIMIT_NOFILE: {error}");
    }
}

/// At each SIGHUP reads the certificate again, which stays in force if that fails, and opens the file of the access log
/// again. Without either, SIGHUP says that the terminal is gone, and larder stops.
fn handle_hangups(
    mut hangup: Signal,
    tls: Option<Arc<Tls>>,
    service: &Service,
    shutdown: Shutdown,
) {
    let (log, metrics) = (service.reopen_signal(), Arc::clone(&service.metrics));
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            if tls.is_none() && log.is_none() {
                return shutdown.drain();
            }
            if let Some(log) = &log {
                log.send();
            }
            let Some(tls) = tls.clone() else {
                continue;
            };
            let metrics = Arc::clone(&metrics);
            let reload = move || tls.reload().map(|()| note_expiry(&tls, &metrics));
            let reloaded = tokio::task::spawn_blocking(reload).await;
            match reloaded
                .map_err(anyhow::Error::from)
                .and_then(|tls| Ok(tls?))
            {
                Ok(()) => tracing::info!("the certificate was read again"),
                Err(error) => tracing::error!(
                    "the certificate can't be read again and stays in force: {error}"
                ),
            }
        }
    });
}

/// Reads the certificate, if one is configured.
fn load_certificate(config: &Config, metrics: &Metrics) -> anyhow::Result<Option<Arc<Tls>>> {
    let tls = Tls::load(&config.tls)?;
    if let Some(tls) = &tls {
        note_expiry(tls, metrics);
    }
    Ok(tls.map(Arc::new))
}

/// Tells in `metrics` when the certificate in force expires.
fn note_expiry(tls: &Tls, metrics: &Metrics) {
    let since = tls
        .expires_at()
        .and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    if let Some(since) = since {
        let gauge = metrics
            .gauges
            .certificate_expiry
            .with_label_values::<&str>(&[]);
        gauge.set(i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
    }
}
