//! Erases kept answers (`larder.answer`) of documents that were deleted.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnection;

use crate::feed::{Affected, Change};
use crate::resource::{Resource, ResourceId};
use crate::source::SourceError;
use crate::source::loader::bind_keys;

/// The most documents of a resource that are checked at a time.
const KEYS_MAX: usize = 1_000;

/// Erases the documents in kept answers that `changes` may have deleted, and that do not exist.
///
/// # Errors
/// What PostgreSQL said. Answers with a deleted document are not shown either way.
pub(super) async fn erase_deleted(
    connection: &mut PgConnection,
    resources: &[(ResourceId, Arc<Resource>)],
    changes: &[Change],
) -> Result<(), SourceError> {
    let mut changed: BTreeMap<usize, Option<Vec<&str>>> = BTreeMap::new();
    for change in changes {
        let keys = changed
            .entry(change.resource.index())
            .or_insert_with(|| Some(Vec::new()));
        match (&change.affected, keys.as_mut()) {
            (Affected::Key(key), Some(keys)) => keys.push(key),
            (Affected::Ranges(_) | Affected::All, _) => *keys = None,
            (Affected::Key(_), None) | (Affected::Absences, _) => {}
        }
    }
    for (id, resource) in resources {
        match changed.get(&id.index()) {
            None => {}
            Some(Some(keys)) if keys.is_empty() => {}
            Some(keys) => erase_of(connection, resource, keys.as_deref()).await?,
        }
    }
    Ok(())
}

/// Erases those of `resource`, of `keys` or of all keys.
async fn erase_of(
    connection: &mut PgConnection,
    resource: &Resource,
    keys: Option<&[&str]>,
) -> Result<(), SourceError> {
    let mut after = String::new();
    loop {
        let kept: Vec<String> = sqlx::query_scalar(
            "select distinct document_key from larder.answer where resource = $1 and document is not null \
             and document_key > $2 and ($3::text[] is null or document_key = any($3)) order by 1 limit $4",
        )
        .bind(&resource.name)
        .bind(&after)
        .bind(keys)
        .bind(i64::try_from(KEYS_MAX).unwrap_or(i64::MAX))
        .fetch_all(&mut *connection)
        .await?;
        let Some(last) = kept.last() else {
            return Ok(());
        };
        after.clone_from(last);
        let wanted: Vec<&str> = kept.iter().map(String::as_str).collect();
        let sql = resource.stored_keys_sql();
        let query = bind_keys(sqlx::query(AssertSqlSafe(sql)), &resource.key, &wanted)?;
        let rows = query.fetch_all(&mut *connection).await?;
        let mut stored = HashSet::new();
        for row in rows {
            let key: String = sqlx::Row::try_get(&row, 0)?;
            stored.insert(key);
        }
        let gone: Vec<&str> = wanted
            .into_iter()
            .filter(|key| !stored.contains(*key))
            .collect();
        if !gone.is_empty() {
            let erase = "update larder.answer set document = null where resource = $1 and document is not null \
                         and document_key = any($2)";
            let erase = sqlx::query(erase).bind(&resource.name).bind(&gone);
            erase.execute(&mut *connection).await?;
        }
    }
}
