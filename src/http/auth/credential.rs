//! What a request shows of who sends it.

use axum::http::header::{AUTHORIZATION, COOKIE, HOST, HeaderName, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, Method, Uri};

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// A longer credential is refused unread.
pub(super) const BYTES_MAX: usize = 8 << 10;

/// How a credential came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `Authorization: Basic`
    Basic,
    /// `Authorization: Bearer`: a token or a key.
    Bearer,
    /// `X-API-Key`
    Key,
    /// The cookie with a token.
    Cookie,
}

/// A credential as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Presented<'r> {
    pub(super) kind: Kind,
    /// Without the name of the scheme.
    pub(super) bytes: &'r [u8],
}

/// What can't be a credential.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// The one credential of a request, if it has any: headers come before the cookie named `cookie`.
pub(super) fn presented<'r>(
    headers: &'r HeaderMap,
    cookie: Option<&str>,
) -> Result<Option<Presented<'r>>, Malformed> {
    let found = if let Some(value) = single(headers, AUTHORIZATION)? {
        Some(authorization(value.as_bytes())?)
    } else if let Some(value) = single(headers, X_API_KEY)? {
        Some(Presented {
            kind: Kind::Key,
            bytes: value.as_bytes(),
        })
    } else {
        cookie.and_then(|name| of_cookie(headers, name))
    };
    match found {
        Some(found) if found.bytes.len() > BYTES_MAX => {
            Err(Malformed("the credential is longer than any of larder's"))
        }
        found => Ok(found),
    }
}

fn single(headers: &HeaderMap, name: HeaderName) -> Result<Option<&HeaderValue>, Malformed> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (first, None) => Ok(first),
        _ => Err(Malformed("a request has one credential")),
    }
}

/// RFC 9110, section 11.4: the scheme is matched without regard to case.
fn authorization(value: &[u8]) -> Result<Presented<'_>, Malformed> {
    let space = value.iter().position(|&byte| byte == b' ');
    let (scheme, rest) = value.split_at(space.unwrap_or(value.len()));
    let bytes = rest.trim_ascii();
    let kind = if scheme.eq_ignore_ascii_case(b"bearer") {
        Kind::Bearer
    } else if scheme.eq_ignore_ascii_case(b"basic") {
        Kind::Basic
    } else {
        return Err(Malformed("the scheme is neither Basic nor Bearer"));
    };
    Ok(Presented { kind, bytes })
}

fn of_cookie<'r>(headers: &'r HeaderMap, name: &str) -> Option<Presented<'r>> {
    let lists = headers.get_all(COOKIE).iter();
    let mut pairs = lists.flat_map(|list| list.as_bytes().split(|&byte| byte == b';'));
    pairs.find_map(|pair| {
        let bytes = pair
            .trim_ascii()
            .strip_prefix(name.as_bytes())?
            .strip_prefix(b"=")?;
        (!bytes.is_empty()).then_some(Presented {
            kind: Kind::Cookie,
            bytes,
        })
    })
}

/// Whether a request that shows its cookie may act.
///
/// A browser adds cookies to whatever any page asks for. `SameSite=Strict` keeps them from requests of other sites, but a
/// page of another host of the same site, such as a neighbouring subdomain, is none of those. So what changes anything
/// must come from a page of this very host, which browsers say in `Origin` with every such request and no page can
/// forge. Whoever is no browser has no need for a cookie.
pub(super) fn is_forgery(kind: Kind, method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
    if kind != Kind::Cookie || method.is_safe() {
        return false;
    }
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let authority = uri.authority().map(|authority| authority.as_str());
    let origin = text(ORIGIN).and_then(|origin| origin.split_once("://"));
    match (authority.or_else(|| text(HOST)), origin) {
        (Some(host), Some((_, origin))) => !host.eq_ignore_ascii_case(origin),
        _ => true,
    }
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
    fn shows(pairs: &[(&'static str, &str)], expected: Option<(Kind, &str)>) {
        let headers = headers(pairs);
        let shown = presented(&headers, Some("t")).unwrap();
        let shown = shown.map(|shown| (shown.kind, std::str::from_utf8(shown.bytes).unwrap()));
        assert_eq!(shown, expected);
    }

    #[test]
    fn credentials_come_in_four_ways() {
        shows(&[], None);
        shows(
            &[("authorization", "Bearer a.b.c")],
            Some((Kind::Bearer, "a.b.c")),
        );
        shows(
            &[("authorization", "bEARER  a ")],
            Some((Kind::Bearer, "a")),
        );
        shows(&[("authorization", "Bearer")], Some((Kind::Bearer, "")));
        shows(
            &[("authorization", "BASIC eDp5")],
            Some((Kind::Basic, "eDp5")),
        );
        shows(&[("x-api-key", "k")], Some((Kind::Key, "k")));
        shows(&[("cookie", "a=b; t=c; t=d")], Some((Kind::Cookie, "c")));
        shows(
            &[("cookie", "a=b"), ("cookie", "t=c=")],
            Some((Kind::Cookie, "c=")),
        );
        shows(&[("cookie", "tt=c; t; t=")], None);
        shows(
            &[("cookie", "t=c"), ("authorization", "Bearer a")],
            Some((Kind::Bearer, "a")),
        );
    }

    #[test]
    fn what_can_be_no_credential_is_refused() {
        let long = format!("Bearer {}", "x".repeat(BYTES_MAX + 1));
        for pairs in [
            &[("authorization", "Digest a")][..],
            &[("authorization", "")],
            &[("authorization", "Bearer a"), ("authorization", "Bearer a")],
            &[("x-api-key", "a"), ("x-api-key", "b")],
            &[("authorization", &long)],
        ] {
            assert!(presented(&headers(pairs), None).is_err(), "{pairs:?}");
        }
        let unasked = headers(&[("cookie", "t=c")]);
        assert_eq!(presented(&unasked, None), Ok(None));
    }

    #[test]
    fn a_cookie_acts_for_its_own_pages_alone() {
        let forged = |kind, method, pairs: &[(&'static str, &str)]| {
            is_forgery(kind, &method, &Uri::from_static("/a/1"), &headers(pairs))
        };
        let own = [("host", "a.example:8"), ("origin", "https://A.example:8")];
        let neighbour = [("host", "a.example"), ("origin", "https://b.example")];
        assert!(!forged(Kind::Cookie, Method::PUT, &own));
        assert!(forged(Kind::Cookie, Method::PUT, &neighbour));
        assert!(forged(Kind::Cookie, Method::PUT, &[("host", "a.example")]));
        assert!(forged(
            Kind::Cookie,
            Method::POST,
            &[("host", "null"), ("origin", "null")]
        ));
        assert!(!forged(Kind::Cookie, Method::GET, &neighbour));
        assert!(!forged(Kind::Bearer, Method::PUT, &neighbour));
        let uri = Uri::from_static("https://a.example/a/1");
        let origin = headers(&[("origin", "https://a.example"), ("host", "b.example")]);
        assert!(!is_forgery(Kind::Cookie, &Method::PUT, &uri, &origin));
    }
}
