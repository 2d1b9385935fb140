//! `POST` of many documents: a JSON array, or NDJSON, of any length.
//!
//! All are inserted in one transaction, or none is. While a batch is inserted, the next one is read and parsed. With
//! `Prefer: handling=lenient` each document is inserted separately, as if it had been sent alone, and its outcome is sent
//! as soon as it is known; the client then has to read the response while it sends.

mod reader;

use std::future::ready;
use std::pin::{Pin, pin};
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use futures_util::future::try_join;
use futures_util::stream::{self, Stream, StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use serde::Serialize;
use tokio::time::timeout;

use crate::clock::Boottime;
use crate::documents::lookups::Window;
use crate::documents::{Documents, Scope};
use crate::http::answers::{AnswersMemory, Reservation};
use crate::http::body::body_problem;
use crate::http::full_body::FullBody;
use crate::http::headers::{
    APPLICATION_JSON, HANDLING_LENIENT, JSON, LARDER_TOKEN, NDJSON, PREFERENCE_APPLIED,
    RETURN_MINIMAL, RETURN_REPRESENTATION,
};
use crate::http::internal_error::{log, request_id};
use crate::http::problem::{Problem, ProblemBody};
use crate::http::request::{Request, TargetPart, document_path};
use crate::http::work::Waiting;
use crate::http::write::WriteScopes;
use crate::http::write::bulk::reader::{BATCH_BYTES, BulkBatch, BulkReader, ParsedDocument};
use crate::http::write::document::check_writable;
use crate::resource::body::{Framing, is_space};
use crate::resource::writable::Rows;
use crate::resource::{Resource, ResourceId};
use crate::server::{ClientCounts, ClientPlace};
use crate::source::token::Token;
use crate::source::writes::{
    Action, BulkError, BulkPermit, BulkTransaction, Write, WriteEffect, WriteError,
};

/// The most documents that a response returns.
const REPRESENTED_MAX: usize = 1_000;

/// One client may have this part of all bulk writes at a time, and always one.
const CLIENTS: usize = 4;

/// Documents of a lenient request that are written at the same time; they share transactions.
const LENIENT_AT_ONCE: usize = 128;

/// Outcomes that are sent together if they are known.
const LINES_PER_FRAME: usize = 128;

const APPLICATION_NDJSON: HeaderValue = HeaderValue::from_static(NDJSON);

/// The framing of the documents in the body of a `POST`, `None` for one document; and the whole body.
///
/// # Errors
/// 415 for another media type; 400 or 408 if the body ends early or arrives too slowly.
pub(super) async fn detect_framing(
    request: &Request<'_>,
    mut body: Body,
) -> Result<(Option<Framing>, Body), Problem> {
    let is_ndjson = request.media_type(&[JSON, NDJSON])? == NDJSON;
    // Some of the body is read even of NDJSON, whose framing is known: a client that expects `100 Continue` would take a
    // response that begins before for the final one.
    let first = loop {
        let Some(frame) = body.frame().await else {
            return Ok((is_ndjson.then_some(Framing::Lines), body));
        };
        let frame = frame.map_err(|error| body_problem(&error))?;
        let data = frame.into_data().unwrap_or_default();
        // Blank lines count.
        if is_ndjson && !data.is_empty() {
            break data;
        }
        if let Some(start) = data.iter().position(|byte| !is_space(*byte)) {
            break data.slice(start..);
        }
    };
    let framing = if is_ndjson {
        Some(Framing::Lines)
    } else {
        first.starts_with(b"[").then_some(Framing::Array)
    };
    let first = stream::once(ready(Ok(first)));
    let body = Body::from_stream(first.chain(body.into_data_stream()));
    Ok((framing, body))
}

/// A request to insert many documents.
pub(super) struct BulkWrite<'b> {
    pub(super) documents: &'b Documents,
    pub(super) answers: &'b AnswersMemory,
    /// The bulk writes of each client.
    pub(super) clients: &'b ClientCounts,
    pub(super) request: &'b Request<'b>,
    pub(super) id: ResourceId,
    pub(super) resource: Arc<Resource>,
}

impl BulkWrite<'_> {
    /// Inserts the documents of `body`.
    pub(super) async fn insert(
        mut self,
        framing: Framing,
        body: Body,
    ) -> Result<Response<Body>, Problem> {
        if self.request.idempotency_key().is_some() {
            let why = "Idempotency-Key can't be used with many documents";
            return Err(Problem::bad_request(why));
        }
        let began = Boottime::now();
        Documents::check_writer(&self.scopes().writer, true)?;
        let client_max = (self.documents.bulk_max() / CLIENTS).max(1);
        let place = self.clients.take(self.request.client(), client_max);
        let place = place.ok_or(Problem::BULK_WRITES_OF_CLIENT)?;
        let permit = self.documents.bulk_permit();
        let permit = permit.map_err(|_| Problem::BULK_WRITES_FULL)?;
        // The body is not kept, so nothing can be repeated under another definition.
        self.resource = self.documents.compared(self.id, began).await?;
        check_writable(&self.resource, TargetPart::Collection)?;
        let scopes = self.scopes();
        let bytes_max = self.documents.document_bytes_max();
        let waiting = Waiting {
            client: self.request.client(),
            wait_max: self.documents.request_timeout(),
        };
        let resource = Arc::clone(&self.resource);
        let reader = BulkReader::new(
            resource,
            scopes.writer.clone(),
            framing,
            body,
            bytes_max,
            waiting,
        );
        let request = self.request;
        if request.preference(&[HANDLING_LENIENT]).is_some() {
            return Ok(self.insert_each(reader, scopes.writer, (permit, place)));
        }
        let returned = if scopes.may_read() {
            request.preference(&[RETURN_MINIMAL, RETURN_REPRESENTATION])
        } else {
            Some(RETURN_MINIMAL)
        };
        let inserted = self
            .insert_all(reader, scopes, returned == Some(RETURN_REPRESENTATION))
            .await?;
        Ok(respond(inserted, returned))
    }

    fn scopes(&self) -> WriteScopes {
        WriteScopes::of(self.request, self.id, &self.resource)
    }

    /// Inserts all documents in one transaction.
    async fn insert_all(
        &self,
        reader: BulkReader,
        scopes: WriteScopes,
        represented: bool,
    ) -> Result<Inserted, Problem> {
        let mut batches = pin!(stream::try_unfold(reader, BulkReader::rows));
        let Some(batch) = batches.try_next().await? else {
            return Ok(Inserted::default());
        };
        // No connection to PostgreSQL was held until now; from now on the client must not be slow.
        let (resource, WriteScopes { writer, reader }) = (Arc::clone(&self.resource), scopes);
        let bulk = self.documents.insert_many(resource, writer, reader);
        let mut bulk = bulk.await?;
        let inserted = self.insert_batches(&mut bulk, batch, batches, represented);
        match inserted.await {
            Ok(mut inserted) => {
                inserted.token = self.documents.commit(bulk).await?;
                Ok(inserted)
            }
            Err(problem) => {
                bulk.roll_back().await;
                Err(problem)
            }
        }
    }

    /// Inserts the documents of `batch` and of those that follow.
    async fn insert_batches(
        &self,
        bulk: &mut BulkTransaction<'_>,
        mut batch: BulkBatch<Rows>,
        mut batches: Pin<&mut impl Stream<Item = Result<BulkBatch<Rows>, Problem>>>,
        represented: bool,
    ) -> Result<Inserted, Problem> {
        let limit = self.documents.request_timeout();
        let mut inserted = Inserted::default();
        let mut represented_keys = Vec::new();
        loop {
            let BulkBatch { first, documents } = batch;
            let count = documents.documents() as u64;
            let inserting = async {
                let keys = bulk.insert(documents).await;
                keys.map_err(|fault| insert_problem(fault, first, count))
            };
            // A problem of the next batch is returned only if this one has none.
            let reading = async {
                let following = timeout(limit, batches.try_next()).await;
                Ok(following
                    .unwrap_or_else(|_| Err(Problem::bulk_body_too_slow(BATCH_BYTES, limit))))
            };
            let (keys, following) = try_join(inserting, reading).await?;
            inserted.count += count;
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
            inserted.representation = Some(self.represent(bulk, &represented_keys).await?);
        }
        Ok(inserted)
    }

    /// Reads the stored documents of `keys`, before the commit: if they are too long, nothing is inserted.
    async fn represent(
        &self,
        bulk: &mut BulkTransaction<'_>,
        keys: &[String],
    ) -> Result<Representation, Problem> {
        let mut representation = Representation {
            parts: Vec::with_capacity(2 * keys.len() + 1),
            reservation: self.answers.reservation(),
        };
        let bytes_max = self.answers.answer_bytes_max();
        let (mut window, mut bytes, mut rest) = (Window::default(), 0, keys);
        while !rest.is_empty() {
            let (next, others) = rest.split_at(window.size().min(rest.len()));
            for document in bulk.read(next).await? {
                bytes += document.len();
                if bytes > bytes_max {
                    return Err(Problem::answer_too_large(bytes_max));
                }
                window.add(document.len());
                representation.reservation.grow(document.len())?;
                let separator = if representation.parts.is_empty() {
                    "["
                } else {
                    ","
                };
                representation.parts.push(separator.into());
                representation.parts.push(document);
            }
            rest = others;
        }
        representation.parts.push("]".into());
        Ok(representation)
    }

    /// Inserts each document in a write of its own.
    fn insert_each(
        self,
        reader: BulkReader,
        scope: Scope<'static>,
        permits: (BulkPermit, ClientPlace),
    ) -> Response<Body> {
        let writer = Arc::new(LenientWriter {
            documents: self.documents.clone(),
            scope,
            resource: self.resource,
            request_id: request_id(self.request.headers),
            _permits: permits,
        });
        let lines = documents(reader).map(move |(index, document)| {
            let writer = Arc::clone(&writer);
            async move { writer.line(index, document).await }
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

/// The problem for a failed insert of `count` documents, the first of which is number `first` of the body.
fn insert_problem(fault: BulkError, first: u64, count: u64) -> Problem {
    let is_refused = matches!(fault.error, WriteError::Refused { .. });
    let problem = Problem::from(fault.error);
    match fault.document {
        Some(document) => problem.in_document(first + document as u64),
        None if is_refused => problem.in_documents(first, count),
        None => problem,
    }
}

/// The documents of `reader` with their numbers. If the body can't be read to its end, the last item is that problem.
fn documents(reader: BulkReader) -> impl Stream<Item = (u64, ParsedDocument)> + Send {
    let batches = stream::unfold((Some(reader), 0), |(reader, next)| async move {
        match reader?.documents().await {
            Ok(None) => None,
            Ok(Some((BulkBatch { first, documents }, reader))) => {
                let next = first + documents.len() as u64;
                Some(((first, documents), (Some(reader), next)))
            }
            Err(problem) => Some(((next, vec![Err(problem)]), (None, next))),
        }
    });
    batches.flat_map(|(first, documents)| stream::iter((first..).zip(documents)))
}

/// Writes documents one by one.
struct LenientWriter {
    documents: Documents,
    /// The documents that may be written.
    scope: Scope<'static>,
    resource: Arc<Resource>,
    request_id: String,
    _permits: (BulkPermit, ClientPlace),
}

/// The outcome of one document, a line of the response.
#[derive(Serialize)]
struct OutcomeLine<'l> {
    index: u64,
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    location: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    /// Of a document that failed with 500, as the log has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'l str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<ProblemBody<'l>>,
}

impl LenientWriter {
    /// Writes a document, and returns the line with its outcome.
    async fn line(&self, index: u64, document: ParsedDocument) -> Vec<u8> {
        let problem;
        let mut line = OutcomeLine {
            index,
            status: StatusCode::CREATED.as_u16(),
            location: None,
            token: None,
            request_id: None,
            problem: None,
        };
        match self.write(document).await {
            Ok((location, token)) => (line.location, line.token) = (location, Some(token)),
            Err(why) => {
                problem = why;
                if let Some(cause) = problem.internal_cause() {
                    let target = format!("POST /{}, document {index}", self.resource.name);
                    log(&self.request_id, &target, cause);
                    line.request_id = Some(&self.request_id);
                }
                line.status = problem.status().as_u16();
                line.problem = Some(problem.body());
            }
        }
        // Strings and numbers always serialise.
        let mut text = simd_json::to_vec(&line).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// Writes a document; returns its path, unless a trigger has moved it, and the transaction's token.
    async fn write(&self, document: ParsedDocument) -> Result<(Option<String>, String), Problem> {
        let write = Write {
            resource: Arc::clone(&self.resource),
            action: Action::Insert { rows: document? },
            writer: self.scope.clone(),
            // None is returned.
            reader: Scope::Own(None),
            precondition: None,
            representation: false,
            idempotency: None,
        };
        let written = self.documents.write(write).await?;
        let is_there = written.effect != WriteEffect::Moved;
        let location = is_there.then(|| document_path(&self.resource, &written.key));
        Ok((location, written.token.to_string()))
    }
}

/// The documents that a transaction has inserted.
#[derive(Default)]
struct Inserted {
    count: u64,
    /// If the client prefers `return=representation`.
    representation: Option<Representation>,
    token: Option<Token>,
}

/// The stored documents as an array.
struct Representation {
    parts: Vec<Bytes>,
    reservation: Reservation,
}

fn respond(inserted: Inserted, returned: Option<&'static str>) -> Response<Body> {
    let body = match (returned, inserted.representation) {
        (Some(RETURN_MINIMAL), _) => Body::empty(),
        (_, Some(Representation { parts, reservation })) => {
            reservation.into_body(FullBody::from_parts(parts))
        }
        (Some(_), None) => Body::from("[]"),
        (None, None) => Body::from(format!("{{\"count\":{}}}", inserted.count)),
    };
    let mut headers = HeaderMap::new();
    if returned != Some(RETURN_MINIMAL) {
        headers.insert(CONTENT_TYPE, APPLICATION_JSON);
    }
    // A token is always a valid value.
    if let Some(Ok(token)) = inserted
        .token
        .map(|token| HeaderValue::try_from(token.to_string()))
    {
        headers.insert(LARDER_TOKEN, token);
    }
    if let Some(returned) = returned {
        headers.insert(PREFERENCE_APPLIED, HeaderValue::from_static(returned));
    }
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::CREATED;
    *response.headers_mut() = headers;
    response
}
