//! The files of the disk tier: what is read back, also after a crash, after damage and at the bound.

use uuid::Uuid;

use super::*;
use crate::cache::disk::layout::ResourceMark;
use crate::cache::disk::layout::tests::document;

fn mark(position: &str) -> Mark {
    Mark {
        system: "1".into(),
        database: 2,
        epoch_table: 3,
        history: Uuid::nil().to_string(),
        nonce: Uuid::nil().to_string(),
        position: position.into(),
        resources: vec![ResourceMark {
            prefix: 9,
            fingerprint: "f".into(),
            epoch: 7,
            absences: 7,
        }],
        boot: boot_id(),
        clean: false,
    }
}

/// Letters that hardly shrink, other ones for each number.
fn letters(number: u64, length: usize) -> String {
    let mut state = number;
    let letter = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        char::from(b'0' + (state >> 57) as u8 % 75)
    };
    std::iter::repeat_with(letter).take(length).collect()
}

/// A directory of 8 segments of 1 MiB.
fn small(directory: &Path) -> Store {
    Store::open(directory, 8 << 20, 1 << 20).unwrap()
}

/// The same, with a mark.
fn marked(directory: &Path) -> Store {
    let store = small(directory);
    let mut batch = DiskBatch::default();
    batch.mark(mark("1:1:"));
    store.apply(batch).unwrap();
    store
}

/// Opens it again, as the next run would.
fn reopen(store: Store, directory: &Path) -> (Store, Option<Mark>) {
    store.flush().unwrap();
    drop(store);
    let store = small(directory);
    let mark = store.recover().unwrap();
    (store, mark)
}

/// Writes the entries of keys of 3 kB each.
fn fill(store: &Store, keys: std::ops::Range<u64>) {
    let keys: Vec<u64> = keys.collect();
    for keys in keys.chunks(50) {
        let mut batch = DiskBatch::default();
        for key in keys {
            batch.put(
                9,
                &key.to_string(),
                Epoch::both(7),
                &document(&letters(*key, 3_000)),
            );
        }
        store.apply(batch).unwrap();
    }
}

fn remove(store: &Store, key: u64) {
    let mut batch = DiskBatch::default();
    batch.remove(9, &key.to_string());
    store.apply(batch).unwrap();
}

fn get(store: &Store, key: u64) -> Option<DiskEntry> {
    let entry = store.get(9, &key.to_string(), Epoch::both(7), || true);
    entry.unwrap().inspect(|entry| {
        let found = entry
            .found
            .as_ref()
            .map(|document| document.body().to_vec());
        assert_eq!(found, Some(letters(key, 3_000).into_bytes()));
    })
}

fn segments(store: &Store) -> Vec<u32> {
    let segments = store.segments.load();
    segments.iter().map(|segment| segment.number).collect()
}

/// Fills segments until there are so many. Returns the number of keys, from 0 on.
fn fill_segments(store: &Store, count: usize) -> u64 {
    let mut keys = 0;
    while segments(store).len() < count {
        fill(store, keys..keys + 50);
        keys += 50;
    }
    keys
}

#[test]
fn at_the_bound_the_oldest_entries_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let store = marked(directory.path());
    let mut keys = 0;
    while store.aging.load(Ordering::Relaxed) == 0 {
        fill(&store, keys..keys + 50);
        keys += 50;
    }
    assert!(get(&store, 0).is_some_and(|entry| entry.is_aging));
    assert!(get(&store, keys - 1).is_some_and(|entry| !entry.is_aging));
    fill(&store, keys..3 * keys);
    let check = |store: &Store| {
        // The youngest may exceed its share by what was written at once, some times as large on disk.
        assert!(store.bytes().unwrap() < 10 << 20);
        let live: Vec<u64> = (0..3 * keys)
            .filter(|key| get(store, *key).is_some())
            .collect();
        assert_eq!(store.entries(&[7]), live.len() as u64);
        let oldest = 3 * keys - live.len() as u64;
        assert_eq!(live.first(), Some(&oldest), "the youngest are there");
        assert!(live.len() as u64 > keys / 2, "{} of {keys}", live.len());
    };
    check(&store);
    assert_eq!(
        std::fs::read_dir(directory.path()).unwrap().count(),
        segments(&store).len()
    );
    let (store, found) = reopen(store, directory.path());
    assert_eq!(
        found,
        Some(mark("1:1:")),
        "each segment begins with the mark"
    );
    check(&store);
}

#[test]
fn what_was_removed_is_in_no_older_segment_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let store = marked(directory.path());
    fill_segments(&store, 3);
    // One of the first segment; one of the first that is in the youngest, too; one that comes back.
    fill(&store, 1..2);
    remove(&store, 0);
    remove(&store, 1);
    remove(&store, 2);
    fill(&store, 2..3);
    let check = |store: &Store| {
        let found = (0..4).map(|key| get(store, key).is_some());
        assert_eq!(found.collect::<Vec<_>>(), [false, false, true, true]);
    };
    check(&store);
    let (store, _) = reopen(store, directory.path());
    check(&store);
}

#[test]
fn a_sweep_reaches_all_segments() {
    let directory = tempfile::tempdir().unwrap();
    let store = marked(directory.path());
    let keys = fill_segments(&store, 3);
    fill(&store, 0..1);
    fill(&store, 20..21);
    let mut ranges = Ranges::default();
    assert!(ranges.add("2:"));
    store.sweep(9, &ranges).unwrap();
    let (store, _) = reopen(store, directory.path());
    for key in 0..keys {
        let is_swept = ranges.contains(&key.to_string());
        assert_eq!(get(&store, key).is_none(), is_swept, "{key}");
    }
}

/// larder was killed after it had made the directory, and before the mark was in it.
#[test]
fn a_segment_that_was_only_begun_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let store = marked(directory.path());
    fill_segments(&store, 2);
    let before = segments(&store);
    drop(Segment::open(directory.path(), 3, 1 << 20).unwrap());
    let (store, found) = reopen(store, directory.path());
    assert_eq!(found, Some(mark("1:1:")));
    assert_eq!(segments(&store), before);
    assert!(get(&store, 0).is_some());
}

/// Removals in it would be missing.
#[test]
fn a_directory_without_one_of_its_segments_is_not_used() {
    let directory = tempfile::tempdir().unwrap();
    let store = marked(directory.path());
    fill_segments(&store, 3);
    drop(store);
    std::fs::remove_dir_all(directory.path().join("2")).unwrap();
    assert!(matches!(
        small(directory.path()).recover(),
        Err(DiskError::Damaged)
    ));
    for unknown in ["blobs", "03"] {
        let path = directory.path().join(unknown);
        std::fs::create_dir(&path).unwrap();
        let opened = Store::open(directory.path(), 8 << 20, 1 << 20);
        assert!(matches!(opened, Err(DiskError::Unknown(name)) if name == unknown));
        std::fs::remove_dir(path).unwrap();
    }
}

#[test]
fn an_entry_too_large_for_a_segment_is_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let store = small(directory.path());
    let mut batch = DiskBatch::default();
    batch.put(9, "1", Epoch::both(7), &document(&letters(1, 1 << 20)));
    store.apply(batch).unwrap();
    assert_eq!(store.get(9, "1", Epoch::both(7), || true).unwrap(), None);
}

#[test]
fn a_long_entry_is_not_written_again_unless_it_differs() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), 1 << 30, 1 << 20).unwrap();
    let written_at = |epoch: u64, text: &str| {
        let mut batch = DiskBatch::default();
        batch.put(9, "42", Epoch::both(epoch), &document(text));
        store.apply(batch).unwrap();
        let entry = store
            .get(9, "42", Epoch::both(epoch), || true)
            .unwrap()
            .unwrap();
        assert_eq!(entry.found.unwrap().body(), text.as_bytes());
        entry.written_at
    };
    let long = |number| letters(number, 10_000);
    let first = written_at(7, &long(1));
    std::thread::sleep(std::time::Duration::from_millis(2));
    assert_eq!(written_at(7, &long(1)), first);
    assert!(written_at(7, &long(2)) > first);
    assert!(written_at(8, &long(2)) > first);
    assert_eq!(store.entries(&[8]), 1);
}

#[test]
fn a_batch_is_atomic_with_its_mark_and_survives_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let mark = mark("1:1:");
    {
        let store = Store::open(directory.path(), 1 << 30, 1 << 20).unwrap();
        let mut batch = DiskBatch::default();
        batch.put(9, "42", Epoch::both(7), &document("{}"));
        batch.put(9, "43", Epoch::both(7), &None);
        batch.remove(9, "42");
        batch.mark(mark.clone());
        store.apply(batch).unwrap();
        store.flush().unwrap();
    }
    let store = Store::open(directory.path(), 1 << 30, 1 << 20).unwrap();
    assert_eq!(store.recover().unwrap(), Some(mark));
    assert_eq!(store.get(9, "42", Epoch::both(7), || true).unwrap(), None);
    assert_eq!(
        store
            .get(9, "43", Epoch::both(7), || true)
            .unwrap()
            .map(|entry| entry.found),
        Some(None)
    );
    assert_eq!(store.entries(&[7]), 1);
}

/// After damage to its log, sled may show some pages as they were earlier, each whole in itself.
#[test]
fn content_that_is_partly_of_an_earlier_state_is_not_used() {
    type Corruption = fn(&sled::Db, &sled::Db) -> sled::Result<()>;
    fn copy(from: &sled::Db, to: &sled::Db, key: &[u8]) -> sled::Result<()> {
        let key = [key, &[0; 4]].concat();
        match from.get(&key)? {
            Some(value) => to.insert(&key, value)?,
            None => to.remove(&key)?,
        };
        Ok(())
    }
    let corruptions: [Corruption; 4] = [
        |_, _| Ok(()),
        |before, now| copy(before, now, &entry_key(9, "42")),
        |before, now| copy(before, now, &entry_key(9, "43")),
        |before, now| copy(before, now, MARK_KEY),
    ];
    for (number, corrupt) in corruptions.iter().enumerate() {
        let [earlier, later] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let open = |directory: &tempfile::TempDir| Store::open(directory.path(), 1 << 30, 1 << 20);
        let [before, now] = [&earlier, &later].map(|directory| open(directory).unwrap());
        for store in [&before, &now] {
            let mut batch = DiskBatch::default();
            batch.put(9, "42", Epoch::both(7), &document("{}"));
            batch.mark(mark("1:1:"));
            store.apply(batch).unwrap();
        }
        let mut batch = DiskBatch::default();
        batch.remove(9, "42");
        batch.put(9, "43", Epoch::both(7), &None);
        batch.mark(mark("2:2:"));
        now.apply(batch).unwrap();
        let [before_files, now_files] = [&before, &now].map(|store| store.segments.load_full());
        let corrupted = before_files[0].call(|before| {
            let now = now_files[0].call(|now| Ok(now.clone())).unwrap();
            corrupt(before, &now)
        });
        corrupted.unwrap();
        drop((now, now_files));
        let found = open(&later).unwrap().recover();
        match number {
            0 => assert_eq!(found.unwrap(), Some(mark("2:2:"))),
            _ => assert!(matches!(found, Err(DiskError::Damaged)), "{number}"),
        }
    }
}

#[test]
fn no_page_needs_a_file_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), 1 << 30, 1 << 20).unwrap();
    for round in 0..20 {
        let mut batch = DiskBatch::default();
        for number in 0..20 {
            let key = format!("{}{round}-{number}", "k".repeat(number * 200));
            batch.put(
                9,
                &key,
                Epoch::both(7),
                &document(&letters(number as u64, number * 3_000)),
            );
        }
        store.apply(batch).unwrap();
        let key = format!("{}{round}-19", "k".repeat(3_800));
        let entry = store
            .get(9, &key, Epoch::both(7), || true)
            .unwrap()
            .unwrap();
        assert_eq!(entry.found.unwrap().body().len(), 57_000);
    }
    store.flush().unwrap();
    let blobs = std::fs::read_dir(directory.path().join("1/blobs")).unwrap();
    assert_eq!(blobs.count(), 0);
}
