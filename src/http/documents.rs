//! `GET` and `HEAD` of documents, by path or by query; all other methods are for [`writes`] to answer.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{ALLOW, HeaderName, IF_MATCH, RANGE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use prometheus::IntCounter;
use xxhash_rust::xxh3::xxh3_128;

use crate::cache::document::{Document, entity_tag};
use crate::cache::{Answer, Cache, LookupError, Provenance};
use crate::clock::Boottime;
use crate::http::body::Whole;
use crate::http::conditional::matches;
use crate::http::labels::{Labels, detail};
use crate::http::negotiate::accepts_json;
use crate::http::problem::Problem;
use crate::http::query::{self, Query};
use crate::http::target::{METHODS, Part, Target};
use crate::http::{batch, list, respond, writes};
use crate::metrics::Metrics;
use crate::resource::projection::Projection;
use crate::resource::{Resource, ResourceId};
use crate::source::token::{Token, TokenError};
use crate::source::writes::Writes;

pub(super) const LARDER_TOKEN: HeaderName = HeaderName::from_static("larder-token");

/// The documents of a cache over HTTP.
#[derive(Clone)]
pub(super) struct Documents {
    cache: Arc<Cache>,
    writes: Arc<Writes>,
    metrics: Arc<Metrics>,
    /// By resource.
    hits: Arc<[HitCounters]>,
    /// By resource.
    labels: Arc<[Labels]>,
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
            let labels = [name, detail(Provenance::Memory), status.as_str()];
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
    pub(super) fn new(
        cache: Arc<Cache>,
        writes: Arc<Writes>,
        metrics: Arc<Metrics>,
        labels: Vec<Labels>,
    ) -> Self {
        let names = cache.names();
        let hits = names.map(|name| HitCounters::new(&metrics, name)).collect();
        Self {
            cache,
            writes,
            metrics,
            hits,
            labels: labels.into(),
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
        if *method != Method::GET
            || uri.query().is_some()
            || headers.contains_key(LARDER_TOKEN)
            || headers.contains_key(RANGE)
            || headers.contains_key(IF_MATCH)
            || !accepts_json(headers)
        {
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
        let mut response = match &answer.found {
            Some(document) => respond::document(headers, document).ok()?,
            None => Problem::no_such_document().into_whole_response(),
        };
        let labels = self.labels.get(index.index())?;
        match labels.name_keys() {
            false => labels.mark(&mut response, answer.provenance, None),
            true => {
                let resource = self.cache.resource(index).ok()?;
                let key = Some((&resource.key, &*key));
                labels.mark(&mut response, answer.provenance, key);
            }
        }
        self.hits[index.index()].of(response.status()).inc();
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
        Ok(target) => dispatch(&documents, target, &head, body).await,
        // The server as a whole.
        Err(_) if head.method == Method::OPTIONS && head.uri.path() == "*" => {
            Ok(("request", allow(METHODS).map(Body::new)))
        }
        Err(problem) => Err(problem),
    };
    let (detail, response) = answered.unwrap_or_else(|problem| {
        let detail = if problem.status().is_client_error() {
            "request"
        } else {
            "postgres"
        };
        (detail, problem.into_response())
    });
    // Only configured names become labels: clients must not be able to add any.
    let label = index.and_then(|index| documents.cache.names().nth(index.index()));
    let status = response.status();
    let labels = [label.unwrap_or_default(), detail, status.as_str()];
    documents.metrics.requests.with_label_values(&labels).inc();
    documents.observe(began);
    response
}

/// An answer, and what the label `detail` says of it.
pub(super) type Answered = Result<(&'static str, Response<Whole>), Problem>;

/// Answers one target by the request's method.
async fn dispatch(
    documents: &Documents,
    target: Target<'_>,
    head: &Parts,
    body: Body,
) -> Result<(&'static str, Response<Body>), Problem> {
    let Documents { cache, writes, .. } = documents;
    let Target { index, part } = target;
    let answered: Answered = match (part, &head.method) {
        (Part::Document(key), &Method::GET | &Method::HEAD) => {
            read_document(Reading::begin(documents, index, head)?, key, head).await
        }
        (Part::Collection, &Method::GET | &Method::HEAD) => {
            read_collection(Reading::begin(documents, index, head)?, head).await
        }
        (Part::Batch, &Method::POST) => {
            let mut reading = Reading::begin(documents, index, head)?;
            let query = head.uri.query().unwrap_or_default();
            reading.fields = query::fields(query, &reading.resource)?;
            let keys = batch::keys_in_body(&head.headers, body, &reading.resource.key).await?;
            batch::answer(&reading, &keys).await
        }
        (_, &Method::OPTIONS) => {
            // Where it is not known yet what the tables take, it may be everything.
            let resource = cache.resource(index).ok();
            let writable = resource.is_none_or(|resource| resource.writable.is_ok());
            Ok(("request", allow(part.methods(writable))))
        }
        _ => return writes::answer(cache, writes, target, head, body).await,
    };
    answered.map(|(detail, response)| (detail, response.map(Body::new)))
}

/// 204 with the methods that are answered.
fn allow(methods: &'static str) -> Response<Whole> {
    let mut response = Response::new(Whole::default());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(ALLOW, HeaderValue::from_static(methods));
    response
}

/// What answers that read have in common.
pub(super) struct Reading<'r> {
    pub(super) cache: &'r Arc<Cache>,
    pub(super) index: ResourceId,
    pub(super) resource: Arc<Resource>,
    pub(super) labels: &'r Labels,
    pub(super) headers: &'r HeaderMap,
    /// The transactions that the answer must show.
    pub(super) tokens: Vec<Token>,
    /// The members that are wanted; none for whole documents.
    pub(super) fields: Option<Projection>,
}

impl<'r> Reading<'r> {
    fn begin(
        documents: &'r Documents,
        index: ResourceId,
        head: &'r Parts,
    ) -> Result<Self, Problem> {
        if !accepts_json(&head.headers) {
            return Err(Problem::not_acceptable());
        }
        let cache = &documents.cache;
        // There are as many as resources.
        let labels = documents
            .labels
            .get(index.index())
            .ok_or_else(Problem::no_such_resource)?;
        Ok(Self {
            cache,
            index,
            tokens: tokens(&head.headers)?,
            resource: cache.resource(index)?,
            labels,
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
    let mut response = match &answer.found {
        None => Problem::no_such_document().into_whole_response(),
        Some(document) => match &reading.fields {
            Some(fields) => projected(&reading, fields, document).await?,
            None => whole_or_part(&reading, document, head).await,
        },
    };
    let key = (&reading.resource.key, &*key);
    reading
        .labels
        .mark(&mut response, answer.provenance, Some(key));
    Ok((detail(answer.provenance), response))
}

/// The members of `document` that are wanted.
async fn projected(
    reading: &Reading<'_>,
    fields: &Projection,
    document: &Document,
) -> Result<Response<Whole>, Problem> {
    let mut body = Vec::new();
    let written = fields.write(document.body(), &mut body);
    written.ok_or_else(Problem::unprojected)?;
    let etag = entity_tag(xxh3_128(&body).to_be_bytes());
    Ok(respond::made(reading.headers, &etag, || vec![body.into()]).await)
}

/// `document`, or what `Range` asks for of it. An encoding that it does not have yet is made and kept beside it.
async fn whole_or_part(
    reading: &Reading<'_>,
    document: &Document,
    head: &Parts,
) -> Response<Whole> {
    let headers = reading.headers;
    if !matches(headers, &document.etag()) {
        return Problem::precondition_failed().into_whole_response();
    }
    if head.method == Method::GET
        && let Some(part) = respond::part(headers, document)
    {
        return part;
    }
    let encoding = match respond::document(headers, document) {
        Ok(response) => return response,
        Err(encoding) => encoding,
    };
    let body = [Bytes::from_owner(document.clone())];
    // Where it can't be made now, the document is sent as if it were no smaller.
    let response = match respond::encoded(encoding, &body).await {
        Some(encoded) => {
            let cache = reading.cache;
            let document = cache.keep_encoded(reading.index, document, encoding, &encoded);
            respond::document(headers, &document)
        }
        None => respond::document(&HeaderMap::new(), document),
    };
    // An encoding that was just made is there.
    response.unwrap_or_else(|_| Problem::unprojected().into_whole_response())
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
    index: ResourceId,
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
