//! The disk tier as a whole: the order of its queue, and what it keeps.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tokio::time::Instant;

use super::*;
use crate::cache::disk::layout::ResourceMark;
use crate::cache::document::Document;

pub(in crate::cache) fn config(directory: &Path, linger: Duration) -> DiskConfig {
    DiskConfig {
        directory: directory.to_owned(),
        bytes_max: 1 << 30,
        cache_bytes: 1 << 20,
        batch_entries: 1_000,
        linger,
    }
}

fn start(directory: &Path) -> (Disk, Arc<Versions>) {
    let versions = Arc::new(Versions::new(1));
    let metrics = Arc::new(Metrics::new().unwrap());
    let config = config(directory, Duration::from_millis(1));
    let disk = Disk::start(config, Arc::clone(&versions), metrics, |_| ()).unwrap();
    (disk, versions)
}

/// What the queues of a detached tier hold.
pub(in crate::cache) struct Orders(mpsc::Receiver<Order>, mpsc::Receiver<Lookup>);

impl Orders {
    /// Answers the lookup that waits with a document, as the reading thread would.
    pub(in crate::cache) fn answer_lookup(&mut self) {
        let entry = Entry {
            found: Some(Arc::new(Document::new("{}".into()))),
            since: std::time::SystemTime::now(),
        };
        let lookup = self.1.try_recv().expect("a lookup waits");
        assert!(lookup.reply.send(Some(entry)).is_ok());
    }

    /// The marks alone.
    pub(in crate::cache) fn marks(&mut self) -> Vec<Mark> {
        std::iter::from_fn(|| self.0.try_recv().ok())
            .filter_map(|order| match order {
                Order::Mark(mark) => Some(mark),
                _ => None,
            })
            .collect()
    }

    /// A word for each order.
    pub(in crate::cache) fn names(&mut self) -> Vec<&'static str> {
        std::iter::from_fn(|| self.0.try_recv().ok())
            .map(|order| match order {
                Order::Put(_) => "put",
                Order::Drop(_) => "drop",
                Order::Mark(_) => "mark",
                Order::Enable(..) => "enable",
                Order::Discard => "discard",
                Order::Stop(_) => "stop",
            })
            .collect()
    }
}

pub(in crate::cache) fn detached(versions: &Arc<Versions>) -> (Disk, Orders) {
    let metrics = Arc::new(Metrics::new().unwrap());
    let config = config(Path::new("unused"), Duration::ZERO);
    let (disk, orders, lookups) = Disk::detached(config, Arc::clone(versions), metrics);
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
    let stripe = versions.stripe(0, key);
    Put {
        resource: 0,
        prefix: 0,
        stripe,
        version: versions.version(0, stripe),
        key: Arc::from(key),
        found: Some(Arc::new(Document::new("{}".into()))),
    }
}

pub(in crate::cache) fn dropped(versions: &Versions, key: &str) -> Dropped {
    let stripe = versions.stripe(0, key);
    Dropped {
        prefix: 0,
        key: Arc::from(key),
        stripe,
        generation: versions.raise(stripe),
    }
}

fn is_clean(versions: &Versions, key: &str) -> bool {
    versions.clean_generation(versions.stripe(0, key)).is_some()
}

async fn get(disk: &Disk, versions: &Versions, key: &str) -> Option<Entry> {
    disk.get(0, &Arc::from(key), versions.epoch(0)).await
}

/// A load that passed its check, was overtaken by a pass, and only then queued its document.
#[tokio::test]
async fn a_put_that_its_drop_has_overtaken_is_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, versions) = start(directory.path());
    until("on", || disk.is_on()).await;
    let late = put(&versions, "1");
    let drop = dropped(&versions, "1");
    disk.invalidate(vec![drop]);
    assert!(disk.put(late));
    let last = put(&versions, "2");
    assert!(disk.put(last));
    until("both written", || disk.size().1 > 0).await;
    assert!(is_clean(&versions, "1"));
    assert_eq!(get(&disk, &versions, "1").await, None);
    assert!(get(&disk, &versions, "2").await.is_some());
}

#[tokio::test]
async fn a_put_is_gone_after_the_drop_behind_it() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, versions) = start(directory.path());
    until("on", || disk.is_on()).await;
    assert!(disk.put(put(&versions, "1")));
    until("written", || disk.size().1 == 1).await;
    let drop = dropped(&versions, "1");
    assert!(!is_clean(&versions, "1"));
    disk.invalidate(vec![drop]);
    until("clean", || is_clean(&versions, "1")).await;
    assert_eq!(get(&disk, &versions, "1").await, None);
}

#[test]
fn a_drop_that_finds_no_place_turns_the_tier_off() {
    let versions = Arc::new(Versions::new(1));
    let (disk, _orders) = detached(&versions);
    for _ in 0..ORDERS_MAX {
        disk.invalidate(vec![dropped(&versions, "1")]);
    }
    assert!(disk.is_on());
    disk.invalidate(vec![dropped(&versions, "2")]);
    assert!(!disk.is_on());
    assert!(disk.shared.broken.load(Ordering::SeqCst));
}

#[test]
fn puts_leave_place_for_drops() {
    let versions = Arc::new(Versions::new(1));
    let (disk, _orders) = detached(&versions);
    let queued = (0..ORDERS_MAX).filter(|_| disk.put(put(&versions, "1")));
    assert_eq!(queued.count(), ORDERS_MAX - ORDERS_RESERVED);
    disk.invalidate(vec![dropped(&versions, "1")]);
    assert!(disk.is_on());
}

#[tokio::test]
async fn a_broken_tier_begins_anew_and_is_clean() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, versions) = start(directory.path());
    until("on", || disk.is_on()).await;
    assert!(disk.put(put(&versions, "1")));
    until("written", || disk.size().1 == 1).await;
    drop(dropped(&versions, "1"));
    disk.shared.give_up("a test asks for it");
    until("on again", || disk.is_on()).await;
    assert!(is_clean(&versions, "1"));
    assert_eq!(get(&disk, &versions, "1").await, None);
}

fn mark(position: &str, epoch: u64) -> Mark {
    Mark {
        system: "1".into(),
        database: 1,
        epoch_table: 1,
        nonce: uuid::Uuid::nil().to_string(),
        position: position.into(),
        resources: vec![ResourceMark {
            prefix: 1,
            fingerprint: "f".into(),
            epoch,
        }],
        boot: String::new(),
        clean: false,
        entries: 0,
    }
}

/// A mark alone may wait for its time; not so one that makes entries on disk invalid.
#[tokio::test]
async fn a_mark_of_another_epoch_is_urgent() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, _orders) = detached(&Arc::new(Versions::new(1)));
    let shared = Shared::new(
        config(directory.path(), Duration::ZERO),
        Arc::clone(&disk.shared.versions),
        Arc::clone(&disk.shared.metrics),
    );
    let mut writer = Writer::new(Arc::new(shared), mpsc::channel(1).1);
    assert!(writer.take_mark(mark("1:1:", 7)));
    assert!(!writer.take_mark(mark("2:2:", 7)));
    assert!(writer.take_mark(mark("3:3:", 8)));
}

/// What broke it, such as a full disk, may break it again.
#[tokio::test]
async fn a_tier_that_breaks_again_pauses() {
    let directory = tempfile::tempdir().unwrap();
    let (disk, _versions) = start(directory.path());
    until("on", || disk.is_on()).await;
    disk.shared.give_up("a test asks for it");
    until("on again", || disk.is_on()).await;
    disk.shared.give_up("a test asks for it again");
    until("closed", || {
        !disk.shared.broken.load(Ordering::SeqCst) && disk.shared.store.load().is_none()
    })
    .await;
    assert!(!disk.is_on());
}

#[tokio::test]
async fn the_directory_is_for_nobody_else() {
    let base = tempfile::tempdir().unwrap();
    let directory = base.path().join("disk");
    let (disk, _versions) = start(&directory);
    until("on", || disk.is_on()).await;
    let mode = directory.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}
