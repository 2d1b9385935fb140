//! Rules of HTTP for the head of a request that hyper does not check.

use std::net::Ipv6Addr;

use axum::http::Version;
use axum::http::header::{HOST, TRANSFER_ENCODING};

use crate::http::headers::members;
use crate::http::problem::Problem;
use crate::http::request::RequestHead;

/// Checks what names the host, and the headers that frame the body. A proxy before larder may read a head that is ambiguous in
/// another way than larder does.
///
/// # Errors
/// 400 if `Host` is sent twice, is missing in HTTP/1.1, or is no host (RFC 9112, section 3.2), as the authority of the URI
/// may be, or if `Transfer-Encoding` is anything but `chunked`: hyper decodes no other coding, and only looks for `chunked`
/// at the end.
pub(super) fn check_head(head: RequestHead<'_>) -> Result<(), Problem> {
    let mut hosts = head.headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (_, Some(_)) => return Err(Problem::SEVERAL_HOSTS),
        (None, _) if head.version == Version::HTTP_11 => return Err(Problem::NO_HOST),
        (Some(host), _) if !is_host(host.as_bytes()) => return Err(Problem::INVALID_HOST),
        _ => {}
    }
    // Over HTTP/2, and in the absolute form of a URI.
    let authority = head.uri.authority();
    if authority.is_some_and(|authority| !is_host(authority.as_str().as_bytes())) {
        return Err(Problem::INVALID_HOST);
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
/// It may be empty, without a port.
fn is_host(value: &[u8]) -> bool {
    let Some(end) = value.iter().position(|byte| !is_of_name(*byte)) else {
        return true;
    };
    match value.split_at(end) {
        (name, [b':', port @ ..]) => !name.is_empty() && port.iter().all(u8::is_ascii_digit),
        _ => is_unusual_host(value),
    }
}

/// Whether a name may have `byte` without encoding it (RFC 3986, section 3.2.2).
fn is_of_name(byte: u8) -> bool {
    matches!(
        byte,
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&'
            | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'='
    )
}

/// As [`is_host`], of a name with encoded characters, and of an address in brackets.
#[cold]
fn is_unusual_host(value: &[u8]) -> bool {
    let Ok(value) = str::from_utf8(value) else {
        return false;
    };
    let (is_valid, port) = if let Some(rest) = value.strip_prefix('[') {
        let (address, port) = rest.split_once(']').unwrap_or_default();
        (is_address(address), port)
    } else {
        let (name, port) = value.split_at(value.find(':').unwrap_or(value.len()));
        (is_encoded_name(name), port)
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    is_valid && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
}

/// Whether it is one of IPv6, with a zone or without (RFC 6874, section 2).
fn is_address(address: &str) -> bool {
    let (address, zone) = address.split_once("%25").unwrap_or((address, "none"));
    address.parse::<Ipv6Addr>().is_ok() && is_encoded_name(zone)
}

/// Whether `name` has characters of a name, encoded ones with two digits each (RFC 3986, section 2.1).
fn is_encoded_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    while let Some(byte) = bytes.next() {
        let mut is_digit = || bytes.next().is_some_and(|digit| digit.is_ascii_hexdigit());
        let is_valid = is_of_name(byte) || byte == b'%' && is_digit() && is_digit();
        if !is_valid {
            return false;
        }
    }
    !name.is_empty()
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
    fn the_authority_of_a_uri_is_a_host() {
        for (authority, ok) in [
            ("a.example", true),
            ("a.example:8080", true),
            ("[::1]:80", true),
            ("x@localhost", false),
            ("[foo]", false),
        ] {
            for version in [Version::HTTP_11, Version::HTTP_2] {
                let uri = format!("http://{authority}/items/42");
                let request = Request::get(uri).version(version);
                let request = request.header("host", "localhost").body(()).unwrap();
                let checked = check_head(RequestHead::of(&request));
                assert_eq!(checked.is_ok(), ok, "{version:?} {authority}");
            }
        }
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
            ("[2001:db8::192.0.2.1]", true),
            ("a%2Db.example", true),
            ("localhost.", true),
            ("[]", false),
            ("[foo]", false),
            ("[:]", false),
            ("[1.2.3.4]", false),
            ("[::1%zz]", false),
            ("[::1%25]", false),
            ("[::1]:x", false),
            ("%", false),
            ("%zz", false),
            ("a%2", false),
            (":", false),
            (":80", false),
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
