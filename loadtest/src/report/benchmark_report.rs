//! What a benchmark measured: the turns of its cases, their medians and the ratios between them, as JSON and as text.

use std::collections::BTreeSet;

use anyhow::ensure;
use serde::{Deserialize, Serialize};

use crate::harness::tools::{Latencies, Measured};
use crate::report::plot::{Chart, ChartKind, SERIES_MAX};
use crate::report::results::RunEnvironment;
use crate::report::statistics::Spread;

type Figure = fn(&Measurement) -> Option<f64>;
/// Heading, digits after the point, and what the median is of.
type TableColumn = (&'static str, usize, Figure);

const RATE: Figure = |turn| Some(turn.measured.per_second);
const CPU: TableColumn = ("CPU µs", 2, |turn| turn.cpu_micros);
const P50: TableColumn = ("p50 ms", 2, |turn| turn.latency(|times| times.p50_ms));
const P99: TableColumn = ("p99 ms", 2, |turn| turn.latency(|times| times.p99_ms));
/// Between the rate and the errors.
const COLUMNS: [TableColumn; 6] = [
    CPU,
    P50,
    ("p90 ms", 2, |turn| turn.latency(|times| times.p90_ms)),
    P99,
    ("max ms", 1, |turn| turn.latency(|times| times.max_ms)),
    ("others %", 0, |turn| Some(turn.others? * 100.0)),
];

/// Cases that are measured in one unit and take turns with each other.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Group {
    /// What its cases have in common.
    pub(crate) name: String,
    /// The unit of the rate, such as `requests/s`.
    pub(crate) unit: String,
    pub(crate) cases: Vec<String>,
    /// Pairs of cases: the figures of the first are divided by those of the second.
    pub(crate) pairs: Vec<(String, String)>,
    /// Cases of which each does what the one before it does, and more: what each adds to the CPU time is told.
    #[serde(default)]
    pub(crate) layers: Vec<String>,
}

/// What a turn measured. Its case and its place in the run are those that the runner sets.
// All in one struct: `serde(flatten)` reads no `f64` where any crate of the build has serde_json keep every digit.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Measurement {
    /// Place of its group; in runs of 2026-11-22, which have no groups, the number of connections.
    #[serde(alias = "connections")]
    pub(crate) group: usize,
    #[serde(alias = "contender")]
    pub(crate) case: String,
    pub(crate) round: usize,
    /// CPU time of the server's process for each request or document, where it is one process.
    pub(crate) cpu_micros: Option<f64>,
    /// The share of the cores' time that neither the server nor the tool took: PostgreSQL, or another program.
    pub(crate) others: Option<f64>,
    /// Further figures by the headings of their columns.
    #[serde(default)]
    pub(crate) figures: Vec<(String, f64)>,
    /// The command that made the load, where it was a program of its own.
    #[serde(skip)]
    pub(crate) command: Option<String>,
    /// What else was measured meanwhile.
    pub(crate) note: Option<String>,
    /// Bad answers, or none at all, are a result and fail no run.
    #[serde(skip)]
    pub(crate) is_excused: bool,
    pub(crate) measured: Measured,
}

impl Measurement {
    fn latency(&self, of: fn(&Latencies) -> f64) -> Option<f64> {
        self.measured.times.as_ref().map(of)
    }
}

/// Everything that was measured.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct BenchmarkReport {
    #[serde(default)]
    name: String,
    /// Runs of 2026-11-22 have it under another name.
    #[serde(alias = "provenance")]
    pub(crate) environment: RunEnvironment,
    /// On what and how it was measured.
    #[serde(default)]
    pub(crate) conditions: String,
    #[serde(default)]
    groups: Vec<Group>,
    samples: Vec<Measurement>,
    #[serde(skip_deserializing)]
    ratios: Vec<Ratio>,
}

/// Splits the name of a group, such as `JSON, 100 connections`, into what precedes the number and the number.
fn connections(name: &str) -> Option<(&str, u32)> {
    let name = name.strip_suffix(" connections")?;
    let (kind, count) = name.split_at(name.rfind(", ").map_or(0, |comma| comma + 2));
    Some((kind, count.parse().ok()?))
}

/// Returns a heading and a cell for each case; `None` where no case has one.
fn column<F>(group: &Group, heading: &str, cell: F) -> Option<Vec<String>>
where
    F: Fn(&str) -> Option<String>,
{
    let cells: Vec<_> = group.cases.iter().map(|case| cell(case)).collect();
    cells.iter().any(Option::is_some).then(|| {
        let texts = cells.into_iter().map(|cell| cell.unwrap_or("-".to_owned()));
        std::iter::once(heading.to_owned()).chain(texts).collect()
    })
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
    /// Creates an empty report of the benchmark `name`.
    pub(crate) fn new(
        name: &'static str,
        environment: RunEnvironment,
        conditions: String,
        groups: Vec<Group>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            environment,
            conditions,
            groups,
            samples: Vec::new(),
            ratios: Vec::new(),
        }
    }

    /// Reads what a run wrote.
    pub(crate) fn read(json: &str) -> anyhow::Result<Self> {
        let mut report: Self = serde_json::from_str(json)?;
        if report.groups.is_empty() {
            report.add_groups();
        }
        let groups = report.groups.len();
        let is_whole = report.samples.iter().all(|sample| sample.group < groups);
        ensure!(is_whole, "a sample is of no group");
        report.ratios = report.ratios();
        Ok(report)
    }

    /// Makes a group of each number of connections, which the samples of 2026-11-22 have in its place.
    fn add_groups(&mut self) {
        let counts: BTreeSet<usize> = self.samples.iter().map(|sample| sample.group).collect();
        for (place, count) in counts.into_iter().enumerate() {
            let mut cases = Vec::new();
            for sample in self
                .samples
                .iter_mut()
                .filter(|sample| sample.group == count)
            {
                sample.group = place;
                if !cases.contains(&sample.case) {
                    cases.push(sample.case.clone());
                }
            }
            self.groups.push(Group {
                name: format!("{count} connections"),
                unit: "requests/s".to_owned(),
                cases,
                ..Group::default()
            });
        }
    }

    /// Returns charts of rate, CPU time and p99: lines where groups differ in the number of connections, else bars.
    pub(crate) fn charts(&self) -> Vec<Chart> {
        // Groups that one chart shows: of one kind with any number of connections, or of the same cases.
        let family = |group: &usize| {
            let group = &self.groups[*group];
            let kind = connections(&group.name).map(|(kind, _)| kind);
            (kind, kind.is_none().then_some(&group.cases), &group.unit)
        };
        let mut families: Vec<Vec<usize>> = Vec::new();
        for group in 0..self.groups.len() {
            let mut known = families.iter_mut();
            match known.find(|groups| family(&groups[0]) == family(&group)) {
                Some(groups) => groups.push(group),
                None => families.push(vec![group]),
            }
        }
        let mut charts = Vec::new();
        for groups in &mut families {
            groups.sort_by_key(|group| connections(&self.groups[*group].name));
            let rate = (self.groups[groups[0]].unit.as_str(), 0, RATE);
            for (heading, _, figure) in [rate, CPU, P99] {
                charts.extend(self.charts_of(groups, heading, figure));
            }
        }
        charts
    }

    /// Returns charts of one figure, each of at most [`SERIES_MAX`] cases; cases without the figure are left out.
    fn charts_of(&self, groups: &[usize], heading: &str, figure: Figure) -> Vec<Chart> {
        let over = connections(&self.groups[groups[0]].name).filter(|_| groups.len() > 1);
        let log_y = over.is_some() && [CPU.0, P99.0].contains(&heading);
        let median = |group: usize, case: &str| {
            let median = self.median(group, case, figure);
            median.filter(|median| *median > 0.0 || !log_y)
        };
        let mut cases: Vec<&str> = Vec::new();
        for group in groups {
            for case in &self.groups[*group].cases {
                if median(*group, case).is_some() && !cases.contains(&case.as_str()) {
                    cases.push(case);
                }
            }
        }
        let charts = cases.len().div_ceil(SERIES_MAX).max(1);
        let series = cases.len().div_ceil(charts).max(1);
        let chart = |(place, cases): (usize, &[&str])| {
            let (kind, mut title) = match over {
                Some((kind, _)) => (ChartKind::Line, format!("{kind}{heading} over connections")),
                None => (ChartKind::Bar, heading.to_owned()),
            };
            if charts > 1 {
                title += &format!(" ({} of {charts})", place + 1);
            }
            let mut chart = Chart::new(kind, title, cases.iter().copied());
            (chart.log_x, chart.log_y) = (over.is_some(), log_y);
            for group in groups {
                let name = &self.groups[*group].name;
                let count = connections(name).filter(|_| chart.log_x);
                let label = count.map_or(name.clone(), |(_, count)| count.to_string());
                chart.push(label, cases.iter().map(|case| median(*group, case)));
            }
            chart
        };
        cases.chunks(series).enumerate().map(chart).collect()
    }

    /// Returns the median of a figure over all rounds of a case.
    fn median<F>(&self, group: usize, case: &str, figure: F) -> Option<f64>
    where
        F: Fn(&Measurement) -> Option<f64>,
    {
        Spread::of(self.of(group, case).filter_map(figure)).map(|spread| spread.median)
    }

    pub(crate) fn note(&mut self, sample: Measurement) {
        self.samples.push(sample);
        self.ratios = self.ratios();
    }

    /// Returns whether nothing has been measured.
    pub(crate) fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Returns whether there were answers in every turn that is not excused, and all of them good.
    pub(crate) fn is_good(&self) -> bool {
        let mut judged = self.samples.iter().filter(|turn| !turn.is_excused);
        judged.all(|turn| turn.measured.errors == 0 && turn.measured.requests > 0)
    }

    fn of<'a>(&'a self, group: usize, case: &'a str) -> impl Iterator<Item = &'a Measurement> {
        let is_of_case = move |turn: &&Measurement| turn.group == group && turn.case == case;
        self.samples.iter().filter(is_of_case)
    }

    fn ratios(&self) -> Vec<Ratio> {
        let mut ratios = Vec::new();
        for (number, group) in self.groups.iter().enumerate() {
            for (subject, reference) in &group.pairs {
                // Both of the same round.
                let rounds = self.of(number, subject).zip(self.of(number, reference));
                let rounds: Vec<(&Measurement, &Measurement)> = rounds.collect();
                let spread = |figure: Figure| {
                    Spread::of(rounds.iter().filter_map(|(one, other)| {
                        Some(figure(one)? / figure(other)?).filter(|ratio| ratio.is_finite())
                    }))
                };
                ratios.push(Ratio {
                    group: number,
                    subject: subject.clone(),
                    reference: reference.clone(),
                    per_second: spread(RATE),
                    cpu: spread(CPU.2),
                    p50: spread(P50.2),
                    p99: spread(P99.2),
                });
            }
        }
        ratios
    }

    /// Writes a table for the terminal: medians of rounds, then ratios.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        let groups = self.groups.iter().enumerate();
        for (number, group) in groups.filter(|(_, group)| !group.cases.is_empty()) {
            self.write_group(&mut text, number, group);
        }
        text
    }

    /// Returns the columns of a group's table: a heading and a cell for each case.
    fn columns(&self, number: usize, group: &Group) -> Vec<Vec<String>> {
        let median = |case: &str, digits: usize, figure: &dyn Fn(&Measurement) -> Option<f64>| {
            let median = self.median(number, case, figure)?;
            Some(format!("{median:.digits$}"))
        };
        // Few in a second differ only after the point.
        let is_many = |case: &str| self.median(number, case, RATE) >= Some(100.0);
        let mut columns = vec![column(group, &group.unit, |case| {
            median(case, if is_many(case) { 0 } else { 2 }, &RATE)
        })];
        for (heading, digits, figure) in COLUMNS {
            columns.push(column(group, heading, |case| median(case, digits, &figure)));
        }
        let samples = self.samples.iter().filter(|sample| sample.group == number);
        let mut headings: Vec<&str> = Vec::new();
        for (heading, _) in samples.flat_map(|sample| &sample.figures) {
            if !headings.contains(&heading.as_str()) {
                headings.push(heading);
                let figure = |turn: &Measurement| {
                    let mut figures = turn.figures.iter();
                    figures.find_map(|(name, figure)| (name == heading).then_some(*figure))
                };
                columns.push(column(group, heading, |case| median(case, 2, &figure)));
            }
        }
        columns.push(column(group, "errors", |case| {
            let errors = self.of(number, case).map(|turn| turn.measured.errors);
            Some(errors.sum::<u64>().to_string())
        }));
        columns.into_iter().flatten().collect()
    }

    fn write_group(&self, text: &mut String, number: usize, group: &Group) {
        let columns = self.columns(number, group);
        text.push('\n');
        let names = std::iter::once(&group.name).chain(&group.cases);
        for (row, name) in names.enumerate() {
            text.push_str(&format!("{name:<32}"));
            for (place, column) in columns.iter().enumerate() {
                let least = if place == 0 { 14 } else { 10 };
                let width = least.max(column[0].len() + 2);
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
        if !group.layers.is_empty() {
            text.push_str(&self.layers(number, &group.layers));
        }
    }

    /// Writes a line with the CPU time of the first layer and what each other adds to it.
    fn layers(&self, number: usize, layers: &[String]) -> String {
        let (mut text, mut below) = ("CPU µs of a request by layer:".to_owned(), 0.0);
        for case in layers {
            if let Some(median) = self.median(number, case, CPU.2) {
                text += &format!("  {case} {:+.2}", median - below);
                below = median;
            }
        }
        text += &format!("  = {below:.2}\n");
        text
    }

    /// Writes the README of the run's folder.
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
    use crate::report::plot;

    fn sample(case: &str, round: usize, per_second: f64) -> Measurement {
        Measurement {
            case: case.to_owned(),
            round,
            cpu_micros: (case != "pgbench").then_some(1e6 / per_second),
            figures: vec![("switches".to_owned(), 1.5)],
            measured: Measured {
                requests: 1,
                per_second,
                ..Measured::default()
            },
            ..Measurement::default()
        }
    }

    fn of_pair(subject: &str, reference: &str) -> BenchmarkReport {
        let names = [subject.to_owned(), reference.to_owned()];
        let group = Group {
            name: "128 connections".to_owned(),
            unit: "requests/s".to_owned(),
            cases: names.to_vec(),
            layers: vec![names[1].clone(), names[0].clone()],
            pairs: vec![names.into()],
        };
        let environment = RunEnvironment::example();
        BenchmarkReport::new("compare", environment, String::new(), vec![group])
    }

    #[test]
    fn ratios_are_of_the_turns_of_one_round() {
        let mut report = of_pair("larder", "limit");
        let rounds = [(10.0, 20.0), (30.0, 40.0), (50.0, 100.0)];
        for (round, (larder, limit)) in rounds.into_iter().enumerate() {
            let mut turns = [("larder", larder), ("limit", limit)];
            // Turns change places.
            turns.rotate_left(round % 2);
            for (case, rate) in turns {
                report.note(sample(case, round, rate));
            }
        }
        let ratio = &report.ratios[0];
        let spread = ratio.per_second.unwrap();
        assert_eq!((spread.min, spread.median, spread.max), (0.5, 0.5, 0.75));
        assert!((ratio.cpu.unwrap().median - 2.0).abs() < 1e-9);
        assert_eq!(ratio.p99, None);
        assert!(report.is_good());
        report.samples[3].measured.errors = 1;
        assert!(!report.is_good());
        report.samples[3].is_excused = true;
        assert!(report.is_good());
        let table = report.table();
        assert!(table.contains("larder / limit") && table.contains("switches"));
        assert!(table.contains("limit +25000.00  larder +8333.33  = 33333.33"));
    }

    #[test]
    fn it_is_read_back_and_drawn_by_connections_or_by_group() {
        let group = |(name, cases): (&str, &[&str])| Group {
            name: name.to_owned(),
            unit: "requests/s".to_owned(),
            cases: cases.iter().map(|case| (*case).to_owned()).collect(),
            ..Group::default()
        };
        let groups: [(&str, &[&str]); 5] = [
            ("1000 connections", &["epoll"]),
            ("20 connections", &["epoll", "pgbench"]),
            ("JSON, 20 connections", &["epoll"]),
            ("POST", &["old", "new"]),
            ("PUT", &["old", "new"]),
        ];
        let mut report = of_pair("", "");
        report.groups = groups.map(group).to_vec();
        for (group, (_, cases)) in groups.iter().enumerate() {
            for (case, rate) in cases.iter().zip([10.0, 20.0]) {
                let sample = sample(case, 0, rate);
                report.note(Measurement { group, ..sample });
            }
        }
        let json = serde_json::to_string(&report).unwrap();
        let charts = BenchmarkReport::read(&json).unwrap().charts();
        let wanted = "\
===\n{\"Name\":\"line\",\"Title\":\"requests/s over connections\",\"Width\":960,\"Height\":460,\
\"ItemName\":[\"epoll\",\"pgbench\"],\"LogX\":true}\n---\n20\t10\t20\n1000\t10\t-\n";
        assert_eq!(plot::text(&charts[..1]), wanted);
        let told = charts.iter().map(|chart| {
            let (rows, series) = (chart.rows.len(), chart.series.len());
            (chart.title.as_str(), rows, series)
        });
        let wanted = [
            ("requests/s over connections", 2, 2),
            ("CPU µs over connections", 2, 1),
            ("requests/s", 1, 1),
            ("CPU µs", 1, 1),
            ("requests/s", 2, 2),
            ("CPU µs", 2, 2),
        ];
        assert_eq!(told.collect::<Vec<_>>(), wanted);
    }
}
