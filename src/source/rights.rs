//! What a role of larder has to be allowed: privileges on the tables of resources, and which of them a role lacks.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::resource::Resource;
use crate::resource::catalogue::TableName;
use crate::resource::sql::{identifier, literal};
use crate::source::SourceError;

/// A privilege that larder's role needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Right {
    /// What it is a privilege on: a table `schema.name`, a schema or a sequence.
    pub(crate) object: String,
    /// What follows `grant`, without the role: `select on "public"."dept"`.
    pub(crate) privilege: String,
    /// SQL for whether the role `asked.role` has it; null if the object does not exist.
    pub(crate) is_held_sql: String,
}

impl Right {
    /// The statement that grants it to `role`.
    pub(crate) fn sql(&self, role: &str) -> String {
        format!("grant {} to {};", self.privilege, identifier(role))
    }
}

/// The most statements that a message has.
const GRANTS_MAX: usize = 3;

/// What a role needs of the tables of `resources`.
pub(crate) fn table_rights(resources: &[&Resource]) -> Vec<Right> {
    let mut rights = Vec::new();
    let tables: Vec<&TableName> = resources
        .iter()
        .flat_map(|resource| resource.tables())
        .collect();
    let schemas = tables.iter().map(|table| usage_on_schema(&table.schema));
    rights.extend(schemas);
    rights.extend(tables.iter().map(|table| on_table(table, &["select"])));
    rights.extend(resources.iter().flat_map(|resource| write_rights(resource)));
    let mut distinct: Vec<Right> = Vec::with_capacity(rights.len());
    for right in rights {
        if !distinct.contains(&right) {
            distinct.push(right);
        }
    }
    distinct
}

/// The columns of `resources` that a role has to read if it may read only some columns of their tables. A role that may
/// read no column of a table is told so by [`table_rights`].
pub(crate) fn column_rights(resources: &[&Resource]) -> Vec<Right> {
    let mut tables: BTreeMap<u32, (&TableName, BTreeSet<Cow<'_, str>>)> = BTreeMap::new();
    for (table, column) in resources
        .iter()
        .flat_map(|resource| resource.columns_read())
    {
        let (_, columns) = tables.entry(table.oid).or_insert((table, BTreeSet::new()));
        columns.insert(column);
    }
    let tables = tables.into_values();
    tables
        .map(|(table, columns)| on_columns(table, &columns))
        .collect()
}

/// `error`, and if PostgreSQL refused a statement since a privilege is missing, the statements that grant what the
/// connection's role lacks of `rights`. If it lacks none of these, `otherwise` says what to do.
pub(crate) async fn with_grants(
    connection: &mut PgConnection,
    error: SourceError,
    rights: Vec<Right>,
    otherwise: &str,
) -> SourceError {
    if !error.is_privilege_error() {
        return error;
    }
    let SourceError::Refused { code, message } = error else {
        return error;
    };
    let remedy = match grants(connection, rights).await {
        // What PostgreSQL said before matters more.
        Err(_) => String::new(),
        Ok(grants) if grants.is_empty() => format!("; {otherwise}"),
        Ok(grants) => format!("; {grants}"),
    };
    SourceError::Refused {
        code,
        message: message + &remedy,
    }
}

/// What to run so that the current role gets those of `rights` that it lacks; empty if it has them.
async fn grants(connection: &mut PgConnection, rights: Vec<Right>) -> Result<String, SourceError> {
    let (role, database, may_create): (String, String, bool) = sqlx::query_as(
        "select current_user::text, current_database()::text, to_regnamespace('larder') is not null \
           or has_database_privilege(current_database(), 'create')",
    )
    .persistent(false)
    .fetch_one(&mut *connection)
    .await?;
    if !may_create {
        return Ok(format!(
            "schema larder is missing, and larder's role may not create it; run: grant create on database {} to {}; \
             or run `larder install` as a role that may",
            identifier(&database),
            identifier(&role)
        ));
    }
    let lacking = lacking(connection, &role, rights).await?;
    let shown = lacking.iter().take(GRANTS_MAX);
    let shown: Vec<String> = shown.map(|right| right.sql(&role)).collect();
    Ok(match lacking.len() {
        0 => String::new(),
        count if count > GRANTS_MAX => format!(
            "run: {} and {} more, which `larder check` and `larder install --print` show",
            shown.join(" "),
            count - GRANTS_MAX
        ),
        _ => format!("run: {}", shown.join(" ")),
    })
}

/// Those of `rights` that `role` lacks.
pub(crate) async fn lacking(
    connection: &mut PgConnection,
    role: &str,
    rights: Vec<Right>,
) -> Result<Vec<Right>, SourceError> {
    let held: Vec<&str> = rights
        .iter()
        .map(|right| right.is_held_sql.as_str())
        .collect();
    let sql = format!(
        "select array[{}]::bool[] as held from (select $1::name as role) asked",
        held.join(", ")
    );
    let row = sqlx::query(AssertSqlSafe(sql))
        .bind(role)
        .persistent(false)
        .fetch_one(connection)
        .await?;
    let held: Vec<Option<bool>> = row.try_get("held")?;
    let rights = rights.into_iter().zip(held);
    let lacking = rights.filter(|(_, held)| *held == Some(false));
    Ok(lacking.map(|(right, _)| right).collect())
}

fn usage_on_schema(schema: &str) -> Right {
    let name = identifier(schema);
    Right {
        object: format!("schema {schema}"),
        privilege: format!("usage on schema {name}"),
        is_held_sql: format!(
            "(select has_schema_privilege(asked.role, n.oid, 'usage') from pg_namespace n where n.nspname = {})",
            literal(schema)
        ),
    }
}

/// Privileges on a table. Those on some columns are enough: [`column_rights`] has the columns.
fn on_table(table: &TableName, privileges: &[&str]) -> Right {
    let oid = table.oid;
    let held = privileges.iter().map(|privilege| match *privilege {
        "delete" => format!("has_table_privilege(asked.role, {oid}::oid, 'delete')"),
        privilege => format!(
            "has_any_column_privilege(asked.role, {oid}::oid, {})",
            literal(privilege)
        ),
    });
    Right {
        object: table.to_string(),
        privilege: format!("{} on {}", privileges.join(", "), table.sql()),
        is_held_sql: held.collect::<Vec<_>>().join(" and "),
    }
}

/// `select` on columns, for a role that has it on some columns of the table.
fn on_columns(table: &TableName, columns: &BTreeSet<Cow<'_, str>>) -> Right {
    let oid = table.oid;
    let list = |quote: fn(&str) -> String| {
        let quoted: Vec<String> = columns.iter().map(|column| quote(column)).collect();
        quoted.join(", ")
    };
    Right {
        object: table.to_string(),
        privilege: format!("select ({}) on {}", list(identifier), table.sql()),
        is_held_sql: format!(
            "(has_table_privilege(asked.role, {oid}::oid, 'select') \
              or not has_any_column_privilege(asked.role, {oid}::oid, 'select') \
              or (select bool_and(has_column_privilege(asked.role, a.attrelid, a.attnum, 'select')) from pg_attribute a \
                where a.attrelid = {oid}::oid and a.attname = any(array[{}]::name[]) and not a.attisdropped))",
            list(literal)
        ),
    }
}

/// The rights that writes of a resource's documents need besides `select`. Sequences are included, since larder calls
/// `nextval` before it inserts rows.
fn write_rights(resource: &Resource) -> Vec<Right> {
    let Ok(writable) = &resource.writable else {
        return Vec::new();
    };
    let mut rights = Vec::new();
    for level in &writable.levels {
        rights.push(on_table(&level.table, &["insert", "update", "delete"]));
        let defaults = level.columns.iter().flat_map(|column| &column.default);
        for drawn in defaults.filter_map(|default| default.split_once("nextval('")) {
            // A name in quotes may hold a quote, which is doubled in the literal.
            let name = drawn.1.split("'::").next().unwrap_or_default();
            rights.push(on_sequence(&name.replace("''", "'")));
        }
    }
    rights
}

/// `name` is quoted where it has to be, and has its schema unless `search_path` has it.
fn on_sequence(name: &str) -> Right {
    let text = literal(name);
    Right {
        object: format!("sequence {name}"),
        privilege: format!("usage on sequence {name}"),
        is_held_sql: format!(
            "(select bool_or(has_sequence_privilege(asked.role, c.oid, 'usage, update')) from pg_class c \
             join pg_namespace n on n.oid = c.relnamespace where c.relkind = 'S' \
             and (format('%I.%I', n.nspname, c.relname) = {text} \
               or format('%I', c.relname) = {text} and pg_table_is_visible(c.oid)))"
        ),
    }
}
