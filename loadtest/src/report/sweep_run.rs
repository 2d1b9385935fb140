//! What a sweep found, as JSON and for people.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::harness::demo::Footprint;
use crate::harness::tools::Measured;
use crate::report::results::RunEnvironment;

/// The file of figures in the run's folder.
pub(crate) const FILE: &str = "sweep.json";
const MIB: f64 = 1_048_576.0;

/// Which documents were requested.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KeyChoice {
    /// Any, each as often.
    Random,
    /// One and the same all the time.
    One,
}

/// Everything that was measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct SweepRun {
    /// Its folder's.
    pub(crate) name: String,
    /// Runs of 2026-11-22 have it under another name.
    #[serde(alias = "provenance")]
    pub(crate) environment: RunEnvironment,
    pub(crate) tool: String,
    pub(crate) keys: KeyChoice,
    pub(crate) depts: u32,
    pub(crate) server_cores: String,
    pub(crate) tool_cores: String,
    /// Memory per document in the memory tier.
    pub(crate) footprint: Option<Footprint>,
    pub(crate) points: Vec<SweepPoint>,
}

/// One measurement.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct SweepPoint {
    /// `memory`, `disk` or `none`; `url` where it is unknown.
    pub(crate) tier: String,
    pub(crate) concurrency: usize,
    pub(crate) measured: Measured,
    /// CPU time of larder's process per request.
    pub(crate) cpu_micros: Option<f64>,
    /// The share of the cores' time that neither larder nor the tool took: PostgreSQL, or another program.
    pub(crate) others: f64,
    /// What larder's process occupied at the end.
    pub(crate) resident_bytes: Option<u64>,
    /// Answers that were checked meanwhile, byte by byte, and those that were wrong.
    pub(crate) checked: u64,
    pub(crate) wrong: u64,
    /// Right ones out of another tier than this; earlier sweeps counted them as wrong.
    #[serde(default)]
    pub(crate) elsewhere: u64,
}

impl SweepRun {
    /// Whether there are measurements, and all requests had good answers, nearly all from the tier.
    pub(crate) fn is_good(&self) -> bool {
        let good = |point: &SweepPoint| {
            let well = point.measured.errors == 0 && point.wrong == 0;
            well && point.measured.requests > 0 && point.elsewhere * 10 <= point.checked
        };
        !self.points.is_empty() && self.points.iter().all(good)
    }

    /// Tiers in the order in which they were measured.
    pub(crate) fn tiers(&self) -> Vec<&str> {
        let mut tiers: Vec<&str> = Vec::new();
        for point in &self.points {
            if !tiers.contains(&point.tier.as_str()) {
                tiers.push(&point.tier);
            }
        }
        tiers
    }

    /// A table for the terminal.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        for row in [&HEADINGS.map(str::to_owned)]
            .into_iter()
            .chain(&self.rows())
        {
            for (number, cell) in row.iter().enumerate() {
                let written = match number {
                    0 => write!(text, "{cell:<8}"),
                    _ => write!(text, "{cell:>12}"),
                };
                // Writing to a string can't fail.
                written.unwrap_or_default();
            }
            text.push('\n');
        }
        for line in self.strays() {
            text.push_str(&line);
            text.push('\n');
        }
        if let Some(of) = self.footprint {
            text.push_str(&format!(
                "a document in memory: {:.0} bytes of the process, {:.0} of them its own\n",
                of.resident, of.document
            ));
        }
        text
    }

    /// A line for each measurement with answers out of another tier than its own.
    fn strays(&self) -> impl Iterator<Item = String> {
        let strayed = self.points.iter().filter(|point| point.elsewhere > 0);
        strayed.map(|point| {
            format!(
                "{} at {}: {} of {} checked answers were out of another tier",
                point.tier, point.concurrency, point.elsewhere, point.checked
            )
        })
    }

    /// A cell for each of the headings.
    fn rows(&self) -> Vec<[String; HEADINGS.len()]> {
        let told = |figure: Option<f64>, digits: usize| {
            figure.map_or("-".to_owned(), |figure| format!("{figure:.digits$}"))
        };
        let row = |point: &SweepPoint| {
            let (measured, times) = (&point.measured, point.measured.times);
            [
                point.tier.clone(),
                point.concurrency.to_string(),
                told(Some(measured.per_second), 0),
                told(Some(measured.mean_ms), 3),
                told(times.map(|times| times.p50_ms), 3),
                told(times.map(|times| times.p90_ms), 3),
                told(times.map(|times| times.p99_ms), 3),
                told(times.map(|times| times.max_ms), 1),
                told(point.cpu_micros, 1),
                // Far below 2^52, so the cast is exact.
                told(point.resident_bytes.map(|bytes| bytes as f64 / MIB), 0),
                measured.errors.to_string(),
                format!("{}/{}", point.wrong, point.checked),
            ]
        };
        self.points.iter().map(row).collect()
    }

    /// The tool and the documents that it requested.
    pub(crate) fn conditions(&self) -> String {
        match self.keys {
            KeyChoice::Random => format!("{}, random keys of {} documents", self.tool, self.depts),
            KeyChoice::One => format!(
                "{}, which requests one document all the time: without a tier all requests that wait share one statement",
                self.tool
            ),
        }
    }

    /// The README of the run's folder.
    pub(crate) fn readme(&self) -> String {
        format!(
            "# {}\n\nBy {}; larder on core {}, the tool on core {}, PostgreSQL on any. CPU time is larder's own process's, \
             memory what it occupied after the measurement; wrong/checked counts answers compared byte by byte beside the \
             load. The raw figures are in {FILE}.\n\n```text\n{}```\n\n{}",
            self.name,
            self.conditions(),
            self.server_cores,
            self.tool_cores,
            self.table(),
            self.environment.markdown(),
        )
    }
}

/// The headings of the table.
const HEADINGS: [&str; 12] = [
    "tier",
    "at once",
    "requests/s",
    "mean ms",
    "p50 ms",
    "p90 ms",
    "p99 ms",
    "max ms",
    "CPU µs",
    "MiB",
    "errors",
    "wrong",
];

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::harness::tools::Latencies;

    /// A run of one number of connections with two tiers.
    pub(crate) fn run(name: &str) -> SweepRun {
        let point = |tier: &str, per_second: f64| SweepPoint {
            tier: tier.to_owned(),
            concurrency: 128,
            measured: Measured {
                requests: 1000,
                errors: 0,
                per_second,
                mean_ms: 1.0,
                times: Some(Latencies {
                    p50_ms: 0.9,
                    p90_ms: 1.2,
                    p99_ms: 2.5,
                    max_ms: 30.0,
                }),
            },
            cpu_micros: Some(10.5),
            others: 0.02,
            resident_bytes: Some(64 << 20),
            checked: 20,
            wrong: 0,
            elsewhere: 0,
        };
        SweepRun {
            name: name.to_owned(),
            environment: RunEnvironment::example(),
            tool: "oha".to_owned(),
            keys: KeyChoice::Random,
            depts: 1000,
            server_cores: "0".to_owned(),
            tool_cores: "1".to_owned(),
            footprint: Some(Footprint {
                resident: 2_080.0,
                document: 1_650.0,
            }),
            points: vec![point("none", 9_000.0), point("memory", 90_000.0)],
        }
    }

    #[test]
    fn a_run_is_good_where_every_answer_was() {
        let good = run("good");
        assert!(good.is_good());
        let change = |change: fn(&mut SweepPoint)| {
            let mut run = good.clone();
            change(&mut run.points[1]);
            run.is_good()
        };
        assert!(!change(|point| point.measured.errors = 1));
        assert!(!change(|point| point.wrong = 1));
        assert!(change(|point| point.elsewhere = 2));
        assert!(!change(|point| point.elsewhere = 3));
        assert!(!change(|point| point.measured.requests = 0));
        assert!(
            !SweepRun {
                points: Vec::new(),
                ..good.clone()
            }
            .is_good()
        );
    }

    #[test]
    fn it_is_told_line_by_line() {
        let mut run = run("one");
        assert_eq!(run.tiers(), ["none", "memory"]);
        let table = run.table();
        let last = table.lines().nth(2).unwrap();
        let cells: Vec<&str> = last.split_whitespace().collect();
        let wanted = [
            "memory", "128", "90000", "1.000", "0.900", "1.200", "2.500", "30.0", "10.5", "64",
            "0", "0/20",
        ];
        assert_eq!(cells, wanted);
        assert!(table.ends_with("2080 bytes of the process, 1650 of them its own\n"));
        assert!(!table.contains("another tier"));
        run.points[1].elsewhere = 3;
        let told = "memory at 128: 3 of 20 checked answers were out of another tier\n";
        assert!(run.table().contains(told));
    }
}
