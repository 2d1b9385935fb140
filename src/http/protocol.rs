//! Rules of HTTP for the head of a request that hyper does not check.

use axum::http::Version;
use axum::http::header::{HOST, TRANSFER_ENCODING};

use crate::http::headers::members;
use crate::http::problem::Problem;
use crate::http::request::RequestHead;

/// Checks the headers that name the host and frame the body. A proxy before larder may read a head that is ambiguous in
/// another way than larder does.
///
/// # Errors
/// 400 if `Host` is sent twice, is missing in HTTP/1.1, or is no host (RFC 9112, section 3.2), or if `Transfer-Encoding` is
/// anything but `chunked`: hyper decodes no other coding, and only looks for `chunked` at the end.
pub(super) fn check_head(head: RequestHead<'_>) -> Result<(), Problem> {
    let mut hosts = head.headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (_, Some(_)) => return Err(Problem::SEVERAL_HOSTS),
        (None, _) if head.version == Version::HTTP_11 => return Err(Problem::NO_HOST),
        (Some(host), _) if !is_host(host.as_bytes()) => return Err(Problem::INVALID_HOST),
        _ => {}
    }
    if head.headers.contains_key(TRANSFER_ENCODING) {
        let mut codings = members(head.headers, TRANSFER_ENCODING);
        let is_chunked = codings
            .next()
            .is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"));
        if !is_chunked || codings.next().is_some() {
            return Err(Problem::TRANSFER_ENCODING);
        }
    }
    Ok(())
}

/// Whether `value` is a name, or an address, in brackets if it has colons, with a port or without (RFC 3986, section 3.2).
fn is_host(value: &[u8]) -> bool {
    let colon = value.iter().rposition(|byte| *byte == b':');
    let colon = colon.filter(|_| !value.ends_with(b"]"));
    let (host, port) = value.split_at(colon.unwrap_or(value.len()));
    let may_have = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(byte);
    let is_host = match host {
        [b'[', address @ .., b']'] => address.iter().all(|byte| *byte == b':' || may_have(byte)),
        name => name.iter().all(may_have),
    };
    is_host && port.iter().skip(1).all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    #[track_caller]
    fn check(version: Version, headers: &[(&str, &str)], ok: bool) {
        let mut request = Request::get("/items/42").version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).unwrap();
        let checked = check_head(RequestHead::of(&request));
        assert_eq!(checked.is_ok(), ok, "{version:?} {headers:?}");
    }

    #[test]
    fn one_host_and_one_coding_are_accepted() {
        let (host, other) = (("host", "a.example"), ("host", "b.example"));
        check(Version::HTTP_11, &[host], true);
        check(Version::HTTP_11, &[("host", "")], true);
        check(Version::HTTP_11, &[], false);
        check(Version::HTTP_10, &[], true);
        check(Version::HTTP_2, &[], true);
        for version in [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2] {
            check(version, &[host, other], false);
            check(version, &[host, host], false);
        }
        for (value, ok) in [
            ("db_1.example:8080", true),
            ("a.example:", true),
            ("[::1]", true),
            ("[fe80::1%25eth0]:80", true),
            ("localhost:80:80", false),
            ("[::1]:80:80", false),
            ("[::1]80", false),
            ("[::1", false),
            ("::1", false),
            ("a]", false),
            ("user@a.example", false),
            ("a.example, b.example", false),
            ("a.example/items", false),
            ("a.example?", false),
            ("a.example:http", false),
            ("::1]:x", false),
        ] {
            check(Version::HTTP_11, &[("host", value)], ok);
        }
        let coding = |value| ("transfer-encoding", value);
        for (value, ok) in [
            ("chunked", true),
            ("Chunked", true),
            ("identity, chunked", false),
            ("gzip, chunked", false),
            ("chunked, chunked", false),
            (", chunked", false),
            ("identity", false),
            ("", false),
        ] {
            check(Version::HTTP_11, &[host, coding(value)], ok);
        }
        let lines = [host, coding("identity"), coding("chunked")];
        check(Version::HTTP_11, &lines, false);
    }
}
