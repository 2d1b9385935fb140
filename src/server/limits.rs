//! What clients may take, and how many there are.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ipnet::IpNet;

/// Bits of an address of IPv6 that make out a client: a network of this size is what one subscriber gets (RFC 6177).
const NETWORK_BITS: u32 = 64;

/// Section `[limits]`.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Open connections.
    pub connections: usize,
    /// Open connections of one client's address.
    pub connections_per_address: usize,
    /// From the connection to the first request, and from a request's first byte to the end of its head.
    pub header_timeout: Duration,
    /// Without a request.
    pub idle_timeout: Duration,
    /// For what a client sends of a body beyond the least rate.
    pub body_timeout: Duration,
    /// In which a client takes nothing of its answer.
    pub write_timeout: Duration,
    /// Requests of one client; 0 for as many as it likes.
    pub requests_per_second: u32,
    /// Requests that a client may send at once after a pause.
    pub burst: u32,
    /// Networks whose word is taken for whom they ask.
    pub trusted_proxies: Vec<IpNet>,
    /// They say so by the PROXY protocol, before anything else.
    pub proxy_protocol: bool,
}

/// Whether `address` is in one of `networks`.
pub(crate) fn trusts(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&address))
}

/// Open connections by client.
#[derive(Clone)]
pub(super) struct Clients {
    connections_max: usize,
    trusted: Arc<[IpNet]>,
    connections: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Clients {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            connections_max: limits.connections_per_address,
            trusted: limits.trusted_proxies.as_slice().into(),
            connections: Arc::default(),
        }
    }

    /// Counts a connection of `address`, unless it has too many.
    pub(super) fn admit(&self, address: IpAddr) -> Option<Admitted> {
        let mut admitted = Admitted {
            client: None,
            clients: self.clone(),
        };
        admitted.count(address).then_some(admitted)
    }
}

/// A connection that counts.
pub(super) struct Admitted {
    client: Option<IpAddr>,
    clients: Clients,
}

impl Admitted {
    /// Whether it is that of a proxy which has not said yet for whom.
    pub(super) fn is_proxy(&self) -> bool {
        self.client.is_none()
    }

    /// Counts the connection as one of `address`, unless that has too many. Behind a proxy that is trusted are many
    /// clients, so its own are not counted.
    pub(super) fn count(&mut self, address: IpAddr) -> bool {
        if trusts(&self.clients.trusted, address) {
            return true;
        }
        let client = network(address);
        let mut connections = lock(&self.clients.connections);
        let open = connections.entry(client).or_default();
        if *open >= self.clients.connections_max {
            return false;
        }
        *open += 1;
        self.client = Some(client);
        true
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let Some(client) = self.client else {
            return;
        };
        let mut connections = lock(&self.clients.connections);
        if let Some(open) = connections.get_mut(&client) {
            *open -= 1;
            if *open == 0 {
                connections.remove(&client);
            }
        }
    }
}

/// Numbers are whole whoever panicked.
fn lock(connections: &Mutex<HashMap<IpAddr, usize>>) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
    connections.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whom limits count as one.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let network = address.to_bits() & (u128::MAX << NETWORK_BITS);
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients(connections_max: usize) -> Clients {
        Clients {
            connections_max,
            trusted: Arc::new(["10.0.0.0/8".parse().unwrap()]),
            connections: Arc::default(),
        }
    }

    #[test]
    fn a_client_has_so_many_connections_and_no_more() {
        let clients = clients(2);
        let one: IpAddr = "192.0.2.1".parse().unwrap();
        let first = clients.admit(one).unwrap();
        let second = clients.admit(one).unwrap();
        assert!(clients.admit(one).is_none());
        assert!(clients.admit("192.0.2.2".parse().unwrap()).is_some());
        drop(first);
        let third = clients.admit(one).unwrap();
        drop((second, third));
        assert!(lock(&clients.connections).is_empty());
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let clients = clients(1);
        let _first = clients.admit("2001:db8::1".parse().unwrap()).unwrap();
        assert!(clients.admit("2001:db8::2:1".parse().unwrap()).is_none());
        assert!(clients.admit("2001:db8:0:1::1".parse().unwrap()).is_some());
    }

    #[test]
    fn a_trusted_proxy_has_as_many_as_it_likes() {
        let clients = clients(1);
        let proxy = "10.1.2.3".parse().unwrap();
        let mut first = clients.admit(proxy).unwrap();
        assert!(clients.admit(proxy).is_some());
        // Behind it may be another.
        for _ in 0..2 {
            assert!(first.count(proxy));
        }
        assert!(lock(&clients.connections).is_empty());
    }
}
