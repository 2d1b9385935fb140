//! The cluster on disk: initialised once, completely or not at all.
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::source::embedded::binaries::Binaries;
use crate::source::embedded::home::Home;
use crate::source::embedded::{EmbeddedError, NAME};

/// In the order of preference. Not every machine has the first.
const LOCALES: [&str; 2] = ["C.UTF-8", "C"];
/// The number of lines of `initdb`'s output that an error quotes.
const OUTPUT_LINES_MAX: usize = 10;
/// The prefix of the names of clusters that are not complete.
const UNFINISHED: &str = "cluster.new-";

/// An initialised data directory and the password of its superuser.
#[derive(Debug)]
pub(super) struct Cluster {
    /// The data directory, for `postgres -D`.
    pub(super) data: PathBuf,
    /// Only letters and digits, so that a URL needs no escapes.
    pub(super) password: String,
}

impl Cluster {
    /// Opens the cluster of `home`. Initialises it first if there is none.
    ///
    /// Crash safe: it is initialised under another name, and renamed when it is complete.
    pub(super) async fn open(
        home: &Home,
        binaries: &Binaries,
        is_durable: bool,
    ) -> Result<Cluster, EmbeddedError> {
        discard_unfinished(home);
        let directory = home.cluster();
        if !directory.exists() {
            initialise(home, binaries, is_durable).await?;
        }
        let file = directory.join("password");
        let password = fs::read_to_string(&file).map_err(EmbeddedError::io("read", &file))?;
        Ok(Cluster {
            data: directory.join("data"),
            password: password.trim().to_owned(),
        })
    }
}

async fn initialise(
    home: &Home,
    binaries: &Binaries,
    is_durable: bool,
) -> Result<(), EmbeddedError> {
    // A unique name, since the initdb of a killed larder may still write.
    let unfinished = home
        .directory
        .join(format!("{UNFINISHED}{}", Uuid::new_v4().simple()));
    fs::create_dir(&unfinished).map_err(EmbeddedError::io("create", &unfinished))?;
    home.give_to_server(&unfinished)?;
    let password = unfinished.join("password");
    write_password(&password).map_err(EmbeddedError::io("write", &password))?;
    home.give_to_server(&password)?;
    let mut outcome = Ok(());
    for locale in LOCALES {
        outcome = initdb(home, binaries, &unfinished, locale, is_durable).await;
        // If it failed, initdb has removed its files.
        if outcome.is_ok() {
            break;
        }
    }
    if outcome.is_err() {
        discard(&unfinished);
        return outcome;
    }
    let io = EmbeddedError::io("finish", &unfinished);
    File::open(&unfinished)
        .and_then(|directory| directory.sync_all())
        .and_then(|()| fs::rename(&unfinished, home.cluster()))
        .and_then(|()| File::open(&home.directory))
        .and_then(|directory| directory.sync_all())
        .map_err(io)
}

async fn initdb(
    home: &Home,
    binaries: &Binaries,
    unfinished: &Path,
    locale: &str,
    is_durable: bool,
) -> Result<(), EmbeddedError> {
    let program = binaries.initdb();
    let mut command = home.command(&program);
    command
        .arg("--pgdata")
        .arg(unfinished.join("data"))
        .arg("--pwfile")
        .arg(unfinished.join("password"))
        .args(["--username", NAME, "--auth", "scram-sha-256"])
        .args(["--encoding", "UTF8", "--locale", locale])
        .process_group(0)
        .kill_on_drop(true);
    if !is_durable {
        command.arg("--no-sync");
    }
    let output = command
        .output()
        .await
        .map_err(EmbeddedError::io("run", &program))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(EmbeddedError::Initdb {
        status: output.status,
        output: last_lines(&text, OUTPUT_LINES_MAX),
    })
}

/// 122 random bits, readable by its owner only.
fn write_password(path: &Path) -> std::io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    writeln!(file, "{}", Uuid::new_v4().simple())?;
    file.sync_all()
}

/// Removes the unfinished clusters of killed larders.
fn discard_unfinished(home: &Home) {
    let entries = fs::read_dir(&home.directory).into_iter().flatten();
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            discard(&entry.path());
        }
    }
}

fn discard(directory: &Path) {
    if let Err(error) = fs::remove_dir_all(directory) {
        // Nothing reads it, and the next start tries again.
        tracing::warn!(directory = %directory.display(), %error, "an unfinished cluster could not be removed");
    }
}

/// The last `count` lines of `text`.
pub(super) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
