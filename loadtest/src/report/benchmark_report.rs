//! What a benchmark measured: the turns of its cases, their medians and the ratios between them, as JSON and as text.

use serde::Serialize;

use crate::harness::tools::{Latencies, Measured};
use crate::report::results::RunEnvironment;
use crate::report::statistics::Spread;

/// A column of the table.
struct TableColumn {
    heading: &'static str,
    digits: usize,
    figure: fn(&Sample) -> Option<f64>,
}

const fn column(
    heading: &'static str,
    digits: usize,
    figure: fn(&Sample) -> Option<f64>,
) -> TableColumn {
    TableColumn {
        heading,
        digits,
        figure,
    }
}

/// Medians of rounds, between the rate and the errors.
const COLUMNS: [TableColumn; 6] = [
    column("CPU µs", 2, |sample| sample.cpu_micros),
    column("p50 ms", 2, |sample| sample.latency(|times| times.p50_ms)),
    column("p90 ms", 2, |sample| sample.latency(|times| times.p90_ms)),
    column("p99 ms", 2, |sample| sample.latency(|times| times.p99_ms)),
    column("max ms", 1, |sample| sample.latency(|times| times.max_ms)),
    column("others %", 0, |sample| {
        sample.others.map(|share| share * 100.0)
    }),
];

/// Cases that are measured in one unit and take turns with each other.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Group {
    /// What its cases have in common.
    pub(crate) name: String,
    /// The unit of the rate, such as `requests/s`.
    pub(crate) unit: String,
    pub(crate) cases: Vec<String>,
    /// Pairs of cases: the figures of the first are divided by those of the second.
    pub(crate) pairs: Vec<(String, String)>,
}

/// One turn of one case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    /// Place of its group.
    pub(crate) group: usize,
    pub(crate) case: String,
    pub(crate) round: usize,
    /// CPU time of the server's process for each request or document, where it is one process.
    pub(crate) cpu_micros: Option<f64>,
    /// The share of the cores' time that neither the server nor the tool took: PostgreSQL, or another program.
    pub(crate) others: Option<f64>,
    /// What else was measured meanwhile.
    pub(crate) note: Option<String>,
    pub(crate) measured: Measured,
}

impl Sample {
    fn latency(&self, of: fn(&Latencies) -> f64) -> Option<f64> {
        self.measured.times.as_ref().map(of)
    }
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub(crate) struct BenchmarkReport {
    name: &'static str,
    pub(crate) environment: RunEnvironment,
    /// On what and how it was measured.
    conditions: String,
    groups: Vec<Group>,
    samples: Vec<Sample>,
    ratios: Vec<Ratio>,
}

/// One case's figures divided by another's, round by round.
#[derive(Debug, Serialize)]
struct Ratio {
    group: usize,
    subject: String,
    reference: String,
    per_second: Option<Spread>,
    cpu: Option<Spread>,
    p50: Option<Spread>,
    p99: Option<Spread>,
}

impl BenchmarkReport {
    /// An empty report of the benchmark `name`.
    pub(crate) fn new(
        name: &'static str,
        environment: RunEnvironment,
        conditions: String,
        groups: Vec<Group>,
    ) -> Self {
        Self {
            name,
            environment,
            conditions,
            groups,
            samples: Vec::new(),
            ratios: Vec::new(),
        }
    }

    pub(crate) fn note(&mut self, sample: Sample) {
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

    fn of<'a>(&'a self, group: usize, case: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.samples
            .iter()
            .filter(move |sample| sample.group == group && sample.case == case)
    }

    fn ratios(&self) -> Vec<Ratio> {
        let mut ratios = Vec::new();
        for (number, group) in self.groups.iter().enumerate() {
            for (subject, reference) in &group.pairs {
                // Both of the same round.
                let rounds: Vec<(&Sample, &Sample)> = self
                    .of(number, subject)
                    .zip(self.of(number, reference))
                    .collect();
                let spread = |figure: &dyn Fn(&Sample) -> Option<f64>| {
                    Spread::of(rounds.iter().filter_map(|(one, other)| {
                        Some(figure(one)? / figure(other)?).filter(|ratio| ratio.is_finite())
                    }))
                };
                ratios.push(Ratio {
                    group: number,
                    subject: subject.clone(),
                    reference: reference.clone(),
                    per_second: spread(&|sample| Some(sample.measured.per_second)),
                    cpu: spread(&|sample| sample.cpu_micros),
                    p50: spread(&|sample| sample.latency(|times| times.p50_ms)),
                    p99: spread(&|sample| sample.latency(|times| times.p99_ms)),
                });
            }
        }
        ratios
    }

    /// A table for the terminal: medians of rounds, then ratios.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        for (number, group) in self.groups.iter().enumerate() {
            self.write_group(&mut text, number, group);
        }
        text
    }

    fn write_group(&self, text: &mut String, number: usize, group: &Group) {
        let mut columns = vec![self.rates(number, group)];
        columns.extend(COLUMNS.iter().filter_map(|column| {
            let cell = |case: &String| {
                let figures = self.of(number, case).filter_map(column.figure);
                Spread::of(figures).map(|spread| format!("{:.*}", column.digits, spread.median))
            };
            let cells: Vec<Option<String>> = group.cases.iter().map(cell).collect();
            // A column without any figure is left out.
            cells.iter().any(Option::is_some).then(|| {
                let cells = cells.into_iter();
                let texts = cells.map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
                std::iter::once(column.heading.to_owned())
                    .chain(texts)
                    .collect()
            })
        }));
        columns.push(self.errors(number, group));
        text.push('\n');
        let names = std::iter::once(&group.name).chain(&group.cases);
        for (row, name) in names.enumerate() {
            text.push_str(&format!("{name:<32}"));
            for (place, column) in columns.iter().enumerate() {
                let width = if place == 0 { 14 } else { 10 };
                text.push_str(&format!("{:>width$}", column[row]));
            }
            text.push('\n');
        }
        for ratio in self.ratios.iter().filter(|ratio| ratio.group == number) {
            let mut line = format!("{:<36}", format!("{} / {}", ratio.subject, ratio.reference));
            for (name, spread) in [
                (group.unit.as_str(), ratio.per_second),
                ("CPU", ratio.cpu),
                ("p50", ratio.p50),
                ("p99", ratio.p99),
            ] {
                if let Some(Spread { min, median, max }) = spread {
                    line += &format!(" {name} {median:.3} ({min:.3}-{max:.3}) ");
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }

    /// Heading and cells.
    fn rates(&self, number: usize, group: &Group) -> Vec<String> {
        let rate = |case: &String| {
            let figures = self
                .of(number, case)
                .map(|sample| sample.measured.per_second);
            Spread::of(figures).map_or("-".to_owned(), |spread| {
                // Few in a second differ only after the point.
                let digits = if spread.median < 100.0 { 2 } else { 0 };
                format!("{:.digits$}", spread.median)
            })
        };
        let rates = group.cases.iter().map(rate);
        std::iter::once(group.unit.clone()).chain(rates).collect()
    }

    /// Heading and cells: of all rounds.
    fn errors(&self, number: usize, group: &Group) -> Vec<String> {
        let errors = |case: &String| {
            let samples = self.of(number, case);
            let errors: u64 = samples.map(|sample| sample.measured.errors).sum();
            errors.to_string()
        };
        let errors = group.cases.iter().map(errors);
        std::iter::once("errors".to_owned()).chain(errors).collect()
    }

    /// The README of the run's folder.
    pub(crate) fn readme(&self) -> String {
        format!(
            "# loadtest {name}\n\n{} Medians of rounds; ratios of the two turns of a round: median (least-greatest). \
             Others: what neither server nor tool took of the cores. The raw figures are in {name}.json.\n\n\
             ```text{}```\n\n{}",
            self.conditions,
            self.table(),
            self.environment.markdown(),
            name = self.name,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(case: &str, round: usize, per_second: f64) -> Sample {
        Sample {
            group: 0,
            case: case.to_owned(),
            round,
            cpu_micros: (case != "pgbench").then_some(1e6 / per_second),
            others: Some(0.01),
            note: None,
            measured: Measured {
                requests: 1,
                errors: 0,
                per_second,
                mean_ms: 1.0,
                times: None,
            },
        }
    }

    fn of_pair(subject: &str, reference: &str) -> BenchmarkReport {
        let names = [subject.to_owned(), reference.to_owned()];
        let group = Group {
            name: "128 connections".to_owned(),
            unit: "requests/s".to_owned(),
            cases: names.to_vec(),
            pairs: vec![names.into()],
        };
        let environment = RunEnvironment::example();
        BenchmarkReport::new("compare", environment, String::new(), vec![group])
    }

    #[test]
    fn ratios_are_of_the_turns_of_one_round() {
        let mut report = of_pair("larder", "limit");
        for (round, (larder, limit)) in [(10.0, 20.0), (30.0, 40.0), (50.0, 100.0)]
            .into_iter()
            .enumerate()
        {
            // Turns change places.
            let mut turns = [
                sample("larder", round, larder),
                sample("limit", round, limit),
            ];
            turns.rotate_left(round % 2);
            turns.into_iter().for_each(|turn| report.note(turn));
        }
        let ratio = &report.ratios[0];
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
        assert!(report.is_good());
        report.samples[3].measured.errors = 1;
        assert!(!report.is_good());
        assert!(report.table().contains("larder / limit"));
    }

    #[test]
    fn a_case_without_cpu_time_has_no_ratio_of_it() {
        let mut report = of_pair("larder", "pgbench");
        report.note(sample("larder", 0, 2.0));
        report.note(sample("pgbench", 0, 1.0));
        let ratio = &report.ratios[0];
        assert_eq!(ratio.cpu, None);
        assert!(
            ratio
                .per_second
                .is_some_and(|of| (of.median - 2.0).abs() < 1e-9)
        );
    }
}
