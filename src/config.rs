//! larder.toml, environment and flags -> checked configuration.
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::cache::disk::DiskConfig;
use crate::cache::memory::MemoryConfig;
use crate::feed::FeedConfig;
use crate::resource::definition::ResourceDefinition;
use crate::source::SourceConfig;

/// The configuration in force, checked as far as it can be without a database.
#[derive(Clone, Debug)]
pub struct Config {
    /// Public address.
    pub listen: SocketAddr,
    /// Admin address.
    pub admin: SocketAddr,
    /// Private PostgreSQL, disk tier, node name.
    pub state_dir: PathBuf,
    /// `serve` installs schema and triggers by itself.
    pub install: bool,
    /// How long a drain may take.
    pub shutdown_timeout: Duration,
    /// Worker threads.
    pub workers: usize,
    /// The longest a request may wait for its document.
    pub request_timeout: Duration,
    /// `None`: the private PostgreSQL.
    pub database_url: Option<String>,
    /// Direct connection for the feed; `None`: `database_url`.
    pub listen_url: Option<String>,
    /// Loader settings.
    pub source: SourceConfig,
    /// Memory tier.
    pub memory: MemoryConfig,
    /// Disk tier.
    pub disk: DiskConfig,
    /// Change feed.
    pub feed: FeedConfig,
    /// In the order of the file; the demo's where there is no file.
    pub resources: Vec<ResourceDefinition>,
}
