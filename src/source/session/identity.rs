//! Which database a connection reaches.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{Row, raw_sql};
use tokio::sync::watch;
use uuid::Uuid;

use crate::source::{INSUFFICIENT_PRIVILEGE, SourceError};

/// The feed needs up to this long to notice a new epoch and to check the database again.
const NEW_IDENTITY_TIMEOUT: Duration = Duration::from_millis(750);

/// Which database a connection reaches, and in which run of its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `pg_control_system().system_identifier`: the cluster.
    pub system: String,
    /// The database's oid.
    pub database: u32,
    /// The oid of `larder.epoch`, which a copy of the database does not share; 0 where there is no epoch.
    pub epoch_table: u32,
    /// The content of `larder.epoch`, which is gone after a crash and on a promoted standby; nil where there is no
    /// epoch.
    pub nonce: Uuid,
    /// A random number that this larder chose when it first followed the database, and again when the database was put
    /// back to an earlier state; nil in an identity that was read from a connection.
    pub history: Uuid,
    /// When the server was started. A connection to a later run of the server than the feed's may show data that is
    /// lost again when a copy of the database is put back. Empty where no connection told it.
    pub server_start: String,
}

impl Identity {
    /// Whether both are the same history of the same database: they differ at most in the run of the server.
    pub fn is_same_history(&self, other: &Self) -> bool {
        let Self {
            system,
            database,
            epoch_table,
            nonce,
            history,
            server_start: _,
        } = self;
        *system == other.system
            && *database == other.database
            && *epoch_table == other.epoch_table
            && *nonce == other.nonce
            && *history == other.history
    }
}

/// Reads the identity of the database behind `connection`; without epoch and nonce where larder's schema is missing or
/// its epoch is empty.
///
/// Each statement is one message of the simple protocol, which no pooler can divide.
///
/// # Errors
/// [`SourceError::Standby`] if the server is in recovery; else the error of a statement.
pub async fn read_identity(connection: &mut PgConnection) -> Result<Identity, SourceError> {
    let mut identity = read_server_identity(connection).await?;
    if identity.epoch_table == 0 {
        return Ok(identity);
    }
    // A table that is being restored may have any number of rows.
    let nonce: Option<String> = raw_sql(
        "select case when pg_catalog.count(*) operator(pg_catalog.=) 1 then pg_catalog.min(nonce::pg_catalog.text) end \
         from larder.epoch",
    )
    .fetch_one(&mut *connection)
    .await?
    .try_get(0)?;
    match nonce.and_then(|nonce| Uuid::try_parse(&nonce).ok()) {
        Some(nonce) => identity.nonce = nonce,
        None => identity.epoch_table = 0,
    }
    Ok(identity)
}

/// As [`read_identity`], without the nonce.
///
/// # Errors
/// As [`read_identity`].
pub async fn read_server_identity(connection: &mut PgConnection) -> Result<Identity, SourceError> {
    let row = raw_sql(
        "select pg_catalog.pg_is_in_recovery(), pg_catalog.to_regclass('larder.epoch')::pg_catalog.oid::pg_catalog.int8, \
         (select d.oid::pg_catalog.int8 from pg_catalog.pg_database d \
          where d.datname operator(pg_catalog.=) pg_catalog.current_database()), \
         (select system_identifier::pg_catalog.text from pg_catalog.pg_control_system()), \
         extract(epoch from pg_catalog.pg_postmaster_start_time())::pg_catalog.text",
    )
    .fetch_one(&mut *connection)
    .await?;
    if row.try_get::<bool, _>(0)? {
        return Err(SourceError::Standby);
    }
    let oid = |oid: i64| u32::try_from(oid).unwrap_or(0);
    Ok(Identity {
        epoch_table: row.try_get::<Option<i64>, _>(1)?.map_or(0, oid),
        database: oid(row.try_get(2)?),
        system: row.try_get(3)?,
        server_start: row.try_get(4)?,
        nonce: Uuid::nil(),
        history: Uuid::nil(),
    })
}

/// Waits up to 750 ms until the feed follows another database than `known`, or another epoch of it, and returns whether
/// it does. A connection may see an epoch that another larder has begun before the feed sees it.
pub(in crate::source) async fn wait_for_new_identity(
    following: &mut watch::Receiver<Option<Arc<Identity>>>,
    known: Option<&Arc<Identity>>,
) -> bool {
    let is_new = |now: &Option<Arc<Identity>>| now.is_some() && now.as_ref() != known;
    let found = tokio::time::timeout(NEW_IDENTITY_TIMEOUT, following.wait_for(is_new));
    matches!(found.await, Ok(Ok(_)))
}

/// Checks that `connection` reaches the database that the feed follows.
///
/// # Errors
/// [`SourceError::OtherDatabase`] if it does not; [`SourceError::Privilege`] if larder's role can't tell; else those of
/// [`read_identity`].
pub(in crate::source) async fn verify_identity(
    connection: &mut PgConnection,
    followed: &Identity,
) -> Result<(), SourceError> {
    // While the feed follows no epoch, no tier keeps documents. Then the same database is enough.
    let reached = if followed.nonce.is_nil() {
        Identity {
            epoch_table: 0,
            ..read_server_identity(connection).await?
        }
    } else {
        let read = read_identity(connection).await;
        read.map_err(|error| match error {
            SourceError::Refused { code, message } if code == INSUFFICIENT_PRIVILEGE => {
                SourceError::Privilege(format!(
                    "{message}; run: grant usage on schema larder and grant select on all tables in schema larder, \
                     to the role of database.url"
                ))
            }
            error => error,
        })?
    };
    let reached = Identity {
        history: followed.history,
        ..reached
    };
    if reached == *followed {
        Ok(())
    } else {
        Err(SourceError::OtherDatabase)
    }
}
