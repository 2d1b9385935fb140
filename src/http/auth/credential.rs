//! The credential in the headers of a request.

use axum::http::header::{AUTHORIZATION, COOKIE, HeaderName};
use axum::http::{HeaderMap, HeaderValue};

use crate::auth::{CREDENTIAL_BYTES_MAX, Credential, Scheme};

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Why the headers have no usable credential.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MalformedCredential(pub(super) &'static str);

const SEVERAL: MalformedCredential = MalformedCredential("a request must have only one credential");

/// The most cookies of the configured name that are tried. A browser sends several if they were set for several paths or
/// domains.
const COOKIES_MAX: usize = 4;

/// The credentials of a request, of which the first valid one counts: the one of its headers, or else those in the cookies
/// named `cookie`. Cookies that are longer than a credential may be are left out.
///
/// # Errors
/// The headers have several credentials, or one that can't be valid.
pub(super) fn credentials<'r>(
    headers: &'r HeaderMap,
    cookie: Option<&'r str>,
) -> Result<impl Iterator<Item = Credential<'r>>, MalformedCredential> {
    let of_headers = match (single(headers, AUTHORIZATION)?, single(headers, X_API_KEY)?) {
        (Some(_), Some(_)) => return Err(SEVERAL),
        (Some(value), None) => Some(authorization(value.as_bytes())?),
        (None, key) => key.map(|value| Credential {
            scheme: Scheme::Key,
            bytes: value.as_bytes(),
        }),
    };
    let is_long = |found: &Credential<'_>| found.bytes.len() > CREDENTIAL_BYTES_MAX;
    if of_headers.as_ref().is_some_and(is_long) {
        return Err(MalformedCredential(
            "the credential is longer than 8192 bytes",
        ));
    }
    let cookie = cookie.filter(|_| of_headers.is_none());
    let of_cookies = cookie
        .into_iter()
        .flat_map(|name| of_cookies(headers, name));
    let of_cookies = of_cookies
        .filter(move |found| !is_long(found))
        .take(COOKIES_MAX);
    Ok(of_headers.into_iter().chain(of_cookies))
}

fn single(
    headers: &HeaderMap,
    name: HeaderName,
) -> Result<Option<&HeaderValue>, MalformedCredential> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (first, None) => Ok(first),
        _ => Err(SEVERAL),
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

fn of_cookies<'r>(headers: &'r HeaderMap, name: &'r str) -> impl Iterator<Item = Credential<'r>> {
    let lists = headers.get_all(COOKIE).iter();
    let pairs = lists.flat_map(|list| list.as_bytes().split(|&byte| byte == b';'));
    pairs.filter_map(move |pair| {
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
        let shown = credentials(&headers, Some("t")).unwrap().next();
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

    /// A cookie of another path or domain hid the valid one, and one that was too long was refused.
    #[test]
    fn each_cookie_of_the_name_is_tried() {
        let tried = |cookies: &str| {
            let headers = headers(&[("cookie", cookies)]);
            let found = credentials(&headers, Some("t")).unwrap();
            let texts = found.map(|found| String::from_utf8(found.bytes.to_vec()).unwrap());
            texts.collect::<Vec<_>>()
        };
        assert_eq!(tried("t=a; u=b; t=c"), ["a", "c"]);
        let long = "x".repeat(CREDENTIAL_BYTES_MAX + 1);
        assert_eq!(tried(&format!("t={long}; t=c")), ["c"]);
        assert_eq!(tried(&"t=a; ".repeat(9)).len(), COOKIES_MAX);
        let header = headers(&[("cookie", "t=a"), ("x-api-key", "k")]);
        assert_eq!(credentials(&header, Some("t")).unwrap().count(), 1);
    }

    #[test]
    fn malformed_credentials_are_refused() {
        let long = format!("Bearer {}", "x".repeat(CREDENTIAL_BYTES_MAX + 1));
        for pairs in [
            &[("authorization", "Digest a")][..],
            &[("authorization", "")],
            &[("authorization", "Bearer a"), ("authorization", "Bearer a")],
            &[("x-api-key", "a"), ("x-api-key", "b")],
            &[("authorization", "Bearer a"), ("x-api-key", "a")],
            &[("authorization", &long)],
        ] {
            assert!(credentials(&headers(pairs), None).is_err(), "{pairs:?}");
        }
        let unconfigured = headers(&[("cookie", "t=c")]);
        assert_eq!(credentials(&unconfigured, None).unwrap().count(), 0);
    }
}
