//! `loadtest workers`: workers that fetch due rows of a large table, send to them and move their due moment forward, over
//! several stores.
//!
//! Each store is a connection behind one trait (`store`). All of them have to match the same ids (`agreement`) before
//! anything is timed: fills (`fill`), what a match costs and how rows get into the memory of workers (`cost`), and the
//! loop (`round`). At the end the native method takes turns with the reference.

mod agreement;
#[cfg(feature = "cassandra")]
mod cassandra;
mod cost;
#[cfg(feature = "ferretdb")]
mod ferretdb;
mod fill;
#[cfg(feature = "mariadb")]
mod mariadb;
mod postgres;
#[cfg(feature = "redis")]
mod redis;
mod report;
mod round;
mod servers;
mod sql;
mod store;
mod subscriber;

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;

use crate::bench::benchmark::FolderArgs;
use crate::harness::progress;
use crate::labs::workers::fill::FillArgs;
use crate::labs::workers::report::Tables;
use crate::labs::workers::round::{PARAMETERS, Setting, mean, summary};
use crate::labs::workers::servers::Servers;
use crate::labs::workers::store::{Place, StoreKind};
use crate::labs::workers::subscriber::FILLED;
use crate::report::results::{Folder, RunEnvironment};
use crate::report::statistics::Spread;

/// What the rows are made of, unless `--seed` is given.
pub(crate) const SEED: u64 = 1;
/// Milliseconds, as the tables of the original experiment have them.
const MATCH_BOUNDS: [u32; 2] = [150, 250];
const UPDATE_BOUNDS: [u32; 2] = [500, 1_000];
/// Of laps, which hold all rows in memory. With fewer the goal is not judged.
const LAPS_ROWS_MAX: u32 = 1_000_000;
const LAPS: u32 = 5;
/// Between the moments of two laps, which no clock tells: rows that one has moved are due in the next.
const LAP_SECONDS: u32 = 100_000;
/// A goal of the native method: so many times the documents per second of the reference.
const RATIO_MIN: f64 = 1.8;

/// What is measured. Of several values of a parameter, the first one holds while others vary.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct WorkersArgs {
    #[command(subcommand)]
    command: Option<WorkersCommand>,
    /// Which stores.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = StoreKind::DEFAULT.to_vec())]
    stores: Vec<StoreKind>,
    /// The numbers of rows.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "100000,1000000", value_parser = clap::value_parser!(u32).range(10_000..))]
    rows: Vec<u32>,
    /// The numbers of workers, each with a connection.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "20", value_parser = clap::value_parser!(u32).range(1..=255))]
    workers: Vec<u32>,
    /// The numbers of time zones.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "24", value_parser = clap::value_parser!(u32).range(1..=255))]
    time_zones: Vec<u32>,
    /// Rows of a match at most.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "8000", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Vec<u32>,
    /// How long a batch is sent.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "5s", value_parser = millis)]
    send: Vec<u32>,
    /// The pause after an update.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "2s", value_parser = millis)]
    rest: Vec<u32>,
    /// Each takes the next time zone.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "10", value_parser = clap::value_parser!(u32).range(1..))]
    iterations: Vec<u32>,
    /// Seconds by which an update moves the due moment, and which it may take [default: 50; 450 from 10,000,000 rows on]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    update_time: Option<u32>,
    #[command(flatten)]
    folder: FolderArgs,
}

/// Parts of the experiment that run alone.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum WorkersCommand {
    /// Fills stores with rows, and tells how long that takes.
    Fill(FillArgs),
}

/// A run, as `workers.json` has it.
#[derive(Serialize)]
struct Run {
    seed: u64,
    environment: RunEnvironment,
    settings: Vec<Setting>,
    /// Stores that could not be started, and why.
    left_out: Vec<String>,
    tables: Tables,
}

/// Reads a duration such as `5s`.
fn millis(text: &str) -> Result<u32> {
    Ok(humantime::parse_duration(text)?.as_millis().try_into()?)
}

/// Whether all stores did what was measured, and the goal of the native method is reached where it is judged.
pub(crate) async fn run(args: &WorkersArgs, seed: u64) -> Result<bool> {
    if let Some(WorkersCommand::Fill(args)) = &args.command {
        return fill::run(args, seed).await;
    }
    println!("seed {seed}; starting all stores");
    let mut run = Run {
        seed,
        environment: RunEnvironment::now().await,
        settings: args.settings(),
        left_out: Vec::new(),
        tables: Tables::default(),
    };
    // Without paths, which are those of this machine.
    let words = std::env::args().skip(1).filter(|word| !word.contains('/'));
    let words = words.filter(|word| !["--larder", "--results"].contains(&word.as_str()));
    let words: Vec<String> = words.collect();
    run.environment
        .command(format!("loadtest {}", words.join(" ")));
    let mut servers = Servers::new()?;
    let mut places = Vec::new();
    for kind in args.stores.iter().copied() {
        let name = kind.name();
        match servers.start(kind, &mut run.environment).await {
            Ok(place) => places.push(place),
            Err(reason) => run
                .left_out
                .push(format!("`{name}` is left out: {reason:#}.")),
        }
    }
    ensure!(!places.is_empty(), "{}", run.left_out.join(" "));
    agreement::check(&places, run.settings[0].population(seed)).await?;
    let mut means = Vec::new();
    for place in &places {
        let (name, measured) = (place.kind.name(), run.measure(place).await);
        means.push((name.clone(), measured.context(name)?));
    }
    let is_good = run.measure_laps(&places).await?;
    servers.stop().await;
    let name = args.folder.name.as_deref().unwrap_or("workers");
    let folder = Folder::create(&args.folder.results, name)?;
    folder.write("workers.json", &serde_json::to_string_pretty(&run)?)?;
    let (text, left_out) = (run.tables.text(), run.left_out.join(" "));
    let text = format!("# Workers over several stores\n\n{text}{left_out}\n");
    let readme = format!("{text}\n## Run\n\n{}", run.environment.markdown());
    folder.write("README.md", &readme)?;
    folder.write("workers.chart", &report::charts(&run.settings, &means))?;
    println!("{text}");
    println!("kept in {}", folder.path().display());
    Ok(is_good)
}

impl Run {
    /// Measures a store with each setting; with the first one of each number of rows also costs, plans and loading. Returns
    /// the mean ms of matches and updates with each setting.
    async fn measure(&mut self, place: &Place) -> Result<Vec<[f64; 2]>> {
        let (name, mut means, mut known) = (place.kind.name(), Vec::new(), BTreeSet::new());
        let tables = &mut self.tables;
        for (number, setting) in self.settings.iter().enumerate() {
            progress::note(number, self.settings.len(), &format!("settings of {name}"));
            let (population, rows) = (setting.population(self.seed), setting.rows());
            let [fill_s, index_s] = fill::anew(place, population, rows).await?;
            let (is_first, varied, mut parts) = (known.insert(rows), &setting.name, [None; 2]);
            if is_first {
                parts = fill::in_parts(place, population, rows).await?.map(Some);
                tables.add("plans", cost::plans(place, setting).await?);
                tables.add("costs", cost::measure(place, setting).await?);
            }
            let tally = round::run(place, setting, None).await?;
            let fills = json!({
                "varied": varied, "store": name, "fill": fill_s, "index": index_s,
                "40 %": parts[0], "twice 30 %": parts[1], "complete": tally.seconds
            });
            tables.add("fills", vec![fills]);
            let (matches, updates) = (&tally.match_ms, &tally.update_ms);
            let mut line = json!({
                "varied": varied, "store": name, "documents": tally.documents,
                "N matches": matches.len(), "N updates": updates.len(),
                "failed": tally.failures.len(), "the first": tally.failures.first()
            });
            summary(&mut line, "match", matches, MATCH_BOUNDS);
            summary(&mut line, "update", updates, UPDATE_BOUNDS);
            tables.add("times", vec![line]);
            means.push([mean(matches), mean(updates)]);
            if is_first {
                tables.add("loadings", cost::loadings(place, population, rows).await?);
            }
        }
        fill::reset(place).await?;
        Ok(means)
    }

    /// Has the reference and the native method take laps by turns, if both are there; returns whether the goal is reached or
    /// not judged.
    async fn measure_laps(&mut self, places: &[Place]) -> Result<bool> {
        let place = |kind| places.iter().find(|place| place.kind == kind);
        let both = place(StoreKind::Postgresql).zip(place(StoreKind::Native));
        let small = self
            .settings
            .iter()
            .filter(|one| one.rows() <= LAPS_ROWS_MAX);
        let Some(((one, other), setting)) = both.zip(small.max_by_key(|one| one.rows())) else {
            return Ok(true);
        };
        let (mut setting, rows) = (setting.clone(), setting.rows());
        let [_, _, time_zones, ..] = setting.values;
        setting.values[4..].copy_from_slice(&[0, 0, time_zones]);
        setting.update_s = LAP_SECONDS / 2;
        for place in [one, other] {
            fill::anew(place, setting.population(self.seed), rows).await?;
        }
        let mut rates = [Vec::new(), Vec::new()];
        for lap in 0..LAPS {
            progress::note(lap + 1, LAPS, "laps");
            for (place, rates) in [one, other].into_iter().zip(&mut rates) {
                let moment = FILLED + lap * LAP_SECONDS;
                let tally = round::run(place, &setting, Some(moment)).await?;
                // Counts are far below 2^52, so the cast is exact.
                rates.push(tally.documents as f64 / tally.seconds);
            }
        }
        let [reference, native] =
            rates.map(|rates| Spread::of(rates).map_or(0.0, |spread| spread.median));
        let ratio = native / reference;
        let line = json!({"rows": rows, "reference": reference, "native": native, "ratio": ratio});
        self.tables.add("laps", vec![line]);
        Ok(rows < LAPS_ROWS_MAX || ratio >= RATIO_MIN)
    }
}

impl WorkersArgs {
    /// Returns the first values of all parameters, then each further value of one of them beside the first ones of others.
    fn settings(&self) -> Vec<Setting> {
        let [rows, workers, zones] = [&self.rows, &self.workers, &self.time_zones];
        let [batch, send, rest, iterations] =
            [&self.batch, &self.send, &self.rest, &self.iterations];
        let lists = [rows, workers, zones, batch, send, rest, iterations];
        let first = lists.map(|list| list[0]);
        let mut settings = Vec::new();
        for (place, (name, list)) in PARAMETERS.split(' ').zip(lists).enumerate() {
            for value in list.iter().skip(usize::from(place > 0)) {
                let mut values = first;
                values[place] = *value;
                let mut setting = Setting::of(values);
                setting.name = format!("{name} {value}");
                setting.update_s = self.update_time.unwrap_or(setting.update_s);
                settings.push(setting);
            }
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: WorkersArgs,
    }

    #[test]
    fn one_parameter_varies_at_a_time() {
        let words = "workers --rows 100000,10000000 --batch 8000,100 --send 5s,0s --stores native";
        let settings = Line::parse_from(words.split(' ')).args.settings();
        let base = [100_000, 20, 24, 8_000, 5_000, 2_000, 10];
        let (mut large, mut small, mut fast) = (base, base, base);
        (large[0], small[3], fast[4]) = (10_000_000, 100, 0);
        let expected = [(base, 50), (large, 450), (small, 50), (fast, 50)];
        let settings = settings.iter().map(|one| (one.values, one.update_s));
        assert_eq!(settings.collect::<Vec<_>>(), expected);
    }
}
