//! Parts of documents by their bytes (RFC 9110, section 14).

use std::ops::Range;

use axum::http::HeaderMap;
use axum::http::header::{IF_RANGE, RANGE};

/// What `Range` asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RangeRequest {
    /// The whole body: there is no range, or one that larder does not support, such as several ranges.
    Whole,
    /// These bytes, at least one.
    Part(Range<usize>),
    /// Only bytes beyond the end.
    Beyond,
}

/// The range that a request has for a body of so many `bytes`. If `If-Range` does not name `etag`, it is the whole body.
pub(super) fn requested_range(headers: &HeaderMap, etag: &[u8], bytes: usize) -> RangeRequest {
    let Some(range) = headers.get(RANGE) else {
        return RangeRequest::Whole;
    };
    if headers
        .get(IF_RANGE)
        .is_some_and(|tag| tag.as_bytes() != etag)
    {
        return RangeRequest::Whole;
    }
    range
        .to_str()
        .ok()
        .and_then(|range| parse_range(range, bytes))
        .unwrap_or(RangeRequest::Whole)
}

/// A range that ends before it begins is invalid (section 14.1.1), and `None` as other invalid ones.
fn parse_range(range: &str, bytes: usize) -> Option<RangeRequest> {
    let (unit, range) = range.split_once('=')?;
    let (first, last) = range.trim_ascii().split_once('-')?;
    if !unit.eq_ignore_ascii_case("bytes") {
        return None;
    }
    let part = match (first, last) {
        ("", suffix) => bytes.saturating_sub(parse_position(suffix)?)..bytes,
        (first, "") => parse_position(first)?..bytes,
        (first, last) => {
            let (first, last) = (parse_position(first)?, parse_position(last)?);
            if last < first {
                return None;
            }
            first..bytes.min(last.saturating_add(1))
        }
    };
    Some(if part.is_empty() {
        RangeRequest::Beyond
    } else {
        RangeRequest::Part(part)
    })
}

/// A number that `usize` can't hold is beyond every document.
fn parse_position(digits: &str) -> Option<usize> {
    let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| digits.parse().unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_of_bytes_is_understood() {
        for (range, expected) in [
            ("bytes=0-0", RangeRequest::Part(0..1)),
            ("Bytes=2-", RangeRequest::Part(2..10)),
            ("bytes=2-99999999999999999999", RangeRequest::Part(2..10)),
            ("bytes=-3", RangeRequest::Part(7..10)),
            ("bytes=-30", RangeRequest::Part(0..10)),
            ("bytes= 9-9 ", RangeRequest::Part(9..10)),
            ("bytes=10-", RangeRequest::Beyond),
            ("bytes=10-11", RangeRequest::Beyond),
            ("bytes=99999999999999999999-", RangeRequest::Beyond),
            ("bytes=-0", RangeRequest::Beyond),
        ] {
            assert_eq!(parse_range(range, 10), Some(expected), "{range}");
        }
        for range in [
            "bytes=3-2",
            "bytes=-",
            "bytes=a-",
            "bytes=0-1,3-4",
            "bytes=+1-2",
            "lines=0-1",
            "0-1",
        ] {
            assert_eq!(parse_range(range, 10), None, "{range}");
        }
        assert_eq!(parse_range("bytes=0-0", 0), Some(RangeRequest::Beyond));
    }
}
