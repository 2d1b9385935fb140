//! The state directory: one larder at a time, and the node's name.
//!
//! What lies below it (the private PostgreSQL, the disk tier) belongs to other modules, which
//! protect their own directories: as root this one must let an unprivileged server pass.
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
        /// `process 4711`, as far as its lock file says.
        holder: String,
    },
    /// A file in it could not be used.
    #[error("could not {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
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
    /// Only held: the system lets go of the lock when it is closed, also by a SIGKILL.
    _file: File,
}

impl StateLock {
    /// Takes the directory, creating it where it is missing. Never waits.
    /// # Errors
    /// [`StateError::InUse`] if another larder has it, with that one's process id.
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
        // Who holds it is for people; the lock itself is the system's.
        file.set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(StateError::io("write", &path))?;
        Ok(StateLock {
            directory,
            _file: file,
        })
    }

    /// The directory, absolute.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The node's name, made on the first call and the same ever after.
    ///
    /// A file that holds no name is replaced: the node is then a new one, which costs its disk
    /// tier and nothing else.
    /// # Errors
    /// [`StateError::Io`] if it can be neither read nor written.
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
        self.write_whole(&path, &format!("{name}\n"))
            .map_err(StateError::io("write", &path))?;
        Ok(name)
    }

    /// After a crash the file holds all of `text` or what it held before.
    fn write_whole(&self, path: &Path, text: &str) -> io::Result<()> {
        let unfinished = path.with_extension("new");
        let mut file = File::create(&unfinished)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        File::open(&self.directory)?.sync_all()
    }
}

/// Creates the directory for its owner alone; root's lets others pass, though not list it.
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
        // Another larder was faster; the lock decides.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
        Err(error) => return Err(io()(error)),
    }
    // The umask may have taken away the right to pass.
    fs::set_permissions(directory, Permissions::from_mode(mode)).map_err(io())
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    match file.read_to_string(&mut text) {
        Ok(_) if !text.trim().is_empty() => format!("process {}", text.trim()),
        _ => "its process is unknown".to_owned(),
    }
}
