//! The cluster on disk: `initdb` once, whole or not at all.
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::source::embedded::binaries::Binaries;
use crate::source::embedded::home::Home;
use crate::source::embedded::{EmbeddedError, NAME};

/// In the order of preference; not every machine has the first.
const LOCALES: [&str; 2] = ["C.UTF-8", "C"];
/// Of what `initdb` says, an error quotes this many lines.
const OUTPUT_LINES_MAX: usize = 10;
/// Beginning of the names of clusters that are being made.
const UNFINISHED: &str = "cluster.new-";

/// An initialised data directory and the password of its superuser.
#[derive(Debug)]
pub(super) struct Cluster {
    /// What `postgres -D` takes.
    pub(super) data: PathBuf,
    /// Letters and digits only, so that it needs no escape in a URL.
    pub(super) password: String,
}

impl Cluster {
    /// Opens the cluster of `home`, initialising it where there is none.
    ///
    /// Crash safe: it is made under another name and renamed when it is complete.
    pub(super) async fn open(
        home: &Home,
        binaries: &Binaries,
        durable: bool,
    ) -> Result<Cluster, EmbeddedError> {
        discard_unfinished(home);
        let directory = home.cluster();
        if !directory.exists() {
            initialise(home, binaries, durable).await?;
        }
        let file = directory.join("password");
        let password = fs::read_to_string(&file).map_err(EmbeddedError::io("read", &file))?;
        Ok(Cluster {
            data: directory.join("data"),
            password: password.trim().to_owned(),
        })
    }
}

async fn initialise(home: &Home, binaries: &Binaries, durable: bool) -> Result<(), EmbeddedError> {
    // A name of its own: the initdb of a larder that was killed may still be writing.
    let unfinished = home
        .directory
        .join(format!("{UNFINISHED}{}", Uuid::new_v4().simple()));
    fs::create_dir(&unfinished).map_err(EmbeddedError::io("create", &unfinished))?;
    home.give(&unfinished)?;
    let password = unfinished.join("password");
    write_password(&password).map_err(EmbeddedError::io("write", &password))?;
    home.give(&password)?;
    let mut last_error = None;
    for locale in LOCALES {
        match initdb(home, binaries, &unfinished, locale, durable).await {
            Ok(()) => {
                last_error = None;
                break;
            }
            // initdb has taken its own files away again.
            Err(error) => last_error = Some(error),
        }
    }
    if let Some(error) = last_error {
        discard(&unfinished);
        return Err(error);
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
    durable: bool,
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
    if !durable {
        command.arg("--no-sync");
    }
    let output = command
        .output()
        .await
        .map_err(EmbeddedError::io("run", &program))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(EmbeddedError::Initdb {
        status: output.status,
        output: last_lines(&said, OUTPUT_LINES_MAX),
    })
}

/// 122 random bits, readable by the owner only.
fn write_password(path: &Path) -> std::io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    writeln!(file, "{}", Uuid::new_v4().simple())?;
    file.sync_all()
}

/// Takes away what a larder that was killed had begun.
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
        tracing::warn!(directory = %directory.display(), %error, "unfinished cluster stays");
    }
}

/// The last `count` lines of `text`.
pub(super) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
