//! `GET` and `HEAD /RESOURCE?keys=…`: many documents in one answer.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::HeaderMap;
use bytes::{BufMut, BytesMut};
use futures_util::future::join_all;
use xxhash_rust::xxh3::Xxh3;

use crate::cache::document::entity_tag;
use crate::cache::{Answer, Cache, LookupError, Way};
use crate::clock::Boottime;
use crate::feed::position::Token;
use crate::http::body::Whole;
use crate::http::documents::{Answered, detail, json_response, lookup_key, mark_way};
use crate::http::problem::Problem;
use crate::resource::key::KeyShape;

/// Keys in one request.
const KEYS_MAX: usize = 1_000;

/// A longer document is sent from where it lies.
const COPIED_BYTES_MAX: usize = 4096;

/// What stands around documents and missing keys.
const FRAME_BYTES: usize = 32;

/// The keys that a query asks for, in its order and canonical; none where it asks for none.
///
/// `keys` is a list for keys of one column; `key`, as often as need be, is one key of any.
pub(super) fn asked(query: &str, shape: &KeyShape) -> Result<Option<Vec<String>>, Problem> {
    let mut keys = Vec::new();
    let mut asks = false;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        // As forms are encoded (WHATWG URL, section 5.1); a plus sign itself is %2B.
        let value = value.replace('+', "%20");
        let list: Vec<&str> = match name {
            "keys" if shape.columns.len() > 1 => {
                let why = "keys are of several columns here: ask as ?key=…,…&key=…,…";
                return Err(Problem::bad_request(why));
            }
            "keys" => value.split(',').collect(),
            "key" => vec![&value],
            _ => {
                return Err(Problem::bad_request(
                    "documents are asked for by keys=… or key=…",
                ));
            }
        };
        asks = true;
        if keys.len() + list.len() > KEYS_MAX {
            return Err(Problem::too_many_keys(KEYS_MAX));
        }
        for key in list {
            keys.push(shape.canonical(key)?.into_owned());
        }
    }
    Ok(asks.then_some(keys))
}

/// Answers with the documents of `keys`, each out of the fastest tier that has it.
pub(super) async fn answer(
    cache: &Arc<Cache>,
    index: usize,
    shape: &KeyShape,
    keys: &[String],
    tokens: &[Token],
    headers: &HeaderMap,
) -> Answered {
    let answers = look_up(cache, index, keys, tokens).await?;
    let mut hash = Xxh3::new();
    let mut missing = String::new();
    for (key, answer) in keys.iter().zip(&answers) {
        match &answer.found {
            Some(document) => hash.update(&document.digest()),
            None => {
                if !missing.is_empty() {
                    missing.push(',');
                }
                missing.push_str(&shape.json(key));
            }
        }
    }
    hash.update(missing.as_bytes());
    // Documents' tags are hashes of their bytes, so this is one of all bytes.
    let etag = entity_tag(hash.digest128().to_be_bytes());
    let mut response = json_response(headers, &etag, || body(&answers, &missing));
    let way = farthest(&answers);
    mark_way(&mut response, way);
    Ok((detail(way), response))
}

/// The answers for `keys`, in their order. What memory has needs no future.
async fn look_up(
    cache: &Arc<Cache>,
    index: usize,
    keys: &[String],
    tokens: &[Token],
) -> Result<Vec<Answer>, LookupError> {
    let now = Boottime::now();
    let hit = |key: &String| match tokens {
        [] => cache.hit(index, key, now),
        _ => None,
    };
    let mut answers: Vec<Option<Answer>> = keys.iter().map(hit).collect();
    let open = answers.iter_mut().zip(keys);
    let lookups = open
        .filter(|(answer, _)| answer.is_none())
        .map(async |(answer, key)| {
            *answer = Some(lookup_key(cache, index, key, tokens).await?);
            Ok(())
        });
    let looked_up: Result<(), LookupError> = join_all(lookups).await.into_iter().collect();
    looked_up?;
    Ok(answers.into_iter().flatten().collect())
}

/// The documents of `answers` and what is missing. Small documents are copied together: a part of its own costs more.
fn body(answers: &[Answer], missing: &str) -> Whole {
    let documents = || answers.iter().filter_map(|answer| answer.found.as_ref());
    let lengths = documents().map(|document| document.body().len());
    let copied: usize = lengths.filter(|&length| length <= COPIED_BYTES_MAX).sum();
    let mut parts = Vec::new();
    let mut part = BytesMut::with_capacity(copied + answers.len() + missing.len() + FRAME_BYTES);
    part.extend_from_slice(b"{\"documents\":[");
    for (number, document) in documents().enumerate() {
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
    part.extend_from_slice(b"],\"missing\":[");
    part.extend_from_slice(missing.as_bytes());
    part.extend_from_slice(b"]}");
    parts.push(part.freeze());
    Whole::of(parts)
}

/// The way of the answer that came from farthest; memory where nothing was asked for.
fn farthest(answers: &[Answer]) -> Way {
    let distance = |way: &Way| match way {
        Way::Memory => 0,
        Way::Disk => 1,
        Way::Miss { stored: true, .. } => 2,
        Way::Miss { stored: false, .. } => 3,
        Way::Bypass { .. } => 4,
        Way::Ahead { .. } => 5,
        Way::Stale { .. } => 6,
    };
    let ways = answers.iter().map(|answer| answer.way);
    ways.max_by_key(distance).unwrap_or(Way::Memory)
}
