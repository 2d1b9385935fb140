//! `GET` and `HEAD` of documents, by path or by query.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{
    AGE, CACHE_CONTROL, CACHE_STATUS, CONTENT_TYPE, ETAG, HeaderName, WARNING,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use prometheus::IntCounter;
use xxhash_rust::xxh3::xxh3_128;

use crate::cache::document::entity_tag;
use crate::cache::{Answer, Cache, LookupError, Way};
use crate::clock::Boottime;
use crate::feed::position::{Token, TokenError};
use crate::http::body::Whole;
use crate::http::conditional::none_match_fails;
use crate::http::problem::Problem;
use crate::http::query::{self, Query};
use crate::http::target::{Part, Target};
use crate::http::{batch, list};
use crate::metrics::Metrics;
use crate::resource::Resource;
use crate::resource::projection::Projection;

const LARDER_TOKEN: HeaderName = HeaderName::from_static("larder-token");
const APPLICATION_JSON: HeaderValue = HeaderValue::from_static("application/json");
const NO_CACHE: HeaderValue = HeaderValue::from_static("no-cache");
/// RFC 7234, section 5.5.1; obsolete since RFC 9111, but what caches say.
const STALE_WARNING: HeaderValue = HeaderValue::from_static("110 larder \"Response is Stale\"");
/// Headers of a document's answer, as made here.
const HEADERS: usize = 4;

/// The documents of a cache over HTTP.
#[derive(Clone)]
pub(super) struct Documents {
    cache: Arc<Cache>,
    metrics: Arc<Metrics>,
    /// By resource.
    hits: Arc<[HitCounters]>,
}

/// One resource's answers out of memory; looking a counter up by its labels takes longer than counting.
struct HitCounters {
    found: IntCounter,
    not_modified: IntCounter,
    absent: IntCounter,
}

impl HitCounters {
    fn new(metrics: &Metrics, name: &str) -> Self {
        let counter = |status: StatusCode| {
            let labels = [name, detail(Way::Memory), status.as_str()];
            metrics.requests.with_label_values(&labels)
        };
        Self {
            found: counter(StatusCode::OK),
            not_modified: counter(StatusCode::NOT_MODIFIED),
            absent: counter(StatusCode::NOT_FOUND),
        }
    }

    fn of(&self, status: StatusCode) -> &IntCounter {
        match status {
            StatusCode::NOT_MODIFIED => &self.not_modified,
            StatusCode::NOT_FOUND => &self.absent,
            _ => &self.found,
        }
    }
}

impl Documents {
    pub(super) fn new(cache: Arc<Cache>, metrics: Arc<Metrics>) -> Self {
        let names = cache.names();
        let hits = names.map(|name| HitCounters::new(&metrics, name)).collect();
        Self {
            cache,
            metrics,
            hits,
        }
    }

    /// The answer, if the request gets a document that memory has and may answer. Whatever else there is to say is
    /// [`answer`]'s; `HEAD` as well, since HTTP/2 sends the body that it is given.
    pub(super) fn hit(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Option<Response<Whole>> {
        if *method != Method::GET || uri.query().is_some() || headers.contains_key(LARDER_TOKEN) {
            return None;
        }
        let began = Boottime::now();
        let (name, key) = uri.path().strip_prefix('/')?.split_once('/')?;
        let index = self.cache.index_of(name)?;
        if key.contains('/') {
            return None;
        }
        let key = self.cache.canonical_key(index, key).ok()?.ok()?;
        let answer = self.cache.hit(index, &key, began)?;
        let response = respond(&answer, headers);
        self.hits[index].of(response.status()).inc();
        self.observe(began);
        Some(response)
    }

    fn observe(&self, began: Boottime) {
        let took = Boottime::now().since(began);
        self.metrics.request_duration.observe(took.as_secs_f64());
    }
}

/// Answers every path of the public address.
pub(super) async fn answer(
    State(documents): State<Documents>,
    request: Request<Body>,
) -> Response<Body> {
    let began = Boottime::now();
    let (head, body) = request.into_parts();
    let target = Target::parse(head.uri.path(), &documents.cache);
    let index = target.as_ref().ok().map(|target| target.index);
    let answered = match target {
        Ok(target) => dispatch(&documents.cache, target, &head, body).await,
        Err(problem) => Err(problem),
    };
    let (detail, response) = answered.unwrap_or_else(|problem| {
        let detail = if problem.status().is_client_error() {
            "request"
        } else {
            "postgres"
        };
        (detail, problem.into_whole_response())
    });
    // Only configured names become labels: clients must not be able to add any.
    let label = index.and_then(|index| documents.cache.names().nth(index));
    let status = response.status();
    let labels = [label.unwrap_or_default(), detail, status.as_str()];
    documents.metrics.requests.with_label_values(&labels).inc();
    documents.observe(began);
    response.map(Body::new)
}

/// An answer, and what the label `detail` says of it.
pub(super) type Answered = Result<(&'static str, Response<Whole>), Problem>;

/// Answers one target by the request's method.
async fn dispatch(cache: &Arc<Cache>, target: Target<'_>, head: &Parts, body: Body) -> Answered {
    let Target { index, part } = target;
    match (part, &head.method) {
        (Part::Document(key), &Method::GET | &Method::HEAD) => {
            read_document(Reading::begin(cache, index, head)?, key, head).await
        }
        (Part::Collection, &Method::GET | &Method::HEAD) => {
            read_collection(Reading::begin(cache, index, head)?, head).await
        }
        (Part::Batch, &Method::POST) => {
            let mut reading = Reading::begin(cache, index, head)?;
            let query = head.uri.query().unwrap_or_default();
            reading.fields = query::fields(query, &reading.resource)?;
            let keys = batch::keys_in_body(&head.headers, body, &reading.resource.key).await?;
            batch::answer(&reading, &keys).await
        }
        _ => Err(Problem::method_not_allowed(part.methods())),
    }
}

/// What answers that read have in common.
pub(super) struct Reading<'r> {
    pub(super) cache: &'r Arc<Cache>,
    pub(super) index: usize,
    pub(super) resource: Arc<Resource>,
    pub(super) headers: &'r HeaderMap,
    /// The transactions that the answer must show.
    pub(super) tokens: Vec<Token>,
    /// The members that are wanted; none for whole documents.
    pub(super) fields: Option<Projection>,
}

impl<'r> Reading<'r> {
    fn begin(cache: &'r Arc<Cache>, index: usize, head: &'r Parts) -> Result<Self, Problem> {
        Ok(Self {
            cache,
            index,
            tokens: tokens(&head.headers)?,
            resource: cache.resource(index)?,
            headers: &head.headers,
            fields: None,
        })
    }
}

/// The document of a key as it stands in the path.
async fn read_document(mut reading: Reading<'_>, key: &str, head: &Parts) -> Answered {
    if let Some(query) = head.uri.query() {
        reading.fields = query::fields(query, &reading.resource)?;
    }
    let key = reading.resource.key.canonical(key)?;
    let answer = lookup_key(reading.cache, reading.index, &key, &reading.tokens).await?;
    let response = match (&reading.fields, &answer.found) {
        (Some(fields), Some(document)) => {
            let mut body = Vec::new();
            let written = fields.write(document.body(), &mut body);
            written.ok_or_else(Problem::unprojected)?;
            let etag = entity_tag(xxh3_128(&body).to_be_bytes());
            let mut response = json_response(&head.headers, &etag, || Whole::new(body.into()));
            mark_way(&mut response, answer.way);
            response
        }
        _ => respond(&answer, &head.headers),
    };
    Ok((detail(answer.way), response))
}

/// The documents that a query asks for.
async fn read_collection(mut reading: Reading<'_>, head: &Parts) -> Answered {
    let query = head.uri.query().unwrap_or_default();
    let Query { keys, page, fields } = Query::parse(query, &reading.resource)?;
    reading.fields = fields;
    match keys {
        Some(keys) => batch::answer(&reading, &keys).await,
        None => list::answer(&reading, page, &head.uri).await,
    }
}

/// One document, at least as new as `tokens`.
pub(super) async fn lookup_key(
    cache: &Arc<Cache>,
    index: usize,
    key: &str,
    tokens: &[Token],
) -> Result<Answer, LookupError> {
    match tokens {
        [] => cache.lookup(index, key).await,
        tokens => cache.lookup_after(index, key, tokens).await,
    }
}

/// The transactions that the answer must show. Whoever stands between may join several headers (RFC 9110, 5.3).
fn tokens(headers: &HeaderMap) -> Result<Vec<Token>, Problem> {
    let values = headers.get_all(LARDER_TOKEN).iter();
    let listed = values.flat_map(|value| value.to_str().unwrap_or_default().split(','));
    listed
        .map(|token| token.trim().parse())
        .map(|token| {
            token.map_err(|why: TokenError| Problem::bad_request(format!("Larder-Token: {why}")))
        })
        .collect()
}

/// The value of label `detail`.
pub(super) fn detail(way: Way) -> &'static str {
    match way {
        Way::Memory => "memory",
        Way::Disk => "disk",
        Way::Miss { .. } => "postgres",
        Way::Bypass { .. } => "feed",
        Way::Ahead { .. } => "token",
        Way::Stale { .. } => "stale",
    }
}

/// RFC 9211.
fn cache_status(way: Way) -> HeaderValue {
    HeaderValue::from_static(match way {
        Way::Memory => "larder; hit; detail=memory",
        Way::Disk => "larder; hit; detail=disk",
        Way::Miss {
            stored: true,
            collapsed: false,
        } => "larder; fwd=miss; stored; detail=postgres",
        Way::Miss {
            stored: true,
            collapsed: true,
        } => "larder; fwd=miss; stored; detail=postgres; collapsed",
        Way::Miss {
            stored: false,
            collapsed: false,
        } => "larder; fwd=miss; detail=postgres",
        Way::Miss {
            stored: false,
            collapsed: true,
        } => "larder; fwd=miss; detail=postgres; collapsed",
        Way::Bypass { collapsed: false } => "larder; fwd=bypass; detail=feed",
        Way::Bypass { collapsed: true } => "larder; fwd=bypass; detail=feed; collapsed",
        Way::Ahead { collapsed: false } => "larder; fwd=request; detail=token",
        Way::Ahead { collapsed: true } => "larder; fwd=request; detail=token; collapsed",
        Way::Stale { .. } => "larder; hit; detail=stale",
    })
}

fn respond(answer: &Answer, headers: &HeaderMap) -> Response<Whole> {
    let mut response = match &answer.found {
        None => Problem::no_such_document().into_whole_response(),
        Some(document) => json_response(headers, &document.etag(), || {
            Whole::new(Bytes::from_owner(document.clone()))
        }),
    };
    mark_way(&mut response, answer.way);
    response
}

/// Says which way an answer came.
pub(super) fn mark_way(response: &mut Response<Whole>, way: Way) {
    let headers = response.headers_mut();
    headers.insert(CACHE_STATUS, cache_status(way));
    headers.insert(CACHE_CONTROL, NO_CACHE);
    if let Way::Stale { age } = way {
        headers.insert(AGE, HeaderValue::from(age.as_secs()));
        headers.insert(WARNING, STALE_WARNING);
    }
}

/// 200 with a JSON body, or 304 where the client has it. The server adds the body's length, for `HEAD` as well, where
/// it leaves the body away.
pub(super) fn json_response(
    asked: &HeaderMap,
    etag: &[u8],
    body: impl FnOnce() -> Whole,
) -> Response<Whole> {
    let mut headers = HeaderMap::with_capacity(HEADERS);
    let mut response = if none_match_fails(asked, etag) {
        let mut response = Response::new(Whole::default());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        headers.insert(CONTENT_TYPE, APPLICATION_JSON);
        Response::new(body())
    };
    // A quoted hexadecimal number is always a valid header value.
    if let Ok(etag) = HeaderValue::from_bytes(etag) {
        headers.insert(ETAG, etag);
    }
    *response.headers_mut() = headers;
    response
}
