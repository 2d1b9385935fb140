//! Tests of the cache as a whole, and the gates that its code has for them.

pub(super) mod gate;
mod guards;
mod replay;
mod strict;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Handle;
use uuid::Uuid;

use crate::cache::audit::AuditConfig;
use crate::cache::disk_tier::DiskTier;
use crate::cache::disk_tier::tests::config;
use crate::cache::generation::Versions;
use crate::cache::memory::MemoryConfig;
use crate::cache::{Cache, CacheConfig};
use crate::clock::Boottime;
use crate::feed::position::Position;
use crate::feed::{Event, OnLoss, Pass, PassCause};
use crate::metrics::Metrics;
use crate::resource::definition::Tiers;
use crate::resource::testing::{ITEMS, named};
use crate::source::connections::Connections;
use crate::source::loader::Loader;
use crate::source::session::{Database, Identity};

/// So long that a replay can divide it finely; no test waits for it.
const MAX_STALENESS: Duration = Duration::from_nanos(1 << 60);

fn loader() -> Loader {
    let timeout = Duration::from_secs(1);
    let database = Database::new("postgres://nobody@127.0.0.1:1/none", false, timeout).unwrap();
    let connections = Connections::new(database, 4, timeout);
    Loader::start(
        connections,
        1 << 20,
        Duration::ZERO,
        &[Handle::current()],
        |_| (),
    )
}

/// A cache whose tiers are fresh and whose resource is trusted but has no definition: what no tier has is an error.
fn cache(versions: &Arc<Versions>, disk: Option<DiskTier>) -> Arc<Cache> {
    let tiers = Tiers {
        memory: true,
        disk: true,
    };
    let config = CacheConfig {
        resources: vec![("items".into(), tiers)],
        memory: MemoryConfig { bytes_max: 1 << 20 },
        disk: config(Path::new("unused"), Duration::ZERO),
        max_staleness: MAX_STALENESS,
        on_loss: OnLoss::Bypass,
        request_timeout: Duration::MAX,
        audit: AuditConfig { sample: 0.0 },
    };
    let metrics = Arc::new(Metrics::new().unwrap());
    let cache = Cache::assemble(config, Arc::clone(versions), disk, loader(), metrics);
    cache.resources[0].trusted.store(true, Ordering::SeqCst);
    cache.freshness.set_fresh_at(Boottime::now());
    Arc::new(cache)
}

fn identity() -> Identity {
    Identity {
        system: "1".into(),
        database: 1,
        epoch_table: 1,
        history: Uuid::nil(),
        server_start: String::new(),
        nonce: Uuid::nil(),
    }
}

fn pass() -> Event {
    let began_at = Boottime::now();
    Event::Passed(Pass {
        changes: Vec::new(),
        position: Position::new("10:10:"),
        began_at,
        fresh_at: began_at,
        verified: None,
        cause: PassCause::Poll,
        lag_from: None,
    })
}

/// A change of all tables made every larder of the database unready while it was checked, though PostgreSQL answered.
#[tokio::test]
async fn larder_is_ready_while_its_only_resource_is_checked_again() {
    let cache = cache(&Arc::new(Versions::new(1)), None);
    let apply = |event| {
        cache.apply_event(event);
        // There is no PostgreSQL, which is a reason, too, but the last one.
        let reason = cache.unready_reason().unwrap();
        reason.contains("being checked")
    };
    let defined = || Event::Defined {
        resource: ITEMS,
        definition: Arc::new(named("items")),
    };
    apply(Event::Reached(identity()));
    assert!(!apply(defined()));
    assert!(!apply(pass()));
    assert!(!apply(Event::Distrusted { resource: ITEMS }));
    assert!(apply(pass()), "the check has ended");
    assert!(apply(Event::Distrusted { resource: ITEMS }));
    assert!(!apply(defined()));
}
