//! Which web pages a request may come from.
//!
//! A browser can reach the addresses of the user's machine, and sends the user's cookies, for every page that the user
//! visits. A page can't set `Host`, `Origin` and `Sec-Fetch-Site`, so they show where a request of a browser comes from.
//! Other clients need not send `Origin`, and never send `Sec-Fetch-Site`.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::http::header::{HOST, HeaderName, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, Method, Uri};

use crate::http::problem::Problem;
use crate::http::request::RequestHead;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// The web page that a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageOrigin {
    /// The headers name none: the client is no browser, or reads without a script.
    Unnamed,
    /// Its origin is that of the address that the request is sent to.
    Same,
    /// `cors.origins` contains its origin.
    Configured,
    /// Any other origin.
    Other,
}

impl PageOrigin {
    /// Reads the headers of a request to `host`; `is_tls`: it was sent over TLS.
    pub(super) fn of(
        head: RequestHead<'_>,
        host: Option<&str>,
        is_tls: bool,
        is_configured: impl Fn(&HeaderValue) -> bool,
    ) -> Self {
        let mut origins = head.headers.get_all(ORIGIN).iter();
        let is_cross_site = has(head.headers, SEC_FETCH_SITE, "cross-site");
        match (origins.next(), origins.next()) {
            (Some(origin), None) if is_configured(origin) => Self::Configured,
            _ if is_cross_site => Self::Other,
            (None, _) => Self::Unnamed,
            (Some(origin), None) if is_same_origin(origin, host, is_tls) => Self::Same,
            _ => Self::Other,
        }
    }
}

/// Whether `origin` has the scheme, host and port of the request (RFC 6454, section 5). Without TLS the scheme may be
/// `https`, since a proxy may end TLS.
fn is_same_origin(origin: &HeaderValue, host: Option<&str>, is_tls: bool) -> bool {
    let origin = origin.to_str().ok();
    let (Some((scheme, authority)), Some(host)) =
        (origin.and_then(|origin| origin.split_once("://")), host)
    else {
        return false;
    };
    let default_port = match scheme {
        "https" => ":443",
        "http" if !is_tls => ":80",
        _ => return false,
    };
    let without_default = |text| str::strip_suffix(text, default_port).unwrap_or(text);
    without_default(authority).eq_ignore_ascii_case(without_default(host))
}

/// The host that a request is sent to, with its port.
pub(super) fn host(head: RequestHead<'_>) -> Option<&str> {
    hosts(head.uri, head.headers).next()
}

/// Every host that a request names, with its port: first the one of its URI, which counts (RFC 9112, section 3.2.2).
fn hosts<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> impl Iterator<Item = &'r str> {
    let named = headers.get_all(HOST).iter();
    // A host that is not ASCII is none that a setting contains.
    let named = named.map(|host| host.to_str().unwrap_or_default());
    uri.authority()
        .map(|authority| authority.as_str())
        .into_iter()
        .chain(named)
}

fn has(headers: &HeaderMap, name: HeaderName, value: &str) -> bool {
    headers.get_all(name).iter().any(|sent| sent == value)
}

/// Checks the requests to an address that asks for no credentials, so that only its own pages and clients that are no
/// browsers use it.
///
/// A page of another site may send requests to it, and with a name that resolves to the address ("DNS rebinding") read
/// the responses, too. Such a name is in `Host`.
#[derive(Clone, Debug)]
pub(super) struct PageCheck {
    /// Names of hosts, without ports and without the dot at their end.
    hosts: Vec<String>,
    wrong_host: &'static str,
    other_page: &'static str,
    /// A page of another site may link to it.
    allows_navigation: bool,
}

impl PageCheck {
    /// For the admin address, which may also be called by the names `hosts`.
    pub(super) fn for_admin(hosts: &[String]) -> Self {
        Self {
            hosts: without_dots(hosts),
            wrong_host: "without an admin token, the Host header must be an IP address, localhost or a name in \
                         admin_hosts",
            other_page: "without an admin token, web pages of other origins may not use the admin address",
            allows_navigation: false,
        }
    }

    /// For the public address, which may also be called by the names `hosts`.
    pub(super) fn for_public(hosts: &[String]) -> Self {
        Self {
            hosts: without_dots(hosts),
            wrong_host: "without [auth], the Host header must be an IP address, localhost or a name in hosts",
            other_page: "without [auth], only web pages of this origin and of cors.origins may use this address",
            allows_navigation: true,
        }
    }

    /// Checks a request from a page of this `origin`.
    ///
    /// # Errors
    /// 403 if a page of another site may have sent the request.
    pub(super) fn check(&self, head: RequestHead<'_>, origin: PageOrigin) -> Result<(), Problem> {
        let mut hosts = hosts(head.uri, head.headers).peekable();
        // Every browser names the host.
        if origin == PageOrigin::Configured || hosts.peek().is_none() {
            return Ok(());
        }
        // Even of a navigation: another window of the page could read what it shows.
        if !hosts.all(|host| self.is_host_allowed(host)) {
            return Err(Problem::forbidden(self.wrong_host));
        }
        if origin == PageOrigin::Other && !(self.allows_navigation && is_navigation(head)) {
            return Err(Problem::forbidden(self.other_page));
        }
        Ok(())
    }

    fn is_host_allowed(&self, host: &str) -> bool {
        // No browser sends a user's name before the host.
        if host.contains('@') {
            return false;
        }
        if let Some(bracketed) = host.strip_prefix('[') {
            let address = bracketed.split_once(']').map(|(address, _)| address);
            return address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
        }
        let name = host.split_once(':').map_or(host, |(name, _)| name);
        let name = without_dot(name);
        let is = |allowed: &str| allowed.eq_ignore_ascii_case(name);
        is("localhost")
            || name.parse::<Ipv4Addr>().is_ok()
            || self.hosts.iter().any(|host| is(host))
    }
}

/// `name` without the dot at its end, which makes a name absolute (RFC 3986, section 3.2.2).
fn without_dot(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

fn without_dots(names: &[String]) -> Vec<String> {
    let names = names.iter();
    names.map(|name| without_dot(name).to_owned()).collect()
}

/// Whether the browser shows the response in a window of its own, as after a click on a link. No script of the page that
/// has the link can read it.
fn is_navigation(head: RequestHead<'_>) -> bool {
    *head.method == Method::GET
        && !head.headers.contains_key(ORIGIN)
        && has(head.headers, SEC_FETCH_MODE, "navigate")
        && has(head.headers, SEC_FETCH_DEST, "document")
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn request(method: &Method, uri: &str, headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    fn origin(uri: &str, is_tls: bool, headers: &[(&str, &str)]) -> PageOrigin {
        let request = request(&Method::PUT, uri, headers);
        let head = RequestHead::of(&request);
        PageOrigin::of(head, host(head), is_tls, |origin| {
            origin == "https://app.example"
        })
    }

    #[test]
    fn an_origin_is_the_same_by_scheme_host_and_port() {
        use PageOrigin::{Configured, Other, Same, Unnamed};
        let of = |host: &str, is_tls: bool, value: &str| {
            origin("/a/1", is_tls, &[("host", host), ("origin", value)])
        };
        for (host, is_tls, value, expected) in [
            ("a.example:8", false, "https://A.example:8", Same),
            ("a.example:8", false, "http://a.example:8", Same),
            ("a.example", true, "https://a.example", Same),
            ("a.example:443", true, "https://a.example", Same),
            ("a.example:80", false, "http://a.example", Same),
            ("[::1]:8", false, "http://[::1]:8", Same),
            ("a.example", true, "http://a.example", Other),
            ("a.example", false, "moz-extension://a.example", Other),
            ("a.example", true, "moz-extension://a.example", Other),
            ("a.example:80", true, "https://a.example", Other),
            ("a.example:443", false, "http://a.example", Other),
            ("a.example", false, "https://b.example", Other),
            ("a.example:8", false, "http://a.example:9", Other),
            ("a.example", false, "null", Other),
            ("null", false, "null", Other),
            ("a.example", false, "", Other),
            ("a.example", true, "https://app.example", Configured),
        ] {
            assert_eq!(of(host, is_tls, value), expected, "{host} {is_tls} {value}");
        }
        let named = ("host", "b.example");
        let own = ("origin", "https://a.example");
        let uri = "https://a.example/a/1";
        assert_eq!(origin(uri, true, &[own, named]), Same);
        assert_eq!(origin("/a/1", true, &[own]), Other);
        assert_eq!(origin("/a/1", true, &[named]), Unnamed);
    }

    #[test]
    fn a_second_origin_and_another_site_are_no_same_origin() {
        use PageOrigin::{Configured, Other, Same, Unnamed};
        let host = ("host", "a.example");
        let (own, app) = (
            ("origin", "https://a.example"),
            ("origin", "https://app.example"),
        );
        let site = |value| ("sec-fetch-site", value);
        for (headers, expected) in [
            (&[host, own, own][..], Other),
            (&[host, app, app], Other),
            (&[host, own, site("cross-site")], Other),
            (&[host, own, site("same-origin")], Same),
            (&[host, app, site("cross-site")], Configured),
            (&[host, site("cross-site")], Other),
            (&[host, site("none")], Unnamed),
            (&[host, site("same-site")], Unnamed),
        ] {
            assert_eq!(origin("/a/1", false, headers), expected, "{headers:?}");
        }
    }

    #[track_caller]
    fn check(check: &PageCheck, method: &Method, uri: &str, headers: &[(&str, &str)], ok: bool) {
        let request = request(method, uri, headers);
        let head = RequestHead::of(&request);
        let origin = PageOrigin::of(head, host(head), false, |origin| {
            origin == "http://app.example"
        });
        assert_eq!(
            check.check(head, origin).is_ok(),
            ok,
            "{method} {uri} {headers:?}"
        );
    }

    #[test]
    fn only_names_that_no_page_can_choose_reach_an_open_address() {
        let names = ["larder.internal", "absolute.internal."].map(ToOwned::to_owned);
        let open = PageCheck::for_public(&names);
        for (host, ok) in [
            ("127.0.0.1:8080", true),
            ("127.0.0.1", true),
            ("192.0.2.1", true),
            ("[::1]:8080", true),
            ("[::1]", true),
            ("localhost:8080", true),
            ("LocalHost", true),
            ("localhost.:8080", true),
            ("localhost.", true),
            ("localhost..", false),
            ("evil.example.", false),
            ("Larder.Internal:8080", true),
            ("larder.internal.", true),
            ("absolute.internal", true),
            ("absolute.internal.:8080", true),
            ("absolute.internal..", false),
            ("evil.example", false),
            ("evil.example:8080", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("[evil.example]", false),
            ("localhost:80@evil.example", false),
            ("[::1", false),
            ("::1", false),
            ("", false),
        ] {
            check(&open, &Method::GET, "/a/1", &[("host", host)], ok);
        }
        check(&open, &Method::GET, "/a/1", &[], true);
        let both = [("host", "localhost"), ("host", "evil.example")];
        check(&open, &Method::GET, "/a/1", &both, false);
        let own = [("host", "localhost")];
        check(&open, &Method::GET, "http://evil.example/a/1", &own, false);
        check(&open, &Method::GET, "http://localhost/a/1", &own, true);
    }

    #[test]
    fn pages_of_other_sites_do_not_use_an_open_address() {
        let (public, admin) = (PageCheck::for_public(&[]), PageCheck::for_admin(&[]));
        let host = ("host", "localhost:8080");
        let cross = ("sec-fetch-site", "cross-site");
        let navigation = [
            host,
            cross,
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        let app = [
            ("host", "evil.example"),
            ("origin", "http://app.example"),
            cross,
        ];
        for (method, headers, in_public, in_admin) in [
            (
                Method::POST,
                &[host, ("origin", "http://localhost:8080")][..],
                true,
                true,
            ),
            (
                Method::POST,
                &[host, ("origin", "http://localhost:3000")],
                false,
                false,
            ),
            (Method::POST, &[host, ("origin", "null")], false, false),
            (Method::GET, &[host, cross], false, false),
            (Method::GET, &navigation, true, false),
            (Method::HEAD, &navigation, false, false),
            (Method::POST, &navigation, false, false),
            (
                Method::GET,
                &[host, cross, ("sec-fetch-mode", "navigate")],
                false,
                false,
            ),
            (Method::PUT, &app, true, true),
        ] {
            check(&public, &method, "/a", headers, in_public);
            check(&admin, &method, "/a", headers, in_admin);
        }
    }
}
