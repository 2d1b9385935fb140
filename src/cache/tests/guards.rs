//! Tests of the guards of the protocol: each fails if its guard is removed.

use std::path::Path;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use uuid::Uuid;

use crate::cache::disk::DiskConfig;
use crate::cache::disk_tier::DiskTier;
use crate::cache::disk_tier::tests::{Orders, config, detached, key_drop, put, until};
use crate::cache::document::Document;
use crate::cache::fill::LoadReason;
use crate::cache::generation::Versions;
use crate::cache::lease::{Grant, Lease};
use crate::cache::orders::DiskOrder;
use crate::cache::tests::{MAX_STALENESS, cache, identity};
use crate::cache::{Cache, Demand, LookupError, Provenance, lock};
use crate::clock::Boottime;
use crate::feed::position::Position;
use crate::feed::ranges::Ranges;
use crate::feed::{Affected, Change, Event, Pass, PassCause};
use crate::metrics::Metrics;
use crate::resource::testing::{ITEMS, named};
use crate::source::SourceError;
use crate::source::loader::{Keep, Loaded, LoadedDocument};
use crate::source::token::Token;

fn pass(key: &str) -> Event {
    let change = Change {
        resource: ITEMS,
        affected: Affected::Key(key.to_owned()),
    };
    Event::Passed(Pass {
        changes: vec![change],
        position: Position::new("10:10:"),
        began_at: Boottime::now(),
        fresh_at: Boottime::now(),
        verified: None,
        cause: PassCause::Poll,
        lag_from: None,
    })
}

fn lead(cache: &Cache, key: &str) -> Lease {
    let stripe = cache.versions.stripe(ITEMS, key);
    let version = cache.versions.version(ITEMS, stripe);
    let key = Arc::from(key);
    match cache
        .leases
        .grant(ITEMS, &key, version, Boottime::now().before(MAX_STALENESS))
    {
        Grant::Lead(lease, _) => lease,
        Grant::Wait(_) => panic!("another leads"),
    }
}

fn document() -> Loaded {
    Ok(Some(LoadedDocument::new(b"", b"{}")))
}

fn in_memory(cache: &Cache, key: &str) -> bool {
    cache
        .memory
        .get(ITEMS, key, cache.versions.epoch(ITEMS), |_| true)
        .is_some()
}

fn with_queue() -> (Arc<Cache>, Orders) {
    let versions = Arc::new(Versions::new(1));
    let (disk, orders) = detached(&versions);
    (cache(&versions, Some(disk)), orders)
}

#[tokio::test]
async fn a_fill_that_a_pass_has_overtaken_is_kept_nowhere() {
    let (cache, mut orders) = with_queue();
    let lease = lead(&cache, "1");
    cache.apply_event(pass("1"));
    assert_eq!(orders.names(), ["drop"]);
    cache.fill(lease, document(), Keep::Yes);
    assert!(!in_memory(&cache, "1"));
    assert!(orders.names().is_empty());

    cache.fill(lead(&cache, "1"), document(), Keep::Yes);
    assert!(in_memory(&cache, "1"));
    assert_eq!(orders.names(), ["put"]);
}

/// Passes leave out a resource that is not trusted: its versions stay the same after a write.
#[tokio::test]
async fn a_load_that_was_sent_is_joined_only_if_its_resource_is_kept() {
    for trusted in [true, false] {
        let (cache, _orders) = with_queue();
        let cached = &cache.resources[0];
        cached.current.store(Some(Arc::new(named("items"))));
        cached.trusted.store(trusted, Ordering::SeqCst);
        let lease = lead(&cache, "1");
        lease.sent_at().mark(Boottime::now());
        let mut load = pin!(cache.load(
            ITEMS,
            Arc::from("1"),
            LoadReason::Bypass,
            Demand::none(),
            None
        ));
        let mut context = Context::from_waker(Waker::noop());
        assert!(load.as_mut().poll(&mut context).is_pending());
        cache.fill(lease, document(), Keep::Yes);
        let joined = load.as_mut().poll(&mut context).is_ready();
        assert_eq!(joined, trusted);
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_waits_for_the_feed_no_longer_than_a_request_may_take() {
    let mut cache = cache(&Arc::new(Versions::new(1)), None);
    let most = Duration::from_secs(5);
    Arc::get_mut(&mut cache).unwrap().request_timeout = most;
    cache.apply_event(Event::Reached(identity()));
    for nonce in [Uuid::nil(), Uuid::max()] {
        let began = tokio::time::Instant::now();
        cache.catch_up(&Token { nonce, xid: 10 }).await;
        let waited = began.elapsed();
        assert!(most <= waited && waited < 2 * most, "{waited:?}");
    }
}

/// Entries of the old epoch stay on disk. If the next start used an old mark, they would be back.
#[tokio::test]
async fn a_purge_of_a_resource_is_marked_on_disk() {
    let (cache, mut orders) = with_queue();
    cache.apply_event(Event::Reached(identity()));
    cache.apply_event(pass("1"));
    assert_eq!(orders.names(), ["drop", "mark"]);
    let epoch = cache.versions.epoch(ITEMS);
    cache.purge(ITEMS, None);
    let mark = orders.purged();
    assert_eq!(mark.resources[0].epoch(), cache.versions.epoch(ITEMS));
    assert_ne!(mark.resources[0].epoch(), epoch);
}

/// A pass of new roots, or of a range.
fn bulk(affected: Affected) -> Event {
    let Event::Passed(pass) = pass("1") else {
        panic!("a pass")
    };
    let changes = vec![Change {
        resource: ITEMS,
        affected,
    }];
    Event::Passed(Pass { changes, ..pass })
}

/// The keys of five characters that begin with 1.
fn range() -> Affected {
    let mut ranges = Ranges::default();
    assert!(ranges.add("5:1"));
    Affected::Ranges(Arc::new(ranges))
}

#[tokio::test]
async fn new_roots_invalidate_absences_and_no_documents() {
    let (cache, mut orders) = with_queue();
    cache.fill(lead(&cache, "1"), document(), Keep::Yes);
    cache.fill(lead(&cache, "2"), Ok(None), Keep::Yes);
    let late = lead(&cache, "3");
    assert!(in_memory(&cache, "2"));
    cache.apply_event(bulk(Affected::Absences));
    assert!(in_memory(&cache, "1"));
    assert!(!in_memory(&cache, "2"));
    assert_eq!(cache.memory.entries_of(ITEMS), 1);
    // A request must not join the old load either.
    drop(lead(&cache, "3"));
    orders.names();
    cache.fill(late, Ok(None), Keep::Yes);
    assert!(!in_memory(&cache, "3"));
    assert!(orders.names().is_empty());
}

#[tokio::test]
async fn a_range_invalidates_its_keys_and_every_load_under_way() {
    let (cache, mut orders) = with_queue();
    for key in ["10001", "20001", "1", "100010"] {
        cache.fill(lead(&cache, key), document(), Keep::Yes);
    }
    let late = lead(&cache, "10002");
    orders.names();
    cache.apply_event(bulk(range()));
    assert_eq!(orders.names(), ["sweep"]);
    let kept = ["20001", "1", "100010"]
        .iter()
        .all(|key| in_memory(&cache, key));
    assert!(kept && !in_memory(&cache, "10001"));
    cache.fill(late, document(), Keep::Yes);
    assert!(!in_memory(&cache, "10002"));
    assert!(orders.names().is_empty());
}

/// A sweep makes all stripes clean up to its generations, also the stripe of a key of the same pass.
#[tokio::test]
async fn a_sweep_is_queued_before_any_key_is_overtaken() {
    let (cache, mut orders) = with_queue();
    let Event::Passed(mut pass) = pass("1") else {
        panic!("no pass");
    };
    for affected in [range(), Affected::Key("2".into())] {
        pass.changes.push(Change {
            resource: ITEMS,
            affected,
        });
    }
    cache.apply_event(Event::Passed(pass));
    let Ok(DiskOrder::Sweep(swept)) = orders.0.try_recv() else {
        panic!("no sweep first");
    };
    for key in ["1", "2"] {
        let stripe = cache.versions.stripe(ITEMS, key);
        assert!(swept.generations[stripe.index()] < cache.versions.generation(stripe));
    }
    assert_eq!(orders.names(), ["drop"]);
}

/// Sweeps are large. If too many wait, the whole resource is invalidated instead.
#[tokio::test]
async fn the_number_of_queued_sweeps_is_limited() {
    let (cache, mut orders) = with_queue();
    cache.fill(lead(&cache, "20001"), document(), Keep::Yes);
    orders.names();
    for _ in 0..8 {
        cache.apply_event(bulk(range()));
    }
    assert!(in_memory(&cache, "20001"));
    assert_eq!(orders.names(), ["sweep"; 8]);
    cache.apply_event(bulk(range()));
    assert!(!in_memory(&cache, "20001"));
    assert!(orders.names().is_empty());
}

#[tokio::test]
async fn a_sweep_removes_its_ranges_from_disk_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let cache = with_disk(directory.path(), 12_000).await;
    let disk = cache.disk.as_ref().unwrap();
    let late = put(&cache.versions, "10002");
    cache.apply_event(bulk(range()));
    assert!(disk.queue_put(late));
    let of = |key: &str| cache.versions.stripe(ITEMS, key);
    until("clean", || {
        cache.versions.clean_generation(of("1")).is_some()
    })
    .await;
    // From 10000 to 12000.
    assert_eq!(disk.size().1, 12_000 - 2_001);
    let mut found = cache.lookup(ITEMS, "1", None).await;
    for _ in 0..100 {
        if found.is_err() {
            // On a slow machine a disk lookup may time out.
            found = cache.lookup(ITEMS, "1", None).await;
        }
    }
    assert_eq!(found.unwrap().provenance, Provenance::Disk);
    assert!(cache.lookup(ITEMS, "10002", None).await.is_err());
}

#[tokio::test]
async fn a_fill_that_a_null_link_has_overtaken_is_kept_nowhere() {
    let (cache, mut orders) = with_queue();
    let lease = lead(&cache, "1");
    cache.versions.renew_epoch(ITEMS);
    cache.fill(lease, document(), Keep::Yes);
    assert!(!in_memory(&cache, "1"));
    assert!(orders.names().is_empty());
}

/// While a fill is checked under its key's lock, a pass raises the generation and then waits for that lock: the fill
/// either sees the new generation, or is taken away after it.
#[tokio::test]
async fn a_pass_raises_the_generation_before_it_waits_for_the_key() {
    let (cache, _orders) = with_queue();
    let key: Arc<str> = Arc::from("1");
    let stripe = cache.versions.stripe(ITEMS, &key);
    let generation = cache.versions.generation(stripe);
    let mut passing = None;
    let mut ended_early = true;
    let mut raised = false;
    let document = Document::absent(&key, cache.versions.epoch(ITEMS));
    cache.memory.install(ITEMS, document, &cache.versions, |_| {
        let (ended, end) = mpsc::channel();
        let passes = Arc::clone(&cache);
        passing = Some(thread::spawn(move || {
            passes.apply_event(pass("1"));
            // The test may not be waiting any more.
            let _late = ended.send(());
        }));
        ended_early = end.recv_timeout(Duration::from_millis(300)).is_ok();
        raised = cache.versions.generation(stripe) > generation;
        true
    });
    passing.unwrap().join().unwrap();
    assert!(
        raised,
        "the key was dropped before its generation was raised"
    );
    assert!(!ended_early, "the check is not under the key's lock");
    assert!(!in_memory(&cache, "1"));
}

#[tokio::test]
async fn a_mark_is_queued_behind_the_drops_that_it_implies() {
    let (cache, mut orders) = with_queue();
    cache.apply_event(Event::Reached(identity()));
    cache.apply_event(pass("1"));
    assert_eq!(orders.names(), ["drop", "mark"]);
}

/// Between the two steps of an invalidation a hit is correct, and its version would not change any more.
#[tokio::test]
async fn no_audit_begins_while_a_pass_is_applied() {
    let (cache, _orders) = with_queue();
    assert!(cache.prepare_audit(ITEMS, "1").is_some());
    let key: Arc<str> = Arc::from("1");
    let passing = lock(&cache.invalidating);
    assert!(cache.prepare_audit(ITEMS, &key).is_none());
    drop(passing);
    assert!(cache.prepare_audit(ITEMS, &key).is_some());
}

/// The drop of a key makes its stripe clean. A pass under way may have raised the same generation, and not have queued
/// its own drop yet.
#[tokio::test]
async fn no_key_is_purged_while_a_pass_is_applied() {
    let (cache, _orders) = with_queue();
    let stripe = cache.versions.stripe(ITEMS, "1");
    let passing = lock(&cache.invalidating);
    let (ended, end) = mpsc::channel();
    let purges = Arc::clone(&cache);
    let purge = thread::spawn(move || {
        purges.purge(ITEMS, Some("1"));
        // The test may not be waiting any more.
        let _late = ended.send(());
    });
    let ended_early = end.recv_timeout(Duration::from_millis(300)).is_ok();
    let raised_early = cache.versions.generation(stripe) > 0;
    drop(passing);
    purge.join().unwrap();
    assert!(!ended_early && !raised_early);
    assert_eq!(cache.versions.generation(stripe), 1);
}

/// A cache over a disk tier that holds the keys from 1 to `count`.
async fn with_disk(directory: &Path, count: u64) -> Arc<Cache> {
    let versions = Arc::new(Versions::new(1));
    let metrics = Arc::new(Metrics::new().unwrap());
    let config = config(directory, Duration::from_secs(60));
    let disk = DiskTier::start(
        DiskConfig {
            batch_entries: usize::try_from(count).unwrap(),
            ..config
        },
        Arc::clone(&versions),
        metrics,
        |_| (),
    );
    let disk = disk.unwrap();
    until("on", || disk.is_in_use()).await;
    for key in 1..=count {
        assert!(disk.queue_put(put(&versions, &key.to_string())));
    }
    until("written", || disk.size().1 == count).await;
    cache(&versions, Some(disk))
}

#[tokio::test]
async fn disk_does_not_answer_while_a_drop_of_the_stripe_is_outstanding() {
    let directory = tempfile::tempdir().unwrap();
    let cache = with_disk(directory.path(), 2).await;
    // On a slow machine a disk lookup may time out.
    let mut answered = false;
    for _ in 0..100 {
        answered = answered || cache.lookup(ITEMS, "1", None).await.is_ok();
    }
    assert!(answered);
    // The pass has raised the generation; its drop is not queued yet.
    drop(key_drop(&cache.versions, "2"));
    let answer = cache.lookup(ITEMS, "2", None).await;
    assert!(matches!(answer, Err(LookupError::NotReady(_))));
}

/// Begins a lookup that the disk tier answers, and polls it until it waits for the answer.
macro_rules! wait_for_disk {
    ($lookup:expr) => {{
        let mut context = Context::from_waker(Waker::noop());
        // At the first poll it waits for others to join its batch.
        for _ in 0..2 {
            assert!($lookup.as_mut().poll(&mut context).is_pending());
        }
    }};
}

/// The document has been read from disk, and is not in memory yet, when a pass is applied.
#[tokio::test]
async fn a_disk_lookup_that_an_invalidation_has_overtaken_is_not_promoted() {
    let (cache, mut orders) = with_queue();
    for (key, overtaken) in [("1", false), ("2", true)] {
        let mut lookup = pin!(cache.lookup(ITEMS, key, None));
        wait_for_disk!(lookup);
        if overtaken {
            cache.apply_event(pass(key));
        }
        orders.answer_lookup(false);
        assert_eq!(lookup.await.unwrap().provenance, Provenance::Disk);
        assert_eq!(in_memory(&cache, key), !overtaken);
    }
}

/// Otherwise it would go with its segment, although it is read.
#[tokio::test]
async fn what_is_read_from_an_aging_segment_is_queued_again() {
    let (cache, mut orders) = with_queue();
    for (key, is_aging) in [("1", false), ("2", true)] {
        let mut lookup = pin!(cache.lookup(ITEMS, key, None));
        wait_for_disk!(lookup);
        orders.answer_lookup(is_aging);
        assert_eq!(lookup.await.unwrap().provenance, Provenance::Disk);
        let queued = orders.names();
        assert_eq!(queued, vec!["put"; usize::from(is_aging)], "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_load_that_finds_its_tables_altered_or_loses_a_deadlock_is_repeated() {
    let (cache, _orders) = with_queue();
    let definition = Some(Arc::new(named("items")));
    cache.resources[0].current.store(definition);
    for (code, failures, attempts_expected) in [
        ("42703", 1, 2),
        ("40P01", 1, 2),
        ("40P01", usize::MAX, 7),
        ("22012", 1, 1),
    ] {
        let mut load = pin!(cache.load(
            ITEMS,
            Arc::from("1"),
            LoadReason::Miss,
            Demand::none(),
            None
        ));
        let mut context = Context::from_waker(Waker::noop());
        let mut attempts = 0;
        let outcome = loop {
            if let Poll::Ready(outcome) = load.as_mut().poll(&mut context) {
                break outcome;
            }
            for load in cache.loader.take_waiting() {
                attempts += 1;
                let loaded = if attempts > failures {
                    document()
                } else {
                    Err(SourceError::Refused {
                        code: code.to_owned(),
                        message: String::new(),
                    })
                };
                (load.done)(loaded, Keep::Yes);
            }
            // The loader's workers don't run between a poll and `take_waiting`.
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        assert_eq!(attempts, attempts_expected, "{code}");
        assert_eq!(outcome.is_ok(), attempts > failures, "{code}");
    }
}

/// A document that was slow among others is tried again if it is requested alone.
#[tokio::test]
async fn a_slow_document_is_left_out_with_others_and_read_alone() {
    let versions = Arc::new(Versions::new(1));
    let cache = cache(&versions, None);
    let version = versions.version(ITEMS, versions.stripe(ITEMS, "1"));
    let error = SourceError::SlowDocument;
    cache
        .unreadable
        .note(ITEMS, &Arc::from("1"), version, error);
    let among_others = cache.lookup(ITEMS, "1", Some(Boottime::now())).await;
    assert!(among_others.is_err_and(|error| error.is_of_one_document()));
    let alone = cache.lookup(ITEMS, "1", None).await;
    assert!(matches!(alone, Err(LookupError::NotReady(_))), "{alone:?}");
}

#[tokio::test]
async fn a_request_for_one_document_does_not_end_with_a_load_that_had_little_time() {
    let (cache, _orders) = with_queue();
    let definition = Some(Arc::new(named("items")));
    cache.resources[0].current.store(definition);
    let mut context = Context::from_waker(Waker::noop());
    for until in [Some(Boottime::now()), None] {
        let lease = lead(&cache, "1");
        let mut load = pin!(cache.load(
            ITEMS,
            Arc::from("1"),
            LoadReason::Miss,
            Demand::none(),
            until
        ));
        assert!(load.as_mut().poll(&mut context).is_pending());
        cache.fill(lease, Err(SourceError::SlowDocument), Keep::Yes);
        let has_ended = load.as_mut().poll(&mut context).is_ready();
        assert_eq!(has_ended, until.is_some());
        if until.is_none() {
            let again = cache.loader.take_waiting().pop().unwrap();
            assert!(again.until.is_none());
            (again.done)(document(), Keep::Yes);
            assert!(load.await.is_ok());
        }
    }
}
