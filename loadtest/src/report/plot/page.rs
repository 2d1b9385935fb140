//! Pages of charts, and `loadtest plot`.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};

use crate::report::plot::{Chart, draw, parse};

/// How files of charts end.
pub(crate) const EXTENSION: &str = "chart";
const FILE_BYTES_MAX: u64 = 16 << 20;
/// On a page.
const CHARTS_MAX: usize = 1_000;
/// Files and folders that are looked at, which bounds the depth of folders, too.
const ENTRIES_MAX: usize = 10_000;
/// [`draw`] draws text and axes in black.
const STYLE: &str = "
:root { color-scheme: light dark; --code: #f5f5f5; }
@media (prefers-color-scheme: dark) { :root { --code: #1e252d; } body { background: #161b21; } }
body { font: 16px/1.5 sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em; }
svg { max-width: 100%; height: auto; display: block; margin: 1em 0; }
svg text { fill: currentColor; }
[stroke='#000000'] { stroke: currentColor; }
pre { overflow-x: auto; background: var(--code); padding: 1em; font-size: 13px; }
";

/// A part of a page.
pub(crate) struct PageSection {
    pub(crate) heading: String,
    pub(crate) charts: Vec<Chart>,
    /// Follows the charts.
    pub(crate) html: String,
}

/// Draws the charts of a file, or of all files below a directory, as one page.
pub(crate) fn plot(input: &Path, output: Option<&Path>) -> anyhow::Result<()> {
    let (root, files, beside) = if input.is_dir() {
        (input, chart_files(input)?, input.join("plot.html"))
    } else {
        let (folder, files) = (input.parent().unwrap_or(input), vec![input.to_owned()]);
        (folder, files, input.with_added_extension("html"))
    };
    let output = output.unwrap_or(&beside);
    let is_input = output.extension().is_some_and(|end| end == EXTENSION);
    ensure!(
        !is_input,
        "{}: --output is a page, no *.{EXTENSION} file",
        output.display()
    );
    let mut sections = Vec::new();
    for file in &files {
        let heading = file.strip_prefix(root).unwrap_or(file);
        sections.push(PageSection {
            heading: heading.display().to_string(),
            charts: read(file)?,
            html: String::new(),
        });
    }
    let name = output.display().to_string();
    std::fs::write(output, page("Charts", &sections)?).with_context(|| name.clone())?;
    println!("{name}");
    Ok(())
}

/// Reads the charts of a file.
pub(crate) fn read(file: &Path) -> anyhow::Result<Vec<Chart>> {
    let name = file.display().to_string();
    let metadata = std::fs::metadata(file).with_context(|| name.clone())?;
    let is_readable = metadata.is_file() && metadata.len() <= FILE_BYTES_MAX;
    ensure!(is_readable, "{name}: no file, or larger than 16 MiB");
    let bytes = std::fs::read(file).with_context(|| name.clone())?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
        anyhow!("{name}:{line}: not UTF-8")
    })?;
    parse(&name, text.trim_start_matches('\u{feff}'))
}

/// Lists the files of charts below `root`, without following symbolic links.
fn chart_files(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let at = || root.display().to_string();
    let (mut files, mut folders, mut entries) = (Vec::new(), vec![root.to_owned()], 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let entry = entry.with_context(at)?;
            let (kind, path) = (entry.file_type().with_context(at)?, entry.path());
            entries += 1;
            ensure!(entries <= ENTRIES_MAX, "{}: over {ENTRIES_MAX} files", at());
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() && path.extension().is_some_and(|end| end == EXTENSION) {
                files.push(path);
            }
        }
    }
    ensure!(!files.is_empty(), "{}: no *.{EXTENSION} files", at());
    files.sort();
    Ok(files)
}

/// Writes HTML that loads nothing else.
pub(crate) fn page(title: &str, sections: &[PageSection]) -> anyhow::Result<String> {
    let charts = sections.iter().map(|section| section.charts.len());
    let is_small = charts.sum::<usize>() <= CHARTS_MAX;
    ensure!(is_small, "over {CHARTS_MAX} charts for one page");
    let title = escaped(title);
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n<h1>{title}</h1>\n"
    );
    for section in sections {
        html += &format!("<h2>{}</h2>\n", escaped(&section.heading));
        for chart in &section.charts {
            html += &draw::svg(chart).with_context(|| section.heading.clone())?;
        }
        html += &section.html;
    }
    Ok(html + "</html>\n")
}

/// Escapes text for HTML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_charts_below_a_directory_are_on_one_page() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let chart = "{\"Name\":\"pie\",\"Title\":\"a <b> & c\"}\n---\nx 1\n";
        std::fs::write(root.path().join("one.chart"), chart).unwrap();
        std::fs::write(inner.join("two.chart"), format!("{chart}===\n{chart}")).unwrap();
        std::fs::write(inner.join("other.txt"), "not a chart").unwrap();
        // Would never end if it were followed.
        std::os::unix::fs::symlink(root.path(), inner.join("loop")).unwrap();
        plot(root.path(), None).unwrap();
        let html = std::fs::read_to_string(root.path().join("plot.html")).unwrap();
        assert_eq!(html.matches("<svg").count(), 3);
        assert!(html.contains("<h2>inner/two.chart</h2>") && html.contains("a &lt;b&gt; &amp; c"));
        assert!(!html.contains("<b>") && !html.contains("src="));
        plot(&root.path().join("one.chart"), None).unwrap();
        assert!(root.path().join("one.chart.html").is_file());

        std::fs::write(inner.join("bad.chart"), format!("{chart}y -1\n")).unwrap();
        let error = format!("{:#}", plot(root.path(), None).unwrap_err());
        assert!(error.contains("inner/bad.chart:4: a pie"), "{error}");
        let (bad, many) = (inner.join("bad.chart"), inner.join("many.chart"));
        let charts = format!("{chart}===\n").repeat(CHARTS_MAX + 1);
        std::fs::write(&many, charts).unwrap();
        std::fs::write(&bad, b"\xef\xbb\xbf{}\n---\n\xff 1\n").unwrap();
        for (file, output, part) in [
            (&bad, None, "bad.chart:3: not UTF-8"),
            (&inner.join("no.chart"), None, "no.chart: No such file"),
            (
                &root.path().join("one.chart"),
                Some(bad.as_path()),
                "--output is a page",
            ),
            (&PathBuf::from("/dev/zero"), None, "no file"),
            (&many, None, "over 1000 charts"),
        ] {
            let error = format!("{:#}", plot(file, output).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn the_number_of_files_is_bounded() {
        let root = tempfile::tempdir().unwrap();
        let error = chart_files(root.path()).unwrap_err().to_string();
        assert!(error.contains("no *.chart files"), "{error}");
        for number in 0..=ENTRIES_MAX {
            std::fs::File::create(root.path().join(format!("{number}.chart"))).unwrap();
        }
        let error = chart_files(root.path()).unwrap_err().to_string();
        assert!(error.contains("over 10000 files"), "{error}");
    }
}
