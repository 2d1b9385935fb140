//! Leases: at most one load for each key at a time. The first request leads, the others wait for its outcome.
//!
//! The lease belongs to the load, not to the request: the load goes on if the request is dropped, and a dropped lease
//! wakes its waiters (after "leases" in Nishtala et al., "Scaling Memcache at Facebook", NSDI 2013).

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use tokio::sync::watch;

use crate::cache::document::Found;
use crate::cache::generation::Version;
use crate::clock::Boottime;
use crate::resource::ResourceId;
use crate::source::SourceError;
use crate::source::loader::SentAt;
use crate::sync::{Mutex, MutexGuard};

/// The result of a load.
#[derive(Clone, Debug)]
pub(super) struct LoadOutcome {
    pub(super) found: Result<Found, SourceError>,
    /// Whether a tier has it now.
    pub(super) stored: bool,
}

type LoadKey = (ResourceId, Arc<str>);

/// What other requests need to know of a load to join it.
struct InFlightLoad {
    version: Version,
    sent_at: SentAt,
    outcome: watch::Receiver<Option<LoadOutcome>>,
}

/// The loads under way.
#[derive(Default)]
pub(super) struct Leases {
    loads: Mutex<HashMap<LoadKey, Arc<InFlightLoad>>>,
}

/// The part of a request in the load of its key.
pub(super) enum Grant {
    /// It starts the load, which takes the lease, and waits for it.
    Lead(Lease, Waiter),
    /// It waits for a load that another request has started.
    Wait(Waiter),
}

/// The right to fill one key.
pub(super) struct Lease {
    leases: Arc<Leases>,
    key: LoadKey,
    load: Arc<InFlightLoad>,
    outcome: watch::Sender<Option<LoadOutcome>>,
}

/// Waits for the outcome of a load.
pub(super) struct Waiter {
    outcome: watch::Receiver<Option<LoadOutcome>>,
}

impl Leases {
    /// Joins a load of the key that is under way, or leads a new one.
    ///
    /// A load is joined only if its version is current, and if its statement was not sent before `sent_since`: while the
    /// feed is down, versions do not change.
    pub(super) fn grant(
        self: &Arc<Self>,
        resource: ResourceId,
        key: &Arc<str>,
        version: Version,
        sent_since: Boottime,
    ) -> Grant {
        let key = (resource, Arc::clone(key));
        let mut loads = self.lock();
        if let Some(load) = loads.get(&key) {
            let is_young = match load.sent_at.get() {
                None => true,
                // One that lies ahead was read from another clock.
                Some(sent_at) => sent_since <= sent_at && sent_at <= Boottime::now(),
            };
            if is_young && load.version == version {
                return Grant::Wait(Waiter {
                    outcome: load.outcome.clone(),
                });
            }
        }
        let (sender, receiver) = watch::channel(None);
        let load = Arc::new(InFlightLoad {
            version,
            sent_at: SentAt::default(),
            outcome: receiver.clone(),
        });
        loads.insert(key.clone(), Arc::clone(&load));
        let lease = Lease {
            leases: Arc::clone(self),
            key,
            load,
            outcome: sender,
        };
        Grant::Lead(lease, Waiter { outcome: receiver })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LoadKey, Arc<InFlightLoad>>> {
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lease {
    pub(super) fn resource(&self) -> ResourceId {
        self.key.0
    }

    pub(super) fn key(&self) -> &Arc<str> {
        &self.key.1
    }

    /// The version that has to be current when the document is installed.
    pub(super) fn version(&self) -> Version {
        self.load.version
    }

    pub(super) fn sent_at(&self) -> SentAt {
        self.load.sent_at.clone()
    }

    /// Ends the load, and gives the outcome to all waiters.
    pub(super) fn complete(self, outcome: LoadOutcome) {
        // Before the waiters wake, so that they can't join this load again.
        self.deregister();
        self.outcome.send_replace(Some(outcome));
    }

    /// Removes the load, unless a newer one has replaced it.
    fn deregister(&self) {
        let mut loads = self.leases.lock();
        if loads
            .get(&self.key)
            .is_some_and(|load| Arc::ptr_eq(load, &self.load))
        {
            loads.remove(&self.key);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.deregister();
    }
}

impl Waiter {
    /// The outcome, or `None` if the load ended without one.
    pub(super) async fn outcome(&mut self) -> Option<LoadOutcome> {
        let outcome = self.outcome.wait_for(Option::is_some).await.ok()?;
        outcome.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        let since = Boottime::now().before(Duration::from_secs(1));
        leases.grant(ITEMS, &Arc::from("42"), version, since)
    }

    fn outcome() -> LoadOutcome {
        LoadOutcome {
            found: Ok(None),
            stored: false,
        }
    }

    #[tokio::test]
    async fn waiters_get_the_leaders_outcome() {
        let leases = Arc::new(Leases::default());
        let Grant::Lead(lease, _) = grant(&leases, VERSION) else {
            panic!("the first request leads")
        };
        let Grant::Wait(mut waiter) = grant(&leases, VERSION) else {
            panic!("the second request waits")
        };
        lease.complete(outcome());
        assert!(waiter.outcome().await.is_some());
        assert!(matches!(grant(&leases, VERSION), Grant::Lead(..)));
    }

    #[tokio::test]
    async fn a_dropped_lease_wakes_its_waiters() {
        let leases = Arc::new(Leases::default());
        let Grant::Lead(lease, _) = grant(&leases, VERSION) else {
            panic!("the first request leads")
        };
        let Grant::Wait(mut waiter) = grant(&leases, VERSION) else {
            panic!("the second request waits")
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
            panic!("the first request leads")
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
            panic!("the first request leads")
        };
        lease.sent_at().mark(Boottime(1));
        assert!(matches!(grant(&leases, VERSION), Grant::Lead(..)));
    }

    #[test]
    fn a_request_that_needs_a_new_statement_joins_only_one_that_is_not_sent() {
        let leases = Arc::new(Leases::default());
        let join = || leases.grant(ITEMS, &Arc::from("42"), VERSION, Boottime::now());
        let Grant::Lead(lease, _) = join() else {
            panic!("the first request leads")
        };
        assert!(matches!(join(), Grant::Wait(_)));
        lease.sent_at().mark(Boottime(Boottime::now().0 - 1));
        assert!(matches!(join(), Grant::Lead(..)));
    }
}
