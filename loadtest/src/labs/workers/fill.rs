//! Fills of stores: alone, and several at once, each with rows of its own.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::labs::workers::servers::Servers;
use crate::labs::workers::store::{Match, Place, StoreKind};
use crate::labs::workers::subscriber::{Buffer, Columns, Population};
use crate::report::results::RunEnvironment;

/// Rows of a statement.
const CHUNK_ROWS: u32 = 5_000;

/// What is filled.
#[derive(Args, Clone, Debug)]
pub(crate) struct FillArgs {
    /// Which stores.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = StoreKind::DEFAULT.to_vec())]
    stores: Vec<StoreKind>,
    /// Rows of a fill.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    count: u32,
    /// The first id: fills that follow each other leave the rows of one fill.
    #[arg(long, value_name = "N", default_value_t = 0)]
    shift: u32,
    /// Remove all rows and indexes first.
    #[arg(long)]
    reset: bool,
    /// Create the index afterwards.
    #[arg(long)]
    index: bool,
    /// So many fills at once, whose ids follow each other.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=50))]
    parallel: u32,
    /// End a fill that takes longer.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    end_after: Option<Duration>,
    /// A server that runs already, HOST:PORT or PostgreSQL's URL, in place of a private one; then those behind a proxy.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    server: Vec<String>,
}

/// Whether all stores were filled in time.
pub(super) async fn run(args: &FillArgs, seed: u64) -> Result<bool> {
    let (count, parallel, mut is_whole) = (args.count, args.parallel, true);
    let all = u64::from(count) * u64::from(parallel) + u64::from(args.shift);
    ensure!(all <= u32::MAX.into(), "ids end at {}", u32::MAX);
    let first = |part| args.shift + part * count;
    let ranges: Vec<_> = (0..parallel)
        .map(|part| (first(part), first(part + 1)))
        .collect();
    let mut environment = RunEnvironment::now().await;
    let mut servers = Servers::new()?;
    for kind in args.stores.iter().copied() {
        let (name, addresses) = (kind.name(), args.server.clone());
        let place = if addresses.is_empty() {
            servers.start(kind, &mut environment).await?
        } else {
            Place { kind, addresses }
        };
        place.open().await?.create(args.reset).await?;
        let time_max = args.end_after.unwrap_or(Duration::MAX);
        let filling = fill(&place, Population::of(seed), &ranges);
        let Ok(filled) = timeout(time_max, filling).await else {
            println!("{name}: ended after {time_max:?}, before all rows were there");
            is_whole = false;
            continue;
        };
        let seconds = filled?;
        println!("{name}: {parallel} fills of {count} rows in {seconds:.2} s");
        if args.index {
            println!("{name}: index in {:.2} s", index(&place).await?);
        }
    }
    servers.stop().await;
    Ok(is_whole)
}

/// Fills the rows from a first id to before another by a connection of its own, all at once; returns the seconds.
pub(super) async fn fill(
    place: &Place,
    population: Population,
    ranges: &[(u32, u32)],
) -> Result<f64> {
    let (mut fills, began) = (JoinSet::new(), Instant::now());
    for (start, end) in ranges.iter().copied() {
        let place = place.clone();
        fills.spawn(async move {
            let (mut store, mut next) = (place.open().await?, start);
            while next < end {
                let last = next.saturating_add(CHUNK_ROWS).min(end);
                store.fill(&population.subscribers(next..last)).await?;
                next = last;
            }
            anyhow::Ok(())
        });
    }
    while let Some(filled) = fills.join_next().await {
        filled??;
    }
    Ok(began.elapsed().as_secs_f64())
}

/// Creates the index; returns the seconds.
async fn index(place: &Place) -> Result<f64> {
    let (mut store, began) = (place.open().await?, Instant::now());
    store.index().await?;
    Ok(began.elapsed().as_secs_f64())
}

/// Removes all rows and indexes.
pub(super) async fn reset(place: &Place) -> Result<()> {
    place.open().await?.create(true).await
}

/// Empties the store, fills it with `rows` rows and creates the index; returns the seconds of the two.
pub(super) async fn anew(place: &Place, population: Population, rows: u32) -> Result<[f64; 2]> {
    reset(place).await?;
    let filled_s = fill(place, population, &[(0, rows)]).await?;
    Ok([filled_s, index(place).await?])
}

/// Fills a store anew, with 40 % of the rows alone, then twice 30 % at once; returns the seconds of both.
///
/// # Errors
/// Also if the rows are others than those of one fill, which are there now.
pub(super) async fn in_parts(place: &Place, population: Population, rows: u32) -> Result<[f64; 2]> {
    let whole = digest(place, population).await?;
    reset(place).await?;
    let [one, two] = [rows / 10 * 4, rows / 10 * 7];
    let alone_s = fill(place, population, &[(0, one)]).await?;
    let both_s = fill(place, population, &[(one, two), (two, rows)]).await?;
    index(place).await?;
    let parts = digest(place, population).await?;
    ensure!(whole == parts, "one fill left {whole:?}, three {parts:?}");
    ensure!(whole.0 == rows as usize, "{rows} rows became {whole:?}");
    Ok([alone_s, both_s])
}

/// Counts all rows and adds up their digests.
async fn digest(place: &Place, population: Population) -> Result<(usize, u64)> {
    let (mut store, mut found) = (place.open().await?, Buffer::default());
    let (mut count, mut sum) = (0, 0_u64);
    for slot in population.slots() {
        found.clear();
        let query = Match::new(slot, u32::MAX, None, Columns::Full);
        store.find(query, &mut found).await?;
        count += found.rows().len();
        for row in found.rows() {
            sum = sum.wrapping_add(row.digest());
        }
    }
    Ok((count, sum))
}
