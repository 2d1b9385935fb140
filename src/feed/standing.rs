//! Whether what is missing may be installed at once, or a restore may be under way.
//!
//! pg_restore commits each statement by itself: it drops what it is about to create, and adds keys after all data and
//! triggers after the keys. Whoever installs in between makes its next statements fail. Neither absence nor locks show
//! that it runs. So where tables that this larder knew were replaced, or lost their triggers, or schema larder is
//! damaged, nothing is installed until all of it has stood unchanged for a while; documents come from PostgreSQL
//! meanwhile. What this larder never knew is installed at once.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;

use crate::resource::catalogue::{Catalogue, TableName};

/// How long replaced tables, or a damaged schema, must have stood unchanged: pg_restore may create an index in between.
const REPLACED: Duration = Duration::from_secs(30);
/// The same of tables that are the old ones and have lost triggers: somebody dropped those, or is about to drop more.
const STRIPPED: Duration = Duration::from_secs(3);

/// Schema larder's place among the tables that are known; its oid does not matter.
const LOG: &str = "larder.change";

/// The tables that had all their triggers, with their oids, as far as this larder knows.
pub(super) struct Standing {
    file: PathBuf,
    /// The database that they are of.
    database: String,
    known: BTreeMap<String, u32>,
    /// What was seen last, and since when.
    quiet: Option<(String, Instant)>,
}

/// What a look at the database has found.
pub(super) struct Seen<'s> {
    pub(super) catalogue: &'s Catalogue,
    /// The tables that the configuration names, as it does.
    pub(super) named: &'s [String],
    /// Tables that lack triggers.
    pub(super) lacking: Vec<&'s TableName>,
    /// Schema larder or its log is not as it should be.
    pub(super) damaged: bool,
    /// Differs where anything has changed.
    pub(super) state: String,
}

/// What must not be installed yet.
pub(super) struct Hold {
    /// For the log and the status.
    pub(super) why: &'static str,
    /// Oids of tables that are there.
    tables: Vec<u32>,
    /// So is schema larder.
    pub(super) damaged: bool,
    /// A table was replaced or has gone, so that a resource that does not fit may fit soon.
    pub(super) replaced: bool,
}

impl Hold {
    pub(super) fn holds(&self, table: &TableName) -> bool {
        self.tables.contains(&table.oid)
    }
}

/// What a table is known by: as the configuration names it, else by its own name.
fn known_name(catalogue: &Catalogue, table: &TableName) -> String {
    let mut named = catalogue.tables.iter();
    let named = named.find(|(_, known)| known.name.oid == table.oid);
    named.map_or_else(|| table.sql(), |(name, _)| name.clone())
}

impl Standing {
    /// Reads what an earlier run has left in `file`; nothing where it can't be read.
    pub(super) fn open(file: PathBuf) -> Self {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let line = |line: &str| {
            let (oid, name) = line.split_once(' ')?;
            Some((name.to_owned(), oid.parse().ok()?))
        };
        let (database, tables) = text.split_once('\n').unwrap_or_default();
        Self {
            database: database.to_owned(),
            known: tables.lines().filter_map(line).collect(),
            file,
            quiet: None,
        }
    }

    /// Says which database is looked at: the server, and its name. One of the same name that was dropped and created is
    /// about to be restored, and its tables are known.
    pub(super) fn look_at(&mut self, database: &str) {
        if self.database != database {
            database.clone_into(&mut self.database);
            self.known.clear();
            self.quiet = None;
        }
    }

    /// What must wait, as of now. What has stood for long enough is taken for new.
    pub(super) fn hold(&mut self, seen: Seen<'_>) -> Option<Hold> {
        let mut names = Vec::new();
        let mut tables = Vec::new();
        let mut replaced = false;
        for name in seen.named {
            let found = seen.catalogue.tables.get(name).map(|table| table.name.oid);
            if self
                .known
                .get(name)
                .is_some_and(|known| Some(*known) != found)
            {
                replaced = true;
                names.push(name.clone());
                tables.extend(found);
            }
        }
        for table in &seen.lacking {
            let name = known_name(seen.catalogue, table);
            if let Some(known) = self.known.get(&name) {
                replaced |= *known != table.oid;
                names.push(name);
                tables.push(table.oid);
            }
        }
        let damaged = seen.damaged && self.known.contains_key(LOG);
        if names.is_empty() && !damaged {
            self.quiet = None;
            return None;
        }
        let now = Instant::now();
        let since = match self.quiet.take() {
            Some((state, since)) if state == seen.state => since,
            _ => now,
        };
        self.quiet = Some((seen.state, since));
        let wait = if replaced || damaged {
            REPLACED
        } else {
            STRIPPED
        };
        if now.duration_since(since) >= wait {
            self.quiet = None;
            for name in names.iter().map(String::as_str).chain([LOG]) {
                self.known.remove(name);
            }
            self.write();
            return None;
        }
        Some(Hold {
            why: if damaged {
                "schema larder was damaged or replaced, maybe by a restore: waiting until nothing changes for 30 s"
            } else if replaced {
                "it was replaced, maybe by a restore: waiting until nothing changes for 30 s"
            } else {
                "its triggers were dropped, maybe by a restore: waiting until nothing changes for 3 s"
            },
            tables,
            damaged,
            replaced,
        })
    }

    /// All triggers of `tables` are there.
    pub(super) fn complete(&mut self, catalogue: &Catalogue, tables: &[&TableName]) {
        let names = tables
            .iter()
            .map(|table| (known_name(catalogue, table), table.oid));
        let known = names.chain([(LOG.to_owned(), 0)]).collect();
        if self.known != known {
            self.known = known;
            self.write();
        }
    }

    /// Without the file the next run knows no table, and installs at once.
    fn write(&self) {
        let mut lines = format!("{}\n", self.database);
        for (name, oid) in &self.known {
            lines.push_str(&format!("{oid} {name}\n"));
        }
        let unfinished = self.file.with_extension("new");
        let written =
            fs::write(&unfinished, lines).and_then(|()| fs::rename(&unfinished, &self.file));
        if let Err(error) = written {
            tracing::warn!(
                "a restore before the next start will not be detected: {}: {error}",
                self.file.display()
            );
            match fs::remove_file(&self.file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::debug!("{}: {error}", self.file.display());
                }
                _ => {}
            }
        }
    }
}
