//! CPU time, memory and open files of processes, and the cores that they run on.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::time::{TimeVal, TimeValLike as _};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use tokio::process::Command;
use tokio::time::Instant;

/// Directories of servers, which are not on every user's PATH.
const PLACES: [&str; 3] = ["/usr/sbin", "/usr/local/sbin", "/usr/local/bin"];
const POSTGRESQL: &str = "/usr/lib/postgresql";
/// What /proc/stat counts, on every Linux that there is.
const TICK_MILLIS: u64 = 10;

/// CPU time of all threads of `pid`, those that ended included, to the nanosecond.
pub(crate) fn cpu_time(pid: Pid) -> anyhow::Result<Duration> {
    let clock = clock_getcpuclockid(pid).with_context(|| format!("process {pid}"))?;
    Ok(Duration::from(clock_gettime(clock)?))
}

/// Resident memory of a process, in bytes.
pub(crate) fn resident_bytes(pid: Pid) -> anyhow::Result<u64> {
    memory(pid, "VmRSS:")
}

/// The most resident memory that a process has had, in bytes.
pub(crate) fn peak_resident_bytes(pid: Pid) -> anyhow::Result<u64> {
    memory(pid, "VmHWM:")
}

fn memory(pid: Pid, name: &'static str) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let (_, line) = status.split_once(name).context(name)?;
    let kibibytes = line.trim_start().split(' ').next().context(name)?;
    Ok(kibibytes.parse::<u64>()? * 1024)
}

/// Has the kernel measure the peak of resident memory from now on.
///
/// Source: proc_pid_clear_refs(5).
pub(crate) fn forget_peak_resident_bytes(pid: Pid) -> anyhow::Result<()> {
    let file = format!("/proc/{pid}/clear_refs");
    std::fs::write(&file, "5").with_context(|| file.clone())
}

/// Context switches of the threads that `pid` has now, wanted or not.
pub(crate) fn context_switches(pid: Pid) -> anyhow::Result<u64> {
    let mut switches = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread that ends meanwhile has no file any more.
        let status = std::fs::read_to_string(task?.path().join("status")).unwrap_or_default();
        let counts = status
            .lines()
            .filter(|line| line.contains("ctxt_switches:"));
        let counts = counts.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok());
        switches += counts.sum::<u64>();
    }
    Ok(switches)
}

/// Context switches of the processes that this one has started and seen end, with those of their threads that ended.
pub(crate) fn ended_context_switches() -> anyhow::Result<u64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let switches = usage.voluntary_context_switches() + usage.involuntary_context_switches();
    Ok(u64::try_from(switches)?)
}

/// Lets this process, and what it starts, open as many files as the system allows: a connection is one.
pub(crate) fn raise_open_files() -> anyhow::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

/// How many files this process, and what it starts, may open.
pub(crate) fn open_files_max() -> anyhow::Result<u64> {
    Ok(getrlimit(Resource::RLIMIT_NOFILE)?.0)
}

/// A command that runs on these cores only, given as a list for `taskset --cpu-list`.
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

/// The cores of a list such as `0,2-3`, each once.
pub(crate) fn cores(list: &str) -> anyhow::Result<BTreeSet<usize>> {
    let mut cores = BTreeSet::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            text.trim()
                .parse::<usize>()
                .with_context(|| format!("{list:?} is no list of cores"))
        };
        cores.extend(number(first)?..=number(last)?);
    }
    Ok(cores)
}

/// Moves all threads of this process, and what it starts from now on, to other cores than these, if there are any.
///
/// # Errors
/// `taskset` can't be run, or fails.
pub(crate) async fn leave(cores_of_server: &str) -> anyhow::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let allowed = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let others = &cores(allowed.context("Cpus_allowed_list")?)? - &cores(cores_of_server)?;
    if others.is_empty() {
        return Ok(());
    }
    let others: Vec<String> = others.iter().map(usize::to_string).collect();
    let mut command = Command::new("taskset");
    command.args(["--all-tasks", "--cpu-list", "--pid", &others.join(",")]);
    command.arg(std::process::id().to_string());
    let output = command.output().await.context("taskset can't be run")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "taskset: {said}");
    Ok(())
}

/// How long `cores` have worked since the machine was started, to a hundredth of a second.
fn busy_time(cores: &BTreeSet<usize>) -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    Ok(Duration::from_millis(
        busy_ticks(&stat, cores) * TICK_MILLIS,
    ))
}

/// User, nice, system, irq, softirq and steal of the lines of `cores` (proc_stat(5)).
fn busy_ticks(stat: &str, cores: &BTreeSet<usize>) -> u64 {
    let of_core = |core: &usize| {
        let line = stat
            .lines()
            .find_map(|line| line.strip_prefix(&format!("cpu{core} ")));
        let ticks: Vec<u64> = line
            .unwrap_or_default()
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        [0, 1, 2, 5, 6, 7]
            .iter()
            .filter_map(|place| ticks.get(*place))
            .sum::<u64>()
    };
    cores.iter().map(of_core).sum()
}

/// CPU time of the processes that this one has started and seen end.
pub(crate) fn ended_cpu_time() -> anyhow::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    Ok(timeval(usage.user_time()) + timeval(usage.system_time()))
}

fn timeval(time: TimeVal) -> Duration {
    Duration::from_micros(u64::try_from(time.num_microseconds()).unwrap_or_default())
}

/// Measures CPU time from its start to its stop.
pub(crate) struct Meter {
    server: Option<Pid>,
    cores: BTreeSet<usize>,
    began: Instant,
    server_time: Option<Duration>,
    /// CPU time so far: of the server and the ended child processes, and of all processes on the cores.
    known_time: Duration,
    busy_time: Duration,
}

/// The CPU time of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// CPU time of the server's process.
    pub(crate) server: Option<Duration>,
    /// The share of the cores' time that neither the server nor the tool took, 0 to 1.
    pub(crate) others: f64,
}

impl Meter {
    pub(crate) fn start(server: Option<Pid>, cores: &BTreeSet<usize>) -> anyhow::Result<Self> {
        let server_time = server.map(cpu_time).transpose()?;
        Ok(Self {
            server,
            cores: cores.clone(),
            began: Instant::now(),
            server_time,
            known_time: server_time.unwrap_or_default() + ended_cpu_time()?,
            busy_time: busy_time(cores)?,
        })
    }

    /// Ends the measurement, after the tool has ended.
    pub(crate) fn stop(self) -> anyhow::Result<Cost> {
        let now = Self::start(self.server, &self.cores)?;
        let known = now.known_time.saturating_sub(self.known_time);
        let others = now
            .busy_time
            .saturating_sub(self.busy_time)
            .saturating_sub(known);
        let all = (now.began - self.began).as_secs_f64() * self.cores.len() as f64;
        Ok(Cost {
            server: now
                .server_time
                .zip(self.server_time)
                .map(|(after, before)| after - before),
            others: others.as_secs_f64() / all,
        })
    }
}

impl Cost {
    /// CPU time of the server for each of so many requests.
    pub(crate) fn micros_per(&self, requests: u64) -> Option<f64> {
        // Counts are far below 2^52, so the cast is exact.
        self.server
            .map(|server| server.as_secs_f64() * 1e6 / requests.max(1) as f64)
    }
}

/// The first child process of `pid`; `pid` itself if there is none.
pub(crate) fn child_of(pid: Pid) -> Pid {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let first = children
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok());
    first.map_or(pid, Pid::from_raw)
}

/// Finds a program on PATH or in the usual directories of servers.
///
/// # Errors
/// If it is missing, with the command that installs it.
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
    fn cores_are_listed() {
        assert_eq!(cores("0").unwrap(), BTreeSet::from([0]));
        assert_eq!(cores("0,2-4,2").unwrap(), BTreeSet::from([0, 2, 3, 4]));
        assert!(cores("first").is_err());
    }

    #[test]
    fn only_what_a_core_works_is_busy() {
        let stat = "cpu  99 99 99 99 99 99 99 99 0 0\ncpu0 1 2 4 1000 1000 8 16 32 0 0\ncpu1 100 0 0 5 5 0 0 0 0 0\n";
        assert_eq!(busy_ticks(stat, &BTreeSet::from([0])), 63);
        assert_eq!(busy_ticks(stat, &BTreeSet::from([0, 1])), 163);
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
