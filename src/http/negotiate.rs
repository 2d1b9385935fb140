//! Content negotiation: `Accept` and `Accept-Encoding` (RFC 9110, section 12.5).

use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, ACCEPT_ENCODING, HeaderName};

use crate::cache::encoding::Encoding;
use crate::http::headers::{JSON, members};

const HTML: &str = "text/html";

/// Whether the client accepts JSON. Almost all clients send `*/*` or no `Accept`.
pub(super) fn accepts_json(headers: &HeaderMap) -> bool {
    match headers.get(ACCEPT) {
        None => true,
        Some(value) if value == "*/*" => true,
        Some(_) => is_json_accepted(headers),
    }
}

fn is_json_accepted(headers: &HeaderMap) -> bool {
    weight_of(headers, "application", JSON) > 0
}

/// Whether the client prefers HTML to JSON, as browsers do.
pub(super) fn prefers_html(headers: &HeaderMap) -> bool {
    weight_of(headers, "text", HTML) > weight_of(headers, "application", JSON)
}

/// The weight of `media_type`, which begins with `kind`, in thousandths. The most specific range decides.
fn weight_of(headers: &HeaderMap, kind: &str, media_type: &str) -> u16 {
    let mut best: Option<(u8, u16)> = None;
    let mut any = false;
    for (range, weight) in preferences(headers, ACCEPT) {
        any = true;
        let is_any_of = |of: &str| of.eq_ignore_ascii_case(kind);
        let specificity = if range == "*/*" {
            0
        } else if range.strip_suffix("/*").is_some_and(is_any_of) {
            1
        } else if range.eq_ignore_ascii_case(media_type) {
            2
        } else {
            continue;
        };
        best = best.max(Some((specificity, weight)));
    }
    match best {
        Some((_, weight)) => weight,
        None if any => 0,
        None => 1_000,
    }
}

/// The encoding that the client prefers; `None` for the document without one.
pub(super) fn preferred_encoding(headers: &HeaderMap) -> Option<Encoding> {
    // Without the header every encoding would be allowed, but a client that can decode one sends the header.
    headers.get(ACCEPT_ENCODING)?;
    let mut weights = [None; Encoding::ALL.len()];
    let mut others = None;
    let mut identity = None;
    for (name, weight) in preferences(headers, ACCEPT_ENCODING) {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        if let Some(place) = Encoding::ALL
            .iter()
            .position(|encoding| is(encoding.name()))
        {
            weights[place] = Some(weight);
        } else if name == "*" {
            others = Some(weight);
        } else if is("identity") {
            identity = Some(weight);
        }
    }
    let mut best = (identity.unwrap_or(0).max(1), None);
    for (encoding, weight) in Encoding::ALL.into_iter().zip(weights) {
        let weight = weight.or(others).unwrap_or(0);
        // An encoding is preferred to none if both have the same weight.
        if weight > best.0 || (weight == best.0 && best.1.is_none()) {
            best = (weight, Some(encoding));
        }
    }
    best.1
}

/// Whether the client accepts a body in this encoding; without the header it accepts any.
pub(super) fn accepts_encoding(headers: &HeaderMap, encoding: Encoding) -> bool {
    let (mut own, mut others) = (None, None);
    for (name, weight) in preferences(headers, ACCEPT_ENCODING) {
        if name.eq_ignore_ascii_case(encoding.name()) {
            own = Some(weight);
        } else if name == "*" {
            others = Some(weight);
        }
    }
    match own.or(others) {
        Some(weight) => weight > 0,
        None => !headers.contains_key(ACCEPT_ENCODING),
    }
}

/// The members of a list such as `gzip;q=0.5, *`, and their weights in thousandths.
fn preferences(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = (&str, u16)> {
    members(headers, name).filter_map(|member| {
        let mut parts = member.split(';').map(str::trim_ascii);
        let name = parts.next().filter(|name| !name.is_empty())?;
        let weight = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
        Some((name, weight.map_or(1_000, thousandths)))
    })
}

/// A weight such as `0`, `0.25` or `1.000` in thousandths; 0 if it is malformed.
fn thousandths(weight: &str) -> u16 {
    let weight: f64 = weight.parse().unwrap_or(0.0);
    // Saturates, and takes NaN for 0.
    (weight.clamp(0.0, 1.0) * 1_000.0).round() as u16
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(name: &HeaderName, lines: &[&'static str]) -> HeaderMap {
        let lines = lines
            .iter()
            .map(|line| (name.clone(), HeaderValue::from_static(line)));
        lines.collect()
    }

    #[test]
    fn json_or_a_range_around_it_is_to_be_accepted() {
        let accepts = |lines: &[&'static str]| accepts_json(&headers(&ACCEPT, lines));
        for lines in [
            &[][..],
            &["*/*"],
            &["application/json"],
            &["Application/JSON; charset=utf-8"],
            &["application/*;q=0.1"],
            &["text/html, application/xhtml+xml, */*;q=0.8"],
            &["text/html", "application/json"],
            &["*/*;q=0, application/json;q=0.001"],
            &[""],
        ] {
            assert!(accepts(lines), "{lines:?}");
        }
        for lines in [
            &["text/html"][..],
            &["application/json;q=0, */*"],
            &["application/json; charset=utf-8; q=0.0"],
            &["application/*;q=0, */*"],
            &["application/problem+json"],
            &["*/*;q=x"],
        ] {
            assert!(!accepts(lines), "{lines:?}");
        }
    }

    #[test]
    fn browsers_prefer_html() {
        let prefers = |lines: &[&'static str]| prefers_html(&headers(&ACCEPT, lines));
        for lines in [
            &["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"][..],
            &["text/html"],
            &["application/json;q=0.5", "Text/*"],
            &["application/json;q=0, */*"],
        ] {
            assert!(prefers(lines), "{lines:?}");
        }
        for lines in [
            &[][..],
            &[""],
            &["*/*"],
            &["application/json"],
            &["application/json, text/html"],
            &["text/html;q=0.9, */*"],
            &["application/json, text/plain, */*"],
            &["image/png"],
        ] {
            assert!(!prefers(lines), "{lines:?}");
        }
    }

    #[test]
    fn an_encoding_is_allowed_unless_it_is_left_out() {
        let allows = |lines: &[&'static str]| {
            super::accepts_encoding(&headers(&ACCEPT_ENCODING, lines), Encoding::Gzip)
        };
        for lines in [
            &[][..],
            &["gzip"],
            &["br", "GZIP;q=0.1"],
            &["*"],
            &["br, *;q=0.2"],
        ] {
            assert!(allows(lines), "{lines:?}");
        }
        for lines in [&[""][..], &["br"], &["gzip;q=0, *"], &["*;q=0"]] {
            assert!(!allows(lines), "{lines:?}");
        }
    }

    #[test]
    fn the_encoding_is_the_one_that_is_wanted_most() {
        use Encoding::{Brotli, Gzip, Zstd};
        for (line, expected) in [
            ("gzip", Some(Gzip)),
            ("GZIP;q=0.5, deflate", Some(Gzip)),
            ("gzip, deflate, br, zstd", Some(Zstd)),
            ("gzip, br", Some(Brotli)),
            ("gzip;q=1.0, br;q=0.9", Some(Gzip)),
            ("*", Some(Zstd)),
            ("*;q=0.5, zstd;q=0", Some(Brotli)),
            ("identity, gzip;q=0.5", None),
            ("identity;q=0.5, gzip;q=0.5", Some(Gzip)),
            ("gzip;q=0", None),
            ("*;q=0", None),
            ("deflate", None),
            ("", None),
        ] {
            assert_eq!(
                preferred_encoding(&headers(&ACCEPT_ENCODING, &[line])),
                expected,
                "{line}"
            );
        }
        assert_eq!(preferred_encoding(&HeaderMap::new()), None);
        assert_eq!(
            preferred_encoding(&headers(&ACCEPT_ENCODING, &["br;q=0.1", "gzip;q=0.2"])),
            Some(Gzip)
        );
    }
}
