//! A private PostgreSQL with the demo's tables, for the benches that need one.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use larder::commands::seed::seed;
use larder::source::embedded::{Embedded, EmbeddedConfig};
use tokio::runtime::Runtime;

/// The demo's resource.
pub(crate) const DEMO: &str = include_str!("../src/config/demo.toml");

/// Rows of `emp` for each of `dept`.
const EMPS: u32 = 10;

/// Starts a server with so many rows of `dept`, calls `measure` with its URL, and stops it.
pub(crate) fn with_postgres(
    runtime: &Runtime,
    depts: u32,
    measure: impl FnOnce(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // If root runs the bench, PostgreSQL runs as another user, which has to read the directory.
    let directory = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o755))
        .tempdir()?;
    let embedded = runtime.block_on(Embedded::start(EmbeddedConfig {
        directory: directory.path().join("postgres"),
        settings: Vec::new(),
    }))?;
    let seeded = runtime.block_on(seed(embedded.url(), depts, EMPS));
    let outcome = seeded
        .map_err(Into::into)
        .and_then(|_| measure(embedded.url()));
    runtime.block_on(embedded.stop());
    outcome
}
