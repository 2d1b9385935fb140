//! Scenarios with a database, a feed, requests and the tiers, each for one execution under the scheduler.
//!
//! The database is one counter: the document's value, which a commit raises. Requests take the same steps as
//! `Cache::lookup` and `Cache::load`, the feed those of `Cache::apply_event`, with one slot in place of the disk tier.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use shuttle::future::block_on;
use shuttle::sync::Mutex;
use shuttle::sync::atomic::AtomicU64;
use shuttle::thread::{self, JoinHandle};

use super::document::{Document, Found};
use super::generation::{Epoch, Version, Versions};
use super::lease::{Grant, Lease, Leases, LoadOutcome};
use super::memory::{Memory, MemoryConfig};
use crate::clock::Boottime;
use crate::resource::ResourceId;

/// Few, so that keys share stripes.
const STRIPES: usize = 2;
const ITEMS: ResourceId = ResourceId::new(0);
const KEY: &str = "42";
/// Documents of the eviction scenario, and what one weighs at most: more than two thirds of it.
const BODY_BYTES: usize = 800;
const ENTRY_BYTES_MAX: u64 = 1_200;

struct World {
    database: AtomicU64,
    disk: Mutex<Option<u64>>,
    versions: Versions,
    memory: Memory,
    leases: Arc<Leases>,
}

fn document(value: u64, epoch: Epoch) -> Found {
    Some(Document::new(KEY, epoch, value.to_string().as_bytes()))
}

fn value(found: &Found) -> u64 {
    let text = found.as_ref().map(|document| document.body());
    let text = std::str::from_utf8(text.unwrap_or_default()).unwrap_or_default();
    text.parse().unwrap_or(0)
}

/// The database holds 1, no tier anything.
fn world() -> Arc<World> {
    world_of(1 << 20)
}

fn world_of(bytes_max: u64) -> Arc<World> {
    Arc::new(World {
        database: AtomicU64::new(1),
        disk: Mutex::new(None),
        versions: Versions::with_stripes(1, STRIPES),
        memory: Memory::new(&MemoryConfig { bytes_max }, 1),
        leases: Arc::default(),
    })
}

impl World {
    fn in_memory(&self) -> Option<u64> {
        let found = self
            .memory
            .get(ITEMS, KEY, self.versions.epoch(ITEMS), |_| true);
        found.as_ref().map(value)
    }

    fn grant(&self) -> Grant {
        let stripe = self.versions.stripe(ITEMS, KEY);
        let version = self.versions.version(ITEMS, stripe);
        self.leases
            .grant(ITEMS, &Arc::from(KEY), version, Boottime::NEVER)
    }

    /// Reads the database and fills memory.
    fn load(&self, lease: Lease) {
        let found = document(self.database.load(Ordering::SeqCst), lease.version().epoch);
        let stored = self.memory.install_if_current(
            lease.resource(),
            lease.key(),
            found.clone(),
            &self.versions,
            lease.version(),
        );
        let found = Ok(found);
        lease.complete(LoadOutcome { found, stored });
    }

    /// Asks until there is an outcome, as a request does if no tier has the document.
    fn request(&self) -> u64 {
        loop {
            let mut waiter = match self.grant() {
                Grant::Lead(lease, waiter) => {
                    self.load(lease);
                    waiter
                }
                Grant::Wait(waiter) => waiter,
            };
            if let Some(outcome) = block_on(waiter.outcome()) {
                return outcome.found.as_ref().map_or(0, value);
            }
        }
    }

    /// Memory, then disk, then the database.
    fn lookup(&self) -> u64 {
        self.in_memory()
            .or_else(|| self.promote())
            .unwrap_or_else(|| self.request())
    }

    /// A disk lookup, and its promotion.
    fn promote(&self) -> Option<u64> {
        let version: Version = self
            .versions
            .clean_version(ITEMS, self.versions.stripe(ITEMS, KEY))?;
        let found = (*self.disk.lock().expect("no poison"))?;
        let document = document(found, version.epoch);
        self.memory
            .install_if_current(ITEMS, KEY, document, &self.versions, version);
        Some(found)
    }

    fn commit(&self) -> u64 {
        self.database.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// A pass that finds the key: it is removed from memory and, without a queue, from disk.
    fn pass(&self) {
        let (stripe, generation) = self.memory.invalidate(ITEMS, KEY, &self.versions);
        self.disk.lock().expect("no poison").take();
        self.versions.mark_clean(stripe, generation);
    }

    /// A change is committed and applied. After that no older answer is allowed.
    fn change(&self) {
        let committed = self.commit();
        self.pass();
        let seen = self.lookup();
        assert!(seen >= committed, "{seen} after {committed} was applied");
    }

    fn assert_nothing_stale(&self) {
        let now = self.database.load(Ordering::SeqCst);
        let kept = self.in_memory();
        assert!(kept.is_none_or(|kept| kept == now), "{kept:?} for {now}");
    }
}

/// Runs the steps on a thread, and ignores their result.
fn spawn<T>(
    world: &Arc<World>,
    steps: impl FnOnce(&World) -> T + Send + 'static,
) -> JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || {
        steps(&world);
    })
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    for thread in threads {
        thread.join().expect("a thread of the scenario failed");
    }
}

/// A load is filled while a change is committed and applied.
pub fn fill_beside_a_pass() {
    let world = world();
    join([spawn(&world, World::request), spawn(&world, World::change)]);
    world.assert_nothing_stale();
}

/// The same with two changes and two requests.
pub fn fills_beside_passes() {
    let world = world();
    join([
        spawn(&world, World::lookup),
        spawn(&world, World::lookup),
        spawn(&world, |world| {
            world.change();
            world.change();
        }),
    ]);
    world.assert_nothing_stale();
}

/// A load is filled while every document of its resource is invalidated.
pub fn fill_beside_a_new_epoch() {
    let world = world();
    join([
        spawn(&world, World::request),
        spawn(&world, |world| {
            let committed = world.commit();
            world.versions.renew_epoch(ITEMS);
            assert!(world.lookup() >= committed);
        }),
    ]);
    world.assert_nothing_stale();
}

/// What the disk has is promoted while it is overtaken.
pub fn promotion_beside_a_pass() {
    let world = world();
    *world.disk.lock().expect("no poison") = Some(1);
    join([spawn(&world, World::lookup), spawn(&world, World::change)]);
    world.assert_nothing_stale();
}

/// The first leader drops its lease, and a waiter leads.
pub fn a_lease_is_handed_over() {
    let world = world();
    let first = spawn(&world, |world| match world.grant() {
        Grant::Lead(lease, _) => drop(lease),
        Grant::Wait(mut waiter) => assert!(block_on(waiter.outcome()).is_some()),
    });
    let others = [(), ()].map(|()| spawn(&world, |world| assert_eq!(world.request(), 1)));
    join([first]);
    join(others);
}

/// A request that has received an outcome and asks again does not join the load that has ended.
pub fn an_outcome_ends_its_load() {
    let world = world();
    let Grant::Lead(lease, mut leader) = world.grant() else {
        panic!("no other request leads")
    };
    let waiting = spawn(&world, move |world| {
        assert!(block_on(leader.outcome()).is_some());
        assert!(matches!(world.grant(), Grant::Lead(..)));
    });
    world.load(lease);
    join([waiting]);
}

/// An overtaken load ends while its successor is under way, which goes on to be joined.
pub fn an_overtaken_load_leaves_its_successor() {
    let world = world();
    let Grant::Lead(old, _) = world.grant() else {
        panic!("no other request leads")
    };
    world.commit();
    world.pass();
    let Grant::Lead(new, _) = world.grant() else {
        panic!("joined an overtaken load")
    };
    let ending = spawn(&world, move |world| world.load(old));
    let asking = spawn(&world, |world| assert_eq!(world.request(), 2));
    let leading = spawn(&world, move |world| {
        assert!(matches!(world.grant(), Grant::Wait(_)));
        world.load(new);
    });
    join([ending, asking, leading]);
    world.assert_nothing_stale();
}

/// Entries are installed, replaced, touched, invalidated and evicted at once, in a tier that has space for two.
pub fn eviction_beside_installs() {
    let world = world_of(2 * ENTRY_BYTES_MAX);
    let install = |keys: [&'static str; 3]| {
        move |world: &World| {
            for key in keys {
                let version = world
                    .versions
                    .version(ITEMS, world.versions.stripe(ITEMS, key));
                let document = Some(Document::new(key, version.epoch, &[b'1'; BODY_BYTES]));
                world
                    .memory
                    .install_if_current(ITEMS, key, document, &world.versions, version);
                world
                    .memory
                    .get(ITEMS, key, world.versions.epoch(ITEMS), |_| true);
            }
        }
    };
    join([
        spawn(&world, install(["1", "2", "3"])),
        spawn(&world, install(["3", "1", "4"])),
        spawn(&world, |world| {
            world.memory.invalidate(ITEMS, "1", &world.versions);
            world.memory.invalidate(ITEMS, "3", &world.versions);
        }),
    ]);
    let bytes = world.memory.bytes();
    assert!(bytes <= 2 * ENTRY_BYTES_MAX, "{bytes} bytes");
    for key in ["1", "2", "3", "4"] {
        world.memory.invalidate(ITEMS, key, &world.versions);
    }
    assert_eq!(world.memory.entries_of(ITEMS), 0);
    assert_eq!(world.memory.bytes(), 0);
}
