//! What larder's role has to be allowed.

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::feed::schema::TABLES;
use crate::resource::Resource;
use crate::resource::catalogue::TableName;
use crate::resource::sql::{identifier, literal};
use crate::source::SourceError;

/// A privilege that larder's role needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Right {
    /// What it is a privilege on: a table `schema.name`, a schema or a sequence.
    pub(super) object: String,
    /// What follows `grant`, without the role: `select on "public"."dept"`.
    pub(super) privilege: String,
    /// SQL for whether the current role has it; null if the object does not exist.
    is_held_sql: String,
}

impl Right {
    /// The statement that grants it to `role`.
    pub(super) fn sql(&self, role: &str) -> String {
        format!("grant {} to {};", self.privilege, identifier(role))
    }
}

/// The most statements that a message has.
const GRANTS_MAX: usize = 3;

/// What a role needs to serve `resources`.
pub(super) fn rights(resources: &[&Resource], answers: bool) -> Vec<Right> {
    let mut rights = schema_rights(answers);
    rights.extend(table_rights(resources));
    rights
}

/// What a role needs of the tables of `resources`.
pub(super) fn table_rights(resources: &[&Resource]) -> Vec<Right> {
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

/// `error`, and if PostgreSQL refused a statement since a privilege is missing, the statements that grant what larder's role
/// lacks of `rights`. If it lacks none of these, `otherwise` says what to do.
pub(super) async fn with_grants(
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
    let lacking = lacking(connection, rights).await?;
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

/// What to do where only the owner of `table` may do something.
pub(super) async fn owner_remedy(
    connection: &mut PgConnection,
    table: &TableName,
) -> Result<String, SourceError> {
    let (owner, role): (String, String) = sqlx::query_as(
        "select pg_get_userbyid(relowner)::text, current_user::text from pg_class where oid::int8 = $1",
    )
    .bind(i64::from(table.oid))
    .fetch_one(connection)
    .await?;
    let (owner, role) = (identifier(&owner), identifier(&role));
    Ok(format!(
        "only the owner of a table may add triggers; run `larder install` as {owner}, or: grant {owner} to {role};"
    ))
}

/// Those of `rights` that the current role lacks.
pub(super) async fn lacking(
    connection: &mut PgConnection,
    rights: Vec<Right>,
) -> Result<Vec<Right>, SourceError> {
    let held: Vec<&str> = rights
        .iter()
        .map(|right| right.is_held_sql.as_str())
        .collect();
    let sql = format!("select array[{}]::bool[] as held", held.join(", "));
    let row = sqlx::query(AssertSqlSafe(sql))
        .persistent(false)
        .fetch_one(connection)
        .await?;
    let held: Vec<Option<bool>> = row.try_get("held")?;
    let rights = rights.into_iter().zip(held);
    let lacking = rights.filter(|(_, held)| *held == Some(false));
    Ok(lacking.map(|(right, _)| right).collect())
}

/// Those on schema larder.
fn schema_rights(answers: bool) -> Vec<Right> {
    let object = "schema larder";
    let mut written: Vec<String> = TABLES.iter().map(|name| format!("larder.{name}")).collect();
    if answers {
        written.push("larder.answer".to_owned());
    }
    let of_tables = |privilege: &str, of: &str| {
        format!(
            "(select bool_and(has_table_privilege(c.oid, {})) from pg_class c \
             where c.relnamespace = to_regnamespace('larder') and c.relkind = 'r' {of})",
            literal(privilege)
        )
    };
    let names = TABLES.map(literal).join(", ");
    let functions = "larder.prune(interval, bigint), larder.snapshot(xid8, xid8[])";
    // A role that may create the schema will own it.
    let right = |privilege: String, is_held_sql: String| Right {
        object: object.to_owned(),
        privilege,
        is_held_sql: format!(
            "coalesce({is_held_sql}, has_database_privilege(current_database(), 'create'))"
        ),
    };
    vec![
        right(
            "usage on schema larder".to_owned(),
            "has_schema_privilege(to_regnamespace('larder'), 'usage')".to_owned(),
        ),
        right(
            "select on all tables in schema larder".to_owned(),
            of_tables("select", ""),
        ),
        right(
            format!("insert, update, delete on {}", written.join(", ")),
            ["insert", "update", "delete"]
                .map(|privilege| of_tables(privilege, &format!("and c.relname in ({names})")))
                .join(" and "),
        ),
        right(
            format!("execute on function {functions}"),
            "(select bool_and(has_function_privilege(p.oid, 'execute')) from pg_proc p \
             where p.pronamespace = to_regnamespace('larder') and p.proname in ('prune', 'snapshot'))"
                .to_owned(),
        ),
    ]
}

fn usage_on_schema(schema: &str) -> Right {
    let name = identifier(schema);
    Right {
        object: format!("schema {schema}"),
        privilege: format!("usage on schema {name}"),
        is_held_sql: format!(
            "(select has_schema_privilege(n.oid, 'usage') from pg_namespace n where n.nspname = {})",
            literal(schema)
        ),
    }
}

/// Privileges on a table. Those on some columns are enough: whether they are the right ones the statements show.
fn on_table(table: &TableName, privileges: &[&str]) -> Right {
    let oid = table.oid;
    let held = privileges.iter().map(|privilege| match *privilege {
        "delete" => format!("has_table_privilege({oid}::oid, 'delete')"),
        privilege => format!(
            "has_any_column_privilege({oid}::oid, {})",
            literal(privilege)
        ),
    });
    Right {
        object: table.to_string(),
        privilege: format!("{} on {}", privileges.join(", "), table.sql()),
        is_held_sql: held.collect::<Vec<_>>().join(" and "),
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
            "(select bool_or(has_sequence_privilege(c.oid, 'usage, update')) from pg_class c \
             join pg_namespace n on n.oid = c.relnamespace where c.relkind = 'S' \
             and (format('%I.%I', n.nspname, c.relname) = {text} \
               or format('%I', c.relname) = {text} and pg_table_is_visible(c.oid)))"
        ),
    }
}
