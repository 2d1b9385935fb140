//! A disk tier with damaged or foreign files: none of their content is served, and no request fails.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::disk::{ITEMS, PROMPT, applied, database, disk_hits, filled, get, restarted};
use crate::harness::eventually;
use crate::harness::service::{TestService, execute};

/// All files of the tier, the largest last.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort_by_key(|path| path.metadata().unwrap().len());
    found
}

/// Bytes that are the same in every run.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn damage(directory: &Path, how: u64) {
    for path in files(directory) {
        let mut bytes = fs::read(&path).unwrap();
        let length = bytes.len();
        match how {
            0 => bytes = noise(length, 1),
            1 => bytes.truncate(length / 2),
            2 => bytes.clear(),
            // Every page of the file gets flipped bits.
            _ => {
                for position in (how as usize..length).step_by(509) {
                    bytes[position] ^= 0x11;
                }
            }
        }
        fs::write(&path, bytes).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_files_are_never_believed() {
    let url = database().await;
    for how in 0..6 {
        let state = filled(&url).await;
        damage(&state.path().join("disk"), how);
        let larder = restarted(state, &url).await;
        // What came through the damage whole may answer; what did not must not, and nothing may fail.
        disk_hits(&larder, "first").await;
        execute(&url, "update item set name = 'second'").await;
        applied(&larder, &url).await;
        disk_hits(&larder, "second").await;
        execute(&url, "update item set name = 'first'").await;
        larder.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_where_the_directory_should_be_leaves_the_tier_off() {
    let url = database().await;
    let state = TempDir::new().unwrap();
    fs::write(state.path().join("disk"), "a file").unwrap();
    let larder = TestService::start_in(state, &url, ITEMS, &PROMPT).await;
    assert_eq!(
        larder.admin("/status").await.json()["disk"]["in_use"],
        false
    );
    assert!(larder.metric("larder_disk_errors_total").await >= 1.0);
    assert_eq!(disk_hits(&larder, "first").await, 0);
    assert_eq!(
        get(&larder, 1).await.cache_status(),
        "larder; hit; detail=memory"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_where_a_file_should_be_begins_an_empty_tier() {
    let url = database().await;
    let state = filled(&url).await;
    let directory = state.path().join("disk/current");
    for path in files(&directory) {
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
    }
    let larder = restarted(state, &url).await;
    assert_eq!(disk_hits(&larder, "first").await, 0);
    eventually("in use", async || {
        let status = larder.admin("/status").await.json();
        (status["disk"]["in_use"] == true).then_some(())
    })
    .await;
}
