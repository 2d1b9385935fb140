//! The admin address: health, readiness, metrics, status, explain, purge, log level. Never on the public address.

pub mod token;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::StringRejection;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use tokio::time::Instant;

use crate::cache::Cache;
use crate::http::admin::token::{AdminAccess, AdminToken};
use crate::http::headers::APPLICATION_JSON;
use crate::http::problem::Problem;
use crate::http::request::{RequestTarget, TargetPart};
use crate::metrics::Metrics;
use crate::resource::ResourceId;
use crate::telemetry::LogLevel;

/// `/readyz` waits for the disk tier for at most this time after the start.
const DISK_WAIT: Duration = Duration::from_secs(5);

/// What the admin handlers need.
#[derive(Clone)]
pub struct Admin {
    /// The documents.
    pub cache: Arc<Cache>,
    /// The metrics of `/metrics`.
    pub metrics: Arc<Metrics>,
    /// The log's filter; `None` if another program has set up the log.
    pub log_level: Option<LogLevel>,
    /// When larder started.
    pub started_at: Instant,
    /// The token that requests need, except those for health and readiness.
    pub token: Option<AdminToken>,
    /// Names of the host by which web pages may reach the address without a token.
    pub hosts: Vec<String>,
}

/// The admin address.
pub fn router(admin: Admin) -> Router {
    let access = AdminAccess::new(admin.token.clone(), &admin.hosts);
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .route("/explain/{resource}/{key}", get(explain))
        .route("/purge/{resource}", post(purge))
        .route("/purge/{resource}/{key}", post(purge))
        // A text key may be empty.
        .route("/explain/{resource}/", get(explain))
        .route("/purge/{resource}/", post(purge))
        .route("/log-level", get(log_level).put(set_log_level))
        .fallback(|| async { Problem::NO_SUCH_OPERATION.into_response() })
        // The router adds Allow.
        .method_not_allowed_fallback(|| async { Problem::METHOD_NOT_ALLOWED.into_response() })
        .layer(from_fn_with_state(access, token::check))
        .with_state(admin)
}

impl Admin {
    /// Why `/readyz` is 503; `None` if larder is ready.
    pub fn unready_reason(&self) -> Option<String> {
        let disk_awaited = !self.cache.disk_in_use() && self.started_at.elapsed() < DISK_WAIT;
        self.cache
            .unready_reason()
            .or_else(|| disk_awaited.then(|| "the disk tier is opening".to_owned()))
    }
}

async fn readyz(State(admin): State<Admin>) -> Response {
    match admin.unready_reason() {
        None => {
            let others = admin.cache.unfit().into_iter();
            let others = others.map(|reason| format!(", but {reason}"));
            format!("ready{}\n", others.collect::<String>()).into_response()
        }
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn metrics(State(admin): State<Admin>) -> Response {
    blocking(move || {
        admin.cache.observe();
        match admin.metrics.render() {
            Ok(text) => ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
            Err(error) => Problem::internal(error.to_string()).into_response(),
        }
    })
    .await
}

async fn status(State(admin): State<Admin>) -> Response {
    blocking(move || json(&admin.cache.status())).await
}

async fn explain(State(admin): State<Admin>, request: Request) -> Response {
    match target(&admin.cache, request.uri().path()) {
        Ok((index, Some(key))) => json(&admin.cache.explain(index, &key).await),
        Ok((_, None)) => Problem::NO_SUCH_OPERATION.into_response(),
        Err(problem) => problem.into_response(),
    }
}

async fn purge(State(admin): State<Admin>, request: Request) -> Response {
    match target(&admin.cache, request.uri().path()) {
        Ok((index, key)) => {
            blocking(move || {
                if let Some(purged) = admin.cache.purge(index, key.as_deref()) {
                    // It ends when the sender is dropped: no message is ever sent.
                    let _ended = purged.blocking_recv();
                }
                StatusCode::NO_CONTENT.into_response()
            })
            .await
        }
        Err(problem) => problem.into_response(),
    }
}

/// Resource and key of `/VERB/RESOURCE[/KEY]`.
fn target(cache: &Cache, path: &str) -> Result<(ResourceId, Option<String>), Problem> {
    let verb = path.get(1..).and_then(|path| path.find('/'));
    let path = verb.map_or("", |end| &path[end + 1..]);
    let target = RequestTarget::parse(path, |name| cache.id_of(name));
    let id = target.resource.ok_or(Problem::NO_SUCH_RESOURCE)?;
    match target.part {
        TargetPart::Collection => Ok((id, None)),
        TargetPart::Document { key } => {
            let resource = cache.resource(id)?;
            let key = resource.key.canonical(&path[key..])?;
            Ok((id, Some(key.into_owned())))
        }
        TargetPart::Batch
        | TargetPart::Alias { .. }
        | TargetPart::Session
        | TargetPart::Unknown => Err(Problem::NO_SUCH_RESOURCE),
    }
}

async fn log_level(State(admin): State<Admin>) -> Response {
    match &admin.log_level {
        Some(level) => format!("{}\n", level.current()).into_response(),
        None => Problem::NO_SUCH_OPERATION.into_response(),
    }
}

async fn set_log_level(
    State(admin): State<Admin>,
    filter: Result<String, StringRejection>,
) -> Response {
    let Some(level) = &admin.log_level else {
        return Problem::NO_SUCH_OPERATION.into_response();
    };
    let filter = match filter {
        Ok(filter) => filter,
        Err(rejection) => return Problem::from(rejection).into_response(),
    };
    match level.set(filter.trim()) {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => Problem::bad_request(error.to_string()).into_response(),
    }
}

/// Does work that may take long on a thread for blocking work.
async fn blocking(work: impl FnOnce() -> Response + Send + 'static) -> Response {
    match tokio::task::spawn_blocking(work).await {
        Ok(response) => response,
        Err(error) => Problem::internal(error.to_string()).into_response(),
    }
}

fn json(value: &impl Serialize) -> Response {
    match simd_json::to_string(value) {
        Ok(text) => {
            let mut response = Response::new(Body::from(text));
            response
                .headers_mut()
                .insert(CONTENT_TYPE, APPLICATION_JSON);
            response
        }
        Err(error) => Problem::internal(error.to_string()).into_response(),
    }
}
