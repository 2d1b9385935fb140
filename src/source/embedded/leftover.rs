//! The server of an earlier larder that was killed: recognised by `postmaster.pid`, and stopped.
//!
//! The file alone proves nothing: after a restart of the machine or container its process id
//! is often somebody else's, and PostgreSQL then refuses to start.
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::Instant;

use crate::source::embedded::EmbeddedError;

/// How a server is asked to go, and how long each way is waited for: fast, then immediate.
/// Killing it outright would leave its processes behind.
const STOPS: [(Signal, Duration); 2] = [
    (Signal::SIGINT, Duration::from_secs(30)),
    (Signal::SIGQUIT, Duration::from_secs(10)),
];
/// There is no event for the end of a process that is not a child.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// A server writes its file at once: an older one without a process id is a crash's remnant.
const EMPTY_FILE_AGE: Duration = Duration::from_secs(10);

/// Whether a server runs on this data directory or ended without cleaning up.
pub(super) fn is_there(data: &Path) -> bool {
    lock_file(data).exists()
}

/// Stops a server that still runs on this data directory.
///
/// Returns whether the last server there ended uncleanly, so that its processes may linger.
/// # Errors
/// [`EmbeddedError::Leftover`] if it does not end.
pub(super) async fn stop(data: &Path) -> Result<bool, EmbeddedError> {
    let file = lock_file(data);
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(EmbeddedError::io("read", &file)(error)),
    };
    let Some(pid) = text.lines().next().and_then(|line| line.parse().ok()) else {
        if older_than(&file, EMPTY_FILE_AGE) {
            remove_stale(&file)?;
        }
        return Ok(true);
    };
    if !serves(pid, data) {
        if is_alive(pid) {
            remove_stale(&file)?;
        }
        return Ok(true);
    }
    tracing::info!(pid, "an earlier run's PostgreSQL still runs, stopping it");
    for (signal, patience) in STOPS {
        // An error means that it is gone, or not ours to stop: the wait tells which.
        kill(Pid::from_raw(pid), signal).ok();
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if !serves(pid, data) {
                return Ok(signal != Signal::SIGINT);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        tracing::warn!(pid, %signal, "the earlier run's PostgreSQL does not stop");
    }
    Err(EmbeddedError::Leftover {
        pid,
        directory: data.to_owned(),
    })
}

fn lock_file(data: &Path) -> PathBuf {
    data.join("postmaster.pid")
}

/// Whether this process is a server on this data directory. A zombie is not.
fn serves(pid: i32, data: &Path) -> bool {
    let process = Path::new("/proc").join(pid.to_string());
    // A server's working directory is its data directory, even after that was renamed. Root
    // without CAP_SYS_PTRACE may not see it; the command line is everybody's.
    if fs::read_link(process.join("cwd")).is_ok_and(|directory| directory == data) {
        return true;
    }
    if Path::new("/proc/self").exists() {
        return fs::read(process.join("cmdline")).is_ok_and(|command_line| {
            let mut arguments = command_line.split(|byte| *byte == 0);
            arguments.any(|argument| argument == data.as_os_str().as_bytes())
        });
    }
    let output = Command::new("ps")
        .args(["-o", "command=", "-p", &pid.to_string()])
        .output();
    output.is_ok_and(|output| {
        String::from_utf8_lossy(&output.stdout).contains(&*data.to_string_lossy())
    })
}

fn is_alive(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH)
}

/// Removes the file of a server that is gone, where PostgreSQL would take it for a live one.
///
/// PostgreSQL 12 and later find processes of the dead server without it: the key of the shared
/// memory is the data directory's inode (`PGSharedMemoryCreate` in `sysv_shmem.c`).
fn remove_stale(file: &Path) -> Result<(), EmbeddedError> {
    tracing::info!(file = %file.display(), "removing the file of a server that is gone");
    fs::remove_file(file).map_err(EmbeddedError::io("remove", file))
}

fn older_than(file: &Path, age: Duration) -> bool {
    fs::metadata(file)
        .and_then(|metadata| metadata.modified())
        .is_ok_and(|time| time.elapsed().is_ok_and(|elapsed| elapsed > age))
}
