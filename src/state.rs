//! The state directory: the lock that lets only one larder use it, and the node's name.
//!
//! The directories below it (the private PostgreSQL, the disk tier) belong to other modules, which set their own
//! permissions. If larder runs as root, others may traverse the state directory, since the private PostgreSQL runs as
//! another user.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::{User, geteuid};
use thiserror::Error;
use uuid::Uuid;

/// The users that the private PostgreSQL may run as if larder runs as root, in the order of preference.
pub(crate) const SERVER_USERS: [&str; 2] = ["postgres", "nobody"];

/// Why the state directory can't be used.
#[derive(Debug, Error)]
pub enum StateError {
    /// Another larder runs on it.
    #[error("state directory {} is in use by another larder ({holder})", directory.display())]
    InUse {
        /// The directory.
        directory: PathBuf,
        /// The process in its lock file: `process 4711`.
        holder: String,
    },
    /// larder runs as root, and another user could replace the files in it.
    #[error(
        "state directory {} {why}: as root, larder uses only a directory that root or the user of the private \
         PostgreSQL owns, and that no other user may write", directory.display()
    )]
    Untrusted {
        /// The directory.
        directory: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A file in it could not be used.
    #[error("could not {action} {}", path.display())]
    Io {
        /// What was tried, for "could not".
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl StateError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
        let path = path.to_owned();
        move |source| StateError::Io {
            action,
            path,
            source,
        }
    }
}

/// The right to use a state directory, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct StateLock {
    directory: PathBuf,
    /// Never read. The system releases the locks when the files are closed, also after SIGKILL.
    _locked: (File, Option<File>),
}

impl StateLock {
    /// Locks the directory, and creates it if it is missing. Does not wait for the lock.
    ///
    /// # Errors
    /// [`StateError::InUse`] if another larder has locked it, with its process id; [`StateError::Untrusted`];
    /// [`StateError::Io`].
    pub fn acquire(directory: &Path) -> Result<StateLock, StateError> {
        create(directory)?;
        let directory = directory
            .canonicalize()
            .map_err(StateError::io("resolve", directory))?;
        check_owner(&directory)?;
        let path = directory.join("lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            // Another user may have put a link to a file of root here.
            .custom_flags(OFlag::O_NOFOLLOW.bits())
            .open(&path)
            .map_err(StateError::io("open", &path))?;
        // The directory itself is locked as well: the file may be removed while larder runs.
        let opened = File::open(&directory).map_err(StateError::io("open", &directory))?;
        let locked_directory = match opened.try_lock() {
            Ok(()) => Some(opened),
            Err(TryLockError::WouldBlock) => {
                return Err(StateError::InUse {
                    directory,
                    holder: holder(&mut file),
                });
            }
            // Such as on NFS, which locks only files that are open for writing.
            Err(TryLockError::Error(_)) => None,
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(StateError::InUse {
                    directory,
                    holder: holder(&mut file),
                });
            }
            Err(TryLockError::Error(error)) => return Err(StateError::io("lock", &path)(error)),
        }
        // The process id is only for messages.
        file.set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(StateError::io("write", &path))?;
        Ok(StateLock {
            directory,
            _locked: (file, locked_directory),
        })
    }

    /// The absolute path of the directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The node's name. It is created by the first call and stays the same.
    ///
    /// A file that has no name is replaced. The node is a new one then, and its disk tier starts empty.
    ///
    /// # Errors
    /// [`StateError::Io`] if the file can't be read, or has no name and can't be written.
    pub fn node(&self) -> Result<Uuid, StateError> {
        let path = self.directory.join("node");
        match fs::read(&path) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                if let Ok(name) = Uuid::parse_str(text.trim()) {
                    return Ok(name);
                }
                tracing::warn!(path = %path.display(), "the file has no node UUID; creating a new one");
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(StateError::io("read", &path)(error)),
        }
        let name = Uuid::new_v4();
        self.write_atomically(&path, &format!("{name}\n"))
            .map_err(StateError::io("write", &path))?;
        Ok(name)
    }

    /// Replaces the file: after a crash it has all of `text`, or its former content.
    fn write_atomically(&self, path: &Path, text: &str) -> io::Result<()> {
        let unfinished = path.with_extension("new");
        let mut file = create_anew(&unfinished)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        File::open(&self.directory)?.sync_all()
    }
}

/// Replaces a file by one with `text`, without syncing it. If that fails, removes it, so that no former content is read.
pub(crate) fn replace_or_remove(path: &Path, text: &str) -> io::Result<()> {
    let unfinished = path.with_extension("new");
    let replaced = create_anew(&unfinished)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&unfinished, path));
    if replaced.is_err()
        && let Err(error) = fs::remove_file(path)
        && error.kind() != ErrorKind::NotFound
    {
        tracing::debug!("can't remove {}: {error}", path.display());
    }
    replaced
}

/// Creates a file, in place of what has its name. Follows no link.
fn create_anew(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => File::create_new(path),
    }
}

/// Checks that no other user may replace files in the directory. If one may, larder as root refuses it; larder as another
/// user only logs a warning, since the volumes of containers are often writable for all.
fn check_owner(directory: &Path) -> Result<(), StateError> {
    let metadata = fs::metadata(directory).map_err(StateError::io("look at", directory))?;
    let is_root = geteuid().is_root();
    let is_own = metadata.uid() == geteuid().as_raw();
    let is_trusted = is_own || (is_root && is_server_user(metadata.uid()));
    let why = if !is_trusted {
        format!("belongs to another user (uid {})", metadata.uid())
    } else if metadata.mode() & 0o022 != 0 {
        format!(
            "may be written by others (mode {:o})",
            metadata.mode() & 0o7777
        )
    } else {
        return Ok(());
    };
    let directory = directory.to_owned();
    if is_root {
        return Err(StateError::Untrusted { directory, why });
    }
    tracing::warn!(
        "state directory {} {why}: that user could replace its files",
        directory.display()
    );
    Ok(())
}

fn is_server_user(uid: u32) -> bool {
    SERVER_USERS
        .iter()
        .filter_map(|name| User::from_name(name).ok().flatten())
        .any(|user| user.uid.as_raw() == uid)
}

/// Refuses a symbolic link as root, before a directory is created or changed: it could lead to any directory.
pub(crate) fn refuse_link(directory: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(directory);
    if geteuid().is_root() && metadata.is_ok_and(|metadata| metadata.is_symlink()) {
        return Err(io::Error::other(
            "it is a symbolic link, which larder does not follow as root",
        ));
    }
    Ok(())
}

/// Creates the directory for its owner only. If that is root, others may traverse it, but not list it.
fn create(directory: &Path) -> Result<(), StateError> {
    if directory.is_dir() {
        return Ok(());
    }
    let mode = if geteuid().is_root() { 0o711 } else { 0o700 };
    let io = || StateError::io("create", directory);
    if let Some(parent) = directory.parent() {
        fs::create_dir_all(parent).map_err(io())?;
    }
    match DirBuilder::new().mode(mode).create(directory) {
        Ok(()) => {}
        // Another larder has created it meanwhile. One of the two gets the lock.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
        Err(error) => return Err(io()(error)),
    }
    // The umask may have removed the right to traverse it.
    fs::set_permissions(directory, Permissions::from_mode(mode)).map_err(io())
}

/// The process that holds the lock, as the lock file says.
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    match file.read_to_string(&mut text) {
        Ok(_) if !text.trim().is_empty() => format!("process {}", text.trim()),
        _ => "its process is unknown".to_owned(),
    }
}
