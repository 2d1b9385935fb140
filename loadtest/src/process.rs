//! What the kernel knows of a process, and which cores it may use.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use tokio::process::Command;

/// Where programs are that are not on everybody's PATH.
const PLACES: [&str; 3] = ["/usr/sbin", "/usr/local/sbin", "/usr/local/bin"];
const POSTGRESQL: &str = "/usr/lib/postgresql";

/// CPU time of all threads of `pid`, those that ended included, to the nanosecond.
pub(crate) fn cpu_time(pid: Pid) -> anyhow::Result<Duration> {
    let clock = clock_getcpuclockid(pid).with_context(|| format!("process {pid}"))?;
    Ok(Duration::from(clock_gettime(clock)?))
}

/// What a process occupies of the machine's memory.
pub(crate) fn resident_bytes(pid: Pid) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let (_, line) = status.split_once("VmRSS:").context("no VmRSS")?;
    let kibibytes: u64 = line
        .trim_start()
        .split(' ')
        .next()
        .context("no VmRSS")?
        .parse()?;
    Ok(kibibytes * 1024)
}

/// Lets this process, and what it starts, open as many files as the system allows: a connection is one.
pub(crate) fn raise_open_files() -> anyhow::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

/// A command on these cores only, as `taskset --cpu-list` takes them.
pub(crate) fn pinned(cores: Option<&str>, program: impl AsRef<OsStr>) -> Command {
    match cores {
        None => Command::new(program),
        Some(cores) => {
            let mut command = Command::new("taskset");
            command.arg("--cpu-list").arg(cores).arg(program);
            command
        }
    }
}

/// How many cores a list as `0,2-3` names.
pub(crate) fn count_cores(list: &str) -> anyhow::Result<usize> {
    let mut count = 0;
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = first.trim().parse::<usize>()?..=last.trim().parse::<usize>()?;
        count += range.count();
    }
    Ok(count)
}

/// Finds a program on PATH or where systems put servers.
/// # Errors
/// Where it is missing, with the command that installs it.
pub(crate) fn find_program(name: &str, install: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    places.extend(PLACES.map(PathBuf::from));
    if let Some(home) = std::env::home_dir() {
        places.push(home.join(".cargo/bin"));
    }
    let versions = std::fs::read_dir(POSTGRESQL)
        .into_iter()
        .flatten()
        .flatten();
    places.extend(versions.map(|version| version.path().join("bin")));
    match places
        .iter()
        .map(|place| place.join(name))
        .find(|file| is_program(file))
    {
        Some(found) => Ok(found),
        None => bail!("{name} is not installed; {install}"),
    }
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    let metadata = file.metadata();
    metadata.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_counted() {
        assert_eq!(count_cores("0").unwrap(), 1);
        assert_eq!(count_cores("0,2-4").unwrap(), 4);
        assert!(count_cores("first").is_err());
    }

    #[test]
    fn cpu_time_grows_with_work() {
        let own = Pid::this();
        let before = cpu_time(own).unwrap();
        let mut sum = 0_u64;
        while cpu_time(own).unwrap() < before + Duration::from_millis(5) {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(sum > 0);
        assert!(resident_bytes(own).unwrap() > 0);
    }

    #[test]
    fn a_missing_program_is_told_with_its_remedy() {
        assert!(find_program("sh", "").is_ok());
        let error = find_program("no-such-program", "apt-get install it").unwrap_err();
        assert_eq!(
            error.to_string(),
            "no-such-program is not installed; apt-get install it"
        );
    }
}
