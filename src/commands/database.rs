//! The database of a command: the configured one, else the private one.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::config::Config;
use crate::source::embedded::{Embedded, EmbeddedConfig};
use crate::state::{StateError, StateLock};

/// Where a running larder leaves its private PostgreSQL's URL for other commands.
const URL_FILE: &str = "postgres.url";

/// A database for the length of a command.
#[derive(Debug)]
pub struct CommandDatabase {
    url: String,
    /// The private PostgreSQL, if this command started it, with the file that names it.
    private: Option<(Embedded, PathBuf)>,
    /// Held by commands other than `serve`: one larder at a time starts the private PostgreSQL.
    _lock: Option<StateLock>,
}

impl CommandDatabase {
    /// The configured database. Without one, starts the private PostgreSQL; `lock` holds its state directory.
    ///
    /// # Errors
    /// Why the private PostgreSQL could not be started.
    pub async fn open(config: &Config, lock: &StateLock) -> anyhow::Result<Self> {
        if let Some(url) = &config.database_url {
            return Ok(Self::running(url.clone()));
        }
        let directory = lock.directory().join("postgres");
        let embedded = Embedded::start(EmbeddedConfig {
            directory,
            settings: Vec::new(),
        })
        .await
        .context("the private PostgreSQL can't be started; set DATABASE_URL to use your own")?;
        let url = embedded.url().to_owned();
        let file = lock.directory().join(URL_FILE);
        write_private(&file, &url).with_context(|| format!("writing {}", file.display()))?;
        Ok(Self {
            url,
            private: Some((embedded, file)),
            _lock: None,
        })
    }

    /// As [`CommandDatabase::open`]; joins the private PostgreSQL of a larder that runs.
    ///
    /// # Errors
    /// As there, and if the state directory can't be locked.
    pub async fn join(config: &Config) -> anyhow::Result<Self> {
        if let Some(url) = &config.database_url {
            return Ok(Self::running(url.clone()));
        }
        match StateLock::acquire(&config.state_dir) {
            Ok(lock) => {
                let opened = Self::open(config, &lock).await?;
                Ok(Self {
                    _lock: Some(lock),
                    ..opened
                })
            }
            Err(error @ StateError::InUse { .. }) => {
                let Ok(url) = std::fs::read_to_string(config.state_dir.join(URL_FILE)) else {
                    bail!("{error}, and its private PostgreSQL has not started yet");
                };
                Ok(Self::running(url))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A database that another process has started.
    fn running(url: String) -> Self {
        Self {
            url,
            private: None,
            _lock: None,
        }
    }

    /// The complete URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether the private PostgreSQL runs for this command.
    pub fn is_private(&self) -> bool {
        self.private.is_some()
    }

    /// Stops the private PostgreSQL, if this command started it.
    pub async fn close(self) {
        if let Some((embedded, file)) = self.private {
            embedded.stop().await;
            if let Err(error) = std::fs::remove_file(&file) {
                tracing::warn!("{} can't be removed: {error}", file.display());
            }
        }
    }
}

/// Writes a file that only its owner can read.
fn write_private(file: &Path, text: &str) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    // A file that exists already may be a link, and keeps its mode otherwise.
    if let Err(error) = std::fs::remove_file(file)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)?;
    file.write_all(text.as_bytes())
}
