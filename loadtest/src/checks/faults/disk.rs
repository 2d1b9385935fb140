//! Faults of the disk tier's files: a full file system, damage, and older files in their place.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::time::Instant;

use super::Injection;
use crate::harness::testbed::Testbed;

const FULL_DISK_SIZE: &str = "size=64m";
const FILLING_BYTES: usize = 1 << 20;
/// The tier must be in use again within this time after space is free.
const BACK_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The size of a page, a unit in which disks and file systems lose data.
const PAGE_BYTES: usize = 4096;

/// Mounts a small file system for the disk tier, fills it to the last byte, and frees the space again.
pub(super) async fn fill_up(testbed: &mut Testbed) -> anyhow::Result<Injection> {
    if let Some(reason) = mount_small(testbed).await? {
        return Ok(Injection::Impossible(reason));
    }
    testbed.hold(1.0).await;
    let filling = fill(testbed)?;
    testbed.hold(2.0).await;
    fs::remove_file(&filling)?;
    let back = back_in_use(testbed).await;
    unmount_small(testbed).await?;
    back?;
    Ok(Injection::Done)
}

/// Restarts larder with a small file system for its disk tier. Returns the reason if that is not possible.
pub(crate) async fn mount_small(testbed: &mut Testbed) -> anyhow::Result<Option<String>> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(Some("only root may mount a small file system".to_owned()));
    }
    testbed.larder.terminate().await?;
    let disk = testbed.larder.disk();
    fs::create_dir_all(&disk)?;
    let mount = ["-t", "tmpfs", "-o", FULL_DISK_SIZE, "tmpfs"];
    let mounted = Command::new("mount").args(mount).arg(&disk).output()?;
    testbed.larder.start_ready().await?;
    Ok((!mounted.status.success())
        .then(|| String::from_utf8_lossy(&mounted.stderr).trim().to_owned()))
}

/// Restarts larder without the small file system.
pub(crate) async fn unmount_small(testbed: &mut Testbed) -> anyhow::Result<()> {
    testbed.larder.terminate().await?;
    let disk = testbed.larder.disk();
    let unmounted = Command::new("umount").arg(&disk).status()?;
    ensure!(unmounted.success(), "umount failed");
    testbed.larder.start_ready().await?;
    Ok(())
}

/// Fills the disk tier's file system with one file, and returns its path.
pub(crate) fn fill(testbed: &Testbed) -> anyhow::Result<PathBuf> {
    let path = testbed.larder.disk().join("filling");
    let mut file = File::create(&path)?;
    for size in [FILLING_BYTES, PAGE_BYTES, 1] {
        let piece = vec![0; size];
        while file.write_all(&piece).is_ok() {}
    }
    Ok(path)
}

/// Waits until the disk tier is in use again; returns how long that took.
pub(crate) async fn back_in_use(testbed: &Testbed) -> anyhow::Result<Duration> {
    let began = Instant::now();
    while began.elapsed() < BACK_TIMEOUT {
        if testbed.larder.ready_disk().await {
            return Ok(began.elapsed());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    bail!("the disk tier is not back {BACK_TIMEOUT:?} after space has returned")
}

/// Stops larder, damages its files, and starts it again.
pub(super) async fn corrupt(testbed: &mut Testbed) -> anyhow::Result<()> {
    testbed.larder.terminate().await?;
    let files = files(&testbed.larder.disk())?;
    let largest = files.last().context("the disk tier has no files")?;
    damage(largest, &mut testbed.rng)?;
    testbed.larder.start_ready().await?;
    testbed.hold(0.8).await;
    Ok(())
}

/// Replaces files by older copies: all of them, or the largest alone.
pub(super) async fn swap(testbed: &mut Testbed) -> anyhow::Result<()> {
    let disk = testbed.larder.disk();
    let old = disk.with_extension("old");
    fs::remove_dir_all(&old).ok();
    testbed.larder.terminate().await?;
    copy(&disk, &old)?;
    testbed.larder.start_ready().await?;
    testbed.hold(1.0).await;
    testbed.larder.kill().await?;
    if testbed.rng.bool() {
        fs::remove_dir_all(&disk)?;
        copy(&old, &disk)?;
    } else {
        let files = files(&old)?;
        let largest = files.last().context("the disk tier has no files")?;
        fs::copy(largest, disk.join(largest.strip_prefix(&old)?))?;
    }
    fs::remove_dir_all(&old)?;
    testbed.larder.start_ready().await?;
    testbed.hold(0.8).await;
    Ok(())
}

/// One kind of damage, at random places.
pub(crate) fn damage(path: &Path, rng: &mut fastrand::Rng) -> anyhow::Result<()> {
    let mut bytes = fs::read(path)?;
    ensure!(!bytes.is_empty(), "{} is empty", path.display());
    // The end of a file of sled's may be allocated and unused.
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) + 1;
    match rng.u32(..4) {
        0 => bytes[rng.usize(..used)] ^= 1 << rng.u32(..8),
        1 => {
            let start = rng.usize(..used) / PAGE_BYTES * PAGE_BYTES;
            let end = (start + PAGE_BYTES).min(bytes.len());
            rng.fill(&mut bytes[start..end]);
        }
        2 => bytes.truncate(rng.usize(..used)),
        _ => {
            for start in (0..used).step_by(PAGE_BYTES) {
                let place = start + rng.usize(..PAGE_BYTES.min(used - start));
                bytes[place] ^= 1 << rng.u32(..8);
            }
        }
    }
    fs::write(path, bytes)?;
    Ok(())
}

/// All files below, the largest last.
pub(crate) fn files(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    collect(directory, &mut found)?;
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

fn collect(directory: &Path, found: &mut Vec<(u64, PathBuf)>) -> anyhow::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            collect(&entry.path(), found)?;
        } else {
            found.push((metadata.len(), entry.path()));
        }
    }
    Ok(())
}

pub(crate) fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}
