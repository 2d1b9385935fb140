//! Pages of charts, and `loadtest plot`.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::report::plot::{Chart, draw, parse};

/// How files of charts end.
pub(crate) const EXTENSION: &str = "chart";
/// Folders inside each other.
const DEPTH_MAX: usize = 16;
/// Files and folders that are looked at.
const ENTRIES_MAX: usize = 100_000;
/// All files of a page.
const BYTES_MAX: u64 = 64 << 20;
/// [`draw`] draws in black, with a grid whose color is named here.
const STYLE: &str = "
:root { color-scheme: light dark; --grid: #e1e1e1; --code: #f5f5f5; }
@media (prefers-color-scheme: dark) { :root { --grid: #333b45; --code: #1e252d; } body { background: #161b21; } }
body { font: 16px/1.5 sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em; }
svg { max-width: 100%; height: auto; display: block; margin: 1em 0; }
svg text { fill: currentColor; }
[stroke='#000000'] { stroke: currentColor; }
[stroke='#E1E1E1'] { stroke: var(--grid); }
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
    let (files, beside) = if input.is_dir() {
        (chart_files(input)?, input.join("plot.html"))
    } else {
        (vec![input.to_owned()], input.with_extension("html"))
    };
    let output = output.unwrap_or(&beside);
    ensure!(
        output != input,
        "{}: is the input; name another --output",
        output.display()
    );
    let mut sections = Vec::new();
    let mut bytes_left = BYTES_MAX;
    for file in files {
        let name = file.strip_prefix(if input.is_dir() {
            input
        } else {
            input.parent().unwrap_or(input)
        });
        let heading = name.unwrap_or(&file).display().to_string();
        let charts = read(&file, &mut bytes_left)?;
        sections.push(PageSection {
            heading,
            charts,
            html: String::new(),
        });
    }
    std::fs::write(output, page("Charts", &sections)?)
        .with_context(|| output.display().to_string())?;
    println!("{}", output.display());
    Ok(())
}

/// Reads the charts of a file, which may have `bytes_left` bytes.
pub(crate) fn read(file: &Path, bytes_left: &mut u64) -> anyhow::Result<Vec<Chart>> {
    let name = file.display().to_string();
    let mut text = String::new();
    std::fs::File::open(file)
        .and_then(|opened| opened.take(*bytes_left + 1).read_to_string(&mut text))
        .with_context(|| name.clone())?;
    let bytes = bytes_left.checked_sub(text.len() as u64);
    *bytes_left =
        bytes.with_context(|| format!("{name}: more than {BYTES_MAX} bytes of charts"))?;
    parse(&name, &text)
}

/// Lists the files of charts below `root`, without following symbolic links.
fn chart_files(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![(root.to_owned(), 0)];
    let mut entries = 0;
    while let Some((folder, depth)) = folders.pop() {
        let at = || folder.display().to_string();
        for entry in std::fs::read_dir(&folder).with_context(at)? {
            let entry = entry.with_context(at)?;
            let (kind, path) = (entry.file_type().with_context(at)?, entry.path());
            entries += 1;
            ensure!(
                entries <= ENTRIES_MAX,
                "{}: more than {ENTRIES_MAX} files and folders",
                root.display()
            );
            if kind.is_dir() {
                ensure!(
                    depth < DEPTH_MAX,
                    "{}: more than {DEPTH_MAX} folders deep",
                    path.display()
                );
                folders.push((path, depth + 1));
            } else if kind.is_file() && path.extension().is_some_and(|end| end == EXTENSION) {
                files.push(path);
            }
        }
    }
    ensure!(
        !files.is_empty(),
        "{}: no file that ends in .{EXTENSION}",
        root.display()
    );
    files.sort();
    Ok(files)
}

/// Writes HTML that loads nothing else.
pub(crate) fn page(title: &str, sections: &[PageSection]) -> anyhow::Result<String> {
    let title = escaped(title);
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n<h1>{title}</h1>\n"
    );
    for section in sections {
        html += &format!("<h2>{}</h2>\n", escaped(&section.heading));
        for chart in &section.charts {
            html += draw::svg(chart)
                .with_context(|| section.heading.clone())?
                .as_str();
        }
        html += section.html.as_str();
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
        assert!(root.path().join("one.html").is_file());

        std::fs::write(inner.join("bad.chart"), format!("{chart}y -1\n")).unwrap();
        let error = format!("{:#}", plot(root.path(), None).unwrap_err());
        assert!(error.contains("inner/bad.chart:4: a slice"), "{error}");
        let mut bytes_left = 10;
        let error = read(&root.path().join("one.chart"), &mut bytes_left).unwrap_err();
        assert!(error.to_string().contains("bytes of charts"), "{error}");
        let empty = tempfile::tempdir().unwrap();
        assert!(plot(empty.path(), None).is_err());
    }

    #[test]
    fn the_depth_of_folders_is_bounded() {
        let root = tempfile::tempdir().unwrap();
        let deep = (0..=DEPTH_MAX).fold(root.path().to_owned(), |path, _| path.join("d"));
        std::fs::create_dir_all(deep).unwrap();
        let error = chart_files(root.path()).unwrap_err().to_string();
        assert!(error.contains("16 folders deep"), "{error}");
    }
}
