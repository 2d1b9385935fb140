//! How long the answers for documents of others take, next to those for documents that do not exist.
//!
//! One client asks for documents of each kind in turn, in rounds whose order is drawn: by their keys, by their aliases, and for
//! many at once. Nothing is decided by the result: it is a figure with its confidence interval, which the reader judges.

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use tokio::time::Instant;

use crate::checks::scope::client::{Client, Request};
use crate::checks::scope::credentials::key_toml;
use crate::harness::free_address;
use crate::harness::larder::{Larder, LarderConfig};
use crate::harness::postgres::Postgres;
use crate::harness::run_directory::RunDirectory;
use crate::harness::session::SqlSession;

const CONNECTIONS_MAX: usize = 40;
const MEMORY_BYTES: u64 = 256 << 20;
/// Documents of each kind.
const DOCUMENTS: usize = 1_000;
/// The keys in a batch.
const BATCH: usize = 20;
/// The smallest key. All have the same number of digits.
const FIRST: usize = 10_000;
/// Before the measurement.
const WARM_UP: usize = 200;
const READY_DISK: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Where documents of others, or what is known of absent ones, are.
const KINDS: [&str; 5] = [
    "absent, never asked for",
    "absent, remembered in memory",
    "of others, in memory",
    "of others, on disk",
    "of others, in neither",
];
const ABSENT_KINDS: usize = 2;

/// How a request asks for documents.
#[derive(Clone, Copy, Debug)]
enum Form {
    Key,
    Alias,
    Batch,
}

const FORMS: [Form; 3] = [Form::Key, Form::Alias, Form::Batch];

/// Keys of different kinds alternate. The client has documents, too, behind all others.
const SQL: [&str; 4] = [
    "create table item (id integer primary key, owner integer, number text not null unique, pad text default repeat('a', 400))",
    "create index on item (owner, id)",
    "insert into item select id, case when id < 15000 then 1 else 2 end, 'N' || id from generate_series(10000, 15999) id \
     where id >= 15000 or id % 5 >= 2",
    "vacuum analyze item",
];

const SETTINGS: &str = "[[resource]]\nname = 'items'\ntable = 'item'\nread = ['customer', 'staff']\nwrite = []\n\
    [resource.owner]\ncolumn = 'owner'\nclaim = 'sub'\nroles = ['customer']\n\
    [[resource.by]]\nname = 'number'\ncolumns = ['number']\n";

/// Measures so many requests of each kind, and prints how their times differ.
pub(super) async fn run(requests: usize, binary: &Path, seed: u64) -> anyhow::Result<()> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut run_directory = RunDirectory::new()?;
    let postgres = Postgres::start(&mut run_directory, CONNECTIONS_MAX).await?;
    let mut session = SqlSession::new(postgres.url(), 0)?;
    for statement in SQL {
        session.run(statement).await?;
    }
    let staff = key_toml("staff", "staff", None);
    let keys = staff + key_toml("customer", "customer", Some("2")).as_str();
    let mut larder = Larder::new(LarderConfig {
        binary: binary.to_owned(),
        directory: run_directory.directory().join("larder"),
        listen: free_address(&mut rng)?,
        admin: free_address(&mut rng)?,
        url: postgres.url().to_owned(),
        listen_url: postgres.url().to_owned(),
        memory_bytes: MEMORY_BYTES,
        settings: keys + SETTINGS,
        arguments: Vec::new(),
        cores: None,
        environment: Vec::new(),
    })?;
    larder.start_ready().await?;
    prepare(&mut larder).await?;
    println!(
        "times of answers that show no document, in µs; then how much longer than {:?} in the same round, in the median, and \
         in how many rounds it took longer, with 95 % confidence intervals",
        KINDS[0]
    );
    let mut client = Client::new(larder.config.listen, 0);
    for form in FORMS {
        let times = measure(requests, form, &mut client, &mut rng).await?;
        print(form, &times);
    }
    larder.terminate().await?;
    postgres.stop().await;
    drop(run_directory);
    Ok(())
}

/// Brings documents to where they are to be. The unrestricted read them.
async fn prepare(larder: &mut Larder) -> anyhow::Result<()> {
    let mut client = Client::new(larder.config.listen, 1);
    read_all(&mut client, 3).await?;
    let until = Instant::now() + READY_DISK;
    while larder.disk_entries().await? < DOCUMENTS as u64 {
        ensure!(Instant::now() < until, "documents do not come to disk");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    // Then they are on disk alone.
    larder.terminate().await?;
    larder.start_ready().await?;
    while !larder.ready_disk().await {
        ensure!(Instant::now() < until, "the disk tier is not resumed");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let mut client = Client::new(larder.config.listen, 1);
    for kind in [1, 2] {
        read_all(&mut client, kind).await?;
    }
    Ok(())
}

fn key(kind: usize, number: usize) -> usize {
    FIRST + number % DOCUMENTS * KINDS.len() + kind
}

async fn read_all(client: &mut Client, kind: usize) -> anyhow::Result<()> {
    let expected = if kind < ABSENT_KINDS { 404 } else { 200 };
    for number in 0..DOCUMENTS {
        let request = Request::new("GET", format!("/items/{}", key(kind, number)));
        let answer = client.send(&request.with("x-api-key", "staff")).await?;
        ensure!(answer.status == expected, "{}", answer.shown());
    }
    Ok(())
}

fn target(form: Form, kind: usize, rng: &mut fastrand::Rng) -> String {
    let mut drawn = || key(kind, rng.usize(..DOCUMENTS));
    match form {
        Form::Key => format!("/items/{}", drawn()),
        Form::Alias => format!("/items/by/number/N{}", drawn()),
        Form::Batch => {
            let keys: Vec<String> = (0..BATCH).map(|_| drawn().to_string()).collect();
            format!("/items?keys={}", keys.join(","))
        }
    }
}

/// The times of each kind, in microseconds; those of one round have the same place.
async fn measure(
    requests: usize,
    form: Form,
    client: &mut Client,
    rng: &mut fastrand::Rng,
) -> anyhow::Result<[Vec<f64>; KINDS.len()]> {
    let mut times = [const { Vec::new() }; KINDS.len()];
    let mut order: Vec<usize> = (0..KINDS.len()).collect();
    for round in 0..WARM_UP + requests {
        rng.shuffle(&mut order);
        for &kind in &order {
            let request =
                Request::new("GET", target(form, kind, rng)).with("x-api-key", "customer");
            let began = Instant::now();
            let answer = client.send(&request).await?;
            let time = began.elapsed();
            let documents = answer.json()["documents"].as_array().map(Vec::len);
            let is_absent = answer.status == 404 || (answer.status == 200 && documents == Some(0));
            ensure!(is_absent, "LEAK: {}", answer.shown());
            if round >= WARM_UP {
                times[kind].push(time.as_secs_f64() * 1e6);
            }
        }
    }
    Ok(times)
}

fn print(form: Form, times: &[Vec<f64>; KINDS.len()]) {
    for (kind, times_of) in KINDS.iter().zip(times) {
        let mut sorted = times_of.clone();
        sorted.sort_by(f64::total_cmp);
        let (count, median) = (sorted.len(), sorted[sorted.len() / 2]);
        let all = format!(
            "{:5} {kind:28} {count} requests, median {median:6.1}",
            format!("{form:?}")
        );
        if *kind == KINDS[0] {
            println!("{all}");
            continue;
        }
        let pairs = times_of.iter().zip(&times[0]);
        let Difference { median, longer } =
            Difference::of(pairs.map(|(time, first)| time - first).collect());
        let [low, middle, high] = median;
        let longer_by = format!("{middle:+.1} [{low:+.1}, {high:+.1}] longer");
        let [low, middle, high] = longer;
        println!("{all}, {longer_by}, in {middle:.1} % [{low:.1}, {high:.1}] of the rounds");
    }
}

/// How the times of two kinds differ; each estimate is between the limits of its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Difference {
    median: [f64; 3],
    /// Percentages of the rounds.
    longer: [f64; 3],
}

impl Difference {
    /// The median lies between two of the sorted differences, whose places follow from the binomial distribution (David and
    /// Nagaraja, Order Statistics, section 7.1); here from its normal approximation.
    fn of(mut differences: Vec<f64>) -> Self {
        differences.sort_by(f64::total_cmp);
        // Counts are far below 2^52, so the casts are exact.
        let count = differences.len() as f64;
        let half_width = 1.96 * count.sqrt() / 2.0;
        let at = |place: f64| differences[(place.max(0.0) as usize).min(differences.len() - 1)];
        let middle = count / 2.0;
        let median = [middle - half_width, middle, middle + half_width].map(at);
        let longer = differences.iter().filter(|one| **one > 0.0).count() as f64;
        let longer = [longer - half_width, longer, longer + half_width];
        Self {
            median,
            longer: longer.map(|rounds| (100.0 * rounds / count).clamp(0.0, 100.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_shift_contains_it() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut differ = |shift: f64| {
            let differences = (0..1_000).map(|_| rng.f64() - rng.f64() + shift);
            Difference::of(differences.collect())
        };
        let [low, _, high] = differ(3.0).median;
        assert!(low < 3.0 && 3.0 < high && high - low < 0.2, "{low} {high}");
        let [low, _, high] = differ(0.0).longer;
        assert!(
            low < 50.0 && 50.0 < high && high - low < 7.0,
            "{low} {high}"
        );
        assert!(differ(0.1).longer[0] > 50.0);
    }
}
