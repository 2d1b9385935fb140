//! The binary of larder that is checked.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

/// Finds larder beside this program; run by cargo, has cargo build it first.
pub(crate) fn find(given: Option<&Path>, cargo: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(given) = given {
        ensure!(given.is_file(), "{} is no file", given.display());
        return Ok(given.canonicalize()?);
    }
    let own = std::env::current_exe().context("where this program is")?;
    let profile = own.parent().context("where this program is")?;
    let larder = profile.join("larder");
    if let Some(cargo) = cargo {
        build(cargo, profile)?;
    }
    if !larder.is_file() {
        let release = if is_release(profile) {
            "--release "
        } else {
            ""
        };
        bail!(
            "{} is missing: cargo build {release}-p larder",
            larder.display()
        );
    }
    Ok(larder)
}

/// Does nothing where it is built already. Quick: larder's library was built for this program.
fn build(cargo: &Path, profile: &Path) -> anyhow::Result<()> {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
    let mut command = Command::new(cargo);
    // Both packages, so that features are unified as for this program, and no dependency is built a second time.
    command.args(["build", "--quiet", "--package", "loadtest"]);
    command.args(["--package", "larder", "--bin", "larder"]);
    command.args(["--manifest-path", manifest]);
    command.arg("--target-dir");
    command.arg(profile.parent().context("no target directory")?);
    if is_release(profile) {
        command.arg("--release");
    }
    // What `cargo run` tells this program about itself; a build script that looks at it would run again each time.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    let status = command.status().context("running cargo")?;
    ensure!(status.success(), "larder could not be built");
    Ok(())
}

fn is_release(profile: &Path) -> bool {
    profile.ends_with("release")
}
