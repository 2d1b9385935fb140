//! Is simd-json faster than serde_json for the small JSON that larder reads and writes itself?
//!
//! This JSON is the disk tier's mark, which is read at a start and written with each batch, errors for clients, and keys in
//! lists of missing documents. Documents are not measured here: `resource::document` writes them from PostgreSQL's values,
//! and the tiers store them as bytes. `benches/body.rs` measures bodies of writes.

use criterion::{Criterion, criterion_group, criterion_main};
use serde::{Deserialize, Serialize};

/// The form of the disk tier's mark, with as many resources as a large configuration has.
#[derive(Serialize, Deserialize)]
struct Mark {
    system: String,
    position: String,
    resources: Vec<ResourceMark>,
    clean: bool,
}

#[derive(Serialize, Deserialize)]
struct ResourceMark {
    prefix: u64,
    fingerprint: String,
    epoch: u64,
}

/// The form of `application/problem+json`.
#[derive(Serialize)]
struct Problem {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'static str,
}

fn mark() -> Mark {
    let resources = (1..=20_u64).map(|number| ResourceMark {
        prefix: number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        fingerprint: "5d41402abc4b2a76b9719d911017c592".into(),
        epoch: number.wrapping_mul(0xbf58_476d_1ce4_e5b9),
    });
    Mark {
        system: "7445983317206381234".into(),
        position: "1234567:1234599:1234570,1234581".into(),
        resources: resources.collect(),
        clean: true,
    }
}

const PROBLEM: Problem = Problem {
    r#type: "about:blank",
    title: "Not Found",
    status: 404,
    detail: "there is no document with this key",
};

fn writing(criterion: &mut Criterion) {
    compare_writing(criterion, "write a mark", &mark());
    compare_writing(criterion, "write an error", &PROBLEM);
    compare_writing(criterion, "write a key", "Göteborg \"Central\"");
}

fn compare_writing<T: Serialize + ?Sized>(criterion: &mut Criterion, name: &str, value: &T) {
    let mut group = criterion.benchmark_group(name);
    group.bench_function("simd-json", |bencher| {
        bencher.iter(|| simd_json::to_vec(value));
    });
    group.bench_function("serde_json", |bencher| {
        bencher.iter(|| serde_json::to_vec(value));
    });
    group.finish();
}

fn reading(criterion: &mut Criterion) {
    let json = simd_json::to_vec(&mark()).unwrap_or_default();
    let mut group = criterion.benchmark_group("read a mark");
    group.bench_function("simd-json", |bencher| {
        // simd-json works in place, so each reading needs a copy. larder pays for the copy, too.
        bencher.iter(|| simd_json::from_slice::<Mark>(&mut json.clone()));
    });
    group.bench_function("serde_json", |bencher| {
        bencher.iter(|| serde_json::from_slice::<Mark>(&json));
    });
    group.finish();
}

criterion_group!(json, writing, reading);
criterion_main!(json);
