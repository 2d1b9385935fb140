//! `loadtest report`: runs as one page with charts, and the charts as text.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::report::benchmark_report::BenchmarkReport;
use crate::report::plot::page::{EXTENSION, PageSection, escaped, page, read};
use crate::report::plot::{self, Chart, ChartKind};
use crate::report::results::RunEnvironment;
use crate::report::sweep_run::{FILE, SweepPoint, SweepRun};

/// What [`report`] writes.
const PAGE: &str = "report.html";
const CHARTS: &str = "report.chart";
const SWEEPS: &str = "<p>A line for each tier that was in use alone; database: PostgreSQL answered every request. \
     CPU time and memory are larder's own; wrong: of the answers compared byte by byte beside the load.</p>\n";

/// Heading, whether the axis is logarithmic, and figure of a chart of sweeps.
type Question = (&'static str, bool, fn(&SweepPoint) -> Option<f64>);

const QUESTIONS: [Question; 5] = [
    ("requests/s", false, |of| Some(of.measured.per_second)),
    ("mean ms", false, |of| Some(of.measured.mean_ms)),
    ("mean ms", true, |of| Some(of.measured.mean_ms)),
    ("p99 ms", false, |of| Some(of.measured.times?.p99_ms)),
    ("p99 ms", true, |of| Some(of.measured.times?.p99_ms)),
];

/// Draws the runs of `directories`, sweeps over each other, as a page in `output` or in the first of them, and writes
/// the charts beside it as text.
pub(crate) fn report(
    directories: &[impl AsRef<Path>],
    output: Option<&Path>,
) -> anyhow::Result<()> {
    let first = directories.first().map(AsRef::as_ref);
    let output = output.or(first).context("no runs")?;
    let (mut sweeps, mut sections) = (Vec::new(), Vec::new());
    for directory in directories {
        read_run(directory.as_ref(), &mut sweeps, &mut sections)?;
    }
    if !sweeps.is_empty() {
        let charts = QUESTIONS.iter().map(|question| chart(question, &sweeps));
        let charts = charts.filter(|chart| chart.numbers().next().is_some());
        let section = PageSection {
            heading: "Sweeps".to_owned(),
            charts: charts.collect(),
            html: SWEEPS.to_owned(),
        };
        sections.insert(0, section);
    }
    let charts = sections.iter().flat_map(|section| &section.charts);
    let charts: Vec<Chart> = charts.cloned().collect();
    std::fs::create_dir_all(output).with_context(|| output.display().to_string())?;
    for (name, content) in [
        (PAGE, page("larder under load", &sections)?),
        (CHARTS, plot::text(&charts)),
    ] {
        let file = output.join(name);
        std::fs::write(&file, content).with_context(|| file.display().to_string())?;
        println!("{}", file.display());
    }
    Ok(())
}

/// Reads the files of a run's folder: a section for each. Where there is a chart of a JSON file's name, that is drawn.
fn read_run(
    directory: &Path,
    sweeps: &mut Vec<SweepRun>,
    sections: &mut Vec<PageSection>,
) -> anyhow::Result<()> {
    let at = || directory.display().to_string();
    let full = directory.canonicalize().with_context(at)?;
    let folder = full.file_name().unwrap_or_default().to_string_lossy();
    let entries = std::fs::read_dir(directory).with_context(at)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> = paths.collect::<Result<_, _>>().with_context(at)?;
    paths.sort();
    let before = sections.len();
    for path in paths {
        let at = || path.display().to_string();
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let extension = path.extension().unwrap_or_default();
        let (charts, html) = if extension == EXTENSION && file != CHARTS {
            (read(&path)?, String::new())
        } else if extension != "json" || path.with_extension(EXTENSION).is_file() {
            continue;
        } else if file == FILE {
            let text = std::fs::read_to_string(&path).with_context(at)?;
            let mut run: SweepRun = serde_json::from_str(&text).with_context(at)?;
            run.name = folder.clone().into_owned();
            let html = details(&run.conditions(), &run.table(), &run.environment);
            sweeps.push(run);
            (Vec::new(), html)
        } else {
            let text = std::fs::read_to_string(&path).with_context(at)?;
            let run = BenchmarkReport::read(&text).with_context(at)?;
            let html = details(&run.conditions, &run.table(), &run.environment);
            (run.charts(), html)
        };
        let heading = format!("{folder}: {file}");
        sections.push(PageSection {
            heading,
            charts,
            html,
        });
    }
    let kinds = format!("neither {FILE}, figures of a benchmark nor *.{EXTENSION}");
    ensure!(sections.len() > before, "{}: {kinds}", at());
    Ok(())
}

/// Writes HTML of what a run measured, and on what.
fn details(conditions: &str, table: &str, environment: &RunEnvironment) -> String {
    format!(
        "<p>{}</p>\n<pre>{}</pre>\n\
         <details><summary>Machine, versions and commands</summary>\n<pre>{}</pre></details>\n",
        escaped(conditions),
        escaped(table.trim_start_matches('\n')),
        escaped(&environment.markdown()),
    )
}

/// Returns a chart with a line for each tier of each run.
fn chart((heading, is_log, figure): &Question, runs: &[SweepRun]) -> Chart {
    let tiers = |run| {
        SweepRun::tiers(run)
            .into_iter()
            .map(move |tier| (run, tier))
    };
    let lines: Vec<(&SweepRun, &str)> = runs.iter().flat_map(tiers).collect();
    let names = lines.iter().map(|(run, tier)| match (*tier, runs.len()) {
        ("none", 1) => "database".to_owned(),
        ("none", _) => format!("database, {}", run.name),
        (tier, 1) => tier.to_owned(),
        (tier, _) => format!("{tier}, {}", run.name),
    });
    let scale = if *is_log { " (logarithmic)" } else { "" };
    let title = format!("{heading} over connections{scale}");
    let mut chart = Chart::new(ChartKind::Line, title, names);
    (chart.log_x, chart.log_y) = (true, *is_log);
    let points = runs.iter().flat_map(|run| &run.points);
    let connections: BTreeSet<usize> = points.map(|point| point.concurrency).collect();
    for count in connections {
        let number = |(run, tier): &(&SweepRun, &str)| {
            let mut points = run.points.iter();
            let point = points.find(|point| point.tier == *tier && point.concurrency == count)?;
            figure(point).filter(|number| *number > 0.0 || !is_log)
        };
        chart.push(count.to_string(), lines.iter().map(number));
    }
    chart
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sweep_run::tests::run;

    fn kept(results: &Path, name: &str) -> PathBuf {
        let folder = results.join(name);
        std::fs::create_dir(&folder).unwrap();
        let json = serde_json::to_string(&run(name)).unwrap();
        std::fs::write(folder.join(FILE), json).unwrap();
        folder
    }

    #[test]
    fn a_run_becomes_a_page_beside_its_figures() {
        let results = tempfile::tempdir().unwrap();
        let folder = kept(results.path(), "one");
        // The chart is drawn in place of the figures, which are of no benchmark.
        std::fs::write(folder.join("indexes.json"), "{}").unwrap();
        let chart = "{\"Name\":\"pie\"}\n---\nx 1\n";
        std::fs::write(folder.join("indexes.chart"), chart).unwrap();
        // The second time beside its own charts, which are not drawn again.
        for _ in 0..2 {
            report(&[&folder], None).unwrap();
            let page = std::fs::read_to_string(folder.join(PAGE)).unwrap();
            assert_eq!(page.matches("<svg").count(), QUESTIONS.len() + 1);
            assert!(page.contains("90000") && page.contains("memory") && page.contains("database"));
            assert!(page.contains("a &lt;fast&gt; one") && !page.contains("a <fast> one"));
        }
        let charts = read(&folder.join(CHARTS)).unwrap();
        assert_eq!(charts.len(), QUESTIONS.len() + 1);
        assert_eq!(charts[0].rows[0].numbers, [Some(9_000.0), Some(90_000.0)]);
    }

    #[test]
    fn runs_are_laid_over_each_other() {
        let results = tempfile::tempdir().unwrap();
        let folders = ["before", "after"].map(|name| kept(results.path(), name));
        let output = results.path().join("both");
        report(&folders, Some(&output)).unwrap();
        let page = std::fs::read_to_string(output.join(PAGE)).unwrap();
        assert!(page.contains("memory, before") && page.contains("memory, after"));
    }

    #[test]
    fn every_kept_run_is_drawn() {
        let output = tempfile::tempdir().unwrap();
        let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
        for entry in std::fs::read_dir(results).unwrap() {
            let folder = entry.unwrap().path();
            if folder.is_dir() {
                report(&[&folder], Some(output.path())).unwrap();
                let charts = read(&output.path().join(CHARTS)).unwrap();
                assert!(charts.len() > 1, "{}", folder.display());
            }
        }
    }

    #[test]
    fn what_is_no_run_is_named() {
        let results = tempfile::tempdir().unwrap();
        let error = report(&[results.path()], None).unwrap_err();
        assert!(error.to_string().contains(FILE), "{error}");
        let other = results.path().join("other.json");
        std::fs::write(&other, "{}").unwrap();
        let error = report(&[results.path()], None).unwrap_err();
        assert!(error.to_string().contains("other.json"), "{error}");
        let absent = results.path().join("absent");
        report(&[&absent], None).unwrap_err();
        assert!(!absent.exists());
    }
}
