//! `POST`, `PUT`, `PATCH` and `DELETE` of whole documents.
//!
//! What can be refused without PostgreSQL is. A write is answered once this node has applied what it changed, so that
//! whoever reads after the answer sees it.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderName, LOCATION};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use tokio::time::timeout;
use xxhash_rust::xxh3::Xxh3;

use crate::auth::Principal;
use crate::cache::Cache;
use crate::cache::document::{digest, entity_tag};
use crate::http::body::{Whole, read_whole};
use crate::http::bulk::{self, Bulk};
use crate::http::conditional::{condition, is_if_none_match_any};
use crate::http::documents::LARDER_TOKEN;
use crate::http::problem::Problem;
use crate::http::respond::APPLICATION_JSON;
use crate::http::target::{Part, Target};
use crate::resource::Resource;
use crate::resource::body::{Mode, Scratch, rows_of};
use crate::resource::key::{KeyShape, key_parts};
use crate::resource::writable::{Rows, Writable};
use crate::source::token::Token;
use crate::source::writes::{
    Action, Outcome, Repeatable, Write, WriteError, WriteOutcome, Writes, Written,
};

/// The value of label `detail`.
const WRITTEN: &str = "postgres";

pub(super) const JSON: &str = "application/json";
pub(super) const NDJSON: &str = "application/x-ndjson";
const MERGE_PATCH: &str = "application/merge-patch+json";

const PREFER: HeaderName = HeaderName::from_static("prefer");
pub(super) const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;
pub(super) const RETURN_MINIMAL: &str = "return=minimal";
pub(super) const RETURN_REPRESENTATION: &str = "return=representation";
pub(super) const HANDLING_LENIENT: &str = "handling=lenient";

/// Answers a method that does not read.
pub(super) async fn answer(
    cache: &Arc<Cache>,
    writes: &Arc<Writes>,
    target: Target<'_>,
    head: &Parts,
    mut body: Body,
) -> Result<(&'static str, Response<Body>), Problem> {
    let resource = cache.resource(target.index)?;
    let name = head.uri.path().split('/').nth(1).unwrap_or_default();
    let principal = head.extensions.get::<Arc<Principal>>();
    // Who may not read does not see what is stored.
    let may_read = principal.is_none_or(|who| who.may_read(target.index));
    let inserts = head.method == Method::POST && target.part == Part::Collection;
    if inserts && resource.writable.is_ok() {
        let framing;
        (framing, body) = bulk::framing(head, body).await?;
        if let Some(framing) = framing {
            let bulk = Bulk {
                cache,
                writes,
                resource,
                name,
                may_read,
            };
            let response = bulk.answer(&head.headers, framing, body).await?;
            return Ok((WRITTEN, response));
        }
    }
    let bytes_max = writes.document_bytes_max();
    let mut asked = asked(head);
    let action = action(&resource, target.part, head, body, bytes_max, &mut asked).await?;
    if head.headers.contains_key(IDEMPOTENCY_KEY) && !writes.keeps_answers() {
        let why = "Idempotency-Key requires `idempotency_keys = true` in the configuration";
        return Err(Problem::bad_request(why));
    }
    let repeatable = repeatable(&head.headers, &asked, principal)?;
    let preferred = match may_read {
        true => preferred(&head.headers, &[RETURN_MINIMAL, RETURN_REPRESENTATION]),
        false => Some(RETURN_MINIMAL),
    };
    let write = Write {
        resource: Arc::clone(&resource),
        action,
        // All documents together, which POST addresses, have no tag.
        condition: condition(&head.headers).filter(|_| !inserts),
        representation: preferred != Some(RETURN_MINIMAL),
        repeatable,
    };
    let written = match write_and_apply(cache, writes, write).await? {
        Err(WriteError::Exists) if is_if_none_match_any(&head.headers) => {
            return Err(Problem::precondition_failed());
        }
        written => written?,
    };
    let response = respond(name, &resource, written, preferred);
    Ok((WRITTEN, response.map(Body::new)))
}

/// Writes a document, and waits until this node has applied that.
pub(super) async fn write_and_apply(
    cache: &Arc<Cache>,
    writes: &Writes,
    write: Write,
) -> Result<WriteOutcome, Problem> {
    let written = timeout(cache.request_timeout(), writes.write(write)).await;
    let written = written.map_err(|_| Problem::write_deadline())?;
    if let Ok(written) = &written {
        apply(cache, &written.token).await;
    }
    Ok(written)
}

/// Waits until this node has applied the transaction of `token`.
pub(super) async fn apply(cache: &Arc<Cache>, token: &Token) {
    cache.catch_up(token).await;
}

/// The beginning of a hash of all that a request asks for.
fn asked(head: &Parts) -> Xxh3 {
    let mut asked = Xxh3::new();
    for part in [head.method.as_str(), head.uri.path()] {
        asked.update(part.as_bytes());
        asked.update(&[0]);
    }
    asked
}

/// What `Idempotency-Key` says (draft-ietf-httpapi-idempotency-key-header), with or without the quotes of a string.
fn repeatable(
    headers: &HeaderMap,
    asked: &Xxh3,
    principal: Option<&Arc<Principal>>,
) -> Result<Option<Repeatable>, Problem> {
    let Some(key) = headers.get(IDEMPOTENCY_KEY) else {
        return Ok(None);
    };
    let principal = match principal {
        None => String::new(),
        Some(who) => who.scope().ok_or_else(|| {
            let why =
                "Idempotency-Key requires a principal with a name, and the token has no usable `sub`";
            Problem::bad_request(why)
        })?,
    };
    let key = key.to_str().unwrap_or_default().trim();
    let bare = key.strip_prefix('"').and_then(|key| key.strip_suffix('"'));
    let key = bare.unwrap_or(key);
    if key.is_empty() || key.len() > IDEMPOTENCY_KEY_BYTES_MAX {
        let why = format!("Idempotency-Key has 1 to {IDEMPOTENCY_KEY_BYTES_MAX} ASCII characters");
        return Err(Problem::bad_request(why));
    }
    Ok(Some(Repeatable {
        principal,
        key: key.to_owned(),
        request: asked.digest128().to_be_bytes(),
    }))
}

/// What the request asks for; `asked` takes in its body.
async fn action(
    resource: &Resource,
    part: Part<'_>,
    head: &Parts,
    body: Body,
    bytes_max: usize,
    asked: &mut Xxh3,
) -> Result<Action, Problem> {
    let writable = match &resource.writable {
        Ok(writable) => writable,
        Err(why) => return Err(Problem::only_read(part.methods(false), why)),
    };
    let canonical = |key| resource.key.canonical(key);
    Ok(match (&head.method, part) {
        (&Method::POST, Part::Collection) => {
            let body = read(head, body, &[JSON], bytes_max).await?;
            asked.update(&body);
            let rows = rows(writable, &body, Mode::Insert)?;
            Action::Insert { rows }
        }
        (&Method::PUT, Part::Document(key)) => {
            let key = canonical(key)?.into_owned();
            let body = read(head, body, &[JSON], bytes_max).await?;
            asked.update(&body);
            let parts = key_parts(&key, resource.key.columns.len());
            let rows = rows(writable, &body, Mode::Replace(&parts))?;
            Action::Replace { key, rows }
        }
        (&Method::PATCH, Part::Document(key)) => {
            let key = canonical(key)?.into_owned();
            let patch = read(head, body, &[MERGE_PATCH, JSON], bytes_max).await?;
            asked.update(&patch);
            Action::Patch { key, patch }
        }
        (&Method::DELETE, Part::Document(key)) => {
            let key = canonical(key)?.into_owned();
            Action::Delete { key }
        }
        _ => return Err(Problem::method_not_allowed(part.methods(true))),
    })
}

fn rows(writable: &Writable, body: &[u8], mode: Mode<'_>) -> Result<Rows, Problem> {
    let mut rows = Rows::of(writable);
    rows_of(writable, body, mode, &mut Scratch::default(), &mut rows)?;
    Ok(rows)
}

/// Which of the types `accepted` the body of a request is of.
pub(super) fn media_type<'a>(head: &Parts, accepted: &[&'a str]) -> Result<&'a str, Problem> {
    let content_type = head.headers.get(CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok());
    let media_type = content_type.and_then(|value| value.split(';').next());
    let media_type = media_type.unwrap_or_default().trim();
    let mut accepted_types = accepted.iter();
    let found = accepted_types.find(|accepted| accepted.eq_ignore_ascii_case(media_type));
    let unsupported = || Problem::unsupported_media_type(&accepted.join(" or "));
    found.copied().ok_or_else(unsupported)
}

/// The body of a request, if it is of one of the types `accepted` and not too long.
async fn read(
    head: &Parts,
    body: Body,
    accepted: &[&str],
    bytes_max: usize,
) -> Result<Bytes, Problem> {
    media_type(head, accepted)?;
    let length = head.headers.get(CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > bytes_max) {
        return Err(Problem::body_too_large(bytes_max));
    }
    let body = read_whole(body, bytes_max).await?;
    match body.is_empty() {
        true => Err(Problem::bad_request("the request has no body")),
        false => Ok(body),
    }
}

/// Which of the preferences `known` (RFC 7240), that exclude each other, the client has, if any; the first one counts.
pub(super) fn preferred(headers: &HeaderMap, known: &[&'static str]) -> Option<&'static str> {
    let values = headers.get_all(PREFER).iter();
    let listed = values.flat_map(|value| value.to_str().unwrap_or_default().split(','));
    let mut found = listed.filter_map(|preference| {
        let preference = preference.split(';').next().unwrap_or_default();
        let plain: String = preference
            .chars()
            .filter(|sign| !matches!(sign, ' ' | '\t' | '"'))
            .collect();
        let same = |known: &&&str| known.eq_ignore_ascii_case(&plain);
        known.iter().find(same).copied()
    });
    found.next()
}

fn respond(
    name: &str,
    resource: &Resource,
    written: Written,
    preferred: Option<&'static str>,
) -> Response<Whole> {
    let status = match (written.outcome, &written.document) {
        (Outcome::Created, _) => StatusCode::CREATED,
        (Outcome::Replaced, Some(_)) => StatusCode::OK,
        (Outcome::Replaced, None) | (Outcome::Deleted, _) => StatusCode::NO_CONTENT,
    };
    let mut headers = HeaderMap::new();
    // What is put together from hexadecimal numbers and encoded parts is always a valid value.
    if let Ok(token) = HeaderValue::try_from(written.token.to_string()) {
        headers.insert(LARDER_TOKEN, token);
    }
    if written.outcome == Outcome::Created
        && let Ok(location) = HeaderValue::try_from(location(name, &resource.key, &written.key))
    {
        headers.insert(LOCATION, location);
    }
    if let Some(preferred) = preferred.filter(|_| written.outcome != Outcome::Deleted) {
        headers.insert(PREFERENCE_APPLIED, HeaderValue::from_static(preferred));
    }
    let body = written.document.map(|document| {
        if let Ok(etag) = HeaderValue::from_bytes(&entity_tag(digest(&document))) {
            headers.insert(ETAG, etag);
        }
        headers.insert(CONTENT_TYPE, APPLICATION_JSON);
        Whole::new(document)
    });
    let mut response = Response::new(body.unwrap_or_default());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// The path of a document.
pub(super) fn location(name: &str, shape: &KeyShape, key: &str) -> String {
    format!("/{name}/{}", shape.encoded(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_known_preference_counts() {
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(PREFER, HeaderValue::from_static(value));
            }
            preferred(&headers, &[RETURN_MINIMAL, RETURN_REPRESENTATION])
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&["respond-async"]), None);
        assert_eq!(of(&["return=minimal"]), Some(RETURN_MINIMAL));
        assert_eq!(
            of(&["wait=3, Return = \"minimal\"; x=1"]),
            Some(RETURN_MINIMAL)
        );
        let both = ["return=representation", "return=minimal"];
        assert_eq!(of(&both), Some(RETURN_REPRESENTATION));
    }
}
