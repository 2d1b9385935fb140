//! The directory of the private PostgreSQL, and the user that it runs as.
use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use nix::unistd::{User, geteuid};
use tokio::process::Command;
use xxhash_rust::xxh3::xxh3_64;

use crate::source::embedded::EmbeddedError;
use crate::state::{SERVER_USERS, refuse_link};

/// Used if the server's user cannot reach the configured directory.
const SYSTEM_DIRECTORY: &str = "/var/lib/larder";
/// What the server's programs get of larder's environment: where to find programs and libraries, locale and time zone.
/// Whatever else there is may be a secret of larder, and `copy … from program 'env'` would show it.
const ENVIRONMENT: [&str; 7] = [
    "PATH",
    "LD_LIBRARY_PATH",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "TZ",
    "TZDIR",
];

/// The directory of one private PostgreSQL and the user that it runs as.
#[derive(Debug)]
pub(super) struct Home {
    /// Absolute, free of links.
    pub(super) directory: PathBuf,
    /// `None` for larder's own user.
    user: Option<ServerUser>,
}

#[derive(Clone, Copy, Debug)]
struct ServerUser {
    uid: u32,
    gid: u32,
}

impl Home {
    /// Creates the directory, or its substitute below `/var/lib/larder`, and gives it to the server's user.
    pub(super) fn open(wanted: &Path) -> Result<Home, EmbeddedError> {
        refuse_link(wanted).map_err(EmbeddedError::io("use", wanted))?;
        fs::create_dir_all(wanted).map_err(EmbeddedError::io("create", wanted))?;
        let wanted = wanted
            .canonicalize()
            .map_err(EmbeddedError::io("resolve", wanted))?;
        let user = ServerUser::find(&wanted)?;
        let home = match user {
            Some(user) if !user.can_reach(&wanted)? => {
                let substitute = substitute(&wanted);
                tracing::info!(
                    wanted = %wanted.display(),
                    used = %substitute.display(),
                    "the user of the private PostgreSQL can't reach its directory; another directory is used"
                );
                DirBuilder::new()
                    .recursive(true)
                    .mode(0o755)
                    .create(&substitute)
                    .map_err(EmbeddedError::io("create", &substitute))?;
                Home {
                    directory: substitute,
                    user: Some(user),
                }
            }
            user => Home {
                directory: wanted,
                user,
            },
        };
        home.give_to_server(&home.directory)?;
        fs::set_permissions(&home.directory, Permissions::from_mode(0o700))
            .map_err(EmbeddedError::io("protect", &home.directory))?;
        Ok(home)
    }

    /// The path of the complete cluster.
    pub(super) fn cluster(&self) -> PathBuf {
        self.directory.join("cluster")
    }

    /// A command that runs as the server's user, in this directory, with only [`ENVIRONMENT`] of larder's environment.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.directory).env_clear();
        // Not settings of larder, so `config` does not read them.
        command.envs(
            ENVIRONMENT
                .iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?))),
        );
        if let Some(user) = self.user {
            command.uid(user.uid).gid(user.gid);
        }
        command
    }

    /// Gives a file, or a directory without its content, to the server's user.
    pub(super) fn give_to_server(&self, path: &Path) -> Result<(), EmbeddedError> {
        let Some(user) = self.user else {
            return Ok(());
        };
        // Follows no link: the server's user may create one here, and larder may run as root.
        lchown(path, Some(user.uid), Some(user.gid)).map_err(EmbeddedError::io("give away", path))
    }
}

impl ServerUser {
    /// For root: the owner of an existing cluster, else an unprivileged user. `None` if larder does not run as root.
    fn find(directory: &Path) -> Result<Option<ServerUser>, EmbeddedError> {
        if !geteuid().is_root() {
            return Ok(None);
        }
        // A cluster that an ordinary user has created stays usable for that user.
        if let Ok(metadata) = fs::metadata(directory.join("cluster/data"))
            && metadata.uid() != 0
        {
            return Ok(Some(ServerUser {
                uid: metadata.uid(),
                gid: metadata.gid(),
            }));
        }
        SERVER_USERS
            .iter()
            .find_map(|name| User::from_name(name).ok().flatten())
            .map(|user| {
                Some(ServerUser {
                    uid: user.uid.as_raw(),
                    gid: user.gid.as_raw(),
                })
            })
            .ok_or(EmbeddedError::NoUnprivilegedUser)
    }

    /// Whether this user may enter every directory above this one.
    fn can_reach(self, directory: &Path) -> Result<bool, EmbeddedError> {
        for above in directory.ancestors().skip(1) {
            let metadata = fs::metadata(above).map_err(EmbeddedError::io("look at", above))?;
            if !self.can_enter(&metadata) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether this user may enter the directory. Only one group counts, since the server has no supplementary groups.
    fn can_enter(self, directory: &Metadata) -> bool {
        let bit = if directory.uid() == self.uid {
            0o100
        } else if directory.gid() == self.gid {
            0o010
        } else {
            0o001
        };
        directory.mode() & bit != 0
    }
}

/// The directory below `/var/lib/larder` for `wanted`, always the same.
fn substitute(wanted: &Path) -> PathBuf {
    let hash = xxh3_64(wanted.as_os_str().as_bytes());
    Path::new(SYSTEM_DIRECTORY).join(format!("{hash:016x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As root, larder would give a directory that another user has chosen to the server's user.
    #[test]
    fn root_follows_no_link() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        let victim = parent.path().join("victim");
        fs::create_dir(&victim).unwrap();
        let before = fs::metadata(&victim).unwrap();
        let link = parent.path().join("postgres");
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        Home::open(&link).unwrap_err();
        let after = fs::metadata(&victim).unwrap();
        assert_eq!(before.permissions(), after.permissions());
    }
}
