//! The state directory: one larder at a time, and a node name that stays.
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};

use larder::state::{StateError, StateLock};
use nix::unistd::geteuid;

#[test]
fn second_larder_is_refused_with_the_first_ones_process() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("below/state");
    let lock = StateLock::acquire(&directory).unwrap();
    let error = StateLock::acquire(&directory).unwrap_err();
    assert!(matches!(error, StateError::InUse { .. }));
    let message = error.to_string();
    assert!(message.contains(&std::process::id().to_string()));
    assert!(message.contains(&*lock.directory().to_string_lossy()));
    drop(lock);
    StateLock::acquire(&directory).unwrap();
}

#[test]
fn node_keeps_its_name_and_garbage_is_replaced() {
    let parent = tempfile::tempdir().unwrap();
    let lock = StateLock::acquire(parent.path()).unwrap();
    let name = lock.node().unwrap();
    assert_eq!(lock.node().unwrap(), name);

    let file = parent.path().join("node");
    fs::write(&file, b"\xff not a name").unwrap();
    let other = lock.node().unwrap();
    assert_ne!(other, name);
    assert_eq!(lock.node().unwrap(), other);
}

/// A second larder deleted the files of the first one.
#[test]
fn a_removed_lock_file_admits_no_second_larder() {
    let parent = tempfile::tempdir().unwrap();
    let _lock = StateLock::acquire(parent.path()).unwrap();
    fs::remove_file(parent.path().join("lock")).unwrap();
    let error = StateLock::acquire(parent.path()).unwrap_err();
    assert!(matches!(error, StateError::InUse { .. }), "{error}");
}

#[test]
fn no_link_is_followed() {
    let parent = tempfile::tempdir().unwrap();
    let victim = parent.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let directory = parent.path().join("state");
    fs::create_dir(&directory).unwrap();
    symlink(&victim, directory.join("lock")).unwrap();
    StateLock::acquire(&directory).unwrap_err();
    fs::remove_file(directory.join("lock")).unwrap();
    symlink(&victim, directory.join("node.new")).unwrap();
    StateLock::acquire(&directory).unwrap().node().unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
}

#[test]
fn root_refuses_a_directory_that_others_may_change() {
    if !geteuid().is_root() {
        return;
    }
    let parent = tempfile::tempdir().unwrap();
    let refused = || {
        let error = StateLock::acquire(parent.path()).unwrap_err();
        assert!(matches!(error, StateError::Untrusted { .. }), "{error}");
    };
    fs::set_permissions(parent.path(), Permissions::from_mode(0o777)).unwrap();
    refused();
    fs::set_permissions(parent.path(), Permissions::from_mode(0o711)).unwrap();
    chown(parent.path(), Some(4_711), None).unwrap();
    refused();
    chown(parent.path(), Some(0), None).unwrap();
    StateLock::acquire(parent.path()).unwrap();
}
