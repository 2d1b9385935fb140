//! Tests of the cache as a whole, and the gates that its code has for them.

pub(super) mod gate;
mod guards;
mod replay;

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
use crate::feed::OnLoss;
use crate::metrics::Metrics;
use crate::resource::definition::Tiers;
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
