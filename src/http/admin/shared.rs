//! What the admin addresses of all commands have: health, the configuration, the log's filter, and the check of each request.

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::StringRejection;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::config::{Config, ConfigError, dump};
use crate::http::admin::token::{self, AdminAccess, AdminToken};
use crate::http::problem::Problem;
use crate::telemetry::LogLevel;

/// What these paths need.
#[derive(Clone)]
pub struct AdminShared {
    /// The log's filter; `None` if another program has set up the log.
    pub log_level: Option<LogLevel>,
    /// The token that requests need, except those for health and readiness.
    pub token: Option<AdminToken>,
    /// Names of the host by which web pages may reach the address without a token.
    pub hosts: Vec<String>,
    /// The configuration in force, as `larder config --dump` prints it.
    pub config: Bytes,
}

impl AdminShared {
    /// Reads the token. Blocks on the file system.
    ///
    /// # Errors
    /// [`ConfigError`] for a token that can't be read.
    pub fn read(config: &Config) -> Result<Self, ConfigError> {
        Ok(Self {
            log_level: None,
            token: AdminToken::read(&config.auth)?,
            hosts: config.admin_hosts.clone(),
            config: dump(config).into(),
        })
    }
}

/// Adds these paths to `router`, and the check of each request.
pub(super) fn with_shared<S: Clone + Send + Sync + 'static>(
    router: Router<S>,
    shared: &AdminShared,
) -> Router<S> {
    let access = AdminAccess::new(shared.token.clone(), &shared.hosts);
    let (config, shown, set) = (
        shared.config.clone(),
        shared.log_level.clone(),
        shared.log_level.clone(),
    );
    let level = get(move || async move { log_level(shown.as_ref()) })
        .put(move |filter| async move { set_log_level(set.as_ref(), filter) });
    router
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/config", get(move || async move { text(config) }))
        .route("/log-level", level)
        .fallback(|| async { Problem::NO_SUCH_OPERATION.into_response() })
        // The router adds Allow.
        .method_not_allowed_fallback(|| async { Problem::METHOD_NOT_ALLOWED.into_response() })
        .layer(from_fn_with_state(access, token::check))
}

fn text(text: Bytes) -> Response {
    let media_type = HeaderValue::from_static("text/plain; charset=utf-8");
    ([(CONTENT_TYPE, media_type)], text).into_response()
}

fn log_level(level: Option<&LogLevel>) -> Response {
    match level {
        Some(level) => format!("{}\n", level.current()).into_response(),
        None => Problem::NO_SUCH_OPERATION.into_response(),
    }
}

fn set_log_level(level: Option<&LogLevel>, filter: Result<String, StringRejection>) -> Response {
    let Some(level) = level else {
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
