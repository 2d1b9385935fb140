//! The disk tier as a whole: the order of its queue, and what it keeps.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::cache::disk::Store;
use crate::cache::disk_tier::lookups::LookupBatch;
use crate::cache::document::Document;
use crate::resource::testing::ITEMS;

pub(in crate::cache) fn config(directory: &Path, linger: Duration) -> DiskConfig {
    DiskConfig {
        directory: directory.to_owned(),
        bytes_max: 1 << 30,
        cache_bytes: 1 << 20,
        batch_entries: 1_000,
        linger,
    }
}

fn start(directory: &Path) -> (DiskTier, Arc<Versions>) {
    start_lingering(directory, Duration::from_millis(1))
}

fn start_lingering(directory: &Path, linger: Duration) -> (DiskTier, Arc<Versions>) {
    let versions = Arc::new(Versions::new(1));
    let metrics = Arc::new(Metrics::new().unwrap());
    let config = config(directory, linger);
    let disk = DiskTier::start(config, Arc::clone(&versions), metrics, |_| ()).unwrap();
    (disk, versions)
}

/// The queues of a tier without threads.
pub(in crate::cache) struct Orders(
    pub(in crate::cache) mpsc::Receiver<DiskOrder>,
    mpsc::Receiver<LookupBatch>,
);

impl Orders {
    /// Answers the pending lookup with a document, as the reading thread would.
    pub(in crate::cache) fn answer_lookup(&mut self, is_aging: bool) {
        let batch = self.1.try_recv().expect("a lookup is pending");
        let lookup = &batch.lookups[0];
        let entry = DiskEntry {
            found: Some(Document::new(&lookup.key, lookup.epoch, b"{}")),
            written_at: std::time::SystemTime::now(),
            is_aging,
        };
        assert!(batch.results.send(vec![Some(entry)]).is_ok());
    }

    /// The mark of a purge, which is the next order.
    pub(in crate::cache) fn purged(&mut self) -> Mark {
        match self.0.try_recv() {
            Ok(DiskOrder::Purge(Some(mark), _)) => mark,
            _ => panic!("no purge is next"),
        }
    }

    /// The names of the queued orders.
    pub(in crate::cache) fn names(&mut self) -> Vec<&'static str> {
        std::iter::from_fn(|| self.0.try_recv().ok())
            .map(|order| match order {
                DiskOrder::Put(_) => "put",
                DiskOrder::Drop(_) | DiskOrder::UrgentDrop(..) => "drop",
                DiskOrder::Sweep(_) => "sweep",
                DiskOrder::Mark(_) => "mark",
                DiskOrder::Purge(..) => "purge",
                DiskOrder::Enable(..) => "enable",
                DiskOrder::Discard => "discard",
                DiskOrder::Stop(_) => "stop",
            })
            .collect()
    }
}

pub(in crate::cache) fn detached(versions: &Arc<Versions>) -> (DiskTier, Orders) {
    let metrics = Arc::new(Metrics::new().unwrap());
    let config = config(Path::new("unused"), Duration::ZERO);
    let (disk, orders, lookups) = DiskTier::detached(config, Arc::clone(versions), metrics);
    (disk, Orders(orders, lookups))
}

pub(in crate::cache) async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "still not: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub(in crate::cache) fn put(versions: &Versions, key: &str) -> Put {
    let stripe = versions.stripe(ITEMS, key);
    let version = versions.version(ITEMS, stripe);
    Put {
        resource: ITEMS,
        prefix: 0,
        stripe,
        version,
        key: Arc::from(key),
        found: Some(Document::new(key, version.epoch, b"{}")),
    }
}

pub(in crate::cache) fn key_drop(versions: &Versions, key: &str) -> KeyDrop {
    let stripe = versions.stripe(ITEMS, key);
    KeyDrop {
        prefix: 0,
        key: Arc::from(key),
        stripe,
        generation: versions.raise(stripe),
    }
}

fn mark() -> Mark {
    Mark {
        system: "1".into(),
        database: 1,
        epoch_table: 1,
        history: uuid::Uuid::nil().to_string(),
        nonce: uuid::Uuid::nil().to_string(),
        position: "7:7:".into(),
        resources: Vec::new(),
        boot: String::new(),
        clean: false,
    }
}

fn is_clean(versions: &Versions, key: &str) -> bool {
    versions
        .clean_generation(versions.stripe(ITEMS, key))
        .is_some()
}

async fn get(disk: &DiskTier, versions: &Versions, key: &str) -> Option<DiskEntry> {
    disk.get(0, &Arc::from(key), versions.epoch(ITEMS)).await
}

/// A load that passed its check, was overtaken by a pass, and only then queued its document.
#[tokio::test]
async fn a_put_that_its_drop_has_overtaken_is_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, versions) = start(directory.path());
    until("on", || disk.is_in_use()).await;
    let late = put(&versions, "1");
    let drop = key_drop(&versions, "1");
    disk.queue_drops(vec![drop]);
    assert!(disk.queue_put(late));
    let last = put(&versions, "2");
    assert!(disk.queue_put(last));
    until("both written", || disk.size().1 > 0).await;
    assert!(is_clean(&versions, "1"));
    assert_eq!(get(&disk, &versions, "1").await, None);
    assert!(get(&disk, &versions, "2").await.is_some());
}

#[tokio::test]
async fn a_put_is_gone_after_the_drop_behind_it() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, versions) = start(directory.path());
    until("on", || disk.is_in_use()).await;
    assert!(disk.queue_put(put(&versions, "1")));
    until("written", || disk.size().1 == 1).await;
    let drop = key_drop(&versions, "1");
    assert!(!is_clean(&versions, "1"));
    disk.queue_drops(vec![drop]);
    until("clean", || is_clean(&versions, "1")).await;
    assert_eq!(get(&disk, &versions, "1").await, None);
}

#[test]
fn a_drop_that_finds_the_queue_full_turns_the_tier_off() {
    let versions = Arc::new(Versions::new(1));
    let (disk, _orders) = detached(&versions);
    for _ in 0..ORDERS_MAX {
        disk.queue_drops(vec![key_drop(&versions, "1")]);
    }
    assert!(disk.is_in_use());
    disk.queue_drops(vec![key_drop(&versions, "2")]);
    assert!(!disk.is_in_use());
    assert!(disk.shared.has_failed.load(Ordering::SeqCst));
}

#[test]
fn puts_leave_room_for_drops() {
    let versions = Arc::new(Versions::new(1));
    let (disk, _orders) = detached(&versions);
    let queued = (0..ORDERS_MAX).filter(|_| disk.queue_put(put(&versions, "1")));
    assert_eq!(queued.count(), ORDERS_MAX - ORDERS_RESERVED);
    disk.queue_drops(vec![key_drop(&versions, "1")]);
    assert!(disk.is_in_use());
}

#[tokio::test]
async fn a_failed_tier_begins_empty_and_is_clean() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, versions) = start(directory.path());
    until("on", || disk.is_in_use()).await;
    assert!(disk.queue_put(put(&versions, "1")));
    until("written", || disk.size().1 == 1).await;
    drop(key_drop(&versions, "1"));
    disk.shared.turn_off("a test asks for it");
    until("on again", || disk.is_in_use()).await;
    assert!(is_clean(&versions, "1"));
    assert_eq!(get(&disk, &versions, "1").await, None);
}

/// A drop that was lost is missing before the sweep, and before the mark.
#[tokio::test]
async fn a_failed_tier_calls_nothing_clean_and_writes_no_mark() {
    for has_failed in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let versions = Arc::new(Versions::new(1));
        let metrics = Arc::new(Metrics::new().unwrap());
        let config = config(directory.path(), Duration::ZERO);
        let shared = Arc::new(DiskState::new(config, Arc::clone(&versions), metrics));
        let mut writer = Writer::new(Arc::clone(&shared), mpsc::channel(1).1);
        writer.start_with(Store::open(directory.path(), 1 << 30, 1 << 20).unwrap());
        let sweep = RangeSweep {
            ranges: vec![(0, Arc::default())],
            generations: versions.raise_all(),
        };
        if has_failed {
            shared.turn_off("a test asks for it");
        }
        writer.apply_orders(vec![
            DiskOrder::Sweep(sweep),
            DiskOrder::Purge(Some(mark()), oneshot::channel().0),
        ]);
        assert_eq!(is_clean(&versions, "1"), !has_failed);
        let store = shared.store.load_full().unwrap();
        assert_eq!(store.recover().unwrap().is_some(), !has_failed);
    }
}

/// If larder were killed before the batch was full, the document would be back.
#[tokio::test]
async fn a_purged_document_is_removed_from_disk_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, versions) = start_lingering(directory.path(), Duration::from_secs(3_600));
    until("on", || disk.is_in_use()).await;
    assert!(disk.queue_put(put(&versions, "1")));
    let purged = disk.queue_urgent_drop(key_drop(&versions, "1"));
    purged.await.unwrap_err();
    assert!(is_clean(&versions, "1"), "it was removed before the answer");
    assert_eq!(disk.size().1, 0);
}

/// Its mark has the epochs from before the purge, and a later run knows no other.
#[tokio::test]
async fn content_that_waits_to_be_resumed_does_not_outlive_a_purge() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, _versions) = start(directory.path());
    until("on", || disk.is_in_use()).await;
    disk.queue_purge(Some(mark()));
    disk.stop().await;
    drop(disk);
    for purge in [false, true] {
        let (disk, _versions) = start(directory.path());
        let resuming = || matches!(&*disk.persisted().borrow(), Persisted::At(_));
        until("opened", resuming).await;
        if purge {
            disk.queue_purge(None);
            until("on, empty", || disk.is_in_use()).await;
        }
        disk.stop().await;
    }
    let (disk, _versions) = start(directory.path());
    until("on, without a mark", || disk.is_in_use()).await;
}

/// Other marks wait for their batch. Only the mark of a purge tells purged entries from others.
#[tokio::test]
async fn the_mark_of_a_purge_is_written_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, _versions) = start_lingering(directory.path(), Duration::from_secs(3_600));
    until("on", || disk.is_in_use()).await;
    disk.queue_purge(Some(mark()));
    let persisted = disk.persisted();
    until(
        "on disk",
        || matches!(&*persisted.borrow(), Persisted::At(position) if position.as_str() == "7:7:"),
    )
    .await;
}

/// What broke it, such as a full disk, may break it again.
#[tokio::test]
async fn a_tier_that_fails_again_pauses() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, _versions) = start(directory.path());
    until("on", || disk.is_in_use()).await;
    disk.shared.turn_off("a test asks for it");
    until("on again", || disk.is_in_use()).await;
    disk.shared.turn_off("a test asks for it again");
    until("closed", || {
        !disk.shared.has_failed.load(Ordering::SeqCst) && disk.shared.store.load().is_none()
    })
    .await;
    assert!(!disk.is_in_use());
}

#[tokio::test]
async fn only_the_owner_may_read_the_directory() {
    let base = tempfile::tempdir().unwrap();
    let directory = base.path().join("disk");
    let (disk, _versions) = start(&directory);
    until("on", || disk.is_in_use()).await;
    let mode = directory.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}
