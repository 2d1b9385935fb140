//! The admin address: the dashboard and what it shows, health, readiness, metrics, purge. Never on the public address.

mod dashboard;
pub mod dispatch;
mod faults;
pub mod history;
pub mod shared;
pub mod token;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, ETAG};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use tokio::time::Instant;

use crate::cache::encoding::Encoding;
use crate::cache::{Cache, Status};
use crate::http::admin::faults::Fault;
use crate::http::admin::history::History;
use crate::http::admin::shared::{AdminShared, with_shared};
use crate::http::headers::{APPLICATION_JSON, members};
use crate::http::problem::Problem;
use crate::http::request::{RequestTarget, TargetPart};
use crate::metrics::Metrics;
use crate::resource::ResourceId;
use crate::unseen::escaped;

/// `/readyz` waits for the disk tier for at most this time after the start.
const DISK_WAIT: Duration = Duration::from_secs(5);

/// What the admin handlers need.
#[derive(Clone)]
pub struct Admin {
    /// The documents.
    pub cache: Arc<Cache>,
    /// The metrics of `/metrics`.
    pub metrics: Arc<Metrics>,
    /// When larder started.
    pub started_at: Instant,
    /// What the addresses of all commands have.
    pub shared: AdminShared,
    /// What has happened in each of the last seconds, and what is wrong.
    pub history: Arc<History>,
}

/// `GET /status`.
#[derive(Serialize)]
struct StatusPage {
    #[serde(flatten)]
    status: Status,
    /// What is wrong, the worst first.
    faults: Vec<Fault>,
    version: &'static str,
    /// The time since the start of larder.
    started_seconds_ago: f64,
    /// Requests above the rate limit since the start.
    requests_refused: u64,
    /// An admin token is configured, so that documents can be shown.
    shows_documents: bool,
}

/// The admin address.
pub fn router(admin: Admin) -> Router {
    let router = dashboard::add_to(Router::new(), &dashboard::SERVE_PAGE)
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .route("/explain/{resource}/{key}", get(explain))
        .route("/purge/{resource}", post(purge))
        .route("/purge/{resource}/{key}", post(purge))
        // A text key may be empty.
        .route("/explain/{resource}/", get(explain))
        .route("/purge/{resource}/", post(purge))
        .route("/document/{resource}/{key}", get(document))
        .route("/document/{resource}/", get(document))
        .route("/history", get(history))
        .route("/recent", get(recent));
    with_shared(router, &admin.shared).with_state(admin)
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
            let others = admin.cache.unready_resources().into_iter();
            let others = others.map(|reason| format!(", but {reason}"));
            let ready = format!("ready{}", others.collect::<String>());
            format!("{}\n", escaped(&ready)).into_response()
        }
        Some(reason) => {
            let reason = escaped(&reason);
            (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response()
        }
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
    blocking(move || {
        let status = admin.cache.status();
        json(&StatusPage {
            faults: admin.history.faults.observe(&status, admin.history.rates()),
            status,
            version: env!("CARGO_PKG_VERSION"),
            started_seconds_ago: admin.started_at.elapsed().as_secs_f64(),
            requests_refused: admin.metrics.requests_refused.get(),
            shows_documents: admin.shared.token.is_some(),
        })
    })
    .await
}

/// `?after=` leaves out what the client has: samples until this moment, in milliseconds since 1970.
async fn history(State(admin): State<Admin>, request: Request) -> Response {
    let after = match request.uri().query() {
        None => Some(0),
        Some(query) => query
            .strip_prefix("after=")
            .and_then(|after| after.parse().ok()),
    };
    let Some(after) = after else {
        let detail = "the only parameter is after, milliseconds since 1970";
        return Problem::bad_request(detail).into_response();
    };
    let mut encodings = members(request.headers(), ACCEPT_ENCODING);
    let accepts_gzip = encodings.any(|encoding| encoding == Encoding::Gzip.name());
    blocking(move || {
        let page = admin.history.page(after);
        // A few samples are not worth it.
        if accepts_gzip && after == 0 {
            compressed_json(&page)
        } else {
            json(&page)
        }
    })
    .await
}

async fn recent(State(admin): State<Admin>) -> Response {
    json(&admin.cache.recent())
}

/// The document as a tier has it. Without an admin token everyone on the machine may use the address, so it is not shown.
async fn document(State(admin): State<Admin>, request: Request) -> Response {
    if admin.shared.token.is_none() {
        let detail =
            "documents are shown only if an admin token is configured (auth.admin_token_file)";
        return Problem::forbidden(detail).into_response();
    }
    let (index, key) = match target(&admin.cache, request.uri().path()) {
        Ok((index, Some(key))) => (index, key),
        Ok((_, None)) => return Problem::NO_SUCH_OPERATION.into_response(),
        Err(problem) => return problem.into_response(),
    };
    let Some(document) = admin.cache.kept_document(index, &key).await else {
        return Problem::NOT_KEPT.into_response();
    };
    let mut response = json_response(document.body().to_vec());
    // A quoted hexadecimal number is always a valid header value.
    if let Ok(etag) = HeaderValue::from_bytes(&document.etag()) {
        response.headers_mut().insert(ETAG, etag);
    }
    response
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

/// Does work that may take long on a thread for blocking work.
async fn blocking(work: impl FnOnce() -> Response + Send + 'static) -> Response {
    match tokio::task::spawn_blocking(work).await {
        Ok(response) => response,
        Err(error) => Problem::internal(error.to_string()).into_response(),
    }
}

pub(super) fn json(value: &impl Serialize) -> Response {
    match simd_json::to_string(value) {
        Ok(text) => json_response(text),
        Err(error) => Problem::internal(error.to_string()).into_response(),
    }
}

fn json_response(body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, APPLICATION_JSON);
    response
}

/// The same compressed with gzip, if that is smaller.
fn compressed_json(value: &impl Serialize) -> Response {
    let text = match simd_json::to_string(value) {
        Ok(text) => Bytes::from(text),
        Err(error) => return Problem::internal(error.to_string()).into_response(),
    };
    let Some(encoded) = Encoding::Gzip.encode(std::slice::from_ref(&text)) else {
        return json_response(text);
    };
    let mut response = json_response(encoded);
    let gzip = HeaderValue::from_static(Encoding::Gzip.name());
    response.headers_mut().insert(CONTENT_ENCODING, gzip);
    response
}
