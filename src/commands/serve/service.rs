//! What a running larder consists of, without its sockets.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use uuid::Uuid;

use crate::auth::config::ANONYMOUS;
use crate::cache::{Cache, CacheConfig, Demand};
use crate::config::{Config, ConfigError};
use crate::feed::{self, FeedHandle, FeedSetup, FirstOutcome};
use crate::http::admin::history::History;
use crate::http::admin::shared::AdminShared;
use crate::http::admin::{self, Admin};
use crate::http::auth::Auth;
use crate::http::middleware::access_log::{AccessLog, ReopenSignal};
use crate::http::middleware::stack::{PublicConfig, PublicService};
use crate::http::read::cache_headers::{Audience, CacheHeaders};
use crate::metrics::Metrics;
use crate::resource::definition::Located;
use crate::resource::page::Page;
use crate::server::rate::RateLimiter;
use crate::server::{ClientCounts, ServerConfig};
use crate::source::connections::Connections;
use crate::source::loader::Loader;
use crate::source::session::Database;
use crate::source::writes::Writes;
use crate::telemetry::LogLevel;

/// File in the state directory: the marks by which the feed recognizes the database's history.
const MARKS_FILE: &str = "marks";
/// File in the state directory: the tables that had their triggers.
const TABLES_FILE: &str = "tables";

/// The number of keys that are read for a proposed request: some may be long.
const PROPOSED_KEYS: usize = 10;
/// How often larder looks whether it is ready, until it is.
const READY_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A running larder without its sockets.
pub struct Service {
    cache: Arc<Cache>,
    writes: Arc<Writes>,
    pub(super) metrics: Arc<Metrics>,
    public: PublicConfig,
    /// Ends once all of the access log is written.
    log_written: Option<oneshot::Receiver<()>>,
    feed: FeedHandle,
    auth: Option<Arc<Auth>>,
    admin_shared: AdminShared,
    history: Arc<History>,
    started_at: Instant,
}

impl Service {
    /// Starts loader, tiers and feed on the database at `url`, the loader on `runtimes`. Does not wait for a connection.
    ///
    /// # Errors
    /// An invalid URL; threads that can't be started. [`ConfigError`] for keys that can't be read.
    pub fn start(
        config: &Config,
        url: &str,
        node: Uuid,
        runtimes: &[Handle],
    ) -> anyhow::Result<Self> {
        let metrics = Arc::new(Metrics::new()?);
        for resource in &config.resources {
            metrics.begin_resource(&resource.name.value);
        }
        let counted = Arc::clone(&metrics);
        let (tls, cors) = (config.has_tls(), &config.cors);
        let auth = Auth::start(&config.auth, &config.resources, tls, cors, counted)
            .map_err(ConfigError::from)?;
        let admin_shared = AdminShared::read(config)?;
        let timeout = config.source.statement_timeout;
        let source = Database::new(url, config.source.pooler, timeout)?;
        let followed = Database::new(config.listen_url.as_deref().unwrap_or(url), false, timeout)?;
        let (loader, writes) = start_source(config, source, runtimes, &metrics);
        let cache_config = CacheConfig {
            resources: (config.resources.iter())
                .map(|resource| (resource.name.value.clone(), resource.tiers))
                .collect(),
            memory: config.memory.clone(),
            disk: config.disk.clone(),
            max_staleness: config.feed.max_staleness,
            on_loss: config.feed.on_loss,
            request_timeout: config.request_timeout,
            audit: config.audit.clone(),
        };
        let cache = Cache::start(cache_config, loader, Arc::clone(&metrics))
            .context("starting the tiers")?;
        let setup = FeedSetup {
            database: followed,
            definitions: config.resources.clone(),
            config: config.feed.clone(),
            install: config.install,
            node,
            resumable: cache.resumable(),
            marks_file: config.state_dir.join(MARKS_FILE),
            tables_file: config.state_dir.join(TABLES_FILE),
            persisted: cache.persisted(),
            committed: writes.committed(),
            strict: cache.strict_passes(),
            metrics: Arc::clone(&metrics),
        };
        let follower = Arc::clone(&cache);
        let feed = feed::start(setup, move |event| follower.apply_event(event))
            .context("starting the feed")?;
        let (access_log, log_written) = access_log(config, &metrics)?.unzip();
        let public = PublicConfig {
            docs: config.docs,
            cache_headers: cache_headers(config),
            answers: config.answers.clone(),
            bodies_bytes_max: config.bodies_bytes_max,
            cors: config.cors.clone(),
            hosts: Some(config.hosts.clone()).filter(|_| config.listen.ip().is_loopback()),
            is_tls: config.has_tls(),
            trusted_proxies: config.limits.trusted_proxies.clone(),
            limiter: RateLimiter::new(&config.limits, Arc::clone(&metrics)).map(Arc::new),
            access_log,
        };
        Ok(Self {
            history: History::start(&cache, Arc::clone(&metrics)),
            cache,
            writes: Arc::new(writes),
            metrics,
            public,
            log_written,
            feed,
            auth,
            admin_shared,
            started_at: Instant::now(),
        })
    }

    /// The public address's service.
    pub fn public(&self) -> PublicService {
        let (cache, writes) = (Arc::clone(&self.cache), Arc::clone(&self.writes));
        let config = self.public.clone();
        let (metrics, auth) = (Arc::clone(&self.metrics), self.auth.clone());
        PublicService::new(cache, writes, metrics, config, auth)
    }

    /// What opens the file of the access log again after it was moved, if there is one.
    pub(super) fn reopen_signal(&self) -> Option<Arc<ReopenSignal>> {
        self.public.access_log.as_ref()?.reopen_signal()
    }

    /// Ends once all of the access log is written, after this service and all that it made have gone.
    pub(super) fn log_written(&mut self) -> Option<oneshot::Receiver<()>> {
        self.log_written.take()
    }

    /// How the addresses are served, without TLS; clones count the connections of a client together,
    /// and each call begins new counts.
    pub fn server_config(&self, config: &Config) -> ServerConfig {
        ServerConfig {
            limits: config.limits.clone(),
            metrics: Arc::clone(&self.metrics),
            clients: ClientCounts::default(),
            tls: None,
        }
    }

    /// The admin address's router.
    pub fn admin_router(&self, log_level: Option<LogLevel>) -> Router {
        admin::router(self.admin(log_level))
    }

    /// The first keys of documents of the resource called `name`, encoded, once it can be read; none if that fails.
    pub(super) async fn first_keys(&self, name: &str) -> Vec<String> {
        let Some(id) = self.cache.id_of(name) else {
            return Vec::new();
        };
        let resource = loop {
            match self.cache.resource(id) {
                Ok(resource) => break resource,
                Err(_) => tokio::time::sleep(READY_POLL_INTERVAL).await,
            }
        };
        let page = Page {
            after: None,
            filters: Vec::new(),
            owner: None,
            limit: PROPOSED_KEYS,
        };
        let keys = self.cache.keys(id, page, Demand::none()).await;
        let keys = keys.unwrap_or_default();
        let encoded = keys
            .iter()
            .map(|key| resource.key.encoded(key).into_owned());
        encoded.collect()
    }

    /// Logs, once, that larder is ready.
    pub(super) async fn log_ready(&self) {
        let admin = self.admin(None);
        while admin.unready_reason().is_some() {
            tokio::time::sleep(READY_POLL_INTERVAL).await;
        }
        let unfit = admin.cache.unfit();
        tracing::info!(
            after = ?self.started_at.elapsed(),
            resources = admin.cache.names().count() - unfit,
            unfit,
            "ready"
        );
    }

    fn admin(&self, log_level: Option<LogLevel>) -> Admin {
        Admin {
            cache: Arc::clone(&self.cache),
            metrics: Arc::clone(&self.metrics),
            started_at: self.started_at,
            shared: AdminShared {
                log_level,
                ..self.admin_shared.clone()
            },
            history: Arc::clone(&self.history),
        }
    }

    /// Filled once the configuration was checked against the database.
    pub fn first_outcome(&self) -> watch::Receiver<Option<FirstOutcome>> {
        self.feed.first_outcome()
    }

    /// Tells load balancers, by `/readyz`, to send no more requests.
    pub(super) fn announce_stop(&self) {
        self.cache.announce_stop();
    }

    /// Ends writes, feed, loader and tiers; what is pending for the disk tier is written.
    pub async fn stop(self) {
        self.writes.stop().await;
        let feed = self.feed;
        if tokio::task::spawn_blocking(move || feed.stop())
            .await
            .is_err()
        {
            tracing::error!("stopping the feed failed");
        }
        self.cache.stop().await;
    }
}

/// Starts the loader and the writes, which share the connections to `database`, on `runtimes`.
fn start_source(
    config: &Config,
    database: Database,
    runtimes: &[Handle],
    metrics: &Arc<Metrics>,
) -> (Loader, Writes) {
    let connections = Connections::new(database, config.source.connections, config.request_timeout);
    let bytes_max = usize::try_from(config.source.document_bytes_max).unwrap_or(usize::MAX);
    let log_slow = config.source.log_slow;
    let batches = Arc::clone(metrics);
    // Batches are far below 2^52, so the cast is exact.
    let read = Arc::clone(&connections);
    let loader = Loader::start(read, bytes_max, log_slow, runtimes, move |keys| {
        batches.source.batch_keys.observe(keys as f64)
    });
    if let Some(runtime) = runtimes.first() {
        loader.start_probes(runtime, config.listen_url.is_some());
    }
    let (answers, followed) = (config.feed.answers, loader.followed());
    let writes = Writes::start(connections, bytes_max, answers, runtimes, followed);
    (loader, writes)
}

/// The access log, and a receiver that ends once all of it is written.
fn access_log(
    config: &Config,
    metrics: &Metrics,
) -> anyhow::Result<Option<(AccessLog, oneshot::Receiver<()>)>> {
    let log = AccessLog::start(&config.access_log, metrics.access_log_dropped.clone());
    log.with_context(|| match &config.access_log.file {
        Some(file) => format!("access_log_file = {file:?} can't be appended to"),
        None => "the access log can't be started".to_owned(),
    })
}

/// The headers for caches in responses of each resource.
fn cache_headers(config: &Config) -> Vec<CacheHeaders> {
    let text = |setting: &Option<Located<String>>| setting.as_ref().map(|text| text.value.clone());
    let headers = config.resources.iter().map(|resource| {
        let cache_control = text(&resource.cache_control);
        let surrogate_key = text(&resource.surrogate_key);
        let is_anonymous = |role: &String| role == ANONYMOUS;
        let read = resource.read.as_ref();
        let for_all =
            !config.auth.is_on() || read.is_some_and(|roles| roles.value.iter().any(is_anonymous));
        let audience = match &resource.owner {
            Some(_) => Audience::Owners,
            None if for_all => Audience::Everyone,
            None => Audience::Authenticated,
        };
        let headers =
            CacheHeaders::new(cache_control.as_deref(), surrogate_key.as_deref(), audience);
        headers.with_strict_reads(resource.strict_reads.value)
    });
    headers.collect()
}
