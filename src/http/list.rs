//! `GET` and `HEAD /RESOURCE`: pages of documents in the order of their keys.
//!
//! PostgreSQL says which keys there are, so a page is as new as the request; its documents come out of the fastest tier
//! that has them, as new as single ones. One that a tier knows to be gone, or not to be there yet, is left out.

use axum::http::header::LINK;
use axum::http::{HeaderValue, Uri};
use percent_encoding::percent_decode_str;

use crate::cache::Provenance;
use crate::http::batch::{farthest, look_up, respond};
use crate::http::documents::{Answered, Reading};
use crate::http::labels::detail;
use crate::http::problem::Problem;
use crate::resource::Resource;
use crate::resource::page::Page;
use crate::resource::projection::listed;

/// Documents of a page where the request does not say.
pub(super) const LIMIT: usize = 100;

/// Documents of a page, at most. More is refused: a page cut short could be taken for the whole.
pub(super) const LIMIT_MAX: usize = 1_000;

/// A page as a query asks for it.
#[derive(Default)]
pub(super) struct Asked {
    limit: Option<usize>,
    after: Option<String>,
    filters: Vec<(usize, Option<String>)>,
}

impl Asked {
    /// Takes in one parameter: its name, decoded, and its value, still percent-encoded.
    pub(super) fn take(
        &mut self,
        name: &str,
        value: &str,
        resource: &Resource,
    ) -> Result<(), Problem> {
        let already = match name {
            "limit" => self.limit.replace(limit(value)?).is_some(),
            "after" => {
                let key = resource.key.canonical(value);
                let key = key.map_err(|why| Problem::bad_request(format!("after: {why}")))?;
                self.after.replace(key.into_owned()).is_some()
            }
            _ => self.filter(name, value, resource)?,
        };
        match already {
            true => Err(Problem::bad_request(format!("{name} is there twice"))),
            false => Ok(()),
        }
    }

    /// Takes in one filter; whether it was there already.
    fn filter(&mut self, name: &str, value: &str, resource: &Resource) -> Result<bool, Problem> {
        let filters = resource.filters.iter();
        let Some(place) = filters.clone().position(|filter| filter.name == name) else {
            let mut names: Vec<String> = ["keys", "key", "limit", "after", "fields"]
                .map(str::to_owned)
                .into();
            names.extend(filters.map(|filter| filter.name.clone()));
            return Err(Problem::bad_request(format!(
                "{} is no parameter of this list, which takes {}",
                listed(&[name.to_owned()]),
                names.join(", ")
            )));
        };
        let refuse = |why: &str| Problem::bad_request(format!("{name} {why}"));
        let value = match value.split_once('.') {
            Some(("eq", value)) => {
                let value = percent_decode_str(value).decode_utf8();
                let value = value.map_err(|_| refuse("is not valid UTF-8"))?;
                let canonical = resource.filters[place].canonical(&value);
                Some(canonical.map_err(|why| refuse(&why))?)
            }
            Some(("is", "null")) => None,
            _ => return Err(refuse("is asked for as eq.VALUE or is.null")),
        };
        let already = self.filters.iter().any(|(taken, _)| *taken == place);
        self.filters.push((place, value));
        Ok(already)
    }

    /// Whether nothing of a page has been asked for.
    pub(super) fn is_empty(&self) -> bool {
        self.limit.is_none() && self.after.is_none() && self.filters.is_empty()
    }
}

fn limit(value: &str) -> Result<usize, Problem> {
    let limit = value.parse().ok();
    let limit = limit.filter(|limit| (1..=LIMIT_MAX).contains(limit));
    limit.ok_or_else(|| {
        Problem::bad_request(format!("limit is a whole number from 1 to {LIMIT_MAX}"))
    })
}

/// Answers with one page.
pub(super) async fn answer(reading: &Reading<'_>, mut asked: Asked, uri: &Uri) -> Answered {
    let limit = asked.limit.unwrap_or(LIMIT);
    asked.filters.sort_unstable();
    let page = Page {
        after: asked.after,
        filters: asked.filters,
        // One more says whether a page follows.
        limit: limit + 1,
    };
    let mut keys = reading.cache.keys(reading.index, page).await?;
    let follows = keys.len() > limit;
    keys.truncate(limit);
    let answers = look_up(reading, &keys).await?;
    let answers: Vec<_> = answers.into_iter().flatten().collect();
    let mut response = respond(reading, &answers, "[", "]").await?;
    // What the keys came from counts, too.
    let provenance = match farthest(&answers) {
        Provenance::Memory | Provenance::Disk | Provenance::Miss { .. } => Provenance::Miss {
            stored: false,
            collapsed: false,
        },
        provenance => provenance,
    };
    reading.labels.mark(&mut response, provenance, None);
    if let Some(last) = keys.last().filter(|_| follows) {
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
