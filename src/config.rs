//! larder.toml, environment and flags -> checked configuration.
//!
//! Owns every default and every check that needs no database. What a resource means against PostgreSQL's
//! catalogue is checked elsewhere, with the places that are kept here. Only this module and
//! [`cli`](crate::cli) see flags and environment; the rest of larder takes the small structs out of [`Config`].
//!
//! All mistakes are reported at once, each with file, line and key. No message contains a password.

mod access;
mod dispatch;
mod dump;
mod environment;
mod example;
mod fit;
mod names;
mod places;
mod reading;
mod settings;
mod tables;
#[cfg(test)]
mod testing;
mod text;
mod url;
mod value;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use self::dump::dump;
pub use self::environment::Environment;
pub use self::example::example;
pub(crate) use self::value::{toml_list, toml_string};

use self::reading::ConfigReader;
use crate::auth::config::AuthConfig;
use crate::cache::audit::AuditConfig;
use crate::cache::disk::DiskConfig;
use crate::cache::memory::MemoryConfig;
use crate::dispatch::definition::DispatchDefinition;
use crate::feed::{FeedConfig, OnLoss};
use crate::http::answers::AnswersConfig;
use crate::http::middleware::access_log::AccessLogConfig;
use crate::http::middleware::cors::CorsConfig;
use crate::resource::definition::{Mistake, ResourceDefinition, Tiers};
use crate::server::Limits;
use crate::server::tls::TlsConfig;
use crate::source::SourceConfig;
use crate::unseen::escaped;

/// The file that is read if none is named.
const DEFAULT_FILE: &str = "larder.toml";
/// The variable that names the file.
const FILE_VARIABLE: &str = "LARDER_CONFIG";

/// The configuration in force, checked as far as it can be without a database.
///
/// Its `Debug` form is that of `config --dump`, without passwords.
#[derive(Clone)]
pub struct Config {
    /// Public address.
    pub listen: SocketAddr,
    /// Admin address.
    pub admin: SocketAddr,
    /// Admin address of `larder dispatch`.
    pub dispatch_admin: SocketAddr,
    /// Names of this machine by which web pages may use the public address, if it is on loopback and without
    /// authentication.
    pub hosts: Vec<String>,
    /// The same for the admin address without a token.
    pub admin_hosts: Vec<String>,
    /// Other machines may reach the public address without authentication or TLS.
    pub insecure: bool,
    /// The public address serves its OpenAPI description and Swagger UI.
    pub docs: bool,
    /// The access log of the public address.
    pub access_log: AccessLogConfig,
    /// The directory of the private PostgreSQL, the disk tier and the name of the node.
    pub state_dir: PathBuf,
    /// `serve` installs schema and triggers by itself.
    pub install: bool,
    /// How long requests are served after SIGTERM before the drain begins.
    pub shutdown_delay: Duration,
    /// How long a drain may take.
    pub shutdown_timeout: Duration,
    /// Worker threads.
    pub workers: usize,
    /// The longest time that a request waits for PostgreSQL.
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
    /// Findings that `larder check` and `serve` leave out, as `ID` or `ID:OBJECT`.
    pub check_ignore: Vec<String>,
    /// Self-audit.
    pub audit: AuditConfig,
    /// Limits for clients.
    pub limits: Limits,
    /// Bounds of answers with many documents.
    pub answers: AnswersConfig,
    /// All request bodies that are being received, in bytes.
    pub bodies_bytes_max: u64,
    /// Certificate, key and HSTS of the public address.
    pub tls: TlsConfig,
    /// Access by pages of other origins.
    pub cors: CorsConfig,
    /// Users, API keys, JWTs and the admin token.
    pub auth: AuthConfig,
    /// The file that was read; `None` without one.
    pub file: Option<PathBuf>,
    /// In the order of the file; the demo's if there is no file.
    pub resources: Vec<ResourceDefinition>,
    /// In the order of the file.
    pub dispatches: Vec<DispatchDefinition>,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&dump(self))
    }
}

/// The sources of the configuration, before they are read.
#[derive(Clone)]
pub struct Sources {
    /// `--config`.
    pub file: Option<PathBuf>,
    /// The directory of `larder.toml` if no file is named; empty: the working directory.
    pub directory: PathBuf,
    /// The process's environment.
    pub environment: Environment,
    /// Flags that set a setting: its dotted key and the value.
    pub overrides: Vec<(String, String)>,
    /// `--tiers`: the resources use no others.
    pub tiers: Option<Tiers>,
}

/// Everything that is wrong with the configuration, one mistake a line.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.lines())]
pub struct ConfigError {
    /// Never empty; in the order of the file.
    pub mistakes: Vec<Mistake>,
}

impl From<Mistake> for ConfigError {
    fn from(mistake: Mistake) -> Self {
        Self {
            mistakes: vec![mistake],
        }
    }
}

impl ConfigError {
    fn lines(&self) -> String {
        let mistakes = self.mistakes.iter();
        let lines: Vec<String> = mistakes
            .map(|mistake| escaped(&mistake.to_string()))
            .collect();
        lines.join("\n")
    }
}

impl Config {
    /// Reads the file that the flag, `LARDER_CONFIG` or the default names, then the environment, then the flags.
    ///
    /// Without a file the demo's resource is served. Blocks on the file system.
    /// # Errors
    /// [`ConfigError`] with all that is wrong.
    pub fn load(sources: &Sources) -> Result<Self, ConfigError> {
        let (mut reader, file) = read(sources);
        reader.check_files();
        let mut config = Self {
            file,
            ..reader.finish()?
        };
        if let Some(tiers) = sources.tiers {
            config.restrict_tiers(tiers);
        }
        Ok(config)
    }

    /// As [`Config::load`], for a command that only uses the database, and no tier. It reads no files that settings name: they
    /// may be for the user of `serve` only.
    ///
    /// # Errors
    /// [`ConfigError`] with all that is wrong.
    pub fn load_for_database(sources: &Sources) -> Result<Self, ConfigError> {
        let (reader, file) = read(sources);
        Ok(Self {
            file,
            ..reader.finish()?
        })
    }

    /// As [`Config::load`], without a file. Settings need not fit together: a file may have what they lack.
    ///
    /// # Errors
    /// [`ConfigError`] with all values that are wrong.
    pub fn load_without_file(sources: &Sources) -> Result<Self, ConfigError> {
        let mut reader = ConfigReader::new();
        read_values(sources, &mut reader);
        reader.finish_unfitted()
    }

    /// As [`Config::load`], for a command that asks a running larder. That has checked whether settings fit together, and read
    /// the files that they name: they may be for its user only, or be wrong by now.
    ///
    /// # Errors
    /// [`ConfigError`] with all values that are wrong.
    pub fn load_for_admin(sources: &Sources) -> Result<Self, ConfigError> {
        let (reader, file) = read(sources);
        Ok(Self {
            file,
            ..reader.finish_unfitted()?
        })
    }

    /// Reads `text` as a `larder.toml`, then pairs of a setting's dotted key and its value as flags would set it.
    ///
    /// Looks at no environment and no file.
    ///
    /// ```
    /// use larder::config::Config;
    ///
    /// let text = "[[resource]]\nname = 'depts'\ntable = 'dept'\n";
    /// let config = Config::from_toml(text, &[("memory.max_bytes", "1GiB")])?;
    /// assert_eq!(config.resources[0].name.value, "depts");
    /// assert_eq!(config.memory.bytes_max, 1 << 30);
    ///
    /// let errors = Config::from_toml("[memory]\nmax_bites = '1GiB'", &[]).unwrap_err();
    /// assert!(errors.to_string().contains("memory.max_bites"));
    /// # Ok::<(), larder::config::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError`] with all that is wrong.
    pub fn from_toml(text: &str, overrides: &[(&str, &str)]) -> Result<Self, ConfigError> {
        let mut reader = ConfigReader::new();
        reader.read_file(DEFAULT_FILE, text);
        reader.read_overrides(overrides.iter().copied());
        reader.finish()
    }

    /// Whether the public address speaks TLS.
    pub fn has_tls(&self) -> bool {
        self.tls.certificate_file.is_some()
    }

    /// Disables the tiers that `tiers` does not name, for every resource.
    pub fn restrict_tiers(&mut self, tiers: Tiers) {
        for resource in &mut self.resources {
            resource.tiers.memory &= tiers.memory;
            resource.tiers.disk &= tiers.disk;
        }
    }

    /// What the settings are read into. Their defaults are in the table of settings, except those that depend on
    /// the machine.
    fn blank() -> Self {
        let unset = SocketAddr::from(([127, 0, 0, 1], 0));
        Self {
            listen: unset,
            admin: unset,
            dispatch_admin: unset,
            hosts: Vec::new(),
            admin_hosts: Vec::new(),
            insecure: false,
            docs: true,
            access_log: AccessLogConfig {
                format: None,
                file: None,
            },
            state_dir: PathBuf::new(),
            install: true,
            shutdown_delay: Duration::ZERO,
            shutdown_timeout: Duration::ZERO,
            workers: std::thread::available_parallelism()
                .map_or(1, usize::from)
                .min(1024),
            request_timeout: Duration::ZERO,
            database_url: None,
            listen_url: None,
            source: SourceConfig {
                connections: 0,
                statement_timeout: Duration::ZERO,
                pooler: false,
                document_bytes_max: 0,
                log_slow: Duration::ZERO,
            },
            memory: MemoryConfig { bytes_max: 0 },
            disk: DiskConfig {
                directory: PathBuf::new(),
                bytes_max: 0,
                cache_bytes: 0,
                batch_entries: 0,
                linger: Duration::ZERO,
            },
            feed: FeedConfig {
                max_staleness: Duration::ZERO,
                poll_interval: Duration::ZERO,
                notify: true,
                on_loss: OnLoss::Bypass,
                retention: Duration::ZERO,
                keys_per_statement: 0,
                answers: false,
            },
            check_ignore: Vec::new(),
            audit: AuditConfig { sample: 0.0 },
            answers: AnswersConfig::default(),
            bodies_bytes_max: 0,
            limits: Limits {
                connections: 0,
                connections_per_address: 0,
                header_timeout: Duration::ZERO,
                idle_timeout: Duration::ZERO,
                body_timeout: Duration::ZERO,
                write_timeout: Duration::ZERO,
                requests_per_second: 0,
                burst: 0,
                trusted_proxies: Vec::new(),
                proxy_protocol: Vec::new(),
            },
            tls: TlsConfig::default(),
            cors: CorsConfig::default(),
            auth: AuthConfig::default(),
            file: None,
            resources: Vec::new(),
            dispatches: Vec::new(),
        }
    }
}

impl Sources {
    /// The path of the configuration file, and the flag or variable that names it; it is empty for the default.
    pub fn path(&self) -> (PathBuf, &'static str) {
        let from_environment = || self.environment.get(FILE_VARIABLE).map(PathBuf::from);
        match (&self.file, from_environment()) {
            (Some(path), _) => (path.clone(), "--config"),
            (None, Some(path)) => (path, FILE_VARIABLE),
            (None, None) => (self.directory.join(DEFAULT_FILE), ""),
        }
    }
}

/// Reads the file, and environment and flags, which override it. Returns the path of the file as well, if there is one.
fn read(sources: &Sources) -> (ConfigReader, Option<PathBuf>) {
    let mut reader = ConfigReader::new();
    let file = read_file(sources, &mut reader);
    read_values(sources, &mut reader);
    (reader, file)
}

/// Reads environment and flags.
fn read_values(sources: &Sources, reader: &mut ConfigReader) {
    reader.read_environment(&sources.environment);
    reader.read_overrides(sources.overrides.iter().map(|(path, text)| (path, text)));
}

/// Reads the file that is named or found, if any, and returns its path.
fn read_file(sources: &Sources, reader: &mut ConfigReader) -> Option<PathBuf> {
    let (path, named_by) = sources.path();
    let origin = path.display().to_string();
    let key = if named_by.is_empty() {
        DEFAULT_FILE
    } else {
        named_by
    };
    match std::fs::read(&path).map(String::from_utf8) {
        Ok(Ok(text)) => {
            reader.read_file(&origin, &text);
            return Some(path);
        }
        Ok(Err(error)) => {
            let whole = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = whole.iter().filter(|&&byte| byte == b'\n').count() + 1;
            let message = "the file is not UTF-8 from this line on".to_owned();
            reader.unreadable(&origin, line, key, message);
        }
        Err(error) if named_by.is_empty() && error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => {
            reader.unreadable(&origin, 0, key, format!("the file can't be read: {error}"))
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::testing::{load, only, sources};
    use super::*;

    #[test]
    fn a_file_that_is_not_text_names_the_line() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(
            directory.path().join("larder.toml"),
            b"# one\n\nlisten = '\xff'\n",
        )
        .unwrap();
        let sources = sources(directory.path().to_owned(), &[], &[]);
        let error = Config::load(&sources).unwrap_err().to_string();
        assert!(error.contains("larder.toml:3: "), "{error}");
    }

    #[test]
    fn defaults_are_those_of_the_interface() {
        let config = load(None, &[], &[]).unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(config.admin.to_string(), "127.0.0.1:8081");
        assert!(config.install);
        assert_eq!(config.memory.bytes_max, 256 << 20);
        assert_eq!(config.disk.directory, PathBuf::from(".larder/disk"));
        assert_eq!(config.disk.batch_entries, 10_000);
        assert_eq!(config.feed.poll_interval, Duration::from_millis(50));
        assert_eq!(config.source.document_bytes_max, 16 << 20);
        assert!(config.workers >= 1 && config.database_url.is_none());
    }

    #[test]
    fn without_a_file_the_demo_is_served() {
        for environment in [&[][..], &[("DATABASE_URL", "postgres://app@db/app")]] {
            let config = load(None, environment, &[]).unwrap();
            let depts = &config.resources[0];
            assert_eq!(
                (depts.name.value.as_str(), &*depts.name.place.origin),
                ("depts", "built-in demo")
            );
            assert_eq!(depts.row.children[0].name.value, "emps");
            assert!(depts.row.lookups.is_empty());
            assert_eq!(config.database_url.is_some(), !environment.is_empty());
        }
        assert_eq!(
            load(Some("workers = 1"), &[], &[]).unwrap().resources[0]
                .name
                .value,
            "depts"
        );
    }

    #[test]
    fn a_url_beside_a_file_without_resources_is_a_mistake() {
        only(
            "workers = 1\n[database]\nurl = 'postgres://db/app'\n",
            "3: resource: there is a database URL but nothing to serve: write at least",
        );
        let error = load(
            Some("workers = 1"),
            &[("DATABASE_URL", "postgres://db/app")],
            &[],
        )
        .unwrap_err();
        assert!(error.to_string().contains("[[resource]]"), "{error}");
    }

    #[test]
    fn the_file_is_the_flags_then_the_variables() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["a.toml", "b.toml", DEFAULT_FILE] {
            let workers = if name == "a.toml" {
                11
            } else if name == "b.toml" {
                12
            } else {
                13
            };
            std::fs::write(directory.path().join(name), format!("workers = {workers}")).unwrap();
        }
        let b = directory.path().join("b.toml");
        let environment = [("LARDER_CONFIG", b.to_str().unwrap())];
        let mut sources = sources(directory.path().to_owned(), &environment, &[]);
        assert_eq!(Config::load(&sources).unwrap().workers, 12);
        sources.file = Some(directory.path().join("a.toml"));
        assert_eq!(Config::load(&sources).unwrap().workers, 11);
        sources.environment = Environment::of_pairs::<&str, &str>([]);
        sources.file = None;
        assert_eq!(Config::load(&sources).unwrap().workers, 13);
        sources.file = Some(directory.path().join("none.toml"));
        let error = Config::load(&sources).unwrap_err().to_string();
        assert!(
            error.contains("none.toml: --config: the file can't be read"),
            "{error}"
        );
    }

    /// `larder init` in a container where `LARDER_LISTEN` is set, and the file to come may have `[auth]`.
    #[test]
    fn without_a_file_settings_need_not_fit_together() {
        let directory = tempfile::tempdir().unwrap();
        let environment = [
            ("LARDER_LISTEN", "0.0.0.0:8080"),
            ("DATABASE_URL", "postgres://db/app"),
        ];
        let sources = sources(directory.path().to_owned(), &environment, &[]);
        let config = Config::load_without_file(&sources).unwrap();
        assert!(config.listen.ip().is_unspecified() && config.database_url.is_some());
        let refused = Config::load(&sources).unwrap_err().to_string();
        assert!(refused.contains("0.0.0.0:8080"), "{refused}");
    }

    #[test]
    fn a_command_of_the_admin_address_reads_no_files_that_settings_name() {
        let directory = tempfile::tempdir().unwrap();
        let text = "listen = '0.0.0.0:8080'\nadmin = '127.0.0.1:9'\n[tls]\ncertificate_file = 'none.pem'\n\
             key_file = 'none.pem'\n[auth.jwt]\njwks_file = 'none.json'";
        std::fs::write(directory.path().join(DEFAULT_FILE), text).unwrap();
        let sources = sources(directory.path().to_owned(), &[], &[]);
        let refused = Config::load(&sources).unwrap_err().to_string();
        assert!(refused.contains("tls.certificate_file"), "{refused}");
        let config = Config::load_for_admin(&sources).unwrap();
        assert_eq!(config.admin.port(), 9);
    }

    #[test]
    fn a_command_of_the_database_checks_settings_and_no_files_that_they_name() {
        let directory = tempfile::tempdir().unwrap();
        let write = |text: &str| {
            std::fs::write(directory.path().join(DEFAULT_FILE), text).unwrap();
            sources(directory.path().to_owned(), &[], &[])
        };
        let tls = "[tls]\ncertificate_file = 'none.pem'\n";
        let sources = write(&format!("{tls}key_file = 'none.pem'"));
        assert!(Config::load(&sources).is_err());
        assert!(Config::load_for_database(&sources).is_ok());
        let refused = Config::load_for_database(&write(tls)).unwrap_err();
        assert!(
            refused.to_string().contains("key_file must name"),
            "{refused}"
        );
    }

    #[test]
    fn tiers_are_only_taken_away() {
        let text = "[[resource]]\nname = 'a'\ntable = 't'\ntiers = ['disk']\n[[resource]]\nname = 'b'\ntable = 't'";
        let mut config = Config::from_toml(text, &[]).unwrap();
        config.restrict_tiers(Tiers {
            memory: true,
            disk: false,
        });
        let tiers: Vec<Tiers> = config
            .resources
            .iter()
            .map(|resource| resource.tiers)
            .collect();
        assert_eq!(
            tiers,
            [
                Tiers {
                    memory: false,
                    disk: false
                },
                Tiers {
                    memory: true,
                    disk: false
                }
            ]
        );
    }
}
