//! Who the client is behind proxies.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use crate::server::trusts;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Who asks: `peer`, or whom proxies name that are trusted, the nearest that is none of them. What stands further left
/// may be made up.
pub(super) fn client(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let mut client = peer;
    let named = headers.get_all(X_FORWARDED_FOR).iter().rev();
    let named = named.flat_map(|value| value.as_bytes().rsplit(|byte| *byte == b','));
    for name in named {
        if !trusts(trusted, client) {
            break;
        }
        match str::from_utf8(name)
            .ok()
            .and_then(|name| address(name.trim()))
        {
            Some(address) => client = address,
            None => break,
        }
    }
    client
}

/// With or without a port.
fn address(name: &str) -> Option<IpAddr> {
    let bare = || name.parse().ok();
    let with_port = || name.parse().ok().map(|address: SocketAddr| address.ip());
    bare()
        .or_else(with_port)
        .map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn asked(peer: &str, forwarded: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for value in forwarded {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            headers.append(X_FORWARDED_FOR, value);
        }
        let trusted = ["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        client(peer.parse().unwrap(), &headers, &trusted).to_string()
    }

    #[test]
    fn the_client_is_the_nearest_that_is_not_trusted() {
        assert_eq!(asked("192.0.2.1", &[]), "192.0.2.1");
        // Who is not trusted can say what it likes.
        assert_eq!(asked("192.0.2.1", &["198.51.100.1"]), "192.0.2.1");
        assert_eq!(asked("10.0.0.1", &[]), "10.0.0.1");
        assert_eq!(asked("10.0.0.1", &["198.51.100.1"]), "198.51.100.1");
        assert_eq!(
            asked("10.0.0.1", &["1.1.1.1, 198.51.100.1, 10.9.9.9"]),
            "198.51.100.1"
        );
        assert_eq!(
            asked("fd00::1", &["1.1.1.1", "198.51.100.1:80,fd00::2"]),
            "198.51.100.1"
        );
        assert_eq!(asked("10.0.0.1", &["[2001:db8::1]:443"]), "2001:db8::1");
        assert_eq!(
            asked("10.0.0.1", &["1.1.1.1, unknown, 10.0.0.2"]),
            "10.0.0.2"
        );
        assert_eq!(asked("10.0.0.1", &["é, 198.51.100.1"]), "198.51.100.1");
    }
}
