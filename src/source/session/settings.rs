//! What every connection is set to, and whether PostgreSQL has taken it.
//!
//! A role, a database or `ALTER SYSTEM` may set any default, and a pooler may drop startup parameters. So larder sets
//! each setting that documents or its guarantees depend on, and reads all of them back.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Once;
use std::time::Duration;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row, raw_sql};
use uuid::Uuid;

use crate::source::SourceError;

/// The settings that decide the bytes of a document, the meaning of an input and which rows a statement sees.
///
/// sqlx sends `DateStyle`, `TimeZone` and `client_encoding` at the start of each connection; these are the same values.
/// An index scan under `gin_fuzzy_search_limit` leaves rows out.
const DOCUMENT_SETTINGS: [(&str, &str); 19] = [
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

/// For connections that run only larder's statements. Users' triggers may rely on the search path of their role or
/// database.
const SEARCH_PATH: (&str, &str) = ("search_path", "pg_catalog");

/// Removes `pg_catalog` from the search path if other schemas come before it, since these may hide PostgreSQL's own
/// functions and operators. PostgreSQL searches `pg_catalog` first if the path does not name it, and users' triggers
/// still create objects in the same schema. The pattern has no backslash, since PostgreSQL parses a whole message
/// before it runs its first `set`.
const PUT_PG_CATALOG_FIRST: &str = "pg_catalog.set_config('search_path', pg_catalog.regexp_replace(\
    pg_catalog.current_setting('search_path'), ', *\"?pg_catalog\"? *(?=,|$)', '', 'g'), ";

/// Documents are read by their keys: one plan that uses indexes fits any number of keys. A statement of one key costs
/// twice as much if it is planned again each time, as PostgreSQL would do. And a plan that was made while a table was
/// small must not scan the table for ever.
const PLANNER_SETTINGS: [(&str, &str); 2] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
];

/// In KiB. Documents and catalogue queries are aggregated in memory, since `temp_file_limit`, which only a superuser
/// may raise, may forbid temporary files. Writes keep the value of role and database, since triggers may rely on it.
const WORK_MEM: (&str, &str) = ("work_mem", "16384");

/// The longest wait of a read for the lock of one table, while it may hold the locks of others. It is far below the
/// default `deadlock_timeout` of 1 s, after which PostgreSQL aborts one of the transactions in a deadlock: the read
/// gives up first, and is repeated.
const READ_LOCK_TIMEOUT: (&str, &str) = ("lock_timeout", "50ms");

/// The timeouts of a connection unless it sets others: no separate limit for locks, and none for idle connections.
const TIMEOUTS: [(&str, &str); 4] = [
    ("statement_timeout", "60s"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "60s"),
    ("idle_session_timeout", "0"),
];

/// PostgreSQL 17 added this setting. Earlier versions refuse a connection that sets it.
const TRANSACTION_TIMEOUT: (&str, &str) = ("transaction_timeout", "0");
const TRANSACTION_TIMEOUT_SINCE: u32 = 170_000;

/// The settings that a transaction takes from `default_…` settings or from its `begin`.
const TRANSACTION_SETTINGS: [&str; 2] = ["transaction_isolation", "transaction_read_only"];

/// The settings that a connection gets after its login. Login event triggers (PostgreSQL 17) run before: they may write
/// rows, wait for locks, and rely on the search path of their role. Until then a transaction may write.
const AFTER_LOGIN: [&str; 3] = [
    "default_transaction_read_only",
    SEARCH_PATH.0,
    READ_LOCK_TIMEOUT.0,
];

/// A setting with a random name for the connection. A pooler that drops startup parameters, or hands the server
/// connection to another client, shows another value.
const CONNECTION_NAME: &str = "larder.connection";

/// The settings of one connection, by name.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    values: BTreeMap<&'static str, String>,
    /// The connection keeps the search path of role and database.
    keeps_search_path: bool,
}

impl Settings {
    /// For loads and lists.
    pub(super) fn for_reads(statement_timeout: Duration) -> Self {
        let mut settings = Self::for_documents(statement_timeout);
        settings.add([
            WORK_MEM,
            SEARCH_PATH,
            READ_LOCK_TIMEOUT,
            ("default_transaction_read_only", "on"),
        ]);
        settings
    }

    /// For writes of documents.
    pub(super) fn for_writes(statement_timeout: Duration) -> Self {
        let mut settings = Self::for_documents(statement_timeout);
        settings.add([("default_transaction_read_only", "off")]);
        settings.keeps_search_path = true;
        settings
    }

    /// For `larder dispatch`: the server ends a session of which it hears nothing for `takeover`.
    pub(super) fn for_dispatch(statement_timeout: Duration, takeover: Duration) -> Self {
        let mut settings = Self::for_writes(statement_timeout);
        let milliseconds = |duration: Duration| duration.as_millis().to_string();
        let (takeover, check) = (milliseconds(takeover), milliseconds(takeover / 5));
        settings.add([
            ("idle_session_timeout", &*takeover),
            ("idle_in_transaction_session_timeout", &takeover),
            ("client_connection_check_interval", &check),
        ]);
        settings
    }

    /// For the feed and for installing.
    pub(super) fn for_feed(more: &[(&'static str, &str)]) -> Self {
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
            keeps_search_path: false,
        };
        settings.add(DOCUMENT_SETTINGS);
        settings.add(TIMEOUTS);
        settings
    }

    fn for_documents(statement_timeout: Duration) -> Self {
        let mut settings = Self::common();
        settings.add(PLANNER_SETTINGS);
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

    /// The startup parameters of the connection `name`.
    pub(super) fn options(&self, name: Uuid) -> impl Iterator<Item = (&str, String)> {
        let own = self
            .values
            .iter()
            .filter(|(name, _)| !AFTER_LOGIN.contains(name))
            .map(|(name, value)| (*name, value.clone()));
        own.chain([
            ("default_transaction_read_only", "off".to_owned()),
            (CONNECTION_NAME, name.to_string()),
        ])
    }

    /// SQL that gives these settings to the current transaction. A pooler may run each transaction on another server
    /// connection.
    pub(super) fn local_sql(&self, connection: &PgConnection) -> String {
        let mut sql = String::new();
        for (name, value) in self.for_transaction(connection) {
            // Writing to a String does not fail.
            let _ = write!(sql, "set local {name} = '{value}'; ");
        }
        if self.keeps_search_path {
            let _ = write!(sql, "select {PUT_PG_CATALOG_FIRST}true); ");
        }
        sql
    }

    /// All settings that the server knows.
    fn all(&self, connection: &PgConnection) -> impl Iterator<Item = (&str, &str)> {
        let values = self.values.iter().map(|(name, value)| (*name, &**value));
        values.chain(version_dependent(connection))
    }

    /// Without those that only concern the beginning of transactions and the time between them.
    fn for_transaction(&self, connection: &PgConnection) -> impl Iterator<Item = (&str, &str)> {
        self.all(connection)
            .filter(|(name, _)| !name.starts_with("default_") && *name != "idle_session_timeout")
    }

    /// Sets what is not a startup parameter, then reads all settings back. `name` is that of the connection. Returns the
    /// number of the server process. What a login event trigger has set is set again, and told.
    ///
    /// # Errors
    /// [`SourceError::Pooler`] if the server does not have the name of the connection, [`SourceError::Setting`] if another
    /// setting has another value.
    pub(super) async fn set_and_check(
        &self,
        connection: &mut PgConnection,
        name: Uuid,
    ) -> Result<i32, SourceError> {
        let after_login = self.values.iter();
        let after_login = after_login.map(|(name, value)| (*name, &**value));
        let after_login = after_login.filter(|(name, _)| AFTER_LOGIN.contains(name));
        let after_login = after_login.chain(version_dependent(connection));
        let mut sql = session_sql(after_login);
        if self.keeps_search_path {
            let _ = write!(sql, "select {PUT_PG_CATALOG_FIRST}false); ");
        }
        let checked = |connection: &PgConnection, found: BTreeMap<String, String>| {
            if found.get(CONNECTION_NAME).map(String::as_str) != Some(&name.to_string()) {
                return Err(SourceError::Pooler(
                    "startup parameters did not reach the server",
                ));
            }
            compare(self.all(connection), &found)?;
            Ok(found)
        };
        let first = self.read_current(connection, &sql).await;
        let found = match first.and_then(|found| checked(connection, found)) {
            Err(error @ (SourceError::Timeout | SourceError::Setting { .. })) => {
                // A login event trigger may have set a limit that is too short for any longer statement.
                raw_sql("set statement_timeout = 0")
                    .execute(&mut *connection)
                    .await?;
                let Some(trigger) = read_login_trigger(connection).await? else {
                    return Err(error);
                };
                let again = session_sql(self.all(connection)) + &sql;
                let found = self.read_current(connection, &again).await?;
                tell_of_trigger(&trigger, &error);
                checked(connection, found)?
            }
            found => found?,
        };
        let process = found.get(SERVER_PROCESS);
        let process = process.and_then(|process| process.parse().ok());
        process.ok_or_else(|| SourceError::Unexpected("the server process has no number".into()))
    }

    /// Checks the settings of the current transaction behind a pooler. `read_only` is the expected value of
    /// `transaction_read_only`.
    ///
    /// # Errors
    /// [`SourceError::Setting`] if a setting has another value.
    pub(super) async fn check_transaction(
        &self,
        connection: &mut PgConnection,
        read_only: &'static str,
    ) -> Result<(), SourceError> {
        let found = self.read_current(connection, "").await?;
        let [isolation_name, read_only_name] = TRANSACTION_SETTINGS;
        let of_transaction = [
            (isolation_name, "read committed"),
            (read_only_name, read_only),
        ];
        let expected = self.for_transaction(connection);
        compare(expected.chain(of_transaction), &found)
    }

    /// Runs the statements `before`, and reads the current values of these settings, with the name of the connection and the
    /// server process: in one message of the simple protocol, which no pooler can divide.
    async fn read_current(
        &self,
        connection: &mut PgConnection,
        before: &str,
    ) -> Result<BTreeMap<String, String>, SourceError> {
        let known = self.values.keys().copied();
        let names: Vec<&str> = known
            .chain(TRANSACTION_SETTINGS)
            .chain([TRANSACTION_TIMEOUT.0])
            .collect();
        let sql = format!(
            "{before}select pg_catalog.lower(s.name), s.setting from pg_catalog.pg_settings s \
             where pg_catalog.lower(s.name) operator(pg_catalog.=) any ('{{{names}}}'::pg_catalog.text[]) \
             union all select '{CONNECTION_NAME}', pg_catalog.current_setting('{CONNECTION_NAME}', true) \
             union all select '{SERVER_PROCESS}', pg_catalog.pg_backend_pid()::pg_catalog.text",
            names = names.join(",")
        );
        let rows: Vec<PgRow> = raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await?;
        let mut found = BTreeMap::new();
        for row in rows.iter().filter(|row| row.len() == 2) {
            if let Some(value) = row.try_get::<Option<String>, _>(1)? {
                found.insert(row.try_get(0)?, value);
            }
        }
        Ok(found)
    }
}

/// SQL that gives a session these settings.
fn session_sql<'s>(settings: impl Iterator<Item = (&'s str, &'s str)>) -> String {
    settings.fold(String::new(), |mut sql, (name, value)| {
        let _ = write!(sql, "set {name} = '{value}'; ");
        sql
    })
}

/// Tells that a login event trigger has changed a setting, which caused `error`: once, and not for each connection.
fn tell_of_trigger(trigger: &str, error: &SourceError) {
    static TOLD: Once = Once::new();
    let setting = match error {
        SourceError::Setting { name, .. } => name,
        _ => "statement_timeout",
    };
    TOLD.call_once(|| {
        tracing::warn!(
            "the login event trigger {trigger} sets {setting}, which larder depends on, so larder sets it again"
        );
    });
}

/// The first login event trigger, with its function; `None` if there is none.
async fn read_login_trigger(connection: &mut PgConnection) -> Result<Option<String>, SourceError> {
    let row = raw_sql(
        "select pg_catalog.format('%I (function %s)', t.evtname, t.evtfoid::pg_catalog.regproc) \
         from pg_catalog.pg_event_trigger t where t.evtevent operator(pg_catalog.=) 'login' \
         and t.evtenabled operator(pg_catalog.=) any ('{O,A}'::pg_catalog.\"char\"[]) order by t.evtname limit 1",
    )
    .fetch_optional(connection)
    .await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

/// The setting that only newer servers know.
fn version_dependent(connection: &PgConnection) -> Option<(&'static str, &'static str)> {
    let version = connection.server_version_num().unwrap_or_default();
    (version >= TRANSACTION_TIMEOUT_SINCE).then_some(TRANSACTION_TIMEOUT)
}

/// The name under which [`Settings::read_current`] returns the server process. No setting has a name with a space.
const SERVER_PROCESS: &str = "server process";

/// # Errors
/// [`SourceError::Setting`] for the first of the `expected` settings that `found` shows another value of.
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

/// Converts a duration to milliseconds, as `pg_settings` shows the timeouts that larder sets. Other values stay as they
/// are.
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
