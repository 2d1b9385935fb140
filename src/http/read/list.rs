//! `GET` and `HEAD /RESOURCE`: pages of documents in the order of their keys.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::LINK;
use axum::http::{HeaderValue, StatusCode, Uri};
use percent_encoding::percent_decode_str;

use crate::cache::Provenance;
use crate::documents::PageKeys;
use crate::documents::lookups::TextKind;
use crate::http::headers::LARDER_UNREADABLE;
use crate::http::read::ReadResult;
use crate::http::read::batch::Provenances;
use crate::http::read::cache_headers::detail;
use crate::http::read::reading::ReadRequest;
use crate::http::read::response::composed_response;
use crate::resource::page::Page;

/// A page ends before it names more unreadable documents than fit into so many bytes of its header.
const UNREADABLE_BYTES_MAX: usize = 4096;

/// Answers with one page. It ends earlier if the answer would be too long or come too late. It leaves out documents that
/// can't be read, and names their keys in a header.
pub(super) async fn read_page(
    read: &mut ReadRequest<'_>,
    page: Page,
    uri: &Uri,
) -> ReadResult<Body> {
    let resource = Arc::clone(&read.resource);
    let mut composition = read.compose("[");
    let mut provenances = Provenances::default();
    // PostgreSQL answers before the first lookup.
    drop(read.turn.take());
    let listed = read
        .documents
        .list(read.id, page, &read.demand, &read.scope);
    let PageKeys { keys, mut follows } = listed.await?;
    let mut last = keys.last();
    // The last key of the documents before those that are looked up now.
    let mut before = None;
    let mut unreadable = String::new();
    let mut lookups = read.look_up(&keys, TextKind::KeysOfPage, None);
    loop {
        let (keys, answers) = match lookups.next().await {
            Ok(Some(found)) => found,
            Ok(None) => break,
            // What it has so far is a page, too.
            Err(error) if before.is_some() && error.status() == StatusCode::GATEWAY_TIMEOUT => {
                last = before;
                follows = true;
                break;
            }
            Err(error) => return Err(error),
        };
        let mut documents = Vec::with_capacity(answers.len());
        let mut places = Vec::with_capacity(answers.len());
        let mut end = None;
        for (place, (key, answer)) in keys.iter().zip(answers).enumerate() {
            let Some(answer) = answer else {
                if add_name(&mut unreadable, &resource.key.encoded(key)) {
                    continue;
                }
                end = Some(place);
                break;
            };
            provenances.add(answer.provenance);
            if let Some(document) = answer.found {
                documents.push(document);
                places.push(place);
            }
        }
        let added;
        (composition, added) = composition.add(documents).await?;
        if let Some(left_out) = places.get(added).copied().or(end) {
            // The first document of an answer is never left out, nor is the first key of the header, so another key is
            // before it.
            last = keys.get(..left_out).and_then(<[String]>::last).or(before);
            follows = true;
            break;
        }
        before = keys.last();
    }
    // Its turn is over.
    drop(lookups);
    let provenance = of_page(provenances);
    let mut response = composed_response(read.request, composition.end("]")).await;
    read.add_cache_headers(&mut response, provenance);
    if let Ok(unreadable) = HeaderValue::try_from(unreadable)
        && !unreadable.is_empty()
    {
        response.headers_mut().insert(LARDER_UNREADABLE, unreadable);
    }
    if let Some(last) = last.filter(|_| follows) {
        let next = next_page(uri, &resource.key.encoded(last));
        if let Ok(next) = HeaderValue::try_from(next) {
            response.headers_mut().insert(LINK, next);
        }
    }
    Ok((detail(provenance), response))
}

/// The provenance of a page, whose keys came from PostgreSQL.
fn of_page(documents: Provenances) -> Provenance {
    match documents.slowest() {
        Provenance::Memory
        | Provenance::Disk
        | Provenance::Miss { .. }
        | Provenance::Undisclosed => Provenance::Miss {
            stored: false,
            collapsed: false,
        },
        provenance => provenance,
    }
}

/// Adds a key to those of the header, unless there are some and it would become too long. Returns whether it was added.
fn add_name(names: &mut String, key: &str) -> bool {
    if !names.is_empty() {
        if names.len() + key.len() > UNREADABLE_BYTES_MAX {
            return false;
        }
        names.push(' ');
    }
    names.push_str(key);
    true
}

/// The value of `Link` (RFC 8288): the same list from `after` on.
fn next_page(uri: &Uri, after: &str) -> String {
    let query = uri.query().unwrap_or_default().split('&');
    let others = query.filter(|parameter| {
        let name = parameter.split('=').next().unwrap_or_default();
        !parameter.is_empty() && percent_decode_str(name).ne("after".bytes())
    });
    let mut next = format!("<{}?", uri.path());
    for parameter in others {
        next.push_str(parameter);
        next.push('&');
    }
    next + "after=" + after + ">; rel=\"next\""
}
