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

/// How many of something each client has; clones are the same counts.
#[derive(Clone, Debug, Default)]
pub struct ClientCounts(Arc<Mutex<HashMap<IpAddr, usize>>>);

impl ClientCounts {
    /// Counts one more for the client at `address`, unless it has `count_max` already.
    pub(crate) fn take(&self, address: IpAddr, count_max: usize) -> Option<ClientPlace> {
        self.take_many(address, 1, count_max)
    }

    /// Counts `places` more for the client at `address`, unless it would have more than `count_max` then.
    pub(crate) fn take_many(
        &self,
        address: IpAddr,
        places: usize,
        count_max: usize,
    ) -> Option<ClientPlace> {
        let client = client_network(address);
        let mut counts = self.lock();
        let count = counts.get(&client).copied().unwrap_or_default() + places;
        if count > count_max {
            return None;
        }
        counts.insert(client, count);
        let counts = self.clone();
        Some(ClientPlace {
            client,
            places,
            counts,
        })
    }

    /// The counts are consistent even if a thread has panicked while it held the lock.
    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Places in the count of a client; dropping it gives them back.
#[derive(Debug)]
pub(crate) struct ClientPlace {
    client: IpAddr,
    places: usize,
    counts: ClientCounts,
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&self.client) {
            *count -= self.places;
            if *count == 0 {
                counts.remove(&self.client);
            }
        }
    }
}

/// Open connections by client, within the limits of one address.
#[derive(Clone)]
pub(super) struct ConnectionLimit {
    connections_max: usize,
    trusted: Arc<[IpNet]>,
    /// Their clients are counted once the PROXY header has been read.
    proxy_protocol: Arc<[IpNet]>,
    counts: ClientCounts,
}

impl ConnectionLimit {
    pub(super) fn new(limits: &Limits, counts: ClientCounts) -> Self {
        Self {
            connections_max: limits.connections_per_address,
            trusted: limits.trusted_proxies.as_slice().into(),
            proxy_protocol: limits.proxy_protocol.as_slice().into(),
            counts,
        }
    }

    /// Counts a connection of `address`, unless it has too many.
    pub(super) fn admit(&self, address: IpAddr) -> Option<ClientSlot> {
        let mut slot = ClientSlot {
            place: None,
            limit: self.clone(),
        };
        let is_admitted = trusts(&self.proxy_protocol, address) || slot.count(address);
        is_admitted.then_some(slot)
    }
}

/// A connection's place in the count of its client; dropping it gives the place back.
pub(super) struct ClientSlot {
    place: Option<ClientPlace>,
    limit: ConnectionLimit,
}

impl ClientSlot {
    /// Counts the connection for `address`; false if that has too many already. Connections of a trusted proxy are not
    /// counted, since many clients are behind it.
    pub(super) fn count(&mut self, address: IpAddr) -> bool {
        if trusts(&self.limit.trusted, address) {
            return true;
        }
        self.place = self.limit.counts.take(address, self.limit.connections_max);
        self.place.is_some()
    }
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

    fn clients(connections_max: usize) -> ConnectionLimit {
        ConnectionLimit {
            connections_max,
            trusted: Arc::new(["10.0.0.0/8".parse().unwrap()]),
            proxy_protocol: Arc::new([]),
            counts: ClientCounts::default(),
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
        assert!(clients.counts.lock().is_empty());
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
        assert!(clients.counts.lock().is_empty());
    }
}
