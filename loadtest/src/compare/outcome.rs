//! What a comparison found, as JSON and for people.

use std::fmt::Write;

use serde::Serialize;

use crate::cli::CompareArgs;
use crate::results::Provenance;
use crate::statistics::Spread;
use crate::tools::{Measured, Times};

/// One turn of one contender.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) contender: String,
    pub(crate) connections: usize,
    pub(crate) round: usize,
    /// CPU time of the server's process per request, where it is one process.
    pub(crate) cpu_micros: Option<f64>,
    pub(crate) measured: Measured,
}

impl Sample {
    fn times(&self, of: fn(&Times) -> f64) -> Option<f64> {
        self.measured.times.as_ref().map(of)
    }
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) provenance: Provenance,
    depts: u32,
    seconds: u64,
    pipeline: usize,
    server_cores: String,
    tool_cores: String,
    samples: Vec<Sample>,
    ratios: Vec<Ratio>,
    #[serde(skip)]
    pub(crate) pairs: Vec<(String, String)>,
}

/// One contender's figures divided by another's, round by round.
#[derive(Debug, Serialize)]
struct Ratio {
    subject: String,
    reference: String,
    connections: usize,
    per_second: Option<Spread>,
    cpu: Option<Spread>,
    p99: Option<Spread>,
}

impl Outcome {
    pub(crate) fn new(args: &CompareArgs, provenance: Provenance) -> Self {
        Self {
            provenance,
            depts: args.speed.depts,
            seconds: args.speed.seconds,
            pipeline: args.pipeline,
            server_cores: args.speed.server_cores.clone(),
            tool_cores: args.speed.tool_cores.clone(),
            samples: Vec::new(),
            ratios: Vec::new(),
            pairs: Vec::new(),
        }
    }

    pub(crate) fn note(&mut self, sample: Sample, commands: &[String]) {
        for command in commands {
            self.provenance.command(command.clone());
        }
        self.samples.push(sample);
        self.ratios = self.ratios();
    }

    /// Requests without a good answer, of all.
    pub(crate) fn errors(&self) -> u64 {
        self.samples
            .iter()
            .map(|sample| sample.measured.errors)
            .sum()
    }

    fn connections(&self) -> Vec<usize> {
        let mut all: Vec<usize> = self
            .samples
            .iter()
            .map(|sample| sample.connections)
            .collect();
        all.dedup();
        all
    }

    fn of<'a>(
        &'a self,
        contender: &'a str,
        connections: usize,
    ) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| {
            sample.contender == contender && sample.connections == connections
        })
    }

    fn ratios(&self) -> Vec<Ratio> {
        let mut ratios = Vec::new();
        for connections in self.connections() {
            for (subject, reference) in &self.pairs {
                // Both of the same round.
                let rounds: Vec<(&Sample, &Sample)> = self
                    .of(subject, connections)
                    .zip(self.of(reference, connections))
                    .collect();
                let spread = |figure: &dyn Fn(&Sample) -> Option<f64>| {
                    Spread::of(
                        rounds
                            .iter()
                            .filter_map(|(one, other)| Some(figure(one)? / figure(other)?)),
                    )
                };
                ratios.push(Ratio {
                    subject: subject.clone(),
                    reference: reference.clone(),
                    connections,
                    per_second: spread(&|sample| Some(sample.measured.per_second)),
                    cpu: spread(&|sample| sample.cpu_micros),
                    p99: spread(&|sample| sample.times(|times| times.p99_ms)),
                });
            }
        }
        ratios
    }

    /// For people: medians of rounds, then ratios.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        for connections in self.connections() {
            self.write_table(&mut text, connections);
        }
        text
    }

    fn write_table(&self, text: &mut String, connections: usize) {
        let mut names: Vec<&str> = Vec::new();
        for sample in self
            .samples
            .iter()
            .filter(|sample| sample.connections == connections)
        {
            if !names.contains(&sample.contender.as_str()) {
                names.push(&sample.contender);
            }
        }
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "\n{:<24}{:>12}{:>10}{:>9}{:>9}{:>9}{:>9}{:>8}",
            format!("{connections} connections"),
            "requests/s",
            "CPU µs",
            "p50 ms",
            "p90 ms",
            "p99 ms",
            "max ms",
            "errors"
        );
        for name in names {
            let median = |figure: &dyn Fn(&Sample) -> Option<f64>, digits: usize| {
                let spread = Spread::of(self.of(name, connections).filter_map(figure));
                spread.map_or("-".to_owned(), |spread| {
                    format!("{:.digits$}", spread.median)
                })
            };
            let errors: u64 = self
                .of(name, connections)
                .map(|sample| sample.measured.errors)
                .sum();
            let _ = writeln!(
                text,
                "{name:<24}{:>12}{:>10}{:>9}{:>9}{:>9}{:>9}{errors:>8}",
                median(&|sample| Some(sample.measured.per_second), 0),
                median(&|sample| sample.cpu_micros, 2),
                median(&|sample| sample.times(|times| times.p50_ms), 2),
                median(&|sample| sample.times(|times| times.p90_ms), 2),
                median(&|sample| sample.times(|times| times.p99_ms), 2),
                median(&|sample| sample.times(|times| times.max_ms), 1),
            );
        }
        for ratio in self
            .ratios
            .iter()
            .filter(|ratio| ratio.connections == connections)
        {
            let told = |spread: Option<Spread>| {
                spread.map_or("-".to_owned(), |of| {
                    format!("{:.3} ({:.3}-{:.3})", of.median, of.min, of.max)
                })
            };
            let _ = writeln!(
                text,
                "{:<34} requests/s {:<20} CPU {:<20} p99 {}",
                format!("{} / {}", ratio.subject, ratio.reference),
                told(ratio.per_second),
                told(ratio.cpu),
                told(ratio.p99),
            );
        }
    }

    /// For the run's folder.
    pub(crate) fn readme(&self) -> String {
        format!(
            "# A comparison\n\nServers on core {}, the tool on core {}, PostgreSQL on any; {} depts, random keys, \
             {} requests at once on a connection, rounds of {} s by turns. Medians of rounds; ratios of the two turns of \
             a round: median (least-greatest). The raw figures are in compare.json.\n\n```text{}```\n\n{}",
            self.server_cores,
            self.tool_cores,
            self.depts,
            self.pipeline,
            self.seconds,
            self.table(),
            self.provenance.told(),
        )
    }
}
