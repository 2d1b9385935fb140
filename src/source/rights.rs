//! What a role of larder has to be allowed: privileges on the tables of resources, and which of them a role lacks.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::resource::Resource;
use crate::resource::catalogue::TableName;
use crate::resource::sql::{identifier, literal};
use crate::resource::writable::Level;
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

/// What a role needs of the tables of `resources`: privileges on the columns that documents, links, conditions and writes
/// use, since one on a whole table would show others.
pub(crate) fn table_rights(resources: &[&Resource]) -> Vec<Right> {
    let mut tables = columns_read(resources);
    let mut sequences = Vec::new();
    for resource in resources {
        let levels = resource
            .writable
            .iter()
            .flat_map(|writable| &writable.levels);
        for level in levels {
            TableUse::of(&mut tables, &level.table).add_writes(level);
            for pointer in &level.pointers {
                let target = TableUse::of(&mut tables, &pointer.table);
                let columns = pointer.target.iter().chain(&pointer.owner);
                target
                    .selected
                    .extend(columns.map(|column| Cow::from(&*column.name)));
            }
            sequences.extend(sequence_rights(level));
        }
    }
    let mut rights = rights_to_read(&tables);
    let written = tables.values().filter(|of| of.is_written);
    rights.extend(written.map(TableUse::write_right));
    rights.extend(sequences);
    rights
}

/// Returns what a role needs to read documents of `resources`.
pub(crate) fn read_rights(resources: &[&Resource]) -> Vec<Right> {
    rights_to_read(&columns_read(resources))
}

fn columns_read<'r>(resources: &[&'r Resource]) -> BTreeMap<u32, TableUse<'r>> {
    let mut tables = BTreeMap::new();
    for resource in resources {
        for (table, column) in resource.columns_read() {
            TableUse::of(&mut tables, table).selected.insert(column);
        }
    }
    tables
}

fn rights_to_read(tables: &BTreeMap<u32, TableUse<'_>>) -> Vec<Right> {
    let names: BTreeSet<&str> = tables.values().map(|of| of.table.schema.as_str()).collect();
    let mut rights: Vec<Right> = names.into_iter().map(usage_on_schema).collect();
    rights.extend(tables.values().map(TableUse::read_right));
    rights
}

/// How larder uses a table.
struct TableUse<'r> {
    table: &'r TableName,
    selected: BTreeSet<Cow<'r, str>>,
    inserted: BTreeSet<Cow<'r, str>>,
    updated: BTreeSet<Cow<'r, str>>,
    is_written: bool,
}

impl<'r> TableUse<'r> {
    fn of<'t>(tables: &'t mut BTreeMap<u32, Self>, table: &'r TableName) -> &'t mut Self {
        tables.entry(table.oid).or_insert_with(|| Self {
            table,
            selected: BTreeSet::new(),
            inserted: BTreeSet::new(),
            updated: BTreeSet::new(),
            is_written: false,
        })
    }

    fn add_writes(&mut self, level: &'r Level) {
        self.is_written = true;
        for (number, column) in level.columns.iter().enumerate() {
            let name = || Cow::from(column.column.as_str());
            let is_key = level.key.contains(&number);
            // A column that only new rows get is not read.
            if is_key || !column.is_kept {
                self.selected.insert(name());
            }
            if column.is_inserted() {
                self.inserted.insert(name());
                if !is_key && !column.identity_always && !column.is_kept {
                    self.updated.insert(name());
                }
            }
        }
        // Rows are locked by a privilege to update any column.
        if self.updated.is_empty() {
            let key = level.key.iter().filter_map(|&key| level.columns.get(key));
            let key = key.map(|column| Cow::from(column.column.as_str()));
            self.updated.extend(key.take(1));
        }
    }

    fn read_right(&self) -> Right {
        self.right(&[("select", &self.selected)], None)
    }

    fn write_right(&self) -> Right {
        let of_columns = [("insert", &self.inserted), ("update", &self.updated)];
        self.right(&of_columns, Some("delete"))
    }

    /// Privileges on columns, and one on the table.
    fn right(
        &self,
        of_columns: &[(&str, &BTreeSet<Cow<'_, str>>)],
        of_table: Option<&str>,
    ) -> Right {
        let oid = self.table.oid;
        let list = |columns: &BTreeSet<Cow<'_, str>>, quote: fn(&str) -> String| {
            let quoted: Vec<String> = columns.iter().map(|column| quote(column)).collect();
            quoted.join(", ")
        };
        let mut privileges = Vec::new();
        let mut held = Vec::new();
        for (privilege, columns) in of_columns.iter().filter(|(_, of)| !of.is_empty()) {
            privileges.push(format!("{privilege} ({})", list(columns, identifier)));
            held.push(format!(
                "(has_table_privilege(asked.role, {oid}::oid, '{privilege}') or (select \
                 bool_and(has_column_privilege(asked.role, a.attrelid, a.attnum, '{privilege}')) from pg_attribute a \
                 where a.attrelid = {oid}::oid and a.attname = any(array[{}]::name[]) and not a.attisdropped))",
                list(columns, literal)
            ));
        }
        if let Some(privilege) = of_table {
            privileges.push(privilege.to_owned());
            held.push(format!(
                "has_table_privilege(asked.role, {oid}::oid, '{privilege}')"
            ));
        }
        Right {
            object: self.table.to_string(),
            privilege: format!("{} on {}", privileges.join(", "), self.table.sql()),
            is_held_sql: held.join(" and "),
        }
    }
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

/// Those of `rights` that `role` lacks, and usage of the schemas whose types the conditions of `resources` name. Statements name
/// no type of a column, but PostgreSQL's form of a condition that has a constant of one does.
pub(crate) async fn lacking_of(
    connection: &mut PgConnection,
    role: &str,
    mut rights: Vec<Right>,
    resources: &[&Resource],
) -> Result<Vec<Right>, SourceError> {
    let rows = resources.iter().flat_map(|resource| resource.rows());
    let conditions = rows.filter_map(|row| Some(row.condition.as_ref()?.sql("r")));
    let schemas: Vec<String> = sqlx::query_scalar(
        "select n.nspname::text from pg_namespace n where exists (select from unnest($1::text[]) c (text) \
         where position('::' || quote_ident(n.nspname) || '.' in c.text) > 0) order by 1",
    )
    .bind(conditions.collect::<Vec<String>>())
    .persistent(false)
    .fetch_all(&mut *connection)
    .await?;
    let named = schemas.iter().map(|schema| usage_on_schema(schema));
    let named: Vec<Right> = named.filter(|right| !rights.contains(right)).collect();
    rights.extend(named);
    lacking(connection, role, rights).await
}

/// Usage of the schemas whose types the filters of `resources` have, as far as `role` lacks it. Without it filters work, but no
/// index serves them.
pub(crate) async fn types_of_filters(
    connection: &mut PgConnection,
    role: &str,
    resources: &[&Resource],
) -> Result<Vec<Right>, SourceError> {
    let columns = resources.iter().flat_map(|resource| {
        let filters = resource.filters.iter();
        filters.map(|filter| (i64::from(resource.root.table.oid), filter.column.name()))
    });
    let (tables, names): (Vec<i64>, Vec<&str>) = columns.unzip();
    let schemas: Vec<String> = sqlx::query_scalar(
        "select distinct n.nspname::text from unnest($1::int8[], $2::text[]) u (oid, name) \
         join pg_attribute a on a.attrelid::int8 = u.oid and a.attname = u.name join pg_type t on t.oid = a.atttypid \
         join pg_namespace n on n.oid = t.typnamespace where not has_schema_privilege($3::name, n.oid, 'usage') order by 1",
    )
    .bind(tables)
    .bind(names)
    .bind(role)
    .persistent(false)
    .fetch_all(connection)
    .await?;
    Ok(schemas
        .iter()
        .map(|schema| usage_on_schema(schema))
        .collect())
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

/// The rights on the sequences that defaults call. Those of identity columns need no privilege.
fn sequence_rights(level: &Level) -> Vec<Right> {
    let sequences = level.columns.iter().flat_map(|column| &column.sequences);
    sequences.map(|name| on_sequence(name)).collect()
}

/// `name` has its schema; both are quoted where they have to be.
fn on_sequence(name: &str) -> Right {
    let text = literal(name);
    Right {
        object: format!("sequence {name}"),
        privilege: format!("usage on sequence {name}"),
        is_held_sql: format!(
            "(select bool_or(has_sequence_privilege(asked.role, c.oid, 'usage, update')) from pg_class c \
             join pg_namespace n on n.oid = c.relnamespace where c.relkind = 'S' \
             and format('%I.%I', n.nspname, c.relname) = {text})"
        ),
    }
}
