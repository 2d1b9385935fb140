//! The credential in the headers of a request.

use axum::http::header::{AUTHORIZATION, COOKIE, HeaderName};
use axum::http::{HeaderMap, HeaderValue};

use crate::auth::{CREDENTIAL_BYTES_MAX, Credential, Scheme};

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Why the headers have no usable credential.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MalformedCredential(pub(super) &'static str);

/// The credential of a request, if it has one. Headers take precedence over the cookie named `cookie`.
pub(super) fn credential<'r>(
    headers: &'r HeaderMap,
    cookie: Option<&str>,
) -> Result<Option<Credential<'r>>, MalformedCredential> {
    let found = if let Some(value) = single(headers, AUTHORIZATION)? {
        Some(authorization(value.as_bytes())?)
    } else if let Some(value) = single(headers, X_API_KEY)? {
        Some(Credential {
            scheme: Scheme::Key,
            bytes: value.as_bytes(),
        })
    } else {
        cookie.and_then(|name| of_cookie(headers, name))
    };
    match found {
        Some(found) if found.bytes.len() > CREDENTIAL_BYTES_MAX => Err(MalformedCredential(
            "the credential is longer than 8192 bytes",
        )),
        found => Ok(found),
    }
}

fn single(
    headers: &HeaderMap,
    name: HeaderName,
) -> Result<Option<&HeaderValue>, MalformedCredential> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (first, None) => Ok(first),
        _ => Err(MalformedCredential(
            "a request must have only one credential",
        )),
    }
}

/// RFC 9110, section 11.4: the scheme is matched without regard to case.
fn authorization(value: &[u8]) -> Result<Credential<'_>, MalformedCredential> {
    let space = value.iter().position(|&byte| byte == b' ');
    let (scheme, rest) = value.split_at(space.unwrap_or(value.len()));
    let bytes = rest.trim_ascii();
    let scheme = if scheme.eq_ignore_ascii_case(b"bearer") {
        Scheme::Bearer
    } else if scheme.eq_ignore_ascii_case(b"basic") {
        Scheme::Basic
    } else {
        return Err(MalformedCredential(
            "the authentication scheme must be Basic or Bearer",
        ));
    };
    Ok(Credential { scheme, bytes })
}

fn of_cookie<'r>(headers: &'r HeaderMap, name: &str) -> Option<Credential<'r>> {
    let lists = headers.get_all(COOKIE).iter();
    let mut pairs = lists.flat_map(|list| list.as_bytes().split(|&byte| byte == b';'));
    pairs.find_map(|pair| {
        let bytes = pair
            .trim_ascii()
            .strip_prefix(name.as_bytes())?
            .strip_prefix(b"=")?;
        (!bytes.is_empty()).then_some(Credential {
            scheme: Scheme::Cookie,
            bytes,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            let value = HeaderValue::from_str(value).unwrap();
            (HeaderName::from_static(name), value)
        });
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name, value);
        }
        headers
    }

    #[track_caller]
    fn shows(pairs: &[(&'static str, &str)], expected: Option<(Scheme, &str)>) {
        let headers = headers(pairs);
        let shown = credential(&headers, Some("t")).unwrap();
        let shown = shown.map(|shown| (shown.scheme, std::str::from_utf8(shown.bytes).unwrap()));
        assert_eq!(shown, expected);
    }

    #[test]
    fn credentials_come_in_four_ways() {
        shows(&[], None);
        shows(
            &[("authorization", "Bearer a.b.c")],
            Some((Scheme::Bearer, "a.b.c")),
        );
        shows(
            &[("authorization", "bEARER  a ")],
            Some((Scheme::Bearer, "a")),
        );
        shows(&[("authorization", "Bearer")], Some((Scheme::Bearer, "")));
        shows(
            &[("authorization", "BASIC eDp5")],
            Some((Scheme::Basic, "eDp5")),
        );
        shows(&[("x-api-key", "k")], Some((Scheme::Key, "k")));
        shows(&[("cookie", "a=b; t=c; t=d")], Some((Scheme::Cookie, "c")));
        shows(
            &[("cookie", "a=b"), ("cookie", "t=c=")],
            Some((Scheme::Cookie, "c=")),
        );
        shows(&[("cookie", "tt=c; t; t=")], None);
        shows(
            &[("cookie", "t=c"), ("authorization", "Bearer a")],
            Some((Scheme::Bearer, "a")),
        );
    }

    #[test]
    fn malformed_credentials_are_refused() {
        let long = format!("Bearer {}", "x".repeat(CREDENTIAL_BYTES_MAX + 1));
        for pairs in [
            &[("authorization", "Digest a")][..],
            &[("authorization", "")],
            &[("authorization", "Bearer a"), ("authorization", "Bearer a")],
            &[("x-api-key", "a"), ("x-api-key", "b")],
            &[("authorization", &long)],
        ] {
            assert!(credential(&headers(pairs), None).is_err(), "{pairs:?}");
        }
        let unconfigured = headers(&[("cookie", "t=c")]);
        assert_eq!(credential(&unconfigured, None), Ok(None));
    }
}
