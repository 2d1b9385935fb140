//! `GET` and `HEAD /RESOURCE`: pages of documents in the order of their keys.

use axum::http::header::LINK;
use axum::http::{HeaderValue, Uri};
use percent_encoding::percent_decode_str;

use crate::cache::Provenance;
use crate::http::full_body::FullBody;
use crate::http::read::ReadResult;
use crate::http::read::batch::{respond, slowest};
use crate::http::read::cache_headers::detail;
use crate::http::read::reading::ReadRequest;
use crate::resource::page::Page;

/// Answers with one page.
pub(super) async fn read_page(
    read: &ReadRequest<'_>,
    page: Page,
    uri: &Uri,
) -> ReadResult<FullBody> {
    let documents = read.documents;
    let listed = documents.list(read.id, page, &read.tokens).await?;
    let mut response = respond(read, &listed.answers, "[", "]").await?;
    // The keys came from PostgreSQL.
    let provenance = match slowest(&listed.answers) {
        Provenance::Memory | Provenance::Disk | Provenance::Miss { .. } => Provenance::Miss {
            stored: false,
            collapsed: false,
        },
        provenance => provenance,
    };
    let cache_headers = read.cache_headers;
    cache_headers.add(&mut response, provenance, None);
    if let Some(last) = &listed.continues_after {
        let next = next_page(uri, &read.resource.key.encoded(last));
        if let Ok(next) = HeaderValue::try_from(next) {
            response.headers_mut().insert(LINK, next);
        }
    }
    Ok((detail(provenance), response))
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
