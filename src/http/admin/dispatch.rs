//! The admin address of `larder dispatch`: its page, health, metrics, status, pause.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::future::join_all;
use serde::Serialize;
use tokio::time::Instant;

use crate::dispatch::status::DispatchStatus;
use crate::dispatch::{Dispatch, DispatchMetrics};
use crate::http::admin::shared::{AdminShared, with_shared};
use crate::http::admin::{dashboard, json};
use crate::http::problem::Problem;

/// What the handlers need.
#[derive(Clone)]
pub struct DispatchAdmin {
    /// The dispatches of this process.
    pub dispatches: Vec<Arc<Dispatch>>,
    /// The metrics of `/metrics`.
    pub metrics: Arc<DispatchMetrics>,
    /// When larder started.
    pub started_at: Instant,
    /// What the addresses of all commands have.
    pub shared: AdminShared,
}

/// `GET /status`.
#[derive(Serialize)]
struct StatusPage {
    version: &'static str,
    /// The time since the start of larder.
    started_seconds_ago: f64,
    dispatches: Vec<DispatchStatus>,
}

/// Creates the router of the admin address of `larder dispatch`.
pub fn router(admin: DispatchAdmin) -> Router {
    let router = dashboard::add_to(Router::new(), &dashboard::DISPATCH_PAGE)
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .route("/dispatch/{name}/pause", post(pause))
        .route("/dispatch/{name}/resume", post(resume));
    with_shared(router, &admin.shared).with_state(admin)
}

async fn readyz(State(admin): State<DispatchAdmin>) -> Response {
    match admin.dispatches.iter().find(|dispatch| dispatch.is_gone()) {
        None => "ready\n".into_response(),
        Some(dispatch) => {
            let reason = format!(
                "the sink of {} takes nothing any more (410)\n",
                dispatch.name()
            );
            (StatusCode::SERVICE_UNAVAILABLE, reason).into_response()
        }
    }
}

async fn metrics(State(admin): State<DispatchAdmin>) -> Response {
    match admin.metrics.render() {
        Ok(text) => ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
        Err(error) => Problem::internal(error.to_string()).into_response(),
    }
}

async fn status(State(admin): State<DispatchAdmin>) -> Response {
    let dispatches = admin.dispatches.iter().map(|dispatch| dispatch.status());
    json(&StatusPage {
        version: env!("CARGO_PKG_VERSION"),
        started_seconds_ago: admin.started_at.elapsed().as_secs_f64(),
        dispatches: join_all(dispatches).await,
    })
}

async fn pause(State(admin): State<DispatchAdmin>, Path(name): Path<String>) -> Response {
    set_paused(&admin, &name, true).await
}

async fn resume(State(admin): State<DispatchAdmin>, Path(name): Path<String>) -> Response {
    set_paused(&admin, &name, false).await
}

async fn set_paused(admin: &DispatchAdmin, name: &str, is_paused: bool) -> Response {
    let mut dispatches = admin.dispatches.iter();
    let Some(dispatch) = dispatches.find(|dispatch| dispatch.name() == name) else {
        return Problem::NO_SUCH_OPERATION.into_response();
    };
    match dispatch.set_paused(is_paused).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => Problem::from(error).into_response(),
    }
}
