//! The client's address and the host that it called, behind proxies.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;

use crate::server::trusts;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The client's address: `peer`, or if that is a trusted proxy, the last address in `X-Forwarded-For` that is not one. The
/// addresses before it may be forged.
pub(super) fn client(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let mut client = peer;
    let addresses = headers.get_all(X_FORWARDED_FOR).iter().rev();
    let addresses = addresses.flat_map(|value| value.as_bytes().rsplit(|byte| *byte == b','));
    for address_text in addresses {
        if !trusts(trusted, client) {
            break;
        }
        match str::from_utf8(address_text)
            .ok()
            .and_then(|text| parse_address(text.trim()))
        {
            Some(address) => client = address,
            None => break,
        }
    }
    client
}

/// The host that `peer` was called by, if that is a trusted proxy that says so.
pub(super) fn host<'h>(
    peer: IpAddr,
    headers: &'h HeaderMap,
    trusted: &[IpNet],
) -> Option<&'h HeaderValue> {
    let host = headers.get(X_FORWARDED_HOST)?;
    trusts(trusted, peer).then_some(host)
}

/// Parses an address with or without a port.
fn parse_address(text: &str) -> Option<IpAddr> {
    let bare = || text.parse().ok();
    let with_port = || text.parse().ok().map(|address: SocketAddr| address.ip());
    bare()
        .or_else(with_port)
        .map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client_of(peer: &str, forwarded: &[&str]) -> String {
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
        assert_eq!(client_of("192.0.2.1", &[]), "192.0.2.1");
        // The header of a peer that is not trusted is ignored.
        assert_eq!(client_of("192.0.2.1", &["198.51.100.1"]), "192.0.2.1");
        assert_eq!(client_of("10.0.0.1", &[]), "10.0.0.1");
        assert_eq!(client_of("10.0.0.1", &["198.51.100.1"]), "198.51.100.1");
        assert_eq!(
            client_of("10.0.0.1", &["1.1.1.1, 198.51.100.1, 10.9.9.9"]),
            "198.51.100.1"
        );
        assert_eq!(
            client_of("fd00::1", &["1.1.1.1", "198.51.100.1:80,fd00::2"]),
            "198.51.100.1"
        );
        assert_eq!(client_of("10.0.0.1", &["[2001:db8::1]:443"]), "2001:db8::1");
        assert_eq!(
            client_of("10.0.0.1", &["1.1.1.1, unknown, 10.0.0.2"]),
            "10.0.0.2"
        );
        assert_eq!(client_of("10.0.0.1", &["é, 198.51.100.1"]), "198.51.100.1");
    }
}
