//! Leases: at most one load for each key at a time. The first request leads, the others wait for its outcome.
//!
//! The lease travels with the load, not with the request: a request that goes away takes nothing along, and a lease
//! that is dropped wakes its waiters (after "leases" in Nishtala et al., Scaling Memcache at Facebook, NSDI 2013).

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::cache::document::Found;
use crate::cache::generation::Version;
use crate::clock::Boottime;
use crate::resource::ResourceId;
use crate::source::SourceError;
use crate::source::loader::SentAt;
use crate::sync::Mutex;

/// What a load came to.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) found: Result<Found, SourceError>,
    /// A tier keeps it.
    pub(super) stored: bool,
}

type Key = (ResourceId, Arc<str>);

struct Flight {
    version: Version,
    sent_at: SentAt,
    outcome: watch::Receiver<Option<Outcome>>,
}

/// The loads under way.
#[derive(Default)]
pub(super) struct Leases {
    flights: Mutex<HashMap<Key, Arc<Flight>>>,
}

/// What a request gets for a key that is in no tier.
pub(super) enum Grant {
    /// It leads: the lease goes with the load.
    Lead(Lease, Waiter),
    /// Another leads.
    Wait(Waiter),
}

/// The right to fill one key.
pub(super) struct Lease {
    leases: Arc<Leases>,
    key: Key,
    flight: Arc<Flight>,
    outcome: watch::Sender<Option<Outcome>>,
}

/// Waits for a load.
pub(super) struct Waiter {
    outcome: watch::Receiver<Option<Outcome>>,
}

impl Leases {
    /// Joins the load of the key that is under way, or leads one.
    ///
    /// A load is joined only if nothing has been invalidated since it began, and if its statement, once sent, is not
    /// older than `max_age`: while the feed is down, generations stand still.
    pub(super) fn grant(
        self: &Arc<Self>,
        resource: ResourceId,
        key: &Arc<str>,
        version: Version,
        max_age: Duration,
    ) -> Grant {
        let key = (resource, Arc::clone(key));
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = flights.get(&key) {
            let young = match flight.sent_at.get() {
                None => true,
                Some(sent_at) => Boottime::now().is_within(max_age, sent_at),
            };
            if young && flight.version == version {
                return Grant::Wait(Waiter {
                    outcome: flight.outcome.clone(),
                });
            }
        }
        let (sender, receiver) = watch::channel(None);
        let flight = Arc::new(Flight {
            version,
            sent_at: SentAt::default(),
            outcome: receiver.clone(),
        });
        flights.insert(key.clone(), Arc::clone(&flight));
        let lease = Lease {
            leases: Arc::clone(self),
            key,
            flight,
            outcome: sender,
        };
        Grant::Lead(lease, Waiter { outcome: receiver })
    }
}

impl Lease {
    pub(super) fn resource(&self) -> ResourceId {
        self.key.0
    }

    pub(super) fn key(&self) -> &Arc<str> {
        &self.key.1
    }

    /// What the key's document must still be under when it is installed.
    pub(super) fn version(&self) -> Version {
        self.flight.version
    }

    pub(super) fn sent_at(&self) -> SentAt {
        self.flight.sent_at.clone()
    }

    /// Ends the load and tells everyone.
    pub(super) fn complete(self, outcome: Outcome) {
        // Later requests must find the tier or lead anew, so the flight leaves before its waiters wake (in drop).
        self.retire();
        self.outcome.send_replace(Some(outcome));
    }

    /// Takes the flight off the list, unless a newer one has taken its place.
    fn retire(&self) {
        let mut flights = self
            .leases
            .flights
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if flights
            .get(&self.key)
            .is_some_and(|flight| Arc::ptr_eq(flight, &self.flight))
        {
            flights.remove(&self.key);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.retire();
    }
}

impl Waiter {
    /// The outcome, or `None` if the load ended without one.
    pub(super) async fn outcome(&mut self) -> Option<Outcome> {
        let outcome = self.outcome.wait_for(Option::is_some).await.ok()?;
        outcome.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::generation::Epoch;
    use crate::resource::testing::ITEMS;

    const VERSION: Version = Version {
        generation: 1,
        epoch: Epoch {
            documents: 1,
            absences: 1,
        },
    };

    fn grant(leases: &Arc<Leases>, version: Version) -> Grant {
        leases.grant(ITEMS, &Arc::from("42"), version, Duration::from_secs(1))
    }

    fn outcome() -> Outcome {
        Outcome {
            found: Ok(None),
            stored: false,
        }
    }

    #[tokio::test]
    async fn waiters_get_the_leaders_outcome() {
        let leases = Arc::new(Leases::default());
        let Grant::Lead(lease, _) = grant(&leases, VERSION) else {
            panic!("someone leads")
        };
        let Grant::Wait(mut waiter) = grant(&leases, VERSION) else {
            panic!("nobody leads")
        };
        lease.complete(outcome());
        assert!(waiter.outcome().await.is_some());
        assert!(matches!(grant(&leases, VERSION), Grant::Lead(..)));
    }

    #[tokio::test]
    async fn a_dropped_lease_wakes_its_waiters() {
        let leases = Arc::new(Leases::default());
        let Grant::Lead(lease, _) = grant(&leases, VERSION) else {
            panic!("someone leads")
        };
        let Grant::Wait(mut waiter) = grant(&leases, VERSION) else {
            panic!("nobody leads")
        };
        drop(lease);
        assert!(waiter.outcome().await.is_none());
    }

    #[test]
    fn an_overtaken_load_is_not_joined_and_does_not_end_its_successor() {
        let leases = Arc::new(Leases::default());
        let newer = Version {
            generation: 2,
            ..VERSION
        };
        let Grant::Lead(old, _) = grant(&leases, VERSION) else {
            panic!("someone leads")
        };
        let Grant::Lead(_new, _) = grant(&leases, newer) else {
            panic!("joined an old load")
        };
        old.complete(outcome());
        assert!(matches!(grant(&leases, newer), Grant::Wait(_)));
    }

    #[test]
    fn a_load_sent_long_ago_is_not_joined() {
        let leases = Arc::new(Leases::default());
        let Grant::Lead(lease, _) = grant(&leases, VERSION) else {
            panic!("someone leads")
        };
        lease.sent_at().mark(Boottime(1));
        assert!(matches!(grant(&leases, VERSION), Grant::Lead(..)));
    }

    #[test]
    fn whoever_needs_a_new_statement_joins_only_one_that_is_not_sent() {
        let leases = Arc::new(Leases::default());
        let join = || leases.grant(ITEMS, &Arc::from("42"), VERSION, Duration::ZERO);
        let Grant::Lead(lease, _) = join() else {
            panic!("someone leads")
        };
        assert!(matches!(join(), Grant::Wait(_)));
        lease.sent_at().mark(Boottime(Boottime::now().0 - 1));
        assert!(matches!(join(), Grant::Lead(..)));
    }
}
