//! Documents over HTTP, and the admin address. Knows no tier and no SQL.
//!
//! `documents` answers `GET` and `HEAD`; `conditional` decides on 304; `problem` is the one place where an error gets
//! its status; `admin` is never on the public address. A function builds each router, so tests need no socket.

pub mod admin;
mod conditional;
mod documents;
mod problem;

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::serve::ListenerExt;
use tokio::net::TcpListener;

use crate::cache::Cache;
use crate::metrics::Metrics;

/// What the public handlers need.
#[derive(Clone)]
pub struct Api {
    /// The documents.
    pub cache: Arc<Cache>,
    /// Counts requests.
    pub metrics: Arc<Metrics>,
}

/// The public address.
pub fn router(api: Api) -> Router {
    // Paths are split by hand: keys are split at commas before they are percent-decoded, and may be empty.
    Router::new().fallback(documents::answer).with_state(api)
}

/// Serves `router` until `stop` ends; then accepts nothing more and ends when every request has been answered.
///
/// # Errors
/// If the listener fails for good.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("TCP_NODELAY: {error}");
        }
    });
    axum::serve(listener, router)
        .with_graceful_shutdown(stop)
        .await
}
