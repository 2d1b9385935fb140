//! Many documents in one response: `/RESOURCE?keys=…`, `/RESOURCE:batch`, and what lists share with them.

use std::borrow::Cow;

use axum::body::{Body, Bytes};
use axum::http::Response;
use bytes::{BufMut, BytesMut};
use simd_json::prelude::*;
use simd_json::tape::Value;
use xxhash_rust::xxh3::Xxh3;

use crate::cache::document::{Document, entity_tag};
use crate::cache::{Answer, Provenance};
use crate::http::body::read_body;
use crate::http::full_body::FullBody;
use crate::http::headers::JSON;
use crate::http::problem::Problem;
use crate::http::read::cache_headers::detail;
use crate::http::read::query::KEYS_MAX;
use crate::http::read::reading::ReadRequest;
use crate::http::read::response::build_response;
use crate::http::read::{ReadResult, query};
use crate::http::request::Request;
use crate::http::state::HttpState;
use crate::resource::ResourceId;
use crate::resource::key::KeyShape;
use crate::resource::writable::pointer_token;

/// The longest body of a batch request.
const BODY_BYTES_MAX: usize = 1 << 20;

/// A longer document is sent from its own memory, not copied.
const COPIED_BYTES_MAX: usize = 4096;

/// An estimate of the bytes around documents and missing keys.
const FRAME_BYTES: usize = 32;

/// Answers `POST /RESOURCE:batch`.
pub(in crate::http) async fn read_batch(
    state: &HttpState,
    request: &Request<'_>,
    resource: ResourceId,
    body: Body,
) -> ReadResult<Body> {
    let mut read = ReadRequest::begin(state, request, resource)?;
    read.fields = query::parse_fields(request.query(), &read.resource)?;
    let keys = keys_in_body(request, body, &read.resource.key).await?;
    let answered = read_keys(&read, &keys).await;
    answered.map(|(detail, response)| (detail, response.map(Body::new)))
}

/// The canonical keys of the body `{"keys":[…]}`, in its order. A body without `Content-Type` is taken as JSON.
async fn keys_in_body(
    request: &Request<'_>,
    body: Body,
    shape: &KeyShape,
) -> Result<Vec<String>, Problem> {
    if request.has_media_type() {
        request.media_type(&[JSON])?;
    }
    // The parser rewrites what it reads.
    let mut text = read_body(body, BODY_BYTES_MAX).await?.to_vec();
    let tape = simd_json::to_tape(&mut text);
    let tape = tape.map_err(|_| Problem::bad_request("the body is not JSON"))?;
    parse_keys(tape.as_value(), shape)
}

fn parse_keys(body: Value<'_, '_>, shape: &KeyShape) -> Result<Vec<String>, Problem> {
    let object = body
        .as_object()
        .ok_or_else(|| Problem::invalid_part("", "is not an object: send {\"keys\":[…]}"))?;
    let mut keys = None;
    for (name, value) in object.iter() {
        let pointer = format!("/{}", pointer_token(name));
        if name != "keys" {
            return Err(Problem::invalid_part(
                &pointer,
                "is unknown: send {\"keys\":[…]}",
            ));
        }
        if keys.replace(value).is_some() {
            return Err(Problem::invalid_part(&pointer, "is given twice"));
        }
    }
    let keys = keys.ok_or_else(|| Problem::invalid_part("/keys", "is missing"))?;
    let keys = keys
        .as_array()
        .ok_or_else(|| Problem::invalid_part("/keys", "is not an array"))?;
    if keys.len() > KEYS_MAX {
        return Err(Problem::too_many_keys(KEYS_MAX));
    }
    let keys = keys.iter().enumerate();
    keys.map(|(number, key)| parse_key(key, &format!("/keys/{number}"), shape))
        .collect()
}

fn parse_key(value: Value<'_, '_>, pointer: &str, shape: &KeyShape) -> Result<String, Problem> {
    let columns = shape.columns.len();
    let parts: Vec<Value<'_, '_>> = match value.as_array() {
        Some(parts) => parts.iter().collect(),
        None if columns == 1 => vec![value],
        None => Vec::new(),
    };
    if parts.len() != columns {
        let why = match columns {
            1 => "is not one number or string".to_owned(),
            _ => format!("is not an array of {columns} parts, each a number or a string"),
        };
        return Err(Problem::invalid_part(pointer, &why));
    }
    let is_array = value.is_array();
    let place = |number: usize| {
        if is_array {
            format!("{pointer}/{number}")
        } else {
            pointer.to_owned()
        }
    };
    let mut texts = Vec::with_capacity(columns);
    for (number, part) in parts.into_iter().enumerate() {
        let text = key_text(part).map_err(|why| Problem::invalid_part(&place(number), why))?;
        texts.push(text);
    }
    let canonical = shape.canonical_of(&texts);
    canonical.map_err(|(number, why)| {
        let why = format!("is not a valid key: {why}");
        Problem::invalid_part(&place(number), &why)
    })
}

/// A part of a key as text. Numbers that the parser can't represent exactly are refused, not rounded.
fn key_text(value: Value<'_, '_>) -> Result<Cow<'static, str>, &'static str> {
    if let Some(text) = value.as_str() {
        return Ok(Cow::Owned(text.to_owned()));
    }
    let number = value.as_i64().map(|number| number.to_string());
    let number = number.or_else(|| value.as_u64().map(|number| number.to_string()));
    match number {
        Some(number) => Ok(number.into()),
        None if value.as_f64().is_some() => {
            Err("is a number with a fraction, an exponent or too many digits: send it as a string")
        }
        None => Err("is neither a number nor a string"),
    }
}

/// Answers with the documents of `keys`, each from the fastest tier that has it.
pub(super) async fn read_keys(read: &ReadRequest<'_>, keys: &[String]) -> ReadResult<FullBody> {
    let shape = &read.resource.key;
    let documents = read.documents;
    let answers = documents.read_many(read.id, keys, &read.tokens).await?;
    let is_missing =
        |answer: &Option<Answer>| matches!(answer, Some(answer) if answer.found.is_none());
    let missing = keys.iter().zip(&answers);
    let missing = missing.filter(|(_, answer)| is_missing(answer));
    let missing: Vec<String> = missing.map(|(key, _)| shape.json(key)).collect();
    let answers: Vec<Answer> = answers.into_iter().flatten().collect();
    let end = format!("],\"missing\":[{}]}}", missing.join(","));
    let mut response = respond(read, &answers, "{\"documents\":[", &end).await?;
    let provenance = slowest(&answers);
    let cache_headers = read.cache_headers;
    cache_headers.add(&mut response, provenance, None);
    Ok((detail(provenance), response))
}

/// The response with documents between `begin` and `end`. Its entity tag is a hash of the whole body.
pub(super) async fn respond(
    read: &ReadRequest<'_>,
    answers: &[Answer],
    begin: &'static str,
    end: &str,
) -> Result<Response<FullBody>, Problem> {
    let mut hash = Xxh3::new();
    let request = read.request;
    if let Some(fields) = &read.fields {
        let mut body = Vec::from(begin);
        for (number, document) in documents(answers).enumerate() {
            if number > 0 {
                body.push(b',');
            }
            let written = fields.write(document.body(), &mut body);
            written.ok_or(Problem::NOT_PROJECTED)?;
        }
        body.extend_from_slice(end.as_bytes());
        hash.update(&body);
        let etag = entity_tag(hash.digest128().to_be_bytes());
        return Ok(build_response(request, &etag, || vec![body.into()]).await);
    }
    // Documents' tags are hashes of their bytes, so this is one of all bytes.
    for document in documents(answers) {
        hash.update(&document.digest());
    }
    hash.update(end.as_bytes());
    let etag = entity_tag(hash.digest128().to_be_bytes());
    Ok(build_response(request, &etag, || parts(answers, begin, end)).await)
}

fn documents(answers: &[Answer]) -> impl Iterator<Item = &Document> {
    answers.iter().filter_map(|answer| answer.found.as_ref())
}

/// Documents between `begin` and `end`, as parts of a body. Small documents are copied into one part, which costs less.
fn parts(answers: &[Answer], begin: &str, end: &str) -> Vec<Bytes> {
    let lengths = documents(answers).map(|document| document.body().len());
    let copied: usize = lengths.filter(|&length| length <= COPIED_BYTES_MAX).sum();
    let mut parts = Vec::new();
    let mut part = BytesMut::with_capacity(copied + answers.len() + end.len() + FRAME_BYTES);
    part.extend_from_slice(begin.as_bytes());
    for (number, document) in documents(answers).enumerate() {
        if number > 0 {
            part.put_u8(b',');
        }
        if document.body().len() <= COPIED_BYTES_MAX {
            part.extend_from_slice(document.body());
        } else {
            parts.push(part.split().freeze());
            parts.push(Bytes::from_owner(document.clone()));
        }
    }
    part.extend_from_slice(end.as_bytes());
    parts.push(part.freeze());
    parts
}

/// The provenance of the answer that took the slowest path; memory if there are no answers.
pub(super) fn slowest(answers: &[Answer]) -> Provenance {
    let distance = |provenance: &Provenance| match provenance {
        Provenance::Memory => 0,
        Provenance::Disk => 1,
        Provenance::Miss { stored: true, .. } => 2,
        Provenance::Miss { stored: false, .. } => 3,
        Provenance::Bypass { .. } => 4,
        Provenance::Uncached { .. } => 5,
        Provenance::Token { .. } => 6,
        Provenance::Stale { .. } => 7,
    };
    let provenances = answers.iter().map(|answer| answer.provenance);
    provenances
        .max_by_key(distance)
        .unwrap_or(Provenance::Memory)
}
