//! Many documents in one response: `/RESOURCE?keys=…`, `/RESOURCE:batch`, and what lists share with them.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use simd_json::ErrorType;
use simd_json::prelude::*;
use simd_json::tape::Value;

use crate::cache::Provenance;
use crate::documents::lookups::TextKind;
use crate::http::bodies::BATCH_BYTES_MAX;
use crate::http::body::read_body;
use crate::http::headers::JSON;
use crate::http::problem::Problem;
use crate::http::read::cache_headers::detail;
use crate::http::read::query::KEYS_MAX;
use crate::http::read::reading::ReadRequest;
use crate::http::read::response::composed_response;
use crate::http::read::{ReadResult, query};
use crate::http::request::Request;
use crate::http::state::HttpState;
use crate::http::work;
use crate::resource::ResourceId;
use crate::resource::body::{BYTE_ORDER_MARK, HAS_BYTE_ORDER_MARK};
use crate::resource::key::KeyShape;
use crate::resource::writable::pointer_token;

/// Answers `POST /RESOURCE:batch`.
pub(in crate::http) async fn read_batch(
    state: &HttpState,
    request: &Request<'_>,
    resource: ResourceId,
    body: Body,
) -> ReadResult<Body> {
    let mut read = ReadRequest::begin(state, request, resource).await?;
    let (fields, by) = query::parse_batch(request.query(), &read.resource)?;
    read.fields = fields.map(Arc::new);
    read.by = by;
    let body = state.bodies.hold(body, request.client());
    let keys = keys_in_body(&read, body).await?;
    read_keys(&mut read, &keys).await
}

/// The canonical keys of the body `{"keys":[…]}`, in its order. A body without `Content-Type` is taken as JSON.
async fn keys_in_body(read: &ReadRequest<'_>, body: Body) -> Result<Vec<String>, Problem> {
    if read.request.has_media_type() {
        read.request.media_type(&[JSON])?;
    }
    read.request.check_content_length(BATCH_BYTES_MAX)?;
    let body = read_body(body, BATCH_BYTES_MAX).await?;
    let resource = Arc::clone(&read.resource);
    let (bytes, waiting, by) = (body.len(), read.waiting(), read.by);
    let parse = move || parse_body(&body, resource.shape_of(by));
    work::run(waiting, bytes, Problem::NOT_PARSED, parse).await?
}

fn parse_body(body: &[u8], shape: &KeyShape) -> Result<Vec<String>, Problem> {
    // The parser rewrites what it reads.
    let mut text = body.to_vec();
    let tape = simd_json::to_tape(&mut text);
    let tape = tape.map_err(|error| {
        Problem::bad_request(match error.error() {
            _ if body.starts_with(BYTE_ORDER_MARK) => HAS_BYTE_ORDER_MARK,
            ErrorType::InvalidNumber => {
                "the body has a number that is invalid or too large: send a large key as a string"
            }
            _ => "the body is not JSON",
        })
    })?;
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
            1 => "is not one number, string or boolean".to_owned(),
            _ => {
                format!("is not an array of {columns} parts, each a number, a string or a boolean")
            }
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
    if let Some(value) = value.as_bool() {
        return Ok(Cow::Borrowed(if value { "true" } else { "false" }));
    }
    let number = value.as_i64().map(|number| number.to_string());
    let number = number.or_else(|| value.as_u64().map(|number| number.to_string()));
    match number {
        Some(number) => Ok(number.into()),
        None if value.as_f64().is_some() => {
            Err("is a number with a fraction, an exponent or too many digits: send it as a string")
        }
        None => Err("is neither a number, a string nor a boolean"),
    }
}

/// Answers with the documents of `keys`, each from the fastest tier that has it.
pub(super) async fn read_keys(read: &mut ReadRequest<'_>, keys: &[String]) -> ReadResult<Body> {
    let resource = Arc::clone(&read.resource);
    let shape = resource.shape_of(read.by);
    let kind = read.by.map_or(TextKind::Keys, TextKind::Alias);
    let mut composition = read.compose("{\"documents\":[");
    let mut provenances = Provenances::default();
    let (mut missing, mut unreadable) = (Vec::new(), Vec::new());
    let bytes_max = read.answers.answer_bytes_max();
    let turn = read.turn.take();
    let mut lookups = read.look_up(keys, kind, turn);
    while let Some((keys, answers)) = lookups.next().await? {
        let mut documents = Vec::with_capacity(answers.len());
        for (key, answer) in keys.iter().zip(answers) {
            let Some(answer) = answer else {
                unreadable.push(shape.json(key));
                provenances.add(Provenance::Miss {
                    stored: false,
                    collapsed: false,
                });
                continue;
            };
            provenances.add(answer.provenance);
            match answer.found {
                Some(document) => documents.push(document),
                None => missing.push(shape.json(key)),
            }
        }
        let expected = documents.len();
        let added;
        (composition, added) = composition.add(documents).await?;
        if added < expected {
            return Err(Problem::answer_too_large(bytes_max));
        }
    }
    let mut end = format!("],\"missing\":[{}]", missing.join(","));
    if !unreadable.is_empty() {
        end += &format!(",\"unreadable\":[{}]", unreadable.join(","));
    }
    end.push('}');
    let provenance = provenances.slowest();
    let mut response = composed_response(read.request, composition.end(&end)).await;
    read.add_cache_headers(&mut response, provenance);
    Ok((detail(provenance), response))
}

/// The slowest path of several answers; memory if there are none.
#[derive(Default)]
pub(super) struct Provenances(Option<Provenance>);

impl Provenances {
    pub(super) fn add(&mut self, provenance: Provenance) {
        let is_slower = |slowest| distance(&provenance) > distance(slowest);
        if self.0.as_ref().is_none_or(is_slower) {
            self.0 = Some(provenance);
        }
    }

    pub(super) fn slowest(self) -> Provenance {
        self.0.unwrap_or(Provenance::Memory)
    }
}

/// The rank of a path among the others; longer paths have higher ones.
fn distance(provenance: &Provenance) -> u8 {
    match provenance {
        // Beside documents that the request sees it does not count.
        Provenance::Undisclosed => 0,
        Provenance::Memory => 1,
        Provenance::Disk => 2,
        Provenance::Miss { stored: true, .. } => 3,
        Provenance::Miss { stored: false, .. } => 4,
        Provenance::Bypass { .. } => 5,
        Provenance::Uncached { .. } => 6,
        Provenance::Token { .. } => 7,
        Provenance::Stale { .. } => 8,
    }
}
