//! Parts of documents by their bytes (RFC 9110, section 14).

use std::ops::Range;

use axum::http::HeaderMap;
use axum::http::header::{IF_RANGE, RANGE};

/// What `Range` asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RangeRequest {
    /// Everything, or what is not understood: units other than bytes, several ranges.
    Whole,
    /// These bytes, at least one.
    Part(Range<usize>),
    /// Bytes beyond the end.
    Beyond,
}

/// What of a body of so many `bytes` is asked for. Where `If-Range` names anything but `etag`, everything is.
pub(super) fn requested(headers: &HeaderMap, etag: &[u8], bytes: usize) -> RangeRequest {
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
        .and_then(|range| part(range, bytes))
        .unwrap_or(RangeRequest::Whole)
}

/// Ranges whose ends don't fit each other are not understood, as section 14.1.1 says.
fn part(range: &str, bytes: usize) -> Option<RangeRequest> {
    let (unit, range) = range.split_once('=')?;
    let (first, last) = range.trim_ascii().split_once('-')?;
    if !unit.eq_ignore_ascii_case("bytes") {
        return None;
    }
    let part = match (first, last) {
        ("", suffix) => bytes.saturating_sub(number(suffix)?)..bytes,
        (first, "") => number(first)?..bytes,
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
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

/// A number too large for any document is one that lies beyond it.
fn number(digits: &str) -> Option<usize> {
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
            assert_eq!(part(range, 10), Some(expected), "{range}");
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
            assert_eq!(part(range, 10), None, "{range}");
        }
        assert_eq!(part("bytes=0-0", 0), Some(RangeRequest::Beyond));
    }
}
