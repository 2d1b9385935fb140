//! What a comparison found, as JSON and for people.

use serde::Serialize;

use crate::bench::compare::CompareArgs;
use crate::harness::tools::{Latencies, Measured};
use crate::report::results::RunEnvironment;
use crate::report::statistics::Spread;

/// One turn of one contender.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) contender: String,
    pub(crate) connections: usize,
    pub(crate) round: usize,
    /// CPU time of the server's process per request, where it is one process.
    pub(crate) cpu_micros: Option<f64>,
    /// The share of the cores' time that neither the server nor the tool took: PostgreSQL, or another program.
    pub(crate) others: f64,
    pub(crate) measured: Measured,
}

impl Sample {
    fn times(&self, of: fn(&Latencies) -> f64) -> Option<f64> {
        self.measured.times.as_ref().map(of)
    }
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    pub(crate) provenance: RunEnvironment,
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
    pub(crate) fn new(args: &CompareArgs, provenance: RunEnvironment) -> Self {
        Self {
            provenance,
            depts: args.trial.depts,
            seconds: args.seconds,
            pipeline: args.pipeline,
            server_cores: args.trial.server_cores.clone(),
            tool_cores: args.trial.tool_cores.clone(),
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

    /// Whether nothing has been measured.
    pub(crate) fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Whether there were answers in every turn, and all of them good.
    pub(crate) fn is_good(&self) -> bool {
        let good = |sample: &Sample| sample.measured.errors == 0 && sample.measured.requests > 0;
        self.samples.iter().all(good)
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
                    Spread::of(rounds.iter().filter_map(|(one, other)| {
                        Some(figure(one)? / figure(other)?).filter(|ratio| ratio.is_finite())
                    }))
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
        let headings = [
            "requests/s",
            "CPU µs",
            "p50 ms",
            "p90 ms",
            "p99 ms",
            "max ms",
            "others %",
            "errors",
        ];
        push_row(
            text,
            &format!("\n{connections} connections"),
            &headings.map(str::to_owned),
        );
        for name in self.contenders(connections) {
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
            let cells = [
                median(&|sample| Some(sample.measured.per_second), 0),
                median(&|sample| sample.cpu_micros, 2),
                median(&|sample| sample.times(|times| times.p50_ms), 2),
                median(&|sample| sample.times(|times| times.p90_ms), 2),
                median(&|sample| sample.times(|times| times.p99_ms), 2),
                median(&|sample| sample.times(|times| times.max_ms), 1),
                median(&|sample| Some(sample.others * 100.0), 0),
                errors.to_string(),
            ];
            push_row(text, name, &cells);
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
            text.push_str(&format!(
                "{:<36} requests/s {:<20} CPU {:<20} p99 {}\n",
                format!("{} / {}", ratio.subject, ratio.reference),
                told(ratio.per_second),
                told(ratio.cpu),
                told(ratio.p99),
            ));
        }
    }

    /// In the order of their turns.
    fn contenders(&self, connections: usize) -> Vec<&str> {
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
        names
    }

    /// For the run's folder.
    pub(crate) fn readme(&self) -> String {
        format!(
            "# A comparison\n\nServers on core {}, the tool on core {}, PostgreSQL on any; {} depts, random keys, \
             {} requests at once on a connection, rounds of {} s by turns. Medians of rounds; ratios of the two turns of \
             a round: median (least-greatest). Others: what neither server nor tool took of these cores. The raw figures are in compare.json.\n\n```text{}```\n\n{}",
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

fn push_row(text: &mut String, name: &str, cells: &[String]) {
    text.push_str(&format!("{name:<24}"));
    for (number, cell) in cells.iter().enumerate() {
        let width = if number == 0 { 12 } else { 10 };
        text.push_str(&format!("{cell:>width$}"));
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(contender: &str, round: usize, per_second: f64) -> Sample {
        Sample {
            contender: contender.to_owned(),
            connections: 128,
            round,
            cpu_micros: (contender != "pgbench").then_some(1e6 / per_second),
            others: 0.01,
            measured: Measured {
                requests: 1,
                errors: 0,
                per_second,
                mean_ms: 1.0,
                times: None,
            },
        }
    }

    #[test]
    fn ratios_are_of_the_turns_of_one_round() {
        let figures = [(10.0, 20.0), (30.0, 40.0), (50.0, 100.0)];
        let mut samples = Vec::new();
        for (round, (larder, limit)) in figures.into_iter().enumerate() {
            // Turns change places.
            let mut turns = [
                sample("larder", round, larder),
                sample("limit", round, limit),
            ];
            turns.rotate_left(round % 2);
            samples.extend(turns);
        }
        let mut outcome = Outcome {
            samples,
            pairs: vec![("larder".to_owned(), "limit".to_owned())],
            ..outcome()
        };
        outcome.ratios = outcome.ratios();
        let ratio = &outcome.ratios[0];
        assert_eq!(
            ratio.per_second,
            Some(Spread {
                min: 0.5,
                median: 0.5,
                max: 0.75
            })
        );
        assert!(ratio.cpu.is_some_and(|cpu| (cpu.median - 2.0).abs() < 1e-9));
        assert_eq!(ratio.p99, None);
        assert!(outcome.is_good());
        outcome.samples[3].measured.errors = 1;
        assert!(!outcome.is_good());
        assert!(outcome.table().contains("larder / limit"));
    }

    #[test]
    fn what_tells_no_cpu_time_has_no_ratio_of_it() {
        let mut outcome = Outcome {
            samples: vec![sample("larder", 0, 2.0), sample("pgbench", 0, 1.0)],
            pairs: vec![("larder".to_owned(), "pgbench".to_owned())],
            ..outcome()
        };
        outcome.ratios = outcome.ratios();
        assert_eq!(outcome.ratios[0].cpu, None);
        assert!(
            outcome.ratios[0]
                .per_second
                .is_some_and(|of| (of.median - 2.0).abs() < 1e-9)
        );
    }

    fn outcome() -> Outcome {
        Outcome {
            provenance: crate::bench::sweep::run::tests::run("any").provenance,
            depts: 1,
            seconds: 1,
            pipeline: 1,
            server_cores: "0".to_owned(),
            tool_cores: "1".to_owned(),
            samples: Vec::new(),
            ratios: Vec::new(),
            pairs: Vec::new(),
        }
    }
}
