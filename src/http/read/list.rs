//! `GET` and `HEAD /RESOURCE`: pages of documents in the order of their keys.

use axum::http::header::LINK;
use axum::http::{HeaderValue, Uri};
use percent_encoding::percent_decode_str;

use crate::cache::Provenance;
use crate::http::full_body::FullBody;
use crate::http::read::Answered;
use crate::http::read::batch::{farthest, respond};
use crate::http::read::cache_headers::detail;
use crate::http::read::reading::Reading;
use crate::resource::page::Page;

/// Answers with one page.
pub(super) async fn read_page(reading: &Reading<'_>, page: Page, uri: &Uri) -> Answered<FullBody> {
    let documents = reading.documents;
    let listed = documents.list(reading.id, page, &reading.tokens).await?;
    let mut response = respond(reading, &listed.answers, "[", "]").await?;
    // What the keys came from counts, too.
    let provenance = match farthest(&listed.answers) {
        Provenance::Memory | Provenance::Disk | Provenance::Miss { .. } => Provenance::Miss {
            stored: false,
            collapsed: false,
        },
        provenance => provenance,
    };
    let cache_headers = reading.cache_headers;
    cache_headers.add(&mut response, provenance, None);
    if let Some(last) = &listed.continues_after {
        let next = next_page(uri, &reading.resource.key.encoded(last));
        if let Ok(next) = HeaderValue::try_from(next) {
            response.headers_mut().insert(LINK, next);
        }
    }
    Ok((detail(provenance), response))
}

/// RFC 8288: the same list from `after` on.
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
