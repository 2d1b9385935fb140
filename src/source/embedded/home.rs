//! Where the private PostgreSQL lives, and as whom it runs.
use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use nix::unistd::{User, geteuid};
use tokio::process::Command;
use xxhash_rust::xxh3::xxh3_64;

use crate::source::embedded::EmbeddedError;

/// For data whose directory the unprivileged user can't reach.
const SYSTEM_DIRECTORY: &str = "/var/lib/larder";
/// Users that root gives the server to, the first that exists.
const USERS: [&str; 2] = ["postgres", "nobody"];

/// The directory of one private PostgreSQL and the user that it runs as.
#[derive(Debug)]
pub(super) struct Home {
    /// Absolute, free of links.
    pub(super) directory: PathBuf,
    /// `None`: whoever runs larder.
    owner: Option<Owner>,
}

#[derive(Clone, Copy, Debug)]
struct Owner {
    uid: u32,
    gid: u32,
}

impl Home {
    /// Creates and takes the directory, or its substitute below `/var/lib/larder`.
    pub(super) fn open(wanted: &Path) -> Result<Home, EmbeddedError> {
        fs::create_dir_all(wanted).map_err(EmbeddedError::io("create", wanted))?;
        let wanted = wanted
            .canonicalize()
            .map_err(EmbeddedError::io("resolve", wanted))?;
        let owner = Owner::find(&wanted)?;
        let home = match owner {
            Some(owner) if !owner.reaches(&wanted)? => {
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
                    owner: Some(owner),
                }
            }
            owner => Home {
                directory: wanted,
                owner,
            },
        };
        home.give(&home.directory)?;
        fs::set_permissions(&home.directory, Permissions::from_mode(0o700))
            .map_err(EmbeddedError::io("protect", &home.directory))?;
        Ok(home)
    }

    /// The finished cluster.
    pub(super) fn cluster(&self) -> PathBuf {
        self.directory.join("cluster")
    }

    /// A command that runs as the server's user, in this directory.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.directory);
        if let Some(owner) = self.owner {
            command.uid(owner.uid).gid(owner.gid);
        }
        command
    }

    /// Gives a file or a directory (not what is in it) to the server's user.
    pub(super) fn give(&self, path: &Path) -> Result<(), EmbeddedError> {
        let Some(owner) = self.owner else {
            return Ok(());
        };
        // Never through a link: the server's user may put one here, and this may be root.
        lchown(path, Some(owner.uid), Some(owner.gid)).map_err(EmbeddedError::io("give away", path))
    }
}

impl Owner {
    /// For root: who owns the cluster already, else an unprivileged user.
    fn find(directory: &Path) -> Result<Option<Owner>, EmbeddedError> {
        if !geteuid().is_root() {
            return Ok(None);
        }
        // A cluster made by an ordinary user stays usable for that user.
        if let Ok(metadata) = fs::metadata(directory.join("cluster/data"))
            && metadata.uid() != 0
        {
            return Ok(Some(Owner {
                uid: metadata.uid(),
                gid: metadata.gid(),
            }));
        }
        USERS
            .iter()
            .find_map(|name| User::from_name(name).ok().flatten())
            .map(|user| {
                Some(Owner {
                    uid: user.uid.as_raw(),
                    gid: user.gid.as_raw(),
                })
            })
            .ok_or(EmbeddedError::NoUnprivilegedUser)
    }

    /// Whether this user may enter every directory above this one.
    fn reaches(self, directory: &Path) -> Result<bool, EmbeddedError> {
        for above in directory.ancestors().skip(1) {
            let metadata = fs::metadata(above).map_err(EmbeddedError::io("look at", above))?;
            if !self.enters(&metadata) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The server runs without supplementary groups, so its one group is all that counts.
    fn enters(self, directory: &Metadata) -> bool {
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

/// The same place again for the same wanted directory.
fn substitute(wanted: &Path) -> PathBuf {
    let hash = xxh3_64(wanted.as_os_str().as_bytes());
    Path::new(SYSTEM_DIRECTORY).join(format!("{hash:016x}"))
}
