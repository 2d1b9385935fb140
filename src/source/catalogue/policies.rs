//! Row security: whether the content of a row alone decides if larder's role sees it.
//!
//! If it does not, a document can become stale without any change of its rows, and nothing would invalidate it.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::postgres::PgConnection;

use crate::resource::catalogue::Table;
use crate::source::SourceError;
use crate::source::catalogue::condition_tree::ConditionTree;
use crate::source::catalogue::oid;

/// Reads the policies for `select` or for all commands, permissive or restrictive. Whether a policy applies to larder's
/// role was read with the table, in one statement for all policies: a role may be altered between two statements. `columns` are
/// those of the table that the policy names.
const POLICIES_SQL: &str = "\
    select p.polrelid::int8 as oid, p.oid::int8 as policy, p.polname::text as name, p.polroles::oid[]::int8[] as roles, \
      p.polqual::text as condition, array(select a.attname::text from pg_depend d join pg_attribute a \
          on a.attrelid = d.refobjid and a.attnum = d.refobjsubid \
        where d.classid = 'pg_policy'::regclass and d.objid = p.oid and d.refclassid = 'pg_class'::regclass \
          and d.refobjid = p.polrelid order by a.attnum) as columns \
    from pg_policy p \
    where p.polrelid::int8 = any($1) and p.polcmd in ('r', '*') order by p.polrelid, p.polname";

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
        if table.uncached.is_some() {
            continue;
        }
        let named: Vec<String> = row.try_get("columns")?;
        let why = match table.dependent_expression(&named) {
            Some(why) => Some(format!("depends on {why}")),
            None => {
                let condition = ConditionTree::read(condition, &[]);
                condition.find_dependence(connection).await?
            }
        };
        if let Some(why) = why {
            let policy: &str = row.try_get("name")?;
            table.uncached = Some(format!("policy {policy} of {} {why}", table.name));
        }
    }
    Ok(())
}
