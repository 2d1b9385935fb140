//! The temporary directory of a run, which is removed with all its processes however this process ends.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use tempfile::TempDir;

/// Reads directories until its stdin ends, which happens however this process ends; then ends the processes that have
/// one of them in their command line, PostgreSQL in fast mode, and removes mounts and directories. It needs Linux's
/// `/proc`; elsewhere it only removes the directories.
const REAPER: &str = r#"
directories=''
while read -r directory; do directories="$directories $directory"; done
of() {
  for process in /proc/[0-9]*; do
    pid=${process#/proc/}
    [ "$pid" != $$ ] && tr '\0' ' ' < "$process/cmdline" 2> /dev/null | grep -qF "$1" && echo "$pid"
  done
}
for directory in $directories; do
  for pid in $(of "$directory"); do
    case $(cat "/proc/$pid/comm" 2> /dev/null) in
      postgres) kill -INT "$pid" ;;
      *) kill -KILL "$pid" ;;
    esac
  done
  tries=0
  while [ -n "$(of "$directory")" ] && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
  for pid in $(of "$directory"); do kill -KILL "$pid"; done
  while read -r _ mount _; do case $mount in "$directory"/*) umount -l "$mount" ;; esac; done < /proc/mounts
  rm -rf "$directory"
done
"#;

/// A temporary directory. When dropped, it is removed with all that runs and is mounted in it.
pub(crate) struct RunDirectory {
    directory: PathBuf,
    reaper: Child,
}

impl RunDirectory {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("larder-loadtest-")
            // When root runs this, PostgreSQL runs as an unprivileged user.
            .permissions(Permissions::from_mode(0o755))
            .tempdir()
            .context("no temporary directory")?;
        let reaper = Command::new("sh")
            .args(["-c", REAPER, "reaper"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C must not end the reaper, which works only after this process has ended.
            .process_group(0)
            .spawn()
            .context("sh can't be run")?;
        let mut run_directory = Self {
            directory: TempDir::keep(directory),
            reaper,
        };
        let directory = run_directory.directory.clone();
        run_directory.add(&directory)?;
        Ok(run_directory)
    }

    /// Adds another directory that is to be removed with all that runs in it.
    pub(crate) fn add(&mut self, directory: &Path) -> anyhow::Result<()> {
        let stdin = self.reaper.stdin.as_mut().context("the reaper is gone")?;
        writeln!(stdin, "{}", directory.display()).context("the reaper does not listen")
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        drop(self.reaper.stdin.take());
        if let Err(error) = self.reaper.wait() {
            eprintln!(
                "loadtest: {} may be left: {error}",
                self.directory.display()
            );
        }
    }
}
