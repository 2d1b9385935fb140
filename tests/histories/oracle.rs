//! What the documents of a history must be, by plain selects over the tables as they are at the moment.
//!
//! Columns, primary keys and whether a resource fits at all come from the catalogue at each look, since steps change
//! them.

use std::collections::HashMap;

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row as _};

use crate::documents::oracle::DocumentsByPath;
use crate::histories::hostile_settings::OF_ORACLE;
use crate::histories::plan::{Plan, PlannedChild, PlannedResource};

/// A session that sees what larder's role sees.
pub(super) struct Oracle {
    connection: PgConnection,
}

/// The state of the tables, from which the next step is drawn.
#[derive(Debug, Default)]
pub(super) struct DatabaseState {
    pub(super) tables: Vec<TableState>,
}

#[derive(Clone, Debug)]
pub(super) struct TableState {
    pub(super) name: String,
    /// As in `pg_class.relkind`.
    pub(super) kind: String,
    pub(super) parents: Vec<String>,
    pub(super) is_partition: bool,
    /// The strategy of a partitioned table, such as `RANGE (part)`, else empty.
    pub(super) strategy: String,
    /// `FOR VALUES …` of a partition, else empty.
    pub(super) bound: String,
    /// Keys and parts of its own rows.
    pub(super) rows: Vec<(String, i32)>,
}

struct Columns {
    /// Name and type.
    columns: Vec<(String, String)>,
    primary_key: Vec<String>,
    /// The columns of each unique index, sorted.
    unique: Vec<Vec<String>>,
}

/// Of the ordinary and partitioned tables of schema public.
const CATALOGUE: &str = "select c.relname::text as name, \
    array(select a.attname::text from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 \
      and not a.attisdropped order by a.attnum) as columns, \
    array(select format_type(a.atttypid, null) from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 \
      and not a.attisdropped order by a.attnum) as types, \
    coalesce((select array(select a.attname::text from unnest(i.indkey::int2[]) with ordinality k(n, place) \
      join pg_attribute a on a.attrelid = c.oid and a.attnum = k.n order by k.place) \
      from pg_index i where i.indrelid = c.oid and i.indisprimary), '{}') as primary_key, \
    array(select (select string_agg(a.attname, ',' order by a.attname) from pg_attribute a \
        where a.attrelid = c.oid and a.attnum = any (i.indkey::int2[])) \
      from pg_index i where i.indrelid = c.oid and i.indisunique and i.indimmediate and i.indisvalid \
        and i.indpred is null and 0 <> all (i.indkey::int2[])) as unique_keys \
    from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p')";

const STATE: &str = "select c.relname::text as name, c.relkind::text as kind, c.relispartition as is_partition, \
    array(select i.inhparent::regclass::text from pg_inherits i where i.inhrelid = c.oid and not i.inhdetachpending \
      order by 1) as parents, \
    case when c.relkind = 'p' then pg_get_partkeydef(c.oid) else '' end as strategy, \
    coalesce(pg_get_expr(c.relpartbound, c.oid), '') as bound \
    from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') \
      and c.relname ~ '^[rcl][0-9]+$' order by c.relname collate \"C\"";

impl Oracle {
    pub(super) async fn connect(url: &str) -> Self {
        let mut connection = PgConnection::connect(url).await.unwrap();
        sqlx::raw_sql(OF_ORACLE)
            .execute(&mut connection)
            .await
            .unwrap();
        Self { connection }
    }

    pub(super) async fn state(&mut self) -> DatabaseState {
        let found = sqlx::query(STATE)
            .persistent(false)
            .fetch_all(&mut self.connection)
            .await
            .unwrap();
        let mut state = DatabaseState::default();
        let mut selects = Vec::new();
        for row in found {
            let name: String = row.get("name");
            let kind: String = row.get("kind");
            if kind == "r" {
                selects.push(format!(
                    "select '{name}' as t, id::text as id, part from only {name}"
                ));
            }
            state.tables.push(TableState {
                name,
                kind,
                parents: row.get("parents"),
                is_partition: row.get("is_partition"),
                strategy: row.get("strategy"),
                bound: row.get("bound"),
                rows: Vec::new(),
            });
        }
        let sql = format!("{} order by 1, 2, 3", selects.join(" union all "));
        let rows = sqlx::query(AssertSqlSafe(sql))
            .persistent(false)
            .fetch_all(&mut self.connection)
            .await
            .unwrap();
        for row in rows {
            let name: String = row.get("t");
            let table = state.tables.iter_mut().find(|table| table.name == name);
            table.unwrap().rows.push((row.get("id"), row.get("part")));
        }
        state
    }

    /// Every document as it is now, seen as `role` where policies apply; and the names of the resources that fit.
    pub(super) async fn documents(
        &mut self,
        plan: &Plan,
        role: &str,
    ) -> (DocumentsByPath, Vec<&'static str>) {
        let catalogue = self.catalogue().await;
        let mut documents = DocumentsByPath::new();
        let mut fitting = Vec::new();
        let mut snapshot = self
            .connection
            .begin_with("begin isolation level repeatable read, read only")
            .await
            .unwrap();
        if plan.policies {
            let sql = format!("set local role {role}");
            sqlx::raw_sql(AssertSqlSafe(sql))
                .execute(&mut *snapshot)
                .await
                .unwrap();
        }
        for resource in &plan.resources {
            let Some(select) = select(resource, &catalogue) else {
                continue;
            };
            let rows = sqlx::query(AssertSqlSafe(select))
                .persistent(false)
                .fetch_all(&mut *snapshot)
                .await
                .unwrap();
            fitting.push(resource.name);
            for row in rows {
                let path = format!("/{}/{}", resource.name, row.get::<String, _>(0));
                documents.insert(path, row.get(1));
            }
        }
        snapshot.commit().await.unwrap();
        (documents, fitting)
    }

    /// The whole of every table, to compare two databases.
    pub(super) async fn contents(&mut self, plan: &Plan) -> Vec<String> {
        let mut contents = Vec::new();
        for family in &plan.families {
            let sql = format!(
                "select t.tableoid::regclass::text || t::text from {}0 t order by 1",
                family.prefix
            );
            let rows: Vec<String> = sqlx::query_scalar(AssertSqlSafe(sql))
                .persistent(false)
                .fetch_all(&mut self.connection)
                .await
                .unwrap_or_default();
            contents.extend(rows);
        }
        contents
    }

    async fn catalogue(&mut self) -> HashMap<String, Columns> {
        let rows = sqlx::query(CATALOGUE)
            .persistent(false)
            .fetch_all(&mut self.connection)
            .await
            .unwrap();
        let columns = |row: &sqlx::postgres::PgRow| {
            let names: Vec<String> = row.get("columns");
            let types: Vec<String> = row.get("types");
            let unique: Vec<String> = row.get("unique_keys");
            Columns {
                columns: names.into_iter().zip(types).collect(),
                primary_key: row.get("primary_key"),
                unique: unique
                    .iter()
                    .map(|names| names.split(',').map(str::to_owned).collect())
                    .collect(),
            }
        };
        rows.iter()
            .map(|row| (row.get("name"), columns(row)))
            .collect()
    }
}

impl Columns {
    fn has(&self, name: &str) -> bool {
        self.columns.iter().any(|(column, _)| column == name)
    }

    fn is_unique(&self, key: &[&str]) -> bool {
        let mut key = key.to_vec();
        key.sort_unstable();
        self.unique.iter().any(|unique| *unique == key)
    }

    /// The members of the rows called `alias`.
    fn members(&self, alias: &str, fields: Option<&[&str]>) -> Vec<String> {
        let shown = |name: &str, member: &str| {
            let (_, of_type) = self
                .columns
                .iter()
                .find(|(column, _)| column == name)
                .unwrap();
            format!(
                "{} as \"{member}\"",
                rendered(&format!("{alias}.{name}"), of_type)
            )
        };
        match fields {
            Some(fields) => fields
                .iter()
                .map(|name| shown(name, &format!("m_{name}")))
                .collect(),
            None => self
                .columns
                .iter()
                .map(|(name, _)| shown(name, name))
                .collect(),
        }
    }
}

/// SQL of what `row_to_json` must be given.
fn rendered(column: &str, of_type: &str) -> String {
    match of_type {
        "timestamp without time zone" => format!("{column} at time zone 'UTC'"),
        "bytea" => format!("translate(encode({column}, 'base64'), E'\\n', '')"),
        _ => column.to_owned(),
    }
}

fn object(members: &[String]) -> String {
    format!(
        "(select row_to_json(o) from (select {}) o)",
        members.join(", ")
    )
}

/// The documents of a resource with their keys' text; none where it does not fit its tables.
fn select(resource: &PlannedResource, catalogue: &HashMap<String, Columns>) -> Option<String> {
    let root = catalogue.get(&resource.table)?;
    let fields = resource.fields.as_deref();
    let needed = resource.key.iter().chain(fields.into_iter().flatten());
    if !needed.chain(&["ref"]).all(|name| root.has(name)) || !root.is_unique(&resource.key) {
        return None;
    }
    let mut members = root.members("t", fields);
    if let Some(child) = &resource.child {
        members.push(below(resource, child, catalogue)?);
    }
    if let Some(table) = &resource.lookup {
        members.push(lookup(table, "t", catalogue)?);
    }
    let key: Vec<String> = resource
        .key
        .iter()
        .map(|name| {
            format!(
                "replace(replace(replace(to_json(t.{name}) #>> '{{}}', '%', '%25'), '/', '%2F'), ' ', '%20')"
            )
        })
        .collect();
    Some(format!(
        "select {}, {}::text from {} t",
        key.join(" || ',' || "),
        object(&members),
        resource.table
    ))
}

fn below(
    resource: &PlannedResource,
    child: &PlannedChild,
    catalogue: &HashMap<String, Columns>,
) -> Option<String> {
    let columns = catalogue.get(&child.table)?;
    let order: Vec<String> = match &child.order_by {
        Some(names) => names.iter().map(|name| format!("c.{name}")).collect(),
        None => columns
            .primary_key
            .iter()
            .map(|name| format!("c.{name}"))
            .collect(),
    };
    let names = child
        .foreign_key
        .iter()
        .chain(child.order_by.iter().flatten());
    let complete = names.chain(&["ref"]).all(|name| columns.has(name));
    if order.is_empty() || !complete {
        return None;
    }
    let mut members = columns.members("c", None);
    if let Some(table) = &child.lookup {
        members.push(lookup(table, "c", catalogue)?);
    }
    let pairs = child.foreign_key.iter().zip(&resource.key);
    let on: Vec<String> = pairs
        .map(|(own, upper)| format!("c.{own} = t.{upper}"))
        .collect();
    Some(format!(
        "array_to_json(array(select {} from {} c where {} order by {})) as below",
        object(&members),
        child.table,
        on.join(" and "),
        order.join(", ")
    ))
}

fn lookup(table: &str, pointing: &str, catalogue: &HashMap<String, Columns>) -> Option<String> {
    let columns = catalogue.get(table)?;
    if columns.primary_key != ["id"] {
        return None;
    }
    let members = columns.members("s", None);
    Some(format!(
        "(select {} from {table} s where s.id = {pointing}.ref) as seen",
        object(&members)
    ))
}
