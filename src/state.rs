//! The state directory: the lock that lets only one larder use it, and the node's name.
//!
//! The directories below it (the private PostgreSQL, the disk tier) belong to other modules, which set their own
//! permissions. If larder runs as root, others may traverse the state directory, since the private PostgreSQL runs as
//! another user.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use thiserror::Error;
use uuid::Uuid;

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
    /// Never read. The system releases the lock when the file is closed, also after SIGKILL.
    _file: File,
}

impl StateLock {
    /// Locks the directory, and creates it if it is missing. Does not wait for the lock.
    ///
    /// # Errors
    /// [`StateError::InUse`] if another larder has locked it, with its process id; [`StateError::Io`].
    pub fn acquire(directory: &Path) -> Result<StateLock, StateError> {
        create(directory)?;
        let directory = directory
            .canonicalize()
            .map_err(StateError::io("resolve", directory))?;
        let path = directory.join("lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(StateError::io("open", &path))?;
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
            _file: file,
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
        let mut file = File::create(&unfinished)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        File::open(&self.directory)?.sync_all()
    }
}

/// Replaces a file by one with `text`, without syncing it. If that fails, removes it, so that no former content is read.
pub(crate) fn replace_or_remove(path: &Path, text: &str) -> io::Result<()> {
    let unfinished = path.with_extension("new");
    let replaced = fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, path));
    if replaced.is_err()
        && let Err(error) = fs::remove_file(path)
        && error.kind() != ErrorKind::NotFound
    {
        tracing::debug!("can't remove {}: {error}", path.display());
    }
    replaced
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
