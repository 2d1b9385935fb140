//! The folder of a run: what was measured, on what, by which commands.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tokio::process::Command;
use xxhash_rust::xxh3::xxh3_64;

/// Runs of one day under one name.
const FOLDERS_MAX: u32 = 1_000;

/// Where and with what a run was made.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct RunEnvironment {
    /// RFC 3339, UTC.
    pub(crate) began: String,
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_mib: u64,
    pub(crate) kernel: String,
    /// What `git describe` says of the tree that this program was built in.
    pub(crate) commit: String,
    /// Program and version.
    pub(crate) versions: Vec<(String, String)>,
    /// In the order in which they ran.
    pub(crate) commands: Vec<String>,
}

impl RunEnvironment {
    pub(crate) async fn now() -> Self {
        let read = |file| std::fs::read_to_string(file).unwrap_or_default();
        let memory = after(&read("/proc/meminfo"), "MemTotal:");
        let kibibytes = memory.trim_end_matches(" kB").parse::<u64>();
        Self {
            began: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            processor: after(&read("/proc/cpuinfo"), "model name\t:"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: kibibytes.unwrap_or_default() / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            commit: commit().await,
            versions: Vec::new(),
            commands: Vec::new(),
        }
    }

    /// An example for tests.
    #[cfg(test)]
    pub(crate) fn example() -> Self {
        Self {
            began: "2026-11-22T00:00:00Z".to_owned(),
            processor: "a <fast> one".to_owned(),
            cores: 2,
            memory_mib: 1024,
            kernel: "6.1".to_owned(),
            commit: "abc".to_owned(),
            versions: vec![("oha".to_owned(), "1.16".to_owned())],
            commands: vec!["oha -n 1000".to_owned()],
        }
    }

    /// Notes the version that `program` tells by `flag`.
    pub(crate) async fn version(&mut self, program: &Path, flag: &str) {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        if self.versions.iter().any(|(known, _)| *known == name) {
            return;
        }
        let output = Command::new(program).arg(flag).output().await;
        let text = output.map_or_else(
            |error| error.to_string().into_bytes(),
            |output| [output.stdout, output.stderr].concat(),
        );
        let text = String::from_utf8_lossy(&text);
        let line = text
            .lines()
            .find(|line| line.chars().any(|c| c.is_ascii_digit()));
        let version = line.unwrap_or("unknown").trim().to_owned();
        self.versions.push((name.into_owned(), version));
    }

    /// Notes which binary was measured under `name`.
    pub(crate) fn binary(&mut self, name: &str, binary: &Path) -> anyhow::Result<()> {
        let bytes = std::fs::read(binary).with_context(|| format!("{}", binary.display()))?;
        let version = format!("binary with xxh3 {:016x}", xxh3_64(&bytes));
        self.versions.push((name.to_owned(), version));
        Ok(())
    }

    /// Notes a command once.
    pub(crate) fn command(&mut self, command: String) {
        if !self.commands.contains(&command) {
            self.commands.push(command);
        }
    }

    /// A section of the README.
    pub(crate) fn markdown(&self) -> String {
        let Self {
            began,
            processor,
            cores,
            memory_mib,
            kernel,
            commit,
            ..
        } = self;
        let mut text = format!(
            "Begun {began}, commit {commit}; {cores} cores of {processor}, {memory_mib} MiB, Linux {kernel}.\n\n"
        );
        for (program, version) in &self.versions {
            text += &format!("- {program}: {version}\n");
        }
        if self.commands.is_empty() {
            return text;
        }
        text + "\n```sh\n" + self.commands.join("\n").as_str() + "\n```\n"
    }
}

/// What follows `name` on its line of `text`.
fn after(text: &str, name: &str) -> String {
    let rest = text.lines().find_map(|line| line.strip_prefix(name));
    rest.unwrap_or("unknown").trim().to_owned()
}

async fn commit() -> String {
    let mut git = Command::new("git");
    git.args([
        "-C",
        env!("CARGO_MANIFEST_DIR"),
        "describe",
        "--always",
        "--dirty",
    ]);
    match git.output().await {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => "unknown".to_owned(),
    }
}

/// The folder of a run.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Makes `DATE-NAME` below `results`; a second one of that name on that day gets a number.
    pub(crate) fn create(results: &Path, name: &str) -> anyhow::Result<Self> {
        std::fs::create_dir_all(results).with_context(|| format!("{}", results.display()))?;
        let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let date = now.split('T').next().unwrap_or_default();
        for number in 1..=FOLDERS_MAX {
            let suffix = if number > 1 {
                format!("-{number}")
            } else {
                String::new()
            };
            let folder = results.join(format!("{date}-{name}{suffix}"));
            match std::fs::create_dir(&folder) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => {
                    made.with_context(|| format!("{}", folder.display()))?;
                    return Ok(Self(folder));
                }
            }
        }
        anyhow::bail!("too many runs of {date}-{name}")
    }

    /// Its own, without the way to it.
    pub(crate) fn name(&self) -> String {
        let name = self.0.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, file: &str, text: &str) -> anyhow::Result<()> {
        let file = self.0.join(file);
        std::fs::write(&file, text).with_context(|| format!("{}", file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_one_name_are_told_apart() {
        let results = tempfile::tempdir().unwrap();
        let first = Folder::create(results.path(), "run").unwrap();
        let second = Folder::create(results.path(), "run").unwrap();
        let name = first.path().file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("20") && name.ends_with("-run"), "{name}");
        assert!(second.path().ends_with(format!("{name}-2")));
        first.write("run.json", "{}").unwrap();
        assert_eq!(std::fs::read(first.path().join("run.json")).unwrap(), b"{}");
    }

    #[test]
    fn lines_of_the_kernel_are_read() {
        assert_eq!(after("a\nMemTotal:  12 kB\n", "MemTotal:"), "12 kB");
        assert_eq!(after("a", "MemTotal:"), "unknown");
    }
}
