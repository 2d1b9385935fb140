//! Whether a restore may be under way, so that nothing may be installed yet.
//!
//! pg_restore commits each statement by itself. It drops what it is about to create, and adds keys after all data, and
//! triggers after the keys. A statement of it fails if larder installs something in between, and neither missing
//! objects nor locks show that it runs. So if tables that this larder knew were replaced, or lost their triggers, or if
//! schema larder is damaged, nothing is installed until all of it has been unchanged for a while. Meanwhile PostgreSQL
//! answers. What this larder has never known is installed at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;

use crate::resource::catalogue::{Catalogue, TableName};
use crate::state::replace_or_remove;

/// How long replaced tables, or a damaged schema, must be unchanged: pg_restore may create an index meanwhile.
const REPLACED_DELAY: Duration = Duration::from_secs(30);
/// How long tables that were not replaced must be unchanged after they lost triggers: a client that dropped those may
/// be about to drop more.
const DROPPED_TRIGGERS_DELAY: Duration = Duration::from_secs(3);

/// Stands for schema larder among the known tables. Its oid is not compared.
const LOG: &str = "larder.change";

/// Detects signs of a restore: compares what is in the database with the tables that had all their triggers.
pub(super) struct RestoreDetector {
    /// Keeps the known tables from one run to the next.
    file: PathBuf,
    /// The database of the known tables.
    database: String,
    /// The tables that had all their triggers, by name, with their oids.
    known: BTreeMap<String, u32>,
    /// Known tables that were not replaced and lack triggers, which may be created: the delay is over. They stay known:
    /// a restore that has stalled may still replace them.
    released: BTreeSet<String>,
    /// The last state that asked for a delay, and since when it is unchanged.
    unchanged: Option<(String, Instant)>,
}

/// What the database looks like at the moment.
pub(super) struct DatabaseState<'s> {
    pub(super) catalogue: &'s Catalogue,
    /// The tables that the configuration names, as they are written there.
    pub(super) configured: &'s [String],
    pub(super) without_triggers: Vec<&'s TableName>,
    /// Schema larder lacks tables or functions, or they differ.
    pub(super) is_schema_damaged: bool,
    /// A text that differs if anything has changed.
    pub(super) summary: String,
}

/// Why something may not be installed yet, and what.
pub(super) struct InstallDelay {
    /// For the log and the status.
    pub(super) reason: &'static str,
    /// Oids of tables that exist and may not get triggers yet.
    tables: Vec<u32>,
    /// Schema larder may not be installed yet.
    pub(super) is_schema_damaged: bool,
    /// A table was replaced or dropped, so that a resource which does not fit the database may fit soon.
    pub(super) is_table_replaced: bool,
}

impl InstallDelay {
    /// Whether `table` may not get triggers yet.
    pub(super) fn concerns(&self, table: &TableName) -> bool {
        self.tables.contains(&table.oid)
    }
}

/// The name under which a table is known: as the configuration names it; its own name if it is not named there.
fn known_name(catalogue: &Catalogue, table: &TableName) -> String {
    let mut configured = catalogue.tables.iter();
    let configured = configured.find(|(_, known)| known.name.oid == table.oid);
    configured.map_or_else(|| table.sql(), |(name, _)| name.clone())
}

impl RestoreDetector {
    /// Reads the tables that an earlier run has written to `file`. If it can't be read, no table is known.
    pub(super) fn open(file: PathBuf) -> Self {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let parse = |line: &str| {
            let (oid, name) = line.split_once(' ')?;
            Some((name.to_owned(), oid.parse().ok()?))
        };
        let (database, tables) = text.split_once('\n').unwrap_or_default();
        Self {
            database: database.to_owned(),
            known: tables.lines().filter_map(parse).collect(),
            file,
            released: BTreeSet::new(),
            unchanged: None,
        }
    }

    /// Sets the database that is looked at, by the server's system identifier and its name. A database that was dropped
    /// and created under the same name may be about to be restored, so its tables stay known.
    pub(super) fn set_database(&mut self, database: &str) {
        if self.database != database {
            database.clone_into(&mut self.database);
            self.known.clear();
            self.released.clear();
            self.unchanged = None;
        }
    }

    /// What must not be installed yet. After the delay is over, what was replaced or dropped is no longer known, and
    /// may be installed.
    pub(super) fn delay(&mut self, state: DatabaseState<'_>) -> Option<InstallDelay> {
        let mut names = Vec::new();
        let mut tables = Vec::new();
        let mut is_table_replaced = false;
        for name in state.configured {
            let found = state.catalogue.tables.get(name).map(|table| table.name.oid);
            if self
                .known
                .get(name)
                .is_some_and(|known| Some(*known) != found)
            {
                is_table_replaced = true;
                names.push(name.clone());
                tables.extend(found);
            }
        }
        let mut dropped = BTreeSet::new();
        for table in &state.without_triggers {
            let name = known_name(state.catalogue, table);
            if let Some(known) = self.known.get(&name) {
                let is_replaced = *known != table.oid;
                if !is_replaced {
                    dropped.insert(name.clone());
                    if self.released.contains(&name) {
                        continue;
                    }
                }
                is_table_replaced |= is_replaced;
                names.push(name);
                tables.push(table.oid);
            }
        }
        self.released.retain(|name| dropped.contains(name));
        let is_schema_damaged = state.is_schema_damaged && self.known.contains_key(LOG);
        if names.is_empty() && !is_schema_damaged {
            self.unchanged = None;
            return None;
        }
        let now = Instant::now();
        let since = match self.unchanged.take() {
            Some((summary, since)) if summary == state.summary => since,
            _ => now,
        };
        self.unchanged = Some((state.summary, since));
        let delay = if is_table_replaced || is_schema_damaged {
            REPLACED_DELAY
        } else {
            DROPPED_TRIGGERS_DELAY
        };
        if now.duration_since(since) >= delay {
            let log = is_schema_damaged.then(|| LOG.to_owned());
            self.release(names.into_iter().chain(log), &dropped);
            return None;
        }
        Some(InstallDelay {
            reason: if is_schema_damaged {
                "schema larder was damaged or replaced, maybe by a restore: waiting until nothing changes for 30 s"
            } else if is_table_replaced {
                "it was replaced, maybe by a restore: waiting until nothing changes for 30 s"
            } else {
                "triggers that it had are gone, as after a restore or a change of the configuration: waiting until nothing changes for 3 s"
            },
            tables,
            is_schema_damaged,
            is_table_replaced,
        })
    }

    /// Ends the delay of the tables `names`. Those that only `dropped` triggers stay known.
    fn release(&mut self, names: impl Iterator<Item = String>, dropped: &BTreeSet<String>) {
        self.unchanged = None;
        for name in names {
            if dropped.contains(&name) {
                self.released.insert(name);
            } else {
                self.known.remove(&name);
            }
        }
        self.write();
    }

    /// Records that all triggers of `tables` exist.
    pub(super) fn record_complete(&mut self, catalogue: &Catalogue, tables: &[&TableName]) {
        let names = tables
            .iter()
            .map(|table| (known_name(catalogue, table), table.oid));
        let known = names.chain([(LOG.to_owned(), 0)]).collect();
        if self.known != known {
            self.known = known;
            self.write();
        }
    }

    /// Writes the known tables. If that fails the file is removed: the next run then knows no table and installs at
    /// once.
    fn write(&self) {
        let mut lines = format!("{}\n", self.database);
        for (name, oid) in &self.known {
            lines.push_str(&format!("{oid} {name}\n"));
        }
        if let Err(error) = replace_or_remove(&self.file, &lines) {
            tracing::warn!(
                "a restore before the next start will not be detected: can't write {}: {error}",
                self.file.display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(oid: u32) -> TableName {
        TableName {
            oid,
            schema: "public".to_owned(),
            name: "a".to_owned(),
        }
    }

    /// A restore that stalled for three seconds after it had dropped the triggers found those that larder created on the
    /// next table of that name: "trigger already exists".
    #[tokio::test(start_paused = true)]
    async fn a_table_that_lost_its_triggers_stays_known() {
        let directory = tempfile::TempDir::new().unwrap();
        let mut restore = RestoreDetector::open(directory.path().join("tables"));
        restore.set_database("d");
        let catalogue = Catalogue::default();
        restore.record_complete(&catalogue, &[&table(1)]);
        let lacks = |restore: &mut RestoreDetector, table: &TableName| {
            let state = DatabaseState {
                catalogue: &catalogue,
                configured: &[],
                without_triggers: vec![table],
                is_schema_damaged: false,
                summary: table.oid.to_string(),
            };
            restore.delay(state).is_some()
        };
        assert!(lacks(&mut restore, &table(1)));
        tokio::time::advance(DROPPED_TRIGGERS_DELAY).await;
        for _ in 0..2 {
            assert!(!lacks(&mut restore, &table(1)), "triggers may be created");
        }
        assert!(lacks(&mut restore, &table(2)), "it was replaced");
        tokio::time::advance(DROPPED_TRIGGERS_DELAY).await;
        assert!(lacks(&mut restore, &table(2)));
        tokio::time::advance(REPLACED_DELAY).await;
        assert!(!lacks(&mut restore, &table(2)));
    }
}
