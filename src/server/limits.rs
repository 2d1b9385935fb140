//! Limits of clients, and how many connections each client has.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ipnet::IpNet;

/// Bits of an IPv6 address that identify a client: a subscriber gets a network of this size (RFC 6177).
const NETWORK_BITS: u32 = 64;

/// Section `[limits]`.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Open connections.
    pub connections: usize,
    /// Open connections of one client's address.
    pub connections_per_address: usize,
    /// The longest time from the connection to the first request, and from a request's first byte to the end of its head.
    pub header_timeout: Duration,
    /// The longest time without a request.
    pub idle_timeout: Duration,
    /// How long larder waits in total for a body whose client sends slower than the least rate.
    pub body_timeout: Duration,
    /// The longest time in which a client reads nothing of its answer.
    pub write_timeout: Duration,
    /// Requests of one client; 0: not limited.
    pub requests_per_second: u32,
    /// Requests that a client may send at once after a pause.
    pub burst: u32,
    /// Proxies whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// Proxies that begin each connection with a header of the PROXY protocol, which names the client.
    pub proxy_protocol: Vec<IpNet>,
}

/// Whether `address` is in one of `networks`.
pub(crate) fn trusts(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&address))
}

/// The number of open connections of each client, over all addresses that share it; clones are the same numbers.
#[derive(Clone, Default)]
pub struct ClientConnections(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// Open connections by client, within the limits of one address.
#[derive(Clone)]
pub(super) struct ClientCounts {
    connections_max: usize,
    trusted: Arc<[IpNet]>,
    /// Their clients are counted once the PROXY header has been read.
    proxy_protocol: Arc<[IpNet]>,
    connections: ClientConnections,
}

impl ClientCounts {
    pub(super) fn new(limits: &Limits, connections: ClientConnections) -> Self {
        Self {
            connections_max: limits.connections_per_address,
            trusted: limits.trusted_proxies.as_slice().into(),
            proxy_protocol: limits.proxy_protocol.as_slice().into(),
            connections,
        }
    }

    /// Counts a connection of `address`, unless it has too many.
    pub(super) fn admit(&self, address: IpAddr) -> Option<ClientSlot> {
        let mut slot = ClientSlot {
            client: None,
            clients: self.clone(),
        };
        let is_admitted = trusts(&self.proxy_protocol, address) || slot.count(address);
        is_admitted.then_some(slot)
    }
}

/// A connection's place in the count of its client; dropping it gives the place back.
pub(super) struct ClientSlot {
    client: Option<IpAddr>,
    clients: ClientCounts,
}

impl ClientSlot {
    /// Counts the connection for `address`; false if that has too many already. Connections of a trusted proxy are not
    /// counted, since many clients are behind it.
    pub(super) fn count(&mut self, address: IpAddr) -> bool {
        if trusts(&self.clients.trusted, address) {
            return true;
        }
        let client = client_network(address);
        let mut connections = lock(&self.clients.connections.0);
        let open = connections.entry(client).or_default();
        if *open >= self.clients.connections_max {
            return false;
        }
        *open += 1;
        self.client = Some(client);
        true
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        let Some(client) = self.client else {
            return;
        };
        let mut connections = lock(&self.clients.connections.0);
        if let Some(open) = connections.get_mut(&client) {
            *open -= 1;
            if *open == 0 {
                connections.remove(&client);
            }
        }
    }
}

/// The counts are consistent even if a thread has panicked while it held the lock.
fn lock(connections: &Mutex<HashMap<IpAddr, usize>>) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
    connections.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address or network that limits count as one client.
pub(crate) fn client_network(address: IpAddr) -> IpAddr {
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

    fn clients(connections_max: usize) -> ClientCounts {
        ClientCounts {
            connections_max,
            trusted: Arc::new(["10.0.0.0/8".parse().unwrap()]),
            proxy_protocol: Arc::new([]),
            connections: ClientConnections::default(),
        }
    }

    #[test]
    fn connections_of_a_client_are_limited() {
        let clients = clients(2);
        let one: IpAddr = "192.0.2.1".parse().unwrap();
        let first = clients.admit(one).unwrap();
        let second = clients.admit(one).unwrap();
        assert!(clients.admit(one).is_none());
        assert!(clients.admit("192.0.2.2".parse().unwrap()).is_some());
        drop(first);
        let third = clients.admit(one).unwrap();
        drop((second, third));
        assert!(lock(&clients.connections.0).is_empty());
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let clients = clients(1);
        let _first = clients.admit("2001:db8::1".parse().unwrap()).unwrap();
        assert!(clients.admit("2001:db8::2:1".parse().unwrap()).is_none());
        assert!(clients.admit("2001:db8:0:1::1".parse().unwrap()).is_some());
    }

    #[test]
    fn connections_of_a_trusted_proxy_are_not_limited() {
        let clients = clients(1);
        let proxy = "10.1.2.3".parse().unwrap();
        let mut first = clients.admit(proxy).unwrap();
        assert!(clients.admit(proxy).is_some());
        // Behind it may be another.
        for _ in 0..2 {
            assert!(first.count(proxy));
        }
        assert!(lock(&clients.connections.0).is_empty());
    }
}
