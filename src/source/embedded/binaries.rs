//! The server's programs: found on this machine, or downloaded.
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use postgresql_embedded::{PostgreSQL, Settings, VersionReq};

use crate::source::embedded::EmbeddedError;
use crate::source::embedded::home::Home;

/// The oldest release with `xid8` and `pg_snapshot`, which the change feed needs.
const MAJOR_MIN: u32 = 14;
/// A release is about 30 MB.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(300);
/// Where packagers put the programs: parent, beginning of the name, rest.
const USUAL_PLACES: [(&str, &str, &str); 5] = [
    ("/usr/lib/postgresql", "", "bin"),
    ("/usr/local", "pgsql", "bin"),
    ("/usr", "pgsql-", "bin"),
    ("/opt/homebrew/opt", "postgresql", "bin"),
    ("/usr/local/opt", "postgresql", "bin"),
];

/// A directory with `initdb` and `postgres`.
#[derive(Debug)]
pub(super) struct Binaries {
    directory: PathBuf,
}

impl Binaries {
    /// Finds programs of the major version of the data in `home`; of any version if there is no data yet.
    pub(super) async fn find(home: &Home) -> Result<Binaries, EmbeddedError> {
        let data = home.cluster().join("data");
        let wanted = data_version(&data)?;
        let mut found = Vec::new();
        for directory in candidates() {
            let Some(major) = major_version(home, &directory).await else {
                continue;
            };
            if wanted.map_or(major >= MAJOR_MIN, |wanted| wanted == major) {
                tracing::debug!(directory = %directory.display(), major, "found PostgreSQL");
                return Ok(Binaries { directory });
            }
            let major = major.to_string();
            if !found.contains(&major) {
                found.push(major);
            }
        }
        match (download(home, wanted).await, wanted) {
            (Ok(directory), _) => Ok(Binaries { directory }),
            (Err(_), Some(wanted)) if !found.is_empty() => Err(EmbeddedError::OtherVersion {
                directory: data,
                data: wanted,
                found: found.join(", "),
            }),
            (Err(reason), wanted) => Err(EmbeddedError::NoBinaries {
                wanted: wanted.map(|major| format!("{major} ")).unwrap_or_default(),
                reason,
            }),
        }
    }

    /// The path of `initdb`.
    pub(super) fn initdb(&self) -> PathBuf {
        self.directory.join("initdb")
    }

    /// The path of the server.
    pub(super) fn postgres(&self) -> PathBuf {
        self.directory.join("postgres")
    }
}

/// The major version that initialised this data directory.
fn data_version(data: &Path) -> Result<Option<u32>, EmbeddedError> {
    if !data.exists() {
        return Ok(None);
    }
    let file = data.join("PG_VERSION");
    let text = fs::read_to_string(&file).map_err(EmbeddedError::io("read", &file))?;
    Ok(leading_number(text.trim()))
}

/// Directories with both programs, in the order of preference.
fn candidates() -> Vec<PathBuf> {
    // Not a setting of larder, so `config` does not read it.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = std::env::split_paths(&path)
        .filter(|directory| directory.is_absolute())
        .collect();
    for (parent, beginning, rest) in USUAL_PLACES {
        directories.extend(newest_first(Path::new(parent), beginning, rest));
    }
    directories.retain(|directory| {
        directory.join("initdb").is_file() && directory.join("postgres").is_file()
    });
    directories
}

/// The directories `parent/beginning*/rest`, the highest version first.
fn newest_first(parent: &Path, beginning: &str, rest: &str) -> Vec<PathBuf> {
    let mut found: Vec<(Option<u32>, PathBuf)> = fs::read_dir(parent)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let behind = name.to_str()?.strip_prefix(beginning)?;
            let version = leading_number(behind.trim_start_matches(['-', '@']));
            Some((version, entry.path().join(rest)))
        })
        .collect();
    found.sort_by(|one, other| other.cmp(one));
    found.into_iter().map(|(_, path)| path).collect()
}

/// The major version that `postgres --version` prints. It runs as the server's user, which may not be able to run it.
async fn major_version(home: &Home, directory: &Path) -> Option<u32> {
    let output = home
        .command(&directory.join("postgres"))
        .arg("--version")
        .output()
        .await
        .ok()?;
    // For example: postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)
    let text = String::from_utf8_lossy(&output.stdout);
    text.split_whitespace().find_map(leading_number)
}

/// `15` of `15.13`, of `15beta1` and of `15`.
fn leading_number(text: &str) -> Option<u32> {
    let end = text
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(text.len());
    text.get(..end)?.parse().ok()
}

/// Downloads and unpacks a release below `home`. Uses the one of an earlier download if there is one.
async fn download(home: &Home, wanted: Option<u32>) -> Result<PathBuf, String> {
    let mut settings = Settings::new();
    settings.installation_dir = home.directory.join("programs");
    if let Some(major) = wanted {
        settings.version =
            VersionReq::parse(&format!("={major}")).map_err(|error| error.to_string())?;
    }
    // `setup` also runs initdb, as larder's user, unless the data directory looks initialised.
    // The crate has created this data directory, and removes it when `installer` is dropped.
    fs::write(settings.data_dir.join("postgresql.conf"), "").map_err(|error| error.to_string())?;
    let password_directory = settings.password_file.parent().map(Path::to_owned);
    tracing::info!("no PostgreSQL found, downloading one");
    let mut installer = PostgreSQL::new(settings);
    let result = tokio::time::timeout(DOWNLOAD_TIMEOUT, installer.setup()).await;
    if let Some(directory) = password_directory {
        // If this fails, an empty temporary directory is left.
        fs::remove_dir_all(&directory).ok();
    }
    match result {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => {
            return Err(format!(
                "it took more than {} s",
                DOWNLOAD_TIMEOUT.as_secs()
            ));
        }
    }
    let directory = installer.settings().binary_dir();
    // Root may have unpacked them with a umask that keeps the server's user out.
    give_tree(home, &home.directory.join("programs")).map_err(|error| error.to_string())?;
    Ok(directory)
}

/// Gives a directory and everything in it to the server's user. Follows no links.
fn give_tree(home: &Home, path: &Path) -> Result<(), EmbeddedError> {
    let io = |error| EmbeddedError::io("look at", path)(error);
    if fs::symlink_metadata(path).map_err(io)?.is_symlink() {
        return Ok(());
    }
    home.give_to_server(path)?;
    if path.is_dir() {
        for entry in fs::read_dir(path).map_err(io)? {
            give_tree(home, &entry.map_err(io)?.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{leading_number, newest_first};

    #[test]
    fn versions_are_read_by_their_leading_number() {
        assert_eq!(leading_number("15.13"), Some(15));
        assert_eq!(leading_number("18beta1"), Some(18));
        assert_eq!(leading_number("(PostgreSQL)"), None);
    }

    #[test]
    fn higher_versions_come_first_by_number() {
        let parent = tempfile::tempdir().unwrap();
        for name in ["pgsql-9", "pgsql-17", "pgsql-16", "other-18"] {
            std::fs::create_dir(parent.path().join(name)).unwrap();
        }
        let found = newest_first(parent.path(), "pgsql-", "bin");
        let wanted = ["pgsql-17/bin", "pgsql-16/bin", "pgsql-9/bin"];
        assert_eq!(found, wanted.map(|name| parent.path().join(name)));
    }
}
