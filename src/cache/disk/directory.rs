//! The directory of the disk tier: `current` holds the files in use, and `aside-UUID` what is about to be removed.

use std::fs::Permissions;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::state::refuse_link;

/// The directory of the files in use.
pub(in crate::cache) fn current(directory: &Path) -> PathBuf {
    directory.join("current")
}

/// Creates the directory. Only its owner may read it, because it holds documents.
pub(in crate::cache) fn create(directory: &Path) -> std::io::Result<()> {
    refuse_link(directory)?;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(directory)?;
    std::fs::set_permissions(directory, Permissions::from_mode(0o700))
}

/// Sets the files in use aside, and removes everything that is set aside.
pub(in crate::cache) fn set_aside(directory: &Path) -> std::io::Result<()> {
    create(directory)?;
    let current = current(directory);
    if current.symlink_metadata().is_ok() {
        std::fs::rename(
            &current,
            directory.join(format!("aside-{}", uuid::Uuid::new_v4())),
        )?;
    }
    remove_set_aside(directory);
    Ok(())
}

/// Removes everything that is set aside, also by earlier runs.
pub(in crate::cache) fn remove_set_aside(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with("aside-") {
            continue;
        }
        let path = entry.path();
        let removed = match entry.file_type() {
            Ok(kind) if kind.is_dir() => std::fs::remove_dir_all(&path),
            Ok(_) => std::fs::remove_file(&path),
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            tracing::warn!("{} can't be removed: {error}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As root, larder would change the permissions of a directory that another user has chosen.
    #[test]
    fn root_follows_no_link() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        let victim = parent.path().join("victim");
        std::fs::create_dir(&victim).unwrap();
        let link = parent.path().join("disk");
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        create(&link).unwrap_err();
        set_aside(&link).unwrap_err();
        std::fs::remove_file(&link).unwrap();
        create(&link).unwrap();
    }
}
