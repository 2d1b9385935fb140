//! What every connection is set to, and whether PostgreSQL has taken it.
//!
//! A role, a database or `ALTER SYSTEM` may set any default, and a pooler may drop what a connection asks for at its
//! start. So larder fixes each setting that documents or promises rest on, and reads all of them back.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row, raw_sql};
use uuid::Uuid;

use crate::source::SourceError;

/// What makes a document's bytes, what an input means and which rows a statement sees.
///
/// sqlx gives `DateStyle`, `TimeZone` and `client_encoding` at the start of each connection; these are the same values.
/// An index scan under `gin_fuzzy_search_limit` leaves rows out.
const MEANING: [(&str, &str); 19] = [
    ("timezone", "UTC"),
    ("datestyle", "ISO, MDY"),
    ("intervalstyle", "postgres"),
    ("extra_float_digits", "1"),
    ("lc_monetary", "C"),
    ("bytea_output", "hex"),
    ("xmlbinary", "base64"),
    ("xmloption", "content"),
    ("array_nulls", "on"),
    ("transform_null_equals", "off"),
    ("row_security", "on"),
    ("gin_fuzzy_search_limit", "0"),
    ("quote_all_identifiers", "off"),
    ("standard_conforming_strings", "on"),
    ("client_encoding", "UTF8"),
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_deferrable", "off"),
    ("exit_on_error", "off"),
    ("jit", "off"),
];

/// Set for what larder alone runs. Users' triggers may rely on the search path of their role or database.
const SEARCH_PATH: (&str, &str) = ("search_path", "pg_catalog");

/// A name in a search path before `pg_catalog` hides PostgreSQL's own functions and operators. Where the path names
/// `pg_catalog` behind others, it is taken out: PostgreSQL then searches it first, and new objects of users' triggers go
/// where they went before. No backslash: a whole message is read before its first `set` is run.
const OWN_FUNCTIONS_FIRST: &str = "pg_catalog.set_config('search_path', pg_catalog.regexp_replace(\
    pg_catalog.current_setting('search_path'), ', *\"?pg_catalog\"? *(?=,|$)', '', 'g'), ";

/// Documents are read by their keys, however many: one plan by indexes serves them all. Planned anew, as PostgreSQL
/// would for few keys, a statement of one key costs twice as much; and a plan from when a table was small must not
/// scan it for ever.
const PLANS: [(&str, &str); 2] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
];

/// In KiB. Documents and what is read of the catalogue are put together in memory: `temp_file_limit`, which only a
/// superuser may raise, may forbid temporary files. Writes leave it to role and database, as triggers expect.
const WORK_MEM: (&str, &str) = ("work_mem", "16384");

/// The longest wait of a read for one table's lock, while it may hold others'. A transaction that waits for one of those
/// looks for deadlocks after `deadlock_timeout`, a second by default, and is ended if there is one: long before, the read
/// has given way. It is then tried again.
const GIVING_WAY: (&str, &str) = ("lock_timeout", "50ms");

/// The time limits of connections that say nothing else. They wait for others' locks as long as for a statement, and may
/// idle.
const TIMEOUTS: [(&str, &str); 4] = [
    ("statement_timeout", "60s"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "60s"),
    ("idle_session_timeout", "0"),
];

/// PostgreSQL 17 added it, and refuses connections that name settings which it does not know.
const TRANSACTION_TIMEOUT: (&str, &str) = ("transaction_timeout", "0");
const TRANSACTION_TIMEOUT_SINCE: u32 = 170_000;

/// What a transaction has taken from the defaults, or was begun with.
const OF_TRANSACTION: [&str; 2] = ["transaction_isolation", "transaction_read_only"];

/// Names the connection among all: a pooler between cannot know it, or hands it on to another client.
const CONNECTION: &str = "larder.connection";

/// The settings of one connection, by name.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    values: BTreeMap<&'static str, String>,
    /// The search path is that of role and database.
    users_path: bool,
}

impl Settings {
    /// For loads and lists.
    pub(super) fn reading(statement_timeout: Duration) -> Self {
        let mut settings = Self::documents(statement_timeout);
        settings.add([
            WORK_MEM,
            SEARCH_PATH,
            GIVING_WAY,
            ("default_transaction_read_only", "on"),
        ]);
        settings
    }

    /// For writes of documents.
    pub(super) fn writing(statement_timeout: Duration) -> Self {
        let mut settings = Self::documents(statement_timeout);
        settings.add([("default_transaction_read_only", "off")]);
        settings.users_path = true;
        settings
    }

    /// For the feed and for installing.
    pub(super) fn following(more: &[(&'static str, &str)]) -> Self {
        let mut settings = Self::common();
        settings.add([
            WORK_MEM,
            SEARCH_PATH,
            ("default_transaction_read_only", "off"),
        ]);
        settings.add(more.iter().copied());
        settings
    }

    fn common() -> Self {
        let mut settings = Self {
            values: BTreeMap::new(),
            users_path: false,
        };
        settings.add(MEANING);
        settings.add(TIMEOUTS);
        settings
    }

    fn documents(statement_timeout: Duration) -> Self {
        let mut settings = Self::common();
        settings.add(PLANS);
        let timeout = statement_timeout.as_millis().to_string();
        settings.add([
            ("statement_timeout", timeout.as_str()),
            ("idle_in_transaction_session_timeout", timeout.as_str()),
        ]);
        settings
    }

    fn add<'v>(&mut self, settings: impl IntoIterator<Item = (&'static str, &'v str)>) {
        for (name, value) in settings {
            self.values.insert(name, value.to_owned());
        }
    }

    /// What a connection asks for at its start, with its name.
    pub(super) fn options(&self, connection: Uuid) -> impl Iterator<Item = (&str, String)> {
        let own = self
            .values
            .iter()
            .map(|(name, value)| (*name, value.clone()));
        own.chain([(CONNECTION, connection.to_string())])
    }

    /// SQL that gives one transaction, which has just begun, these settings. A pooler may lead each to another server.
    pub(super) fn local_sql(&self, connection: &PgConnection) -> String {
        let mut sql = String::new();
        let late = late(connection);
        for (name, value) in self.for_transaction().chain(late) {
            // Writing to a String does not fail.
            let _ = write!(sql, "set local {name} = '{value}'; ");
        }
        if self.users_path {
            let _ = write!(sql, "select {OWN_FUNCTIONS_FIRST}true); ");
        }
        sql
    }

    /// Without those that only concern the beginning of transactions and the time between them.
    fn for_transaction(&self) -> impl Iterator<Item = (&str, &str)> {
        let values = self.values.iter().map(|(name, value)| (*name, &**value));
        values.filter(|(name, _)| !name.starts_with("default_") && *name != "idle_session_timeout")
    }

    /// Sets what a connection cannot ask for at its start, then reads all back: the server process.
    ///
    /// # Errors
    /// [`SourceError::Pooler`] if the name of the connection did not arrive, [`SourceError::Setting`] for any other value.
    pub(super) async fn settle(
        &self,
        connection: &mut PgConnection,
        name: Uuid,
    ) -> Result<i32, SourceError> {
        let mut sql = String::new();
        if let Some((name, value)) = late(connection) {
            let _ = write!(sql, "set {name} = '{value}'; ");
        }
        if self.users_path {
            let _ = write!(sql, "select {OWN_FUNCTIONS_FIRST}false); ");
        }
        if !sql.is_empty() {
            raw_sql(AssertSqlSafe(sql))
                .execute(&mut *connection)
                .await?;
        }
        let found = self.read(connection).await?;
        if found.get(CONNECTION).map(String::as_str) != Some(&name.to_string()) {
            return Err(SourceError::Pooler("startup parameters did not arrive"));
        }
        let values = self.values.iter().map(|(name, value)| (*name, &**value));
        compare(values.chain(late(connection)), &found)?;
        process(&found)
    }

    /// Reads back what a transaction behind a pooler runs under. `access` is `on` where it may only read.
    ///
    /// # Errors
    /// [`SourceError::Setting`] for any other value.
    pub(super) async fn check_transaction(
        &self,
        connection: &mut PgConnection,
        access: &'static str,
    ) -> Result<(), SourceError> {
        let found = self.read(connection).await?;
        let [isolation, read_only] = OF_TRANSACTION;
        let of_transaction = [(isolation, "read committed"), (read_only, access)];
        let late = late(connection);
        let expected = self.for_transaction().chain(late);
        compare(expected.chain(of_transaction), &found)
    }

    /// These settings as they are in force, with the name of the connection and the server process: one message of the
    /// simple protocol, which no pooler can divide.
    async fn read(
        &self,
        connection: &mut PgConnection,
    ) -> Result<BTreeMap<String, String>, SourceError> {
        let known = self.values.keys().copied();
        let names: Vec<&str> = known
            .chain(OF_TRANSACTION)
            .chain([TRANSACTION_TIMEOUT.0])
            .collect();
        let sql = format!(
            "select pg_catalog.lower(s.name), s.setting from pg_catalog.pg_settings s \
             where pg_catalog.lower(s.name) operator(pg_catalog.=) any ('{{{names}}}'::pg_catalog.text[]) \
             union all select '{CONNECTION}', pg_catalog.current_setting('{CONNECTION}', true) \
             union all select '{PROCESS}', pg_catalog.pg_backend_pid()::pg_catalog.text",
            names = names.join(",")
        );
        let rows: Vec<PgRow> = raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await?;
        let mut found = BTreeMap::new();
        for row in rows {
            if let Some(value) = row.try_get::<Option<String>, _>(1)? {
                found.insert(row.try_get(0)?, value);
            }
        }
        Ok(found)
    }
}

/// What only newer servers know.
fn late(connection: &PgConnection) -> Option<(&'static str, &'static str)> {
    let version = connection.server_version_num().unwrap_or_default();
    (version >= TRANSACTION_TIMEOUT_SINCE).then_some(TRANSACTION_TIMEOUT)
}

/// Where [`Settings::read`] puts the server process; no setting has such a name.
const PROCESS: &str = "server process";

fn process(found: &BTreeMap<String, String>) -> Result<i32, SourceError> {
    let process = found.get(PROCESS).and_then(|process| process.parse().ok());
    process.ok_or_else(|| SourceError::Unexpected("the server process has no number".into()))
}

fn compare<'s>(
    expected: impl Iterator<Item = (&'s str, &'s str)>,
    found: &BTreeMap<String, String>,
) -> Result<(), SourceError> {
    for (name, expected) in expected {
        let found = found.get(name).map(String::as_str);
        if found.map(in_milliseconds) != Some(in_milliseconds(expected)) {
            return Err(SourceError::Setting {
                name: name.to_owned(),
                expected: expected.to_owned(),
                found: found.unwrap_or("unknown").to_owned(),
            });
        }
    }
    Ok(())
}

/// A duration as `pg_settings` shows the timeouts that larder sets; other values as they are.
fn in_milliseconds(value: &str) -> String {
    let digits = value.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = value.split_at(digits);
    let factor: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "min" => 60_000,
        _ => return value.to_owned(),
    };
    match number.parse::<u64>() {
        Ok(number) => number.saturating_mul(factor).to_string(),
        Err(_) => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_compared_whatever_their_unit() {
        let found = [("lock_timeout", "250"), ("datestyle", "ISO, MDY")];
        let found = found.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let found = BTreeMap::from(found);
        let same = [("lock_timeout", "250ms"), ("datestyle", "ISO, MDY")];
        assert!(compare(same.into_iter(), &found).is_ok());
        for other in [
            ("lock_timeout", "250s"),
            ("datestyle", "ISO, DMY"),
            ("jit", "off"),
        ] {
            let error = compare([other].into_iter(), &found).unwrap_err();
            assert!(error.to_string().contains(other.0), "{error}");
        }
    }
}
