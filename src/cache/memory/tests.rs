use super::*;
use crate::cache::encoding::Encoding;
use crate::resource::testing::ITEMS;

fn memory(bytes_max: u64) -> (Memory, Versions) {
    (
        Memory::new(&MemoryConfig { bytes_max }, 2),
        Versions::new(2),
    )
}

fn put(
    memory: &Memory,
    versions: &Versions,
    resource: ResourceId,
    key: &str,
    bytes: usize,
) -> bool {
    let epoch = versions.epoch(resource);
    let document = Document::new(key, epoch, &vec![b'x'; bytes]);
    memory.install(resource, document, versions, |_| true)
}

fn has(memory: &Memory, versions: &Versions, resource: ResourceId, key: &str) -> bool {
    memory
        .get(resource, key, versions.epoch(resource), |_| true)
        .is_some()
}

#[test]
fn resources_do_not_share_keys() {
    let (memory, versions) = memory(1 << 20);
    assert!(put(&memory, &versions, ITEMS, "1", 10));
    assert!(has(&memory, &versions, ITEMS, "1"));
    assert!(!has(&memory, &versions, ResourceId::new(1), "1"));
}

/// A name of a hint for the alias with this number.
fn name<'h>(alias: usize, owner: Option<&'h str>, text: &'h str) -> HintName<'h> {
    HintName { alias, owner, text }
}

#[test]
fn hints_are_no_documents_and_end_with_their_epoch() {
    let (memory, versions) = memory(1 << 20);
    let hint = |name: HintName<'_>, epoch: Epoch| {
        let hint = memory.hint(ITEMS, name, epoch)?;
        Some(String::from_utf8_lossy(hint.body()).into_owned())
    };
    let names = [
        name(0, None, "a"),
        name(1, None, "a"),
        name(0, Some("a"), "a"),
        name(0, Some("a"), ""),
        name(0, Some(""), "a"),
    ];
    for (key, name) in names.into_iter().enumerate() {
        memory.keep_hint(ITEMS, name, &key.to_string(), &versions);
    }
    let epoch = versions.epoch(ITEMS);
    for (key, name) in names.into_iter().enumerate() {
        assert_eq!(hint(name, epoch), Some(key.to_string()), "{name:?}");
    }
    assert_eq!(hint(name(0, None, "b"), epoch), None);
    assert!(!has(&memory, &versions, ITEMS, "a"));
    memory.keep_hint(ITEMS, names[0], "7", &versions);
    assert_eq!(hint(names[0], epoch).as_deref(), Some("7"));
    versions.renew_epoch(ITEMS);
    assert_eq!(hint(names[0], versions.epoch(ITEMS)), None);
}

#[test]
fn hints_count_for_the_byte_bound() {
    let bytes_max = 100_000;
    let (memory, versions) = memory(bytes_max);
    for number in 0..5_000 {
        let text = number.to_string();
        memory.keep_hint(ITEMS, name(0, None, &text), "key", &versions);
        assert!(memory.bytes() <= bytes_max);
    }
    assert!(memory.evictions() > 0);
}

#[test]
fn the_byte_bound_holds_under_mixed_sizes() {
    let bytes_max = 200_000;
    let (memory, versions) = memory(bytes_max);
    for number in 0..5_000_usize {
        put(
            &memory,
            &versions,
            ResourceId::new(number % 2),
            &number.to_string(),
            number * 37 % 5_000,
        );
        has(&memory, &versions, ITEMS, &(number / 2).to_string());
        assert!(memory.bytes() <= bytes_max);
    }
    assert!(memory.bytes() > bytes_max * 9 / 10);
    assert!(memory.evictions() > 0);
}

#[test]
fn a_document_above_the_bound_is_not_kept() {
    let (memory, versions) = memory(1_000);
    assert!(!put(&memory, &versions, ITEMS, "1", 2_000));
    assert_eq!(memory.bytes(), 0);
}

#[test]
fn a_scan_evicts_no_used_documents() {
    let (memory, versions) = memory(200 * 1_000);
    for number in 0..50 {
        put(&memory, &versions, ITEMS, &format!("hot{number}"), 500);
    }
    for round in 0..2_000 {
        for number in 0..50 {
            has(&memory, &versions, ITEMS, &format!("hot{number}"));
        }
        put(&memory, &versions, ITEMS, &format!("scan{round}"), 500);
    }
    let left = (0..50)
        .filter(|number| has(&memory, &versions, ITEMS, &format!("hot{number}")))
        .count();
    assert_eq!(left, 50);
}

/// A tier with space for so many of the documents that `read` installs.
fn with_space_for(count: u64) -> (Memory, Versions) {
    let (scale, versions) = memory(1 << 20);
    read(&scale, &versions, 0);
    memory(count * scale.bytes())
}

/// Whether the document is there. Installs it if it is not.
fn read(memory: &Memory, versions: &Versions, number: u64) -> bool {
    let key = format!("{number:08}");
    let hit = has(memory, versions, ITEMS, &key);
    if !hit {
        put(memory, versions, ITEMS, &key, 100);
    }
    hit
}

fn hits(memory: &Memory, versions: &Versions, numbers: impl Iterator<Item = u64>) -> usize {
    numbers
        .filter(|&number| read(memory, versions, number))
        .count()
}

/// By the paper's rules each key would be evicted shortly before it is read again, and a small queue of a tenth of the
/// space would be of no use.
#[test]
fn most_of_a_loop_slightly_larger_than_the_tier_stays() {
    let (memory, versions) = with_space_for(1_000);
    hits(&memory, &versions, (0..1_100).cycle().take(30 * 1_100));
    let hits = hits(&memory, &versions, (0..1_100).cycle().take(10 * 1_100));
    assert!(hits > 10 * 960, "{hits} of 11,000");
}

#[test]
fn keys_that_are_read_again_soon_stay_until_then() {
    let (memory, versions) = with_space_for(1_000);
    let again = 50;
    let soon = |number| [number, number - again];
    let hits = hits(&memory, &versions, (again..5_000).flat_map(soon));
    assert!(hits > 4_800, "{hits} of {}", 5_000 - again);
}

/// The space that large documents leave must not let others into the main queue.
#[test]
fn a_scan_of_mixed_sizes_evicts_few_others() {
    let (memory, versions) = with_space_for(1_000);
    hits(&memory, &versions, 0..1_000);
    for number in 0..5_000 {
        let bytes = if number % 10 == 0 { 5_000 } else { 100 };
        put(&memory, &versions, ITEMS, &format!("scan{number}"), bytes);
    }
    let left = (0..1_000).filter(|&number| has(&memory, &versions, ITEMS, &format!("{number:08}")));
    assert!(left.count() > 850);
}

#[test]
fn a_new_hot_set_takes_over() {
    let (memory, versions) = with_space_for(1_000);
    hits(&memory, &versions, (0..900).cycle().take(10 * 900));
    let new = 10_000..10_900;
    hits(&memory, &versions, new.clone().cycle().take(20 * 900));
    let hits = hits(&memory, &versions, new);
    assert!(hits > 600, "{hits} of 900");
}

#[test]
fn large_documents_take_over_the_places_of_small_ones() {
    let (memory, versions) = with_space_for(20_000);
    hits(&memory, &versions, 0..20_000);
    let slots = memory.maps[0].documents.capacity();
    let tickets = memory.eviction.capacity();
    for number in 0..4_000 {
        let key = format!("large{number}");
        put(&memory, &versions, ITEMS, &key, 5_000);
        // A touch lets it replace older documents.
        has(&memory, &versions, ITEMS, &key);
    }
    assert!(memory.entries_of(ITEMS) < 2_000);
    assert!(memory.maps[0].documents.capacity() < slots / 3);
    assert!(memory.eviction.capacity() < tickets / 2);
}

#[test]
fn keys_of_one_hash_are_never_taken_for_each_other() {
    let (memory, versions) = memory(1 << 20);
    let epoch = versions.epoch(ITEMS);
    let map = &memory.maps[0];
    assert!(put(&memory, &versions, ITEMS, "1", 10));
    let other = Document::new("2", epoch, &[b'x'; 10]);
    map.documents.insert(map.hash(b"1"), other);
    assert!(!has(&memory, &versions, ITEMS, "1"));
    assert_eq!(memory.peek(ITEMS, "1", epoch), None);
    memory.remove(ITEMS, "1");
    assert_eq!(memory.entries_of(ITEMS), 1);
    assert!(put(&memory, &versions, ITEMS, "1", 1_000));
    assert!(has(&memory, &versions, ITEMS, "1"));
    memory.remove(ITEMS, "1");
    assert_eq!((memory.entries_of(ITEMS), memory.bytes()), (0, 0));
}

#[test]
fn a_document_of_another_epoch_is_not_installed() {
    let (memory, versions) = memory(1 << 20);
    let version = versions.version(ITEMS, versions.stripe(ITEMS, "1"));
    let other = Epoch::both(version.epoch.documents ^ 1);
    for (epoch, kept) in [(other, false), (version.epoch, true)] {
        let found = Some(Document::new("1", epoch, b"{}"));
        let installed = memory.install_if_current(ITEMS, "1", found, &versions, version);
        assert_eq!(installed, kept);
        assert_eq!(has(&memory, &versions, ITEMS, "1"), kept);
    }
}

#[test]
fn churn_of_one_key_keeps_no_tickets() {
    let (memory, versions) = memory(1 << 20);
    for _ in 0..100_000 {
        put(&memory, &versions, ITEMS, "1", 10);
        memory.remove(ITEMS, "1");
    }
    assert_eq!(memory.bytes(), 0);
    assert!(memory.eviction.tickets() < 5_000);
}

#[test]
fn a_void_fill_is_not_installed() {
    let (memory, versions) = memory(1 << 20);
    let document = Document::absent("1", versions.epoch(ITEMS));
    assert!(!memory.install(ITEMS, document, &versions, |_| false));
    assert!(!has(&memory, &versions, ITEMS, "1"));
}

#[test]
fn an_encoding_is_added_only_while_its_document_is_present() {
    let (memory, versions) = memory(1 << 20);
    assert!(put(&memory, &versions, ITEMS, "1", 1_000));
    let plain = memory
        .get(ITEMS, "1", versions.epoch(ITEMS), |_| true)
        .unwrap()
        .unwrap();
    let before = memory.bytes();
    let larger = plain.with_encoded(Encoding::Gzip, &[b'g'; 500]);
    assert!(memory.replace(ITEMS, &plain, larger.clone(), &versions));
    assert_eq!(
        memory.bytes() - before,
        (larger.block_bytes() - plain.block_bytes()) as u64
    );
    let there = memory
        .get(ITEMS, "1", versions.epoch(ITEMS), |_| true)
        .unwrap()
        .unwrap();
    assert_eq!(there.encoded(Encoding::Gzip).unwrap().as_ref().len(), 500);
    // Made from a document that has been replaced since.
    let late = plain.with_encoded(Encoding::Zstd, b"z");
    assert!(!memory.replace(ITEMS, &plain, late, &versions));
    // Made from a document that has been invalidated since, or read again.
    memory.invalidate(ITEMS, "1", &versions);
    let late = there.with_encoded(Encoding::Zstd, b"z");
    assert!(!memory.replace(ITEMS, &there, late.clone(), &versions));
    assert_eq!(memory.bytes(), 0);
    assert!(put(&memory, &versions, ITEMS, "1", 1_000));
    assert!(!memory.replace(ITEMS, &there, late, &versions));
    assert_eq!(memory.bytes(), before);
}

#[test]
fn the_byte_bound_holds_while_documents_grow() {
    let bytes_max = 200_000;
    let (memory, versions) = memory(bytes_max);
    for number in 0..2_000_usize {
        let key = (number % 300).to_string();
        put(&memory, &versions, ITEMS, &key, 900);
        let Some(Some(document)) = memory.get(ITEMS, &key, versions.epoch(ITEMS), |_| true) else {
            continue;
        };
        let larger = document.with_encoded(Encoding::Brotli, &[b'b'; 700]);
        memory.replace(ITEMS, &document, larger, &versions);
        assert!(memory.bytes() <= bytes_max);
    }
    memory.sweep(ITEMS, |_| true);
    assert_eq!(memory.bytes(), 0);
}
