//! `GET` and `HEAD /RESOURCE?keys=…`: many documents in one answer.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::{HeaderMap, Response};
use futures_util::future::join_all;
use xxhash_rust::xxh3::Xxh3;

use crate::cache::document::entity_tag;
use crate::cache::{Answer, Cache, LookupError, Way};
use crate::feed::position::Token;
use crate::http::body::Whole;
use crate::http::documents::{json_response, lookup_key, mark_way};
use crate::http::problem::Problem;
use crate::resource::key::KeyShape;

/// Keys in one request.
const KEYS_MAX: usize = 1_000;

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
) -> Result<(Way, Response<Whole>), Problem> {
    let lookups = keys.iter().map(|key| lookup_key(cache, index, key, tokens));
    let answers = join_all(lookups).await;
    let answers: Vec<Answer> = answers.into_iter().collect::<Result<_, LookupError>>()?;
    let mut hash = Xxh3::new();
    let mut parts = vec![Bytes::from_static(b"{\"documents\":[")];
    let mut missing = String::new();
    for (key, answer) in keys.iter().zip(&answers) {
        match &answer.found {
            Some(document) => {
                if parts.len() > 1 {
                    parts.push(Bytes::from_static(b","));
                }
                hash.update(&document.digest());
                parts.push(Bytes::from_owner(document.clone()));
            }
            None => {
                if !missing.is_empty() {
                    missing.push(',');
                }
                missing.push_str(&shape.json(key));
            }
        }
    }
    hash.update(missing.as_bytes());
    parts.push(Bytes::from(format!("],\"missing\":[{missing}]}}")));
    // Documents' tags are hashes of their bytes, so this is one of all bytes.
    let etag = entity_tag(hash.digest128().to_be_bytes());
    let mut response = json_response(headers, &etag, || Whole::of(parts));
    let way = farthest(&answers);
    mark_way(&mut response, way);
    Ok((way, response))
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
