//! One statement for all keys of a batch, on a connection that is proved to reach the right database.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Row};

use crate::clock::Boottime;
use crate::resource::key::key_parts;
use crate::source::SourceError;
use crate::source::loader::{GRACE, Load, Loaded, Shared};
use crate::source::session::{Identity, identity};

/// One statement for all of `batch`, and the connection back.
pub(super) async fn statement(
    mut connection: PgConnection,
    shared: &Shared,
    followed: &Identity,
    batch: &[Load],
) -> (PgConnection, Result<HashMap<Arc<str>, Loaded>, SourceError>) {
    let outcome = if shared.database.pooler() {
        in_transaction(&mut connection, shared, followed, batch).await
    } else {
        documents(&mut connection, shared, batch).await
    };
    (connection, outcome)
}

/// Behind a pooler only a transaction stays on one server: it sets, proves and reads.
async fn in_transaction(
    connection: &mut PgConnection,
    shared: &Shared,
    followed: &Identity,
    batch: &[Load],
) -> Result<HashMap<Arc<str>, Loaded>, SourceError> {
    let mut transaction = connection.begin_with("begin read only").await?;
    let settings = AssertSqlSafe(shared.database.transaction_settings());
    sqlx::raw_sql(settings).execute(&mut *transaction).await?;
    prove(&mut transaction, followed).await?;
    let found = documents(&mut transaction, shared, batch).await?;
    transaction.commit().await?;
    Ok(found)
}

/// Fails unless `connection` reaches the database that the feed follows.
pub(super) async fn prove(
    connection: &mut PgConnection,
    followed: &Identity,
) -> Result<(), SourceError> {
    let reached = tokio::time::timeout(GRACE, identity(connection))
        .await
        .map_err(|_| SourceError::silent())??;
    if reached.as_ref() == Some(followed) {
        Ok(())
    } else {
        Err(SourceError::OtherDatabase)
    }
}

async fn documents(
    connection: &mut PgConnection,
    shared: &Shared,
    batch: &[Load],
) -> Result<HashMap<Arc<str>, Loaded>, SourceError> {
    let Some(first) = batch.first() else {
        return Ok(HashMap::new());
    };
    let resource = &first.resource;
    let columns = resource.key.columns.len();
    // A load that was overtaken while it waited shares the batch with its successor: a key twice is two rows.
    let wanted: HashSet<&str> = batch.iter().map(|load| &*load.key).collect();
    let mut arrays: Vec<Vec<String>> = vec![Vec::with_capacity(wanted.len()); columns];
    for key in &wanted {
        for (array, part) in arrays.iter_mut().zip(key_parts(key, columns)) {
            array.push(part.into_owned());
        }
    }
    let mut query = sqlx::query(AssertSqlSafe(resource.documents_sql.as_str()));
    for array in arrays {
        query = query.bind(array);
    }
    let query = query
        .bind(shared.document_bytes_max)
        .persistent(!shared.database.pooler());
    let now = Boottime::now();
    for load in batch {
        load.sent_at.mark(now);
    }
    let mut found: HashMap<Arc<str>, Loaded> = HashMap::with_capacity(batch.len());
    let mut rows = query.fetch(connection);
    while let Some(row) = rows.try_next().await? {
        let key: Arc<str> = Arc::from(row.try_get::<&str, _>("key")?);
        let bytes: i64 = row.try_get("bytes")?;
        let loaded = match row.try_get::<Option<&str>, _>("document")? {
            Some(document) => Ok(Some(Bytes::copy_from_slice(document.as_bytes()))),
            None => Err(SourceError::TooLarge {
                bytes: bytes.unsigned_abs(),
            }),
        };
        if found.insert(Arc::clone(&key), loaded).is_some() {
            found.insert(key, Err(SourceError::Ambiguous));
        }
    }
    drop(rows);
    if let Some(stranger) = found.keys().find(|key| !wanted.contains(&***key)) {
        let message = format!(
            "a row of {} came under the unexpected key {stranger}",
            resource.name
        );
        return Err(SourceError::Unexpected(message));
    }
    Ok(found)
}
