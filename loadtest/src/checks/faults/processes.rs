//! Faults of processes: PostgreSQL and larder killed or paused, a second larder, little memory, a wrong clock.

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::Injection;
use crate::harness::testbed::Testbed;

/// How long larder is stopped while documents change.
const AWAY: Duration = Duration::from_millis(400);
const TINY_MEMORY_BYTES: u64 = 16 * 1024;
/// Where Debian (apt-get install libfaketime), Fedora and others install the library.
const FAKETIME: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
];
/// Offsets from the machine's clock, one after the other.
const CLOCK_STEPS: [&str; 5] = ["+0", "+3h", "-3h", "+2y", "-5s"];

/// Ends PostgreSQL by `signal`; it is started again.
pub(super) async fn restart_postgres(testbed: &mut Testbed, signal: Signal) -> anyhow::Result<()> {
    testbed.restart_postgres(signal).await?;
    testbed.hold(0.5).await;
    Ok(())
}

pub(super) async fn kill_larder(testbed: &mut Testbed) -> anyhow::Result<()> {
    testbed.larder.kill().await?;
    tokio::time::sleep(AWAY).await;
    testbed.larder.start_ready().await?;
    testbed.hold(0.5).await;
    Ok(())
}

/// Pauses larder. Requests are in flight when that begins, and new ones arrive all the time.
pub(super) async fn pause_larder(testbed: &mut Testbed) -> anyhow::Result<()> {
    testbed.larder.signal(Signal::SIGSTOP)?;
    testbed.hold(1.6).await;
    testbed.larder.signal(Signal::SIGCONT)?;
    testbed.hold(0.5).await;
    Ok(())
}

pub(super) async fn two_larders(testbed: &mut Testbed) -> anyhow::Result<()> {
    testbed.second.start_ready().await?;
    let (first, second) = (testbed.larder.config.listen, testbed.second.config.listen);
    testbed.targets.send_replace(vec![first, second]);
    testbed.hold(2.0).await;
    testbed.targets.send_replace(vec![first]);
    testbed.second.kill().await
}

pub(super) async fn tiny_memory(testbed: &mut Testbed) -> anyhow::Result<()> {
    let memory_bytes = testbed.larder.config.memory_bytes;
    testbed.larder.terminate().await?;
    testbed.larder.config.memory_bytes = TINY_MEMORY_BYTES;
    let started = testbed.larder.start_ready().await;
    testbed.larder.config.memory_bytes = memory_bytes;
    started?;
    testbed.hold(1.5).await;
    testbed.larder.terminate().await?;
    testbed.larder.start_ready().await?;
    Ok(())
}

/// Sets the wall clock of larder's process alone; its boot-time clock and PostgreSQL's clock stay right.
pub(super) async fn step_clock(testbed: &mut Testbed) -> anyhow::Result<Injection> {
    let Some(library) = FAKETIME.iter().find(|path| Path::new(path).is_file()) else {
        let reason = "libfaketime is not installed (Debian: apt-get install libfaketime)";
        return Ok(Injection::Impossible(reason.into()));
    };
    let offset = testbed.run_directory.directory().join("clock");
    std::fs::write(&offset, CLOCK_STEPS[0])?;
    testbed.larder.terminate().await?;
    let settings = [
        ("LD_PRELOAD", *library),
        ("FAKETIME_TIMESTAMP_FILE", &offset.to_string_lossy()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        // The file is read again this often, in seconds.
        ("FAKETIME_CACHE_DURATION", "0"),
        ("FAKETIME_NO_CACHE", "1"),
    ];
    testbed.larder.config.environment = settings
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
    let started = testbed.larder.start_ready().await;
    testbed.larder.config.environment.clear();
    started?;
    for step in CLOCK_STEPS {
        // Renamed into place, since larder reads the file all the time.
        let unfinished = offset.with_extension("new");
        std::fs::write(&unfinished, step)?;
        std::fs::rename(&unfinished, &offset)?;
        testbed.hold(0.4).await;
    }
    testbed.larder.terminate().await?;
    testbed.larder.start_ready().await?;
    Ok(Injection::Done)
}
