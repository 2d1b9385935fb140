//! Documents over HTTP, and the admin address. Knows no tier and no SQL.
//!
//! `documents` answers `GET` and `HEAD`; `conditional` decides on 304; `problem` is the one place where an error gets
//! its status; `admin` is never on the public address. A function builds each router, so tests need no socket;
//! `accept` serves them.

pub mod accept;
pub mod admin;
mod conditional;
mod documents;
mod problem;

use std::sync::Arc;

use axum::Router;

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
