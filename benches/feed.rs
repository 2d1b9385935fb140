//! How much time does it take to apply a pass of 1, 1,000 and 100,000 keys?
//!
//! Their documents, of the demo's size, are in memory; there is no disk tier and no PostgreSQL. The feed's thread takes
//! this time. A hit waits at most as long as one key takes.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput};
use larder::cache::audit::AuditConfig;
use larder::cache::disk::DiskConfig;
use larder::cache::memory::MemoryConfig;
use larder::cache::{Cache, CacheConfig};
use larder::clock::Boottime;
use larder::feed::position::Position;
use larder::feed::{Affected, Change, Event, OnLoss, Pass, PassCause};
use larder::metrics::Metrics;
use larder::resource::ResourceId;
use larder::resource::definition::Tiers;
use larder::source::connections::Connections;
use larder::source::loader::Loader;
use larder::source::session::Database;
use tokio::runtime::Handle;

/// A department with ten employees.
const DOCUMENT: [u8; 1_650] = [b'x'; 1_650];
const DEPTS: ResourceId = ResourceId::new(0);
/// Keys are used again after so many, so that passes made in advance each have documents of their own.
const KEYS: u64 = 1_000_000;

fn main() -> anyhow::Result<()> {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .measurement_time(Duration::from_secs(8))
        .configure_from_args();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let _entered = runtime.enter();
    let cache = cache()?;
    let mut group = criterion.benchmark_group("apply a pass");
    let mut next = 0;
    for (name, count, batch) in [
        ("1 key", 1, BatchSize::SmallInput),
        ("1,000 keys", 1_000, BatchSize::PerIteration),
        ("100,000 keys", 100_000, BatchSize::PerIteration),
    ] {
        group.throughput(Throughput::Elements(count));
        group.bench_function(name, |bencher| {
            let pass = || pass(&cache, &mut next, count);
            bencher.iter_batched(pass, |pass| cache.apply_event(black_box(pass)), batch);
        });
    }
    group.finish();
    criterion.final_summary();
    Ok(())
}

/// A cache with space for all documents, and with a database that it never connects to.
fn cache() -> anyhow::Result<Arc<Cache>> {
    let timeout = Duration::from_secs(1);
    let database = Database::new("postgres://nobody@127.0.0.1:1/none", false, timeout)?;
    let tiers = Tiers {
        memory: true,
        disk: false,
    };
    let config = CacheConfig {
        resources: vec![("depts".into(), tiers)],
        memory: MemoryConfig { bytes_max: 1 << 30 },
        disk: DiskConfig {
            directory: "unused".into(),
            bytes_max: 0,
            cache_bytes: 0,
            batch_entries: 1,
            linger: Duration::ZERO,
        },
        max_staleness: timeout,
        on_loss: OnLoss::Bypass,
        request_timeout: timeout,
        audit: AuditConfig { sample: 0.0 },
    };
    let loader = Loader::start(
        Connections::new(database, 4, timeout),
        1 << 20,
        Duration::ZERO,
        &[Handle::current()],
        |_| (),
    );
    Ok(Cache::start(config, loader, Arc::new(Metrics::new()?))?)
}

/// A pass of the next `count` keys, whose documents it installs in memory.
fn pass(cache: &Cache, next: &mut u64, count: u64) -> Event {
    let change = |_| {
        *next = (*next + 1) % KEYS;
        let key = next.to_string();
        cache.keep(DEPTS, &key, &DOCUMENT);
        Change {
            resource: DEPTS,
            affected: Affected::Key(key),
        }
    };
    Event::Passed(Pass {
        changes: (0..count).map(change).collect(),
        position: Position::new("10:10:"),
        began_at: Boottime::now(),
        fresh_at: Boottime::now(),
        cause: PassCause::Bell,
        verified: None,
        lag_from: None,
    })
}
