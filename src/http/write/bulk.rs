//! `POST` of many documents: a JSON array, or NDJSON, of any length.
//!
//! All of them are inserted in one transaction, or none is; while a batch is inserted, the next one is read and parsed.
//! With `Prefer: handling=lenient` each is inserted by itself, as if it had come alone, and each has its own outcome,
//! sent as soon as it is known: then a client must read while it sends.

mod reader;

use std::future::ready;
use std::pin::pin;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use futures_util::future::try_join;
use futures_util::stream::{self, Stream, StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use serde::Serialize;
use tokio::time::timeout;

use crate::documents::Documents;
use crate::http::body::body_problem;
use crate::http::headers::{
    APPLICATION_JSON, HANDLING_LENIENT, IDEMPOTENCY_KEY, JSON, LARDER_TOKEN, NDJSON,
    PREFERENCE_APPLIED, RETURN_MINIMAL, RETURN_REPRESENTATION, find_preference, require_media_type,
};
use crate::http::problem::{Problem, ProblemBody};
use crate::http::write::bulk::reader::{BATCH_BYTES, Batch, Document, Reader};
use crate::http::write::location;
use crate::resource::Resource;
use crate::resource::body::{Framing, is_space};
use crate::source::token::Token;
use crate::source::writes::{Action, BulkFault, BulkPermit, Write, WriteError};

/// Documents that are given back.
const REPRESENTED_MAX: usize = 1_000;

/// Documents of one lenient request that are written at a time; they share transactions.
const LENIENT_AT_ONCE: usize = 128;

/// Outcomes that are sent together where they are there.
const LINES_PER_FRAME: usize = 128;

const APPLICATION_NDJSON: HeaderValue = HeaderValue::from_static(NDJSON);

/// How the body of a `POST` holds many documents, none where it holds one; and the body.
///
/// # Errors
/// It is of neither type, broke off or came too slowly.
pub(super) async fn framing(
    headers: &HeaderMap,
    mut body: Body,
) -> Result<(Option<Framing>, Body), Problem> {
    if require_media_type(headers, &[JSON, NDJSON])? == NDJSON {
        return Ok((Some(Framing::Lines), body));
    }
    let first = loop {
        let Some(frame) = body.frame().await else {
            return Ok((None, body));
        };
        let frame = frame.map_err(|error| body_problem(&error))?;
        let data = frame.into_data().unwrap_or_default();
        if let Some(start) = data.iter().position(|byte| !is_space(*byte)) {
            break data.slice(start..);
        }
    };
    let framing = first.starts_with(b"[").then_some(Framing::Array);
    let first = stream::once(ready(Ok(first)));
    let body = Body::from_stream(first.chain(body.into_data_stream()));
    Ok((framing, body))
}

/// A request to insert many documents.
pub(super) struct BulkWrite<'b> {
    pub(super) documents: &'b Documents,
    pub(super) resource: Arc<Resource>,
    /// The resource's name as it stands in the path.
    pub(super) name: &'b str,
    /// Its principal may see what is stored.
    pub(super) may_read: bool,
}

impl BulkWrite<'_> {
    /// Inserts the documents of `body`.
    pub(super) async fn insert(
        self,
        headers: &HeaderMap,
        framing: Framing,
        body: Body,
    ) -> Result<Response<Body>, Problem> {
        if headers.contains_key(IDEMPOTENCY_KEY) {
            let why = "Idempotency-Key can't be used with many documents";
            return Err(Problem::bad_request(why));
        }
        let permit = self.documents.bulk_permit()?;
        let bytes_max = self.documents.document_bytes_max();
        let reader = Reader::new(Arc::clone(&self.resource), framing, body, bytes_max);
        if find_preference(headers, &[HANDLING_LENIENT]).is_some() {
            return Ok(self.lenient(reader, permit));
        }
        let returned = if self.may_read {
            find_preference(headers, &[RETURN_MINIMAL, RETURN_REPRESENTATION])
        } else {
            Some(RETURN_MINIMAL)
        };
        let stored = self
            .insert_all(reader, returned == Some(RETURN_REPRESENTATION))
            .await?;
        Ok(respond(&stored, returned))
    }

    /// All or none.
    async fn insert_all(&self, reader: Reader, represented: bool) -> Result<Stored, Problem> {
        let mut batches = pin!(stream::try_unfold(reader, Reader::rows));
        let mut stored = Stored::default();
        let Some(mut batch) = batches.try_next().await? else {
            return Ok(stored);
        };
        // Until now no connection was held; from now on the client must not be slow.
        let limit = self.documents.request_timeout();
        let bulk = self.documents.insert_many(Arc::clone(&self.resource));
        let mut bulk = bulk.await?;
        let mut represented_keys = Vec::new();
        loop {
            let Batch { first, documents } = batch;
            let count = documents.documents() as u64;
            let inserting = async {
                let inserted = bulk.insert(documents).await;
                inserted.map_err(|fault| problem(fault, first, count))
            };
            // What is wrong with the next batch is told after what is wrong with this one.
            let reading = async {
                let following = timeout(limit, batches.try_next()).await;
                Ok(following
                    .unwrap_or_else(|_| Err(Problem::bulk_body_too_slow(BATCH_BYTES, limit))))
            };
            let (keys, following) = try_join(inserting, reading).await?;
            stored.count += count;
            if represented {
                represented_keys.extend(keys);
                if represented_keys.len() > REPRESENTED_MAX {
                    return Err(Problem::too_many_documents(REPRESENTED_MAX));
                }
            }
            match following? {
                Some(following) => batch = following,
                None => break,
            }
        }
        if represented {
            stored.documents = bulk.read(&represented_keys).await?;
        }
        stored.token = self.documents.commit(bulk).await?;
        Ok(stored)
    }

    /// Each by itself.
    fn lenient(self, reader: Reader, permit: BulkPermit) -> Response<Body> {
        let single = Arc::new(Single {
            documents: self.documents.clone(),
            resource: self.resource,
            name: self.name.to_owned(),
            _permit: permit,
        });
        let lines = documents(reader).map(move |(index, document)| {
            let single = Arc::clone(&single);
            async move { single.line(index, document).await }
        });
        let lines = lines.buffered(LENIENT_AT_ONCE);
        let frames = lines.ready_chunks(LINES_PER_FRAME);
        let frames = frames.map(|lines| Ok::<_, std::convert::Infallible>(lines.concat()));
        let mut response = Response::new(Body::from_stream(frames));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, APPLICATION_NDJSON);
        let applied = HeaderValue::from_static(HANDLING_LENIENT);
        headers.insert(PREFERENCE_APPLIED, applied);
        response
    }
}

/// What there is to say of `count` documents, `first` and those after it.
fn problem(fault: BulkFault, first: u64, count: u64) -> Problem {
    let is_refused = matches!(fault.error, WriteError::Refused { .. });
    let problem = Problem::from(fault.error);
    match fault.document {
        Some(document) => problem.in_document(first + document as u64),
        None if is_refused => problem.in_documents(first, count),
        None => problem,
    }
}

/// The documents that `reader` gives, with their places; at the end why there are no more, if that is not all.
fn documents(reader: Reader) -> impl Stream<Item = (u64, Document)> + Send {
    let batches = stream::unfold((Some(reader), 0), |(reader, next)| async move {
        match reader?.each().await {
            Ok(None) => None,
            Ok(Some((Batch { first, documents }, reader))) => {
                let next = first + documents.len() as u64;
                Some(((first, documents), (Some(reader), next)))
            }
            Err(problem) => Some(((next, vec![Err(problem)]), (None, next))),
        }
    });
    batches.flat_map(|(first, documents)| stream::iter((first..).zip(documents)))
}

/// What writes documents one by one.
struct Single {
    documents: Documents,
    resource: Arc<Resource>,
    name: String,
    _permit: BulkPermit,
}

/// The outcome of one document.
#[derive(Serialize)]
struct Line<'l> {
    index: u64,
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    location: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<ProblemBody<'l>>,
}

impl Single {
    /// Writes a document, and its outcome as a line.
    async fn line(&self, index: u64, document: Document) -> Vec<u8> {
        let problem;
        let mut line = Line {
            index,
            status: StatusCode::CREATED.as_u16(),
            location: None,
            token: None,
            problem: None,
        };
        match self.write(document).await {
            Ok((location, token)) => (line.location, line.token) = (Some(location), Some(token)),
            Err(why) => {
                problem = why;
                line.status = problem.status().as_u16();
                line.problem = Some(problem.body());
            }
        }
        // Strings and numbers always serialise.
        let mut text = simd_json::to_vec(&line).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// The path of the document, and the transaction.
    async fn write(&self, document: Document) -> Result<(String, String), Problem> {
        let write = Write {
            resource: Arc::clone(&self.resource),
            action: Action::Insert { rows: document? },
            condition: None,
            representation: false,
            repeatable: None,
        };
        let written = self.documents.write(write).await?;
        let location = location(&self.name, &self.resource.key, &written.key);
        Ok((location, written.token.to_string()))
    }
}

/// What a transaction has inserted.
#[derive(Default)]
struct Stored {
    count: u64,
    /// As they are stored, where that is wanted.
    documents: Vec<Bytes>,
    token: Option<Token>,
}

fn respond(stored: &Stored, returned: Option<&'static str>) -> Response<Body> {
    let body = match returned {
        Some(RETURN_MINIMAL) => Vec::new(),
        Some(_) => [b"[", &*stored.documents.join(&b","[..]), b"]"].concat(),
        None => format!("{{\"count\":{}}}", stored.count).into_bytes(),
    };
    let mut headers = HeaderMap::new();
    if !body.is_empty() {
        headers.insert(CONTENT_TYPE, APPLICATION_JSON);
    }
    // A token is always a valid value.
    if let Some(Ok(token)) = stored
        .token
        .map(|token| HeaderValue::try_from(token.to_string()))
    {
        headers.insert(LARDER_TOKEN, token);
    }
    if let Some(returned) = returned {
        headers.insert(PREFERENCE_APPLIED, HeaderValue::from_static(returned));
    }
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::CREATED;
    *response.headers_mut() = headers;
    response
}
