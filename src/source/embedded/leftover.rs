//! Finds a server that a killed larder has left, and stops it.
//!
//! `postmaster.pid` alone proves nothing: after a restart of the machine or container its process number often belongs
//! to another process, and PostgreSQL then refuses to start. `pg_ctl` does not check it: `pg_ctl stop` would signal
//! that other process.
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

/// The signals of a fast and of an immediate shutdown, each with the time to wait for it.
/// SIGKILL would leave the server's child processes behind.
const STOP_SIGNALS: [(Signal, Duration); 2] = [
    (Signal::SIGINT, Duration::from_secs(30)),
    (Signal::SIGQUIT, Duration::from_secs(10)),
];
/// The end of a process that is not a child must be polled for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// A server writes its process number as soon as it has created the file. An older file without one is left from a
/// crash.
const EMPTY_FILE_AGE: Duration = Duration::from_secs(10);

/// Whether a server runs on this data directory, or ended without removing its lock file.
pub(super) fn has_lock_file(data: &Path) -> bool {
    lock_file(data).exists()
}

/// Stops a server that still runs on this data directory.
///
/// Returns whether the last server there ended without a shutdown, so that its child processes may still run.
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
    if !is_server_on(pid, data) {
        if is_alive(pid) {
            remove_stale(&file)?;
        }
        return Ok(true);
    }
    tracing::info!(pid, "an earlier run's PostgreSQL still runs, stopping it");
    for (signal, wait_max) in STOP_SIGNALS {
        // An error means that it has ended, or that larder may not stop it. The loop finds out which.
        kill(Pid::from_raw(pid), signal).ok();
        let deadline = Instant::now() + wait_max;
        while Instant::now() < deadline {
            if !is_server_on(pid, data) {
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
fn is_server_on(pid: i32, data: &Path) -> bool {
    let process = Path::new("/proc").join(pid.to_string());
    // A server's working directory is its data directory, even after that was renamed. Root without CAP_SYS_PTRACE may
    // not read it, but any user may read the command line.
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

/// Removes the lock file of a server that has ended. PostgreSQL would refuse to start because of it.
///
/// PostgreSQL 12 and later find child processes of the ended server without it: the key of the shared memory is the
/// data directory's inode (`PGSharedMemoryCreate` in `sysv_shmem.c`).
fn remove_stale(file: &Path) -> Result<(), EmbeddedError> {
    tracing::info!(file = %file.display(), "removing the lock file of a server that has ended");
    fs::remove_file(file).map_err(EmbeddedError::io("remove", file))
}

fn older_than(file: &Path, age: Duration) -> bool {
    fs::metadata(file)
        .and_then(|metadata| metadata.modified())
        .is_ok_and(|time| time.elapsed().is_ok_and(|elapsed| elapsed > age))
}
