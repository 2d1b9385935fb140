//! Charts as text: the format of `.chart` files, which `loadtest plot` draws and `loadtest report` writes.
//!
//! A chart is a line `===`, a JSON head, a line `---`, and rows of a label and numbers: the format of goplot
//! (<https://github.com/skoowoo/goplot>), which has whole numbers and spaces alone. Fractions, tabs, labels in quotes,
//! missing numbers (`-`), titles and logarithmic axes are added here.

mod draw;
pub(crate) mod page;

use anyhow::{Context, anyhow, ensure};
use serde::{Deserialize, Deserializer, Serialize};

const CHART_LINE: &str = "===";
const ROWS_LINE: &str = "---";
/// Stands for a number that is not known.
const MISSING: &str = "-";
const ROWS_MAX: usize = 10_000;
/// As many as there are colors.
pub(crate) const SERIES_MAX: usize = 12;
/// Pixels, of width and height.
const SIZE_MIN: u32 = 200;
const SIZE_MAX: u32 = 4_000;
/// Pixels of a name in the legend.
const NAME_HEIGHT: usize = 20;
/// Distance from 0, for which plotters finds labels of an axis.
const NUMBER_MIN: f64 = 1e-12;
const NUMBER_MAX: f64 = 1e15;

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

    /// Returns all numbers that are known, row by row.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = f64> {
        let rows = self.rows.iter();
        rows.flat_map(|row| row.numbers.iter().flatten().copied())
    }

    /// Checks the head and each row.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let is_size = |pixels| (SIZE_MIN..=SIZE_MAX).contains(&pixels);
        ensure!(
            is_size(self.width) && is_size(self.height),
            "Width and Height have to be from {SIZE_MIN} to {SIZE_MAX} pixels"
        );
        self.rows.iter().try_for_each(|row| self.check_row(row))?;
        let is_pie = self.kind == ChartKind::Pie;
        let names = if is_pie {
            self.rows.len()
        } else {
            self.series.len()
        };
        ensure!(
            self.height as usize >= names * NAME_HEIGHT,
            "Height has to be at least {NAME_HEIGHT} pixels for each name"
        );
        let is_drawn = self.numbers().any(|number| number > 0.0 || !is_pie);
        ensure!(is_drawn, "no numbers, or none above 0 in a pie");
        let labels = || self.rows.iter().map(ChartRow::label_number);
        let is_log = labels().all(|label| label > 0.0 && label.is_normal())
            && labels().is_sorted_by(|one, next| one < next)
            && !matches!(self.kind, ChartKind::Bar | ChartKind::Pie);
        ensure!(
            is_log || !self.log_x,
            "LogX is for lines, whose labels have to be positive numbers that increase"
        );
        Ok(())
    }

    fn check_row(&self, row: &ChartRow) -> anyhow::Result<()> {
        let is_pie = self.kind == ChartKind::Pie;
        let (rows_max, series_max) = match self.kind {
            ChartKind::Pie => (SERIES_MAX, 1),
            _ => (ROWS_MAX, SERIES_MAX),
        };
        ensure!(self.rows.len() <= rows_max, "more than {rows_max} rows");
        let (given, expected) = (row.numbers.len(), self.series.len());
        ensure!(given <= series_max, "more than {series_max} numbers");
        ensure!(given == expected, "{given} numbers; {expected} expected");
        for number in &row.numbers {
            let size = number.unwrap_or_default().abs();
            ensure!(
                size == 0.0 || (NUMBER_MIN..=NUMBER_MAX).contains(&size),
                "a number has to be 0, or from {NUMBER_MIN:e} to {NUMBER_MAX:e} with either sign"
            );
            let is_slice = number.is_some_and(|number| number >= 0.0);
            ensure!(is_slice || !is_pie, "a pie needs numbers from 0 on");
            let is_log = number.is_none_or(|number| number > 0.0);
            ensure!(is_log || !self.log_y, "LogY needs numbers above 0");
        }
        Ok(())
    }

    /// Appends a row of a file. The first one tells the number of series, if the head does not.
    fn add(&mut self, row: ChartRow) -> anyhow::Result<()> {
        if self.series.is_empty() {
            let places = 1..=row.numbers.len();
            self.series = places.map(|place| place.to_string()).collect();
        }
        self.rows.push(row);
        self.rows.last().map_or(Ok(()), |row| self.check_row(row))
    }
}

impl ChartRow {
    /// Returns the label as a number, NaN if it is none.
    pub(crate) fn label_number(&self) -> f64 {
        self.label.parse().unwrap_or(f64::NAN)
    }
}

/// Reads the charts of a file; errors name `file` and the line.
pub(crate) fn parse(file: &str, text: &str) -> anyhow::Result<Vec<Chart>> {
    let lines: Vec<(usize, &str)> = (1..).zip(text.lines().map(str::trim)).collect();
    let charts: Vec<Chart> = lines
        .split(|(_, line)| *line == CHART_LINE)
        .filter(|section| section.iter().any(|(_, line)| !line.is_empty()))
        .map(|section| parse_chart(file, section))
        .collect::<anyhow::Result<_>>()?;
    ensure!(!charts.is_empty(), "{file}:1: no chart");
    Ok(charts)
}

fn parse_chart(file: &str, lines: &[(usize, &str)]) -> anyhow::Result<Chart> {
    let at = |line: usize| format!("{file}:{line}");
    let first = lines[0].0;
    let end = lines.iter().position(|(_, line)| *line == ROWS_LINE);
    let end = end.with_context(|| format!("{}: no line {ROWS_LINE} after the head", at(first)))?;
    let head: Vec<&str> = lines[..end].iter().map(|(_, line)| *line).collect();
    let mut chart: Chart = serde_json::from_str(&head.join("\n")).map_err(|error| {
        let line = at(first + error.line().saturating_sub(1));
        let reason = error.to_string();
        // Its own line is that of the head.
        let (reason, _) = reason.rsplit_once(" at line ").unwrap_or((&reason, ""));
        anyhow!("{line}: the head: {reason}")
    })?;
    for (number, line) in lines[end + 1..].iter().filter(|(_, line)| !line.is_empty()) {
        let added = parse_row(line).and_then(|row| chart.add(row));
        added.with_context(|| at(*number))?;
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
                let number = number.map(|number| number.to_string());
                text += &format!("\t{}", number.as_deref().unwrap_or(MISSING));
            }
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_files_are_read_and_what_is_written_is_read_back() {
        let file = "===~{ 'Name' : 'line', 'Height' : 300,~'Width' : 550, 'ItemName': ['a', 'b'] }~---~\
            12/12   10  13 \r~~'two words'\t-0.5\t-~===~{'Name':'pie','Item':'c'}~---~x 1~===~\
            {'Name':'bar','LogY':true}~---~a 1e-12 1e15~===~";
        let file = file.replace('\'', "\"").replace('~', "\n");
        let mut line = Chart::new(ChartKind::Line, "", ["a", "b"]);
        (line.width, line.height) = (550, 300);
        line.push("12/12", [Some(10.0), Some(13.0)]);
        line.push("two words", [Some(-0.5), None]);
        let mut pie = Chart::new(ChartKind::Pie, "", ["c"]);
        pie.push("x", [Some(1.0)]);
        // goplot's own examples name no series.
        let mut bar = Chart::new(ChartKind::Bar, "", ["1", "2"]);
        bar.log_y = true;
        bar.push("a", [Some(1e-12), Some(1e15)]);
        let mut charts = [line, pie, bar];
        assert_eq!(parse("a.chart", &file).unwrap(), charts);
        for label in ["", " ", "---", "\"a\" b\\", "a\n===\r", "é\u{a0}"] {
            charts[0].title += label;
            charts[0].push(label, [Some(0.1 + 0.2), Some(-1e15 / 3.0)]);
        }
        assert_eq!(parse("a.chart", &text(&charts)).unwrap(), charts);
    }

    #[test]
    fn bad_files_are_refused_with_file_line_and_reason() {
        // File, line, reason; `~` is the end of a line, `BAR` and `PIE` are heads.
        let cases = "\
===~===~ # 1 # no chart
===~~{}~a 1 # 2 # no line ---
===~---~a 1 # 2 # the head: EOF
{'Name':'donut'}~---~a 1 # 1 # unknown variant `donut`
{'Name':'bar',~'Colour':1}~---~a 1 # 2 # unknown field `Colour`
{'Name':'bar','Item':1}~---~a 1 # 1 # a name or a list of names
{'Name':'bar','Item':'a','ItemName':'a'}~---~a 1 # 1 # duplicate field
{'Name':'bar','Width':1000000}~---~a 1 # 1 # from 200 to 4000 pixels
{'Name':'bar','Height':-1}~---~a 1 # 1 # invalid value
{'Name':'bar','Height':200}~---~a 1 2 3 4 5 6 7 8 9 10 11 # 1 # 20 pixels for each name
{'Name':'line','LogX':true}~---~1e-323 1 # 1 # that increase
{'Name':'bar','LogY':true}~---~a 0 # 3 # numbers above 0
{'Name':'bar','LogX':true}~---~1 1 # 1 # LogX is for lines
{'Name':'line','LogX':true}~---~2 1~1 1 # 1 # that increase
{'Name':'line','LogX':true}~---~a 1 # 1 # that increase
BAR~a 1 2 3 4 5 6 7 8 9 10 11 12 13 # 3 # more than 12 numbers
BAR~a - # 1 # no numbers
BAR~a 1~---~b 1 # 4 # no number after the label '---'
BAR~a 1~b 1 2 # 4 # 2 numbers; 1 expected
BAR~a 1~b c 2 # 4 # 'c' is no number
BAR~'a 1 # 3 # the label in quotes
BAR~a NaN # 3 # a number has to be 0
BAR~a 1e16 # 3 # a number has to be 0
PIE~a 0~b 0 # 1 # none above 0
PIE~a 1~b -1 # 4 # numbers from 0 on
PIE~a 1 2 # 3 # more than 1 numbers
PIE~a 1~a 1~a 1~a 1~a 1~a 1~a 1~a 1~a 1~a 1~a 1~a 1~a 1 # 15 # more than 12 rows
BAR";
        let rows = "~a 1".repeat(ROWS_MAX + 1);
        let cases = format!("{cases}{rows} # 10003 # more than 10000 rows")
            .replace("BAR", "{'Name':'bar'}~---")
            .replace("PIE", "{'Name':'pie'}~---");
        for case in cases.replace('\'', "\"").lines() {
            let [text, line, reason] = *case.split(" # ").collect::<Vec<_>>() else {
                panic!("{case}");
            };
            let charts = parse("a.chart", &text.replace('~', "\n"));
            let error = format!("{:#}", charts.unwrap_err());
            let is_placed = error.starts_with(&format!("a.chart:{line}: "));
            assert!(is_placed && error.contains(reason), "{text:.300}: {error}");
        }
    }
}
