//! Charts as text: the format of `.chart` files, which `loadtest plot` draws and `loadtest report` writes.
//!
//! A chart is a line `===`, a JSON head, a line `---`, and rows of a label and numbers: the format of goplot
//! (<https://github.com/skoowoo/goplot>), which has whole numbers and spaces alone. Fractions, tabs, labels in quotes, a
//! missing number (`-`), titles and logarithmic axes are added here.

mod axis;
mod draw;
pub(crate) mod page;

use anyhow::{Context, anyhow, bail, ensure};
use serde::{Deserialize, Deserializer, Serialize};

const CHART_LINE: &str = "===";
const ROWS_LINE: &str = "---";
/// Stands for a number that is not known.
const MISSING: &str = "-";
const ROWS_MAX: usize = 10_000;
/// As many as there are colors.
pub(crate) const SERIES_MAX: usize = 12;
/// Pixels, of width and height.
const SIZES: std::ops::RangeInclusive<u32> = 100..=4_000;
/// Greatest and least distance from 0, so that sums and steps of an axis are finite.
const NUMBER_MAX: f64 = 1e300;
const NUMBER_MIN: f64 = 1e-300;

/// How a chart is drawn.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ChartKind {
    /// A smooth curve with a dot for each number.
    Line,
    /// A smooth curve without dots.
    LineNoDot,
    /// Straight lines without dots.
    LineNoCurve,
    /// A bar for each number, beside those of its row.
    Bar,
    /// A slice for each row.
    Pie,
}

/// One chart. Serializes as the head of its text.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(crate) struct Chart {
    #[serde(rename = "Name")]
    pub(crate) kind: ChartKind,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) title: String,
    /// Pixels.
    #[serde(default = "default_width")]
    pub(crate) width: u32,
    /// Pixels.
    #[serde(default = "default_height")]
    pub(crate) height: u32,
    /// The name of each number of a row.
    #[serde(
        default,
        rename = "ItemName",
        alias = "Item",
        deserialize_with = "one_or_many"
    )]
    pub(crate) series: Vec<String>,
    /// Places the rows of a line chart by the logarithms of their labels, which are numbers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) log_x: bool,
    /// Places numbers by their logarithms.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) log_y: bool,
    #[serde(skip)]
    pub(crate) rows: Vec<ChartRow>,
}

/// A label with a number for each series.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChartRow {
    pub(crate) label: String,
    pub(crate) numbers: Vec<Option<f64>>,
}

fn default_width() -> u32 {
    960
}

fn default_height() -> u32 {
    460
}

fn one_or_many<'de, D: Deserializer<'de>>(head: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "ItemName has to be a name or a list of names")]
    enum Names {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Names::deserialize(head)? {
        Names::One(name) => vec![name],
        Names::Many(names) => names,
    })
}

impl Chart {
    /// Creates a chart of the default size, without rows.
    pub(crate) fn new(
        kind: ChartKind,
        title: impl Into<String>,
        series: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            kind,
            title: title.into(),
            width: default_width(),
            height: default_height(),
            series: series.into_iter().map(Into::into).collect(),
            log_x: false,
            log_y: false,
            rows: Vec::new(),
        }
    }

    /// Appends a row.
    pub(crate) fn push(
        &mut self,
        label: impl Into<String>,
        numbers: impl IntoIterator<Item = Option<f64>>,
    ) {
        self.rows.push(ChartRow {
            label: label.into(),
            numbers: numbers.into_iter().collect(),
        });
    }

    /// All numbers that are known, row by row.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = f64> {
        self.rows
            .iter()
            .flat_map(|row| &row.numbers)
            .flatten()
            .copied()
    }

    /// Checks what holds for a chart as a whole and for each of its rows.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.check_sizes()?;
        self.rows.iter().try_for_each(|row| self.check_row(row))?;
        let is_pie = self.kind == ChartKind::Pie;
        ensure!(!is_pie || !(self.log_x || self.log_y), "a pie has no axis");
        ensure!(self.numbers().next().is_some(), "no numbers");
        let is_empty = is_pie && self.numbers().all(|number| number == 0.0);
        ensure!(!is_empty, "a pie needs a number above 0");
        if self.log_x {
            let labels = self.rows.iter().map(ChartRow::label_number);
            ensure!(
                self.kind != ChartKind::Bar
                    && labels.clone().all(|label| label > 0.0 && label.is_finite())
                    && labels.is_sorted_by(|one, next| one < next),
                "LogX is for lines, whose labels have to be positive numbers that increase"
            );
        }
        Ok(())
    }

    fn check_sizes(&self) -> anyhow::Result<()> {
        for (name, pixels) in [("Width", self.width), ("Height", self.height)] {
            let (least, greatest) = (SIZES.start(), SIZES.end());
            ensure!(
                SIZES.contains(&pixels),
                "{name} is {pixels}; it has to be {least} to {greatest} pixels"
            );
        }
        let (rows_max, series_max) = match self.kind {
            ChartKind::Pie => (SERIES_MAX, 1),
            _ => (ROWS_MAX, SERIES_MAX),
        };
        let (rows, series) = (self.rows.len(), self.series.len());
        ensure!(rows <= rows_max, "more than {rows_max} rows");
        ensure!(
            series <= series_max,
            "{series} numbers in a row; at most {series_max} can be drawn"
        );
        Ok(())
    }

    fn check_row(&self, row: &ChartRow) -> anyhow::Result<()> {
        let (given, expected) = (row.numbers.len(), self.series.len());
        ensure!(
            given == expected,
            "{given} numbers in the row {:?}; {expected} expected",
            row.label
        );
        for number in &row.numbers {
            let size = number.unwrap_or_default().abs();
            ensure!(
                size == 0.0 || (NUMBER_MIN..=NUMBER_MAX).contains(&size),
                "a number has to be 0, or from {NUMBER_MIN:e} to {NUMBER_MAX:e} with either sign"
            );
            ensure!(
                self.kind != ChartKind::Pie || number.is_some_and(|number| number >= 0.0),
                "a slice of a pie can be neither negative nor missing"
            );
        }
        Ok(())
    }
}

impl ChartRow {
    /// NaN if the label is no number.
    pub(crate) fn label_number(&self) -> f64 {
        self.label.parse().unwrap_or(f64::NAN)
    }
}

/// Reads the charts of a file; errors name `file` and the line.
pub(crate) fn parse(file: &str, text: &str) -> anyhow::Result<Vec<Chart>> {
    let lines = text.lines().map(str::trim);
    let lines: Vec<(usize, &str)> = (1..).zip(lines).collect();
    let charts: Vec<Chart> = lines
        .split(|(_, line)| *line == CHART_LINE)
        .filter(|section| section.iter().any(|(_, line)| !line.is_empty()))
        .map(|section| parse_chart(file, section))
        .collect::<anyhow::Result<_>>()?;
    ensure!(!charts.is_empty(), "{file}:1: no chart");
    Ok(charts)
}

fn parse_chart(file: &str, lines: &[(usize, &str)]) -> anyhow::Result<Chart> {
    let first = lines.first().map_or(1, |(number, _)| *number);
    let at = |number: usize| format!("{file}:{number}");
    let Some(end) = lines.iter().position(|(_, line)| *line == ROWS_LINE) else {
        bail!(
            "{}: no line {ROWS_LINE} between the head and the rows",
            at(first)
        );
    };
    // Empty lines before it, so that errors name the line of the file.
    let mut head = "\n".repeat(first - 1);
    for (_, line) in &lines[..end] {
        head.push_str(line);
        head.push('\n');
    }
    let mut chart: Chart = serde_json::from_str(&head)
        .map_err(|error| anyhow!("{}: the head: {error}", at(error.line().max(first))))?;
    chart.check_sizes().with_context(|| at(first))?;
    let rows = lines[end + 1..].iter().filter(|(_, line)| !line.is_empty());
    for (number, line) in rows {
        let row = parse_row(line).with_context(|| at(*number))?;
        if chart.series.is_empty() {
            chart.series = match row.numbers.len() {
                1 => vec![String::new()],
                count => (1..=count).map(|place| place.to_string()).collect(),
            };
        }
        let checked = chart.check_row(&row);
        chart.rows.push(row);
        chart
            .check_sizes()
            .and(checked)
            .with_context(|| at(*number))?;
    }
    chart.check().with_context(|| at(first))?;
    Ok(chart)
}

fn parse_row(line: &str) -> anyhow::Result<ChartRow> {
    let (label, rest) = if line.starts_with('"') {
        let mut values = serde_json::Deserializer::from_str(line).into_iter::<String>();
        let label = values.next().transpose().context("the label in quotes")?;
        (label.unwrap_or_default(), &line[values.byte_offset()..])
    } else {
        let (label, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        (label.to_owned(), rest)
    };
    let numbers = rest.split_whitespace().map(|word| match word {
        MISSING => Ok(None),
        _ => word.parse().map(Some).with_context(|| {
            format!("{word:?} is no number; a label with spaces has to be in quotes")
        }),
    });
    let numbers: Vec<Option<f64>> = numbers.collect::<anyhow::Result<_>>()?;
    ensure!(!numbers.is_empty(), "no number after the label {label:?}");
    Ok(ChartRow { label, numbers })
}

/// Writes charts as [`parse`] reads them.
pub(crate) fn text(charts: &[Chart]) -> String {
    let mut text = String::new();
    for chart in charts {
        // Neither strings nor numbers can fail to become JSON.
        let head = serde_json::to_string(chart).unwrap_or_default();
        text += &format!("{CHART_LINE}\n{head}\n{ROWS_LINE}\n");
        for row in &chart.rows {
            let is_word = !row.label.contains(char::is_whitespace) && !row.label.starts_with('"');
            text += &if is_word && !row.label.is_empty() {
                row.label.clone()
            } else {
                serde_json::to_string(&row.label).unwrap_or_default()
            };
            for number in &row.numbers {
                let number = number.map(|number| format!("{number:?}"));
                let number = number.as_deref().unwrap_or(MISSING);
                text += &format!("\t{}", number.trim_end_matches(".0"));
            }
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn good_files_are_read() {
        let file = "===\n{ \"Name\" : \"line\", \"Height\" : 300,\n\"Width\" : 550, \"ItemName\": [\"a\", \"b\"] }\n---\n\
                    12/12   10  13 \r\n\n\"two words\"\t-0.5\t-\n===\n{\"Name\":\"pie\",\"Item\":\"c\"}\n---\nx 1\n===\n\
                    {\"Name\":\"bar\"}\n---\na 1 1e300\n===\n";
        let mut line = Chart::new(ChartKind::Line, "", ["a", "b"]);
        (line.width, line.height) = (550, 300);
        line.push("12/12", [Some(10.0), Some(13.0)]);
        line.push("two words", [Some(-0.5), None]);
        let mut pie = Chart::new(ChartKind::Pie, "", ["c"]);
        pie.push("x", [Some(1.0)]);
        // goplot's own examples name no series.
        let mut bar = Chart::new(ChartKind::Bar, "", ["1", "2"]);
        bar.push("a", [Some(1.0), Some(1e300)]);
        assert_eq!(parse("a.chart", file).unwrap(), [line, pie, bar]);
    }

    #[test]
    fn bad_files_are_refused_with_file_line_and_reason() {
        // File, line, reason; `~` is the end of a line, `BAR` a head.
        let cases = "\
~~ # 1 # no chart
===~===~ # 1 # no chart
===~~{}~a 1 # 2 # no line ---
===~---~a 1 # 2 # the head: EOF
{}~---~a 1 # 1 # missing field `Name`
{'Name':'donut'}~---~a 1 # 1 # unknown variant `donut`
{'Name':'bar',~'Colour':1}~---~a 1 # 2 # unknown field `Colour`
{'Name':'bar','Item':1}~---~a 1 # 1 # a name or a list of names
{'Name':'bar','Item':'a','ItemName':'a'}~---~a 1 # 1 # duplicate field
{'Name':'bar','Width':1000000}~---~a 1 # 1 # Width is 1000000
{'Name':'bar','Height':0}~---~a 1 # 1 # Height is 0
{'Name':'bar','Width':-1}~---~a 1 # 1 # invalid value
{'Name':'bar','Item':['a','b','c','d','e','f','g','h','i','j','k','l','m']}~---~a 1 # 1 # 13 numbers in a row
BAR~a 1 2 3 4 5 6 7 8 9 10 11 12 13 # 3 # 13 numbers in a row
BAR # 1 # no numbers
BAR~a - # 1 # no numbers
BAR~a # 3 # no number after the label 'a'
BAR~a 1~---~b 1 # 4 # no number after the label
BAR~a 1~b 1 2 # 4 # 2 numbers in the row 'b'; 1 expected
BAR~a 1~b c 2 # 4 # 'c' is no number
BAR~'a 1 # 3 # the label in quotes
BAR~a NaN # 3 # a number has to be 0
BAR~a -inf # 3 # a number has to be 0
BAR~a 1e400 # 3 # a number has to be 0
BAR~a 1e-310 # 3 # a number has to be 0
PIE~a 0~b 0 # 1 # a number above 0
PIE~a 1~b -1 # 4 # neither negative nor missing
PIE~a 1 2 # 3 # at most 1
PIE~a 1~a 1~a 1~a 1~a 1~a 1~a 1~a 1~a 1~a 1~a 1~a 1~a 1 # 15 # more than 12 rows
{'Name':'pie','LogY':true}~---~a 1 # 1 # no axis
{'Name':'line','LogX':true}~---~2 1~1 1 # 1 # that increase
{'Name':'line','LogX':true}~---~a 1 # 1 # that increase";
        let cases = cases
            .replace("BAR", "{'Name':'bar'}~---")
            .replace("PIE", "{'Name':'pie'}~---")
            .replace('\'', "\"");
        let refused = |text: &str, line: &str, reason: &str| {
            let error = format!("{:#}", parse("a.chart", text).unwrap_err());
            let is_placed = error.starts_with(&format!("a.chart:{line}: "));
            assert!(is_placed && error.contains(reason), "{text:.300}: {error}");
        };
        for case in cases.lines() {
            let [text, line, reason] = *case.split(" # ").collect::<Vec<_>>() else {
                panic!("{case}");
            };
            refused(&text.replace('~', "\n"), line, reason);
        }
        let many = format!(
            "{{\"Name\":\"bar\"}}\n---\n{}",
            "a 1\n".repeat(ROWS_MAX + 1)
        );
        refused(&many, "10003", "more than 10000 rows");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            kinds in proptest::collection::vec(0..4_usize, 1..4),
            names in proptest::collection::vec("(?s).{0,6}", 1..5),
            rows in proptest::collection::vec(("(?s).{0,8}", -1e300..1e300, any::<i32>()), 1..9),
            is_log in any::<bool>(),
        ) {
            let kinds = kinds.into_iter().map(|kind| {
                [ChartKind::Line, ChartKind::LineNoDot, ChartKind::LineNoCurve, ChartKind::Bar][kind]
            });
            let charts: Vec<Chart> = kinds.map(|kind| {
                let mut chart = Chart::new(kind, names[0].clone(), names.clone());
                chart.log_y = is_log;
                for (label, number, whole) in &rows {
                    let numbers = [Some(*number), Some(f64::from(*whole)), Some(1e-300), None];
                    chart.push(label, numbers.into_iter().cycle().take(names.len()));
                }
                chart
            }).collect();
            prop_assert_eq!(parse("a", &text(&charts)).unwrap(), charts);
        }
    }
}
