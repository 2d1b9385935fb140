//! Checks URLs of PostgreSQL and of public keys, and masks their passwords.
//!
//! No error repeats a value of the URL, because a mistyped one may carry its password anywhere.

use std::net::{IpAddr, SocketAddr};

use crate::auth::config::MASK;
use crate::source::session::url::{ConnectionUrl, UrlError as PostgresUrlError};

/// Why a URL is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UrlError {
    /// It is no URL of PostgreSQL that larder can obey.
    #[error(transparent)]
    Postgres(#[from] PostgresUrlError),
    /// It contains a character that no URL contains.
    #[error("must not hold white space or control characters: percent-encode them")]
    Character,
    /// It is no URL of a server that takes rows.
    #[error("must be a URL that begins with http://, https://, nats:// or tls:// and names a host")]
    NoSink,
    /// Something in the network could replace the keys.
    #[error("must begin with https://, or with http:// and a loopback address or localhost")]
    Unprotected,
}

/// Accepts a PostgreSQL URL that larder can obey.
pub(super) fn check(url: &str) -> Result<(), UrlError> {
    ConnectionUrl::parse(url)?;
    Ok(())
}

/// The user that a checked URL connects as.
pub(super) fn user(url: &str) -> String {
    ConnectionUrl::parse(url).map_or_else(|_| String::new(), |url| url.user().to_owned())
}

/// Accepts the URL of a web server or of a server of NATS.
pub(super) fn check_sink(url: &str) -> Result<(), UrlError> {
    if url.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(UrlError::Character);
    }
    let parsed = reqwest::Url::parse(url).map_err(|_| UrlError::NoSink)?;
    match parsed.scheme() {
        "http" | "https" | "nats" | "tls" if parsed.has_host() => Ok(()),
        _ => Err(UrlError::NoSink),
    }
}

/// Accepts the URL of public keys if nothing in the network can replace them: with other keys, any token is valid.
pub(super) fn check_protected(url: &str) -> Result<(), UrlError> {
    if url.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(UrlError::Character);
    }
    if url
        .strip_prefix("https://")
        .is_some_and(|rest| !rest.is_empty())
    {
        return Ok(());
    }
    let rest = url.strip_prefix("http://").ok_or(UrlError::Unprotected)?;
    let (authority, _) = split_authority(rest);
    // No user name: what stands before an @ must not pass for a host.
    let host = match authority.parse::<SocketAddr>() {
        Ok(address) => address.ip().to_string(),
        Err(_) => authority.split(':').next().unwrap_or_default().to_owned(),
    };
    let loopback = host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    if !authority.contains('@') && (loopback || host == "localhost") {
        Ok(())
    } else {
        Err(UrlError::Unprotected)
    }
}

/// The URL with `***` in place of its password, whether that stands before the host or in the query.
///
/// Of a malformed URL it hides too much rather than too little.
pub(super) fn masked_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return MASK.to_owned();
    };
    let (mut authority, mut tail) = split_authority(rest);
    let host_alone = !authority.contains('@') && has_valid_port(authority);
    let unescaped = holds_stray_at(tail) || !(host_alone || authority.contains('@'));
    if let Some(at) = rest.rfind('@').filter(|_| unescaped) {
        (authority, tail) = rest.split_at(at + 1);
    }
    let authority = match authority.rsplit_once('@') {
        Some((user, host)) => format!("{}@{host}", masked_user(user)),
        None => authority.to_owned(),
    };
    match tail.split_once('?') {
        Some((path, query)) => {
            let query: Vec<String> = query.split('&').map(masked_parameter).collect();
            format!("{scheme}://{authority}{path}?{}", query.join("&"))
        }
        None => format!("{scheme}://{authority}{tail}"),
    }
}

/// The user, and `***` in place of what follows a colon. A role's name seldom has an encoded colon: in most cases someone
/// has encoded the one before the password, too.
fn masked_user(user: &str) -> String {
    let lower = user.to_ascii_lowercase();
    let plain = lower.find(':').map(|at| at + 1);
    let encoded = lower.find("%3a").map(|at| at + 3);
    match plain.into_iter().chain(encoded).min() {
        Some(end) => format!("{}{MASK}", user.get(..end).unwrap_or_default()),
        None => user.to_owned(),
    }
}

/// Parts `user:password@host:port` from the path and the query.
fn split_authority(rest: &str) -> (&str, &str) {
    rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()))
}

/// Whether what follows the authority is in truth the rest of a password with an unescaped `/`, `?` or `#`.
fn holds_stray_at(tail: &str) -> bool {
    let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
    let first = query.split('&').next().unwrap_or(query);
    path.contains('@') || query.contains('#') || (first.contains('@') && !first.contains('='))
}

/// The port behind `host:` may be absent or empty.
fn has_valid_port(host: &str) -> bool {
    let after_address = host.rsplit_once(']').map_or(host, |(_, port)| port);
    match after_address.rsplit_once(':') {
        Some((name, port)) => {
            !name.contains(':') && (port.is_empty() || port.parse::<u16>().is_ok())
        }
        None => true,
    }
}

/// Hides passwords, private keys that are given inline, and `options`, which set anything.
fn masked_parameter(parameter: &str) -> String {
    let Some((name, value)) = parameter.split_once('=') else {
        return parameter.to_owned();
    };
    let decoded = percent_encoding::percent_decode_str(name).decode_utf8_lossy();
    let secret = decoded.to_ascii_lowercase().contains("password")
        || decoded.starts_with("options")
        || value.contains("BEGIN");
    if secret {
        format!("{name}={MASK}")
    } else if decoded == "user" {
        format!("{name}={}", masked_user(value))
    } else {
        parameter.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_masked_wherever_they_stand() {
        for (url, masked) in [
            (
                "postgres://app@db.example/app",
                "postgres://app@db.example/app",
            ),
            ("postgres://app:s3cret@db/app", "postgres://app:***@db/app"),
            (
                "postgres://app:s3:cret@db:5432/app",
                "postgres://app:***@db:5432/app",
            ),
            ("postgres://app:s3@cret@db/app", "postgres://app:***@db/app"),
            ("postgres://app:s3/cret@db/app", "postgres://app:***@db/app"),
            ("postgres://app:s3?cret@db/app", "postgres://app:***@db/app"),
            ("postgres://app:12?cret@db/app", "postgres://app:***@db/app"),
            ("postgres://app:12#cret@db/app", "postgres://app:***@db/app"),
            ("postgres://app:@db/app", "postgres://app:***@db/app"),
            (
                "postgres://app%3As3cret@db/app",
                "postgres://app%3A***@db/app",
            ),
            (
                "postgres://app%3as3:cret@db/app?user=app%3As3cret",
                "postgres://app%3a***@db/app?user=app%3A***",
            ),
            (
                "postgres://app@db/app?options=-c%20app.secret=s3cret",
                "postgres://app@db/app?options=***",
            ),
            (
                "postgres://app@db/app?options%5Bapp.secret%5D=s3cret",
                "postgres://app@db/app?options%5Bapp.secret%5D=***",
            ),
            (
                "postgresql://db/app?user=a&password=s3cret&sslmode=require",
                "postgresql://db/app?user=a&password=***&sslmode=require",
            ),
            (
                "postgres:///app?p%61ssword=s3cret",
                "postgres:///app?p%61ssword=***",
            ),
            (
                "postgres://db:5432/app?application_name=a@b",
                "postgres://db:5432/app?application_name=a@b",
            ),
            ("postgres://[::1]:5432/app", "postgres://[::1]:5432/app"),
        ] {
            assert_eq!(masked_url(url), masked);
            assert_eq!(masked_url(masked), masked, "masking twice changes nothing");
        }
    }

    #[test]
    fn only_postgres_urls_pass() {
        for url in [
            "postgres://",
            "postgresql:///app?host=/run",
            "postgres://a:b%40@[::1]:5432/x",
            "postgres://db:/x",
        ] {
            assert_eq!(check(url), Ok(()), "{url}");
        }
        assert_eq!(
            check("mysql://db/app"),
            Err(PostgresUrlError::Scheme.into())
        );
        assert_eq!(
            check("host=db password=x"),
            Err(PostgresUrlError::Scheme.into())
        );
        assert_eq!(
            check("postgres://db /app"),
            Err(PostgresUrlError::Character.into())
        );
        assert_eq!(
            check("postgres://app:s3/cret@db/app"),
            Err(PostgresUrlError::Port.into())
        );
        assert_eq!(
            check("postgres://db:65536/app"),
            Err(PostgresUrlError::Port.into())
        );
    }
}
