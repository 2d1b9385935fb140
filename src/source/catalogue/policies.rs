//! Row security: whether the content of a row alone decides if larder's role sees it.
//!
//! If it does not, a document can become stale without any change of its rows, and nothing would invalidate it.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::postgres::PgConnection;

use crate::resource::catalogue::Table;
use crate::source::SourceError;
use crate::source::catalogue::condition::{FIRST_USER_OID, PolicyCondition};
use crate::source::catalogue::oid;

/// Reads the policies for `select` or for all commands, permissive or restrictive. Whether a policy applies to larder's
/// role was read with the table, in one statement for all policies: a role may be altered between two statements.
const POLICIES_SQL: &str = "\
    select p.polrelid::int8 as oid, p.oid::int8 as policy, p.polname::text as name, p.polroles::oid[]::int8[] as roles, \
      p.polqual::text as condition from pg_policy p \
    where p.polrelid::int8 = any($1) and p.polcmd in ('r', '*') order by p.polrelid, p.polname";

/// Finds the first of the functions `$1`, operators `$2` and types `$3` whose result may depend on more than its
/// arguments. `$4` is the first oid that is not of PostgreSQL's own objects.
///
/// A function with a text search configuration is declared immutable, but reads the catalogue. PostgreSQL's own
/// functions of arrays, ranges and rows call functions of the elements' type; enums have none of their own, nor have
/// domains over PostgreSQL's own types.
const DEPENDENT_SQL: &str = "\
    select text from ( \
      select 1 as kind, w.place, format('calls %s()', coalesce(nullif(n.nspname, 'pg_catalog') || '.', '') || p.proname) as text \
      from unnest($1::int8[]) with ordinality w (oid, place) left join pg_proc p on p.oid::int8 = w.oid \
        left join pg_namespace n on n.oid = p.pronamespace \
      where (w.oid < $4 and p.provolatile = 'i' and not exists (select from unnest(p.proargtypes) a (oid) \
        join pg_type t on t.oid = a.oid join pg_proc o on o.oid = t.typoutput where o.prosrc ~ '^reg[a-z]+out$')) is not true \
      union all \
      select 2, w.place, format('uses operator %s', o.oid::regoperator) \
      from unnest($2::int8[]) with ordinality w (oid, place) left join pg_operator o on o.oid::int8 = w.oid \
        left join pg_proc p on p.oid = o.oprcode \
      where (w.oid < $4 and p.oid::int8 < $4 and p.provolatile = 'i') is not true \
      union all \
      select 3, w.place, format('uses type %s', format_type(t.oid, null)) \
      from unnest($3::int8[]) with ordinality w (oid, place) left join pg_type t on t.oid::int8 = w.oid \
      where (t.typtype = 'e' or t.typtype = 'd' and t.typbasetype::int8 < $4) is not true \
    ) d order by kind, place limit 1";

/// Notes in `tables` whose policies depend on more than the row why their documents cannot be kept.
pub(super) async fn read_policies(
    connection: &mut PgConnection,
    table_oids: &[i64],
    tables: &mut HashMap<u32, Table>,
) -> Result<(), SourceError> {
    let rows = sqlx::query(POLICIES_SQL)
        .bind(table_oids)
        .fetch_all(&mut *connection)
        .await?;
    for row in rows {
        let Some(table) = tables.get_mut(&oid(&row, "oid")?) else {
            continue;
        };
        let Some(row_security) = table.row_security.as_mut().filter(|own| own.is_active()) else {
            continue;
        };
        let number = oid(&row, "policy")?;
        row_security.add_policy(number, &row.try_get::<Vec<i64>, _>("roles")?);
        let condition: Option<&str> = row.try_get("condition")?;
        let Some(condition) = condition.filter(|_| row_security.applies(number)) else {
            continue;
        };
        let condition = PolicyCondition::read(condition);
        if table.uncached.is_none()
            && let Some(why) = find_dependence(connection, &condition).await?
        {
            let policy: &str = row.try_get("name")?;
            table.uncached = Some(format!("policy {policy} of {} {why}", table.name));
        }
    }
    Ok(())
}

/// Finds what `condition` depends on besides the row. The text continues a sentence that begins with the policy's name.
async fn find_dependence(
    connection: &mut PgConnection,
    condition: &PolicyCondition,
) -> Result<Option<String>, SourceError> {
    let oids = |oids: &[u32]| oids.iter().copied().map(i64::from).collect::<Vec<i64>>();
    let found = sqlx::query(DEPENDENT_SQL)
        .bind(oids(&condition.functions))
        .bind(oids(&condition.operators))
        .bind(oids(&condition.types))
        .bind(i64::from(FIRST_USER_OID))
        .fetch_optional(connection)
        .await?;
    // The name of a function tells the user more than the kind of the node.
    match found {
        Some(row) => Ok(Some(row.try_get("text")?)),
        None => Ok(condition.obstacle.clone()),
    }
}
