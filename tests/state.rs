//! The state directory: one larder at a time, and a node name that stays.
use std::fs;

use larder::state::{StateError, StateLock};

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
