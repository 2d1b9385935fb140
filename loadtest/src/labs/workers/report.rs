//! The figures as tables and charts.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::labs::workers::round::{PARAMETERS, Setting};
use crate::report::plot::{self, Chart, ChartKind};

/// What stands around the tables.
const TEXT: &str = include_str!("report.md");
const NAMES: [&str; 6] = ["times", "fills", "costs", "plans", "loadings", "laps"];

/// Tables by their names in [`TEXT`]. A line is an object of numbers, texts or null by the names of the columns.
#[derive(Default, Serialize)]
#[serde(transparent)]
pub(super) struct Tables(BTreeMap<&'static str, Vec<Value>>);

impl Tables {
    pub(super) fn add(&mut self, name: &'static str, lines: Vec<Value>) {
        self.0.entry(name).or_default().extend(lines);
    }

    /// Writes the text with all tables.
    pub(super) fn text(&self) -> String {
        NAMES.iter().fold(TEXT.to_owned(), |text, name| {
            let lines = self.0.get(name).map_or(&[][..], Vec::as_slice);
            text.replace(&format!("{{{name}}}\n"), &markdown(lines))
        })
    }
}

fn markdown(lines: &[Value]) -> String {
    let mut text = String::new();
    for line in lines.iter().filter_map(Value::as_object) {
        if text.is_empty() {
            let columns: Vec<&str> = line.keys().map(String::as_str).collect();
            let rule = vec!["---"; columns.len()].join(" | ");
            text = format!("| {} |\n| {rule} |\n", columns.join(" | "));
        }
        let cells: Vec<String> = line.values().map(cell).collect();
        text += &format!("| {} |\n", cells.join(" | "));
    }
    text + "\n"
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.replace('|', "\\|").replace('\n', " "),
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().unwrap_or_default();
            let digits = if number < 100.0 { 2 } else { 0 };
            format!("{number:.digits$}")
        }
        other => other.to_string(),
    }
}

/// Writes charts of the mean ms of matches and updates, which each store has for each setting: of the first setting, and by
/// each parameter that varies.
pub(super) fn charts(settings: &[Setting], stores: &[(String, Vec<[f64; 2]>)]) -> String {
    let figures = ["match", "update"];
    let known = |number: f64| Some(number).filter(|number| *number > 0.0);
    let bars = figures.map(|what| Chart::new(ChartKind::Bar, format!("{what}, mean ms"), [what]));
    let mut charts = bars.to_vec();
    for (name, means) in stores {
        for (chart, mean) in charts.iter_mut().zip(means[0]) {
            chart.push(name, [known(mean)]);
        }
    }
    for (place, name) in PARAMETERS.split(' ').enumerate() {
        let value = |number: &usize| settings[*number].values[place];
        let mut varied: Vec<usize> = (0..settings.len()).collect();
        varied.retain(|number| *number == 0 || value(number) != value(&0));
        varied.sort_by_key(value);
        varied.dedup_by_key(|number| value(number));
        for (figure, what) in figures.iter().enumerate().filter(|_| varied.len() > 1) {
            let names = stores.iter().map(|(name, _)| name);
            let title = format!("{what}, mean ms over {name}");
            let mut chart = Chart::new(ChartKind::Line, title, names);
            chart.log_x = value(&varied[0]) > 0;
            for number in &varied {
                let means = stores
                    .iter()
                    .map(|(_, means)| known(means[*number][figure]));
                chart.push(value(number).to_string(), means);
            }
            charts.push(chart);
        }
    }
    charts.retain(|chart| chart.numbers().next().is_some());
    charts.iter_mut().for_each(|chart| chart.log_y = true);
    plot::text(&charts)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tables_show_numbers_texts_and_what_is_missing() {
        let one = json!({"a": 8_000, "b": 0.126, "c": null});
        let other = json!({"a": "a|b", "b": 1234.5, "c": true});
        let mut tables = Tables::default();
        NAMES.iter().for_each(|name| tables.add(name, Vec::new()));
        tables.add("costs", vec![one, other]);
        let text = tables.text();
        let head = "| a | b | c |\n| --- | --- | --- |\n";
        let lines = "| 8000 | 0.13 | - |\n| a\\|b | 1234 | true |\n";
        assert!(text.contains(&format!("{head}{lines}")), "{text}");
        assert!(!text.contains('{'), "{text}");
    }

    #[test]
    fn charts_show_both_times_by_each_parameter_that_varies() {
        let setting = |rows, batch| Setting::of([rows, 20, 24, batch, 0, 0, 3]);
        let settings = [setting(100, 8_000), setting(1_000, 8_000), setting(100, 80)];
        let means = vec![[1.0, 2.0], [3.0, 4.0], [5.0, 0.0]];
        let text = charts(&settings, &[("redis".to_owned(), means)]);
        let charts = plot::parse("workers.chart", &text).unwrap();
        let titles: Vec<&str> = charts[2..].iter().map(|chart| &*chart.title).collect();
        let over = |name| ["match", "update"].map(|what| format!("{what}, mean ms over {name}"));
        assert_eq!(titles, [over("rows"), over("batch")].concat());
        assert_eq!(charts[1].rows[0].numbers, [Some(2.0)]);
        let rows = charts[5]
            .rows
            .iter()
            .map(|row| (&*row.label, row.numbers[0]));
        assert_eq!(
            rows.collect::<Vec<_>>(),
            [("80", None), ("8000", Some(2.0))]
        );
    }
}
