//! How much time do the operations of a tier take, and how well does the memory tier use its space?
//!
//! It measures the time of a get and an install of the memory tier, and of a get and a batch of the disk tier, with
//! documents of the demo's size. It prints the hit ratios of the memory tier on traces, beside those of moka (TinyLFU)
//! and of LRU, and how many bytes are resident for each byte that the tier counts, while the sizes of documents change.
//! It fails if a hit ratio is more than a point below moka's, or not above LRU's.
//!
//! moka is a dev-dependency only for this. It takes five seconds to build.

#![expect(clippy::print_stdout, reason = "its tables are its output")]

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Duration;

use anyhow::{Context, ensure};
use criterion::{BatchSize, Criterion};
use larder::cache::disk::{DiskBatch, Store};
use larder::cache::document::Document;
use larder::cache::generation::Versions;
use larder::cache::memory::{Memory, MemoryConfig};
use larder::resource::ResourceId;

/// As `larder` has it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// A department with ten employees.
const DOCUMENT_BYTES: usize = 1_650;
/// Documents of the timed benches, and keys of the traces.
const DOCUMENTS: u64 = 100_000;
/// Documents that the memory tier has space for on the traces.
const CAPACITY: u64 = 10_000;
const DEPTS: ResourceId = ResourceId::new(0);
const REQUESTS: usize = 1_000_000;
/// How far the hit ratio may be below moka's, in percent of all requests.
const BELOW_MOKA_MAX: f64 = 1.0;

fn main() -> anyhow::Result<()> {
    // First, because memory that other benches leave behind would be counted.
    print_resident()?;
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(3))
        .configure_from_args();
    time_memory(&mut criterion);
    time_disk(&mut criterion)?;
    criterion.final_summary();
    print_hit_ratios()
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) with a fixed seed: the same numbers in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to below 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The memory tier and its versions.
struct MemoryTier {
    memory: Memory,
    versions: Versions,
}

impl MemoryTier {
    fn new(bytes_max: u64) -> Self {
        Self {
            memory: Memory::new(&MemoryConfig { bytes_max }, 1),
            versions: Versions::new(1),
        }
    }

    fn get(&self, key: &str) -> bool {
        let epoch = self.versions.epoch(DEPTS);
        black_box(self.memory.get(DEPTS, key, epoch, |_| true)).is_some()
    }

    fn install(&self, key: &str, body: &[u8]) -> bool {
        let stripe = self.versions.stripe(DEPTS, key);
        let version = self.versions.version(DEPTS, stripe);
        let document = Document::new(key, version.epoch(), body);
        self.memory
            .install_if_current(DEPTS, key, Some(document), &self.versions, version)
    }
}

fn time_memory(criterion: &mut Criterion) {
    let body = [b'x'; DOCUMENT_BYTES];
    let tier = MemoryTier::new(1 << 30);
    for number in 0..DOCUMENTS {
        tier.install(&number.to_string(), &body);
    }
    let random = Cell::new(Random(42));
    let key = || {
        let mut numbers = random.replace(Random(0));
        let key = numbers.next() % DOCUMENTS;
        random.set(numbers);
        key.to_string()
    };
    criterion.bench_function("memory get", |bencher| {
        bencher.iter_batched(key, |key| tier.get(&key), BatchSize::SmallInput);
    });
    let full = MemoryTier::new(CAPACITY * DOCUMENT_BYTES as u64);
    let new = Cell::new(0_u64);
    let new_key = || {
        new.set(new.get() + 1);
        new.get().to_string()
    };
    criterion.bench_function("memory install, one evicted", |bencher| {
        bencher.iter_batched(
            new_key,
            |key| full.install(&key, &body),
            BatchSize::SmallInput,
        );
    });
}

fn time_disk(criterion: &mut Criterion) -> anyhow::Result<()> {
    /// `[disk] batch`.
    const BATCH: u64 = 10_000;
    let directory = tempfile::tempdir()?;
    let store = Store::open(directory.path(), 4 << 30, 1 << 30)?;
    // sled skips writes that change nothing, so every round writes other bytes.
    let round = Cell::new(0_u64);
    let epoch = Versions::new(1).epoch(DEPTS);
    let batch = || {
        round.set(round.get() + 1);
        let mut batch = DiskBatch::default();
        // Text that shrinks to about a half.
        let mut body = String::new();
        let mut letters = Random(round.get());
        while body.len() < DOCUMENT_BYTES {
            body.push_str(&letters.next().to_string());
        }
        let first = round.get() % (DOCUMENTS / BATCH) * BATCH;
        for number in first..first + BATCH {
            let key = number.to_string();
            let found = Some(Document::new(&key, epoch, body.as_bytes()));
            batch.put(0, &key, epoch, &found);
        }
        batch
    };
    for _ in 0..DOCUMENTS / BATCH {
        store.apply(batch())?;
    }
    let mut random = Random(42);
    criterion.bench_function("disk get", |bencher| {
        bencher.iter_batched(
            || (random.next() % DOCUMENTS).to_string(),
            |key| store.get(0, &key, epoch, || true),
            BatchSize::SmallInput,
        );
    });
    let mut group = criterion.benchmark_group("disk");
    group.sample_size(10);
    group.bench_function("batch of 10,000", |bencher| {
        bencher.iter_batched(batch, |batch| store.apply(batch), BatchSize::PerIteration);
    });
    group.finish();
    Ok(())
}

/// Fills a tier of 64 MiB from two threads with documents of one size after the other, then of all at once.
fn print_resident() -> anyhow::Result<()> {
    const BYTES_MAX: u64 = 64 << 20;
    let tier = MemoryTier::new(BYTES_MAX);
    let before = resident_bytes()?;
    println!("\nresident bytes for each byte that the memory tier counts");
    let phases: [(&str, &[usize]); 6] = [
        ("100 B", &[100]),
        ("1.65 kB", &[1_650]),
        ("20 kB", &[20_000]),
        ("100 kB", &[100_000]),
        ("all of these", &[100, 1_650, 20_000, 100_000]),
        ("100 B again", &[100]),
    ];
    // The threads live as long as larder's do, because allocators give each thread its own space.
    let turns = Barrier::new(3);
    let fill = |thread: u64| {
        let mut random = Random(thread);
        for (number, (_, sizes)) in phases.iter().enumerate() {
            turns.wait();
            // Together three times what there is space for; sizes up to half above and below.
            let mut left = BYTES_MAX * 3 / 2;
            while left > 0 {
                let size = sizes[random.next() as usize % sizes.len()];
                let size = size / 2 + random.next() as usize % size;
                let key = format!("{number}/{thread}/{left}");
                tier.install(&key, &vec![b'x'; size]);
                // A touch lets it replace older documents.
                tier.get(&key);
                left = left.saturating_sub(size as u64 + 150);
            }
            turns.wait();
        }
    };
    let mut counted_max = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| fill(0));
        scope.spawn(|| fill(1));
        for (name, _) in phases {
            turns.wait();
            turns.wait();
            let counted = tier.memory.bytes();
            counted_max = counted_max.max(counted);
            // It succeeded for `before`. To return an error here would leave the threads waiting.
            let resident = resident_bytes().unwrap_or_default();
            let ratio = resident.saturating_sub(before) as f64 / counted as f64;
            let count = tier.memory.entries_of(DEPTS);
            println!("{name:14}{ratio:6.3}   {count} documents of {counted} bytes");
        }
    });
    ensure!(counted_max <= BYTES_MAX, "{counted_max} bytes");
    Ok(())
}

fn resident_bytes() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.context("no VmRSS")?.trim().trim_end_matches(" kB");
    Ok(kibibytes.parse::<u64>()? * 1_024)
}

/// Keys of one trace.
struct Trace {
    name: String,
    keys: Vec<u64>,
}

fn traces() -> Vec<Trace> {
    let mut traces = Vec::new();
    for exponent in [0.8, 0.99, 1.1] {
        let mut sum = 0.0;
        let sums: Vec<f64> = (1..=DOCUMENTS)
            .map(|rank| {
                sum += (rank as f64).powf(-exponent);
                sum
            })
            .collect();
        let mut random = Random(1);
        let mut zipf = || {
            let share = random.share() * sum;
            sums.partition_point(|&sum| sum < share) as u64
        };
        traces.push(Trace {
            name: format!("Zipf {exponent}"),
            keys: (0..REQUESTS).map(|_| zipf()).collect(),
        });
        // A quarter of the requests, twice as many at a time as there is space for, reads keys that never come again.
        let scanned = |number: u64| number / (2 * CAPACITY) % 4 == 3;
        traces.push(Trace {
            name: format!("Zipf {exponent}, scans"),
            keys: (0..REQUESTS as u64)
                .map(|number| {
                    if scanned(number) {
                        DOCUMENTS + number
                    } else {
                        zipf()
                    }
                })
                .collect(),
        });
    }
    for percent in [102, 110] {
        traces.push(Trace {
            name: format!("loop of {percent} %"),
            keys: (0..REQUESTS as u64)
                .map(|number| number % (CAPACITY * percent / 100))
                .collect(),
        });
    }
    traces
}

/// The hit ratio in the last three quarters of a trace, in percent.
fn hit_ratio(keys: &[u64], mut is_hit: impl FnMut(u64) -> bool) -> f64 {
    let (first, rest) = keys.split_at(keys.len() / 4);
    first.iter().for_each(|&key| {
        is_hit(key);
    });
    let hits = rest.iter().filter(|&&key| is_hit(key)).count();
    hits as f64 * 100.0 / rest.len() as f64
}

fn print_hit_ratios() -> anyhow::Result<()> {
    println!("\nhits in percent; space for {CAPACITY} documents, {DOCUMENTS} keys in Zipf's order");
    println!("{:20}{:>8}{:>8}{:>8}", "", "larder", "moka", "LRU");
    for Trace { name, keys } in traces() {
        let larder = larder_hit_ratio(&keys);
        let moka = moka_hit_ratio(&keys);
        let lru = lru_hit_ratio(&keys);
        println!("{name:20}{larder:8.2}{moka:8.2}{lru:8.2}");
        ensure!(larder >= moka - BELOW_MOKA_MAX, "{name}: far below moka");
        ensure!(larder > lru, "{name}: not above LRU");
    }
    Ok(())
}

fn larder_hit_ratio(keys: &[u64]) -> f64 {
    let body = [b'x'; 32];
    // Keys of the same length have the same weight.
    let key = |number: u64| format!("{number:08}");
    let scale = MemoryTier::new(1 << 20);
    scale.install(&key(0), &body);
    let tier = MemoryTier::new(CAPACITY * scale.memory.bytes());
    hit_ratio(keys, |number| {
        let key = key(number);
        let hit = tier.get(&key);
        if !hit {
            tier.install(&key, &body);
        }
        hit
    })
}

fn moka_hit_ratio(keys: &[u64]) -> f64 {
    let cache = moka::sync::Cache::new(CAPACITY);
    let mut reads = 0_u64;
    hit_ratio(keys, |key| {
        reads += 1;
        // Its housekeeping, which under load runs about as often.
        if reads.is_multiple_of(64) {
            cache.run_pending_tasks();
        }
        let hit = cache.get(&key).is_some();
        if !hit {
            cache.insert(key, ());
        }
        hit
    })
}

fn lru_hit_ratio(keys: &[u64]) -> f64 {
    let mut last_use: HashMap<u64, u64> = HashMap::new();
    let mut key_at: BTreeMap<u64, u64> = BTreeMap::new();
    let mut turn = 0;
    hit_ratio(keys, |key| {
        turn += 1;
        key_at.insert(turn, key);
        let used = last_use.insert(key, turn);
        if let Some(used) = used {
            key_at.remove(&used);
        } else if last_use.len() as u64 > CAPACITY
            && let Some((_, oldest)) = key_at.pop_first()
        {
            last_use.remove(&oldest);
        }
        used.is_some()
    })
}
