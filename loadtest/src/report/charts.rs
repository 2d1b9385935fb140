//! `loadtest report`: sweeps as one page with charts, and the charts as files of their own.

mod draw;

use std::fmt::Write;
use std::path::Path;

use anyhow::Context;

use crate::report::charts::draw::{Chart, ChartLine, Scale};
use crate::report::sweep_run::{FILE, HEADINGS, SweepPoint, SweepRun};

const STYLE: &str = "
body { font: 16px/1.5 sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em; color: #222; }
svg { max-width: 100%; height: auto; display: block; margin: 1em 0; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 2px 10px; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
pre { overflow-x: auto; background: #f5f5f5; padding: 1em; font-size: 13px; }
";

/// One of the charts.
struct Question {
    file: &'static str,
    title: &'static str,
    scale: Scale,
    figure: fn(&SweepPoint) -> Option<f64>,
}

const QUESTIONS: [Question; 3] = [
    Question {
        file: "requests.svg",
        title: "Requests per second",
        scale: Scale::Linear,
        figure: |point| Some(point.measured.per_second),
    },
    Question {
        file: "mean.svg",
        title: "Mean time of a request, ms",
        scale: Scale::Logarithmic,
        figure: |point| Some(point.measured.mean_ms),
    },
    Question {
        file: "p99.svg",
        title: "99 % of requests take at most, ms",
        scale: Scale::Logarithmic,
        figure: |point| Some(point.measured.times?.p99_ms),
    },
];

/// Writes the page and the charts of `directories` to `output`, or to the first of them, and raw JSON beside them.
pub(crate) fn report(
    directories: &[impl AsRef<Path>],
    output: Option<&Path>,
) -> anyhow::Result<()> {
    let mut runs = Vec::new();
    for directory in directories {
        let file = directory.as_ref().join(FILE);
        let text = std::fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
        let run: SweepRun =
            serde_json::from_str(&text).with_context(|| format!("{}", file.display()))?;
        runs.push((run, text));
    }
    let output = output
        .or_else(|| directories.first().map(AsRef::as_ref))
        .context("no runs")?;
    std::fs::create_dir_all(output)?;
    let mut page = ReportPage::default();
    for question in &QUESTIONS {
        let svg = chart(question, runs.iter().map(|(run, _)| run)).svg()?;
        std::fs::write(output.join(question.file), &svg)?;
        page.charts.push_str(&svg);
    }
    for (place, (run, text)) in runs.iter().enumerate() {
        let is_here = directories[place].as_ref() == output;
        let raw = if is_here {
            FILE.to_owned()
        } else {
            format!("{}.json", run.name)
        };
        if !is_here {
            std::fs::write(output.join(&raw), text)?;
        }
        page.add(run, &raw);
    }
    let file = output.join("report.html");
    std::fs::write(&file, page.html())?;
    println!("{}", file.display());
    Ok(())
}

/// A line for each tier of each run; the first run's are solid.
fn chart<'a>(question: &Question, runs: impl Iterator<Item = &'a SweepRun>) -> Chart {
    let runs: Vec<&SweepRun> = runs.collect();
    let mut lines = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        for tier in run.tiers() {
            let points = run
                .of_tier(tier)
                .filter_map(|point| Some((point.concurrency, (question.figure)(point)?)));
            lines.push(ChartLine {
                name: if runs.len() > 1 {
                    format!("{tier}, {}", run.name)
                } else {
                    tier.to_owned()
                },
                color: color(tier),
                run: number,
                points: points.collect(),
            });
        }
    }
    Chart {
        title: question.title,
        scale: question.scale,
        lines,
    }
}

/// As distinct to people who see fewer colours (Okabe and Ito, "Color Universal Design", 2008).
fn color(tier: &str) -> [u8; 3] {
    match tier {
        "memory" => [0x00, 0x72, 0xb2],
        "disk" => [0xd5, 0x5e, 0x00],
        "none" => [0x00, 0x9e, 0x73],
        _ => [0xcc, 0x79, 0xa7],
    }
}

/// The page's parts.
#[derive(Default)]
struct ReportPage {
    charts: String,
    runs: String,
}

impl ReportPage {
    fn add(&mut self, run: &SweepRun, raw: &str) {
        let of = &run.environment;
        let mut text = format!(
            "<h2>{}</h2>\n<p>{}. larder on core {}, the tool on core {}. {}, commit {}; {} cores of {}, {} MiB, Linux {}. \
             <a href=\"{raw}\">Raw figures</a></p>\n<table>\n",
            escaped(&run.name),
            escaped(&run.conditions()),
            escaped(&run.server_cores),
            escaped(&run.tool_cores),
            escaped(&of.began),
            escaped(&of.commit),
            of.cores,
            escaped(&of.processor),
            of.memory_mib,
            escaped(&of.kernel),
            raw = escaped(raw),
        );
        let rows = run.rows();
        let head = [HEADINGS.map(str::to_owned)];
        for (tag, row) in head
            .iter()
            .map(|row| ("th", row))
            .chain(rows.iter().map(|row| ("td", row)))
        {
            let cells: String = row
                .iter()
                .map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell)))
                .collect();
            // Writing to a string can't fail.
            writeln!(text, "<tr>{cells}</tr>").unwrap_or_default();
        }
        text.push_str("</table>\n");
        for line in run.strays() {
            writeln!(text, "<p>{}.</p>", escaped(&line)).unwrap_or_default();
        }
        if let Some(footprint) = run.footprint {
            text.push_str(&format!(
                "<p>A document in memory takes {:.0} bytes of the process, {:.0} of them its own.</p>\n",
                footprint.resident, footprint.document
            ));
        }
        text.push_str("<details><summary>Versions and commands</summary>\n<ul>\n");
        for (program, version) in &of.versions {
            writeln!(text, "<li>{}: {}</li>", escaped(program), escaped(version))
                .unwrap_or_default();
        }
        writeln!(
            text,
            "</ul>\n<pre>{}</pre></details>",
            escaped(&of.commands.join("\n"))
        )
        .unwrap_or_default();
        self.runs.push_str(&text);
    }

    fn html(&self) -> String {
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>larder under load</title>\n\
             <style>{STYLE}</style>\n<h1>larder under load</h1>\n<p>A line for each tier that was in use alone: memory, disk, \
             or none, where PostgreSQL answers every request. Below: connections that each ask for the next document once \
             they have one. CPU time and memory are those of larder's own process; wrong: of the answers that were compared \
             byte by byte beside the load.</p>\n{}\n{}</html>\n",
            self.charts, self.runs,
        )
    }
}

/// Text for HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sweep_run::tests::run;

    fn kept(results: &Path, name: &str) -> std::path::PathBuf {
        let folder = results.join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(
            folder.join(FILE),
            serde_json::to_string(&run(name)).unwrap(),
        )
        .unwrap();
        folder
    }

    #[test]
    fn a_run_becomes_a_page_beside_its_figures() {
        let results = tempfile::tempdir().unwrap();
        let folder = kept(results.path(), "one");
        report(&[&folder], None).unwrap();
        let page = std::fs::read_to_string(folder.join("report.html")).unwrap();
        assert_eq!(page.matches("<svg").count(), QUESTIONS.len());
        assert!(page.contains("<td>90000</td>") && page.contains("href=\"sweep.json\""));
        assert!(page.contains("a &lt;fast&gt; one") && !page.contains("a <fast> one"));
        for question in &QUESTIONS {
            let svg = std::fs::read_to_string(folder.join(question.file)).unwrap();
            assert!(
                svg.starts_with("<svg") && svg.contains(question.title) && svg.contains("memory")
            );
        }
    }

    #[test]
    fn runs_are_laid_over_each_other() {
        let results = tempfile::tempdir().unwrap();
        let folders = ["before", "after"].map(|name| kept(results.path(), name));
        let output = results.path().join("both");
        report(&folders, Some(&output)).unwrap();
        let svg = std::fs::read_to_string(output.join("requests.svg")).unwrap();
        assert!(svg.contains("memory, before") && svg.contains("memory, after"));
        assert!(output.join("before.json").is_file() && output.join("after.json").is_file());
    }

    #[test]
    fn what_is_no_run_is_named() {
        let results = tempfile::tempdir().unwrap();
        let error = report(&[results.path()], None).unwrap_err();
        assert!(error.to_string().contains(FILE), "{error}");
    }
}
