//! What larder's roles have to be allowed in schema larder, besides the tables of resources (`source::rights`).

use sqlx::postgres::PgConnection;

use crate::feed::schema::{DISPATCH_TABLES, TABLES};
use crate::resource::Resource;
use crate::resource::catalogue::TableName;
use crate::resource::sql::{identifier, literal};
use crate::source::SourceError;
use crate::source::rights::{Right, table_rights};

/// What a role needs to serve `resources`.
pub(super) fn rights(resources: &[&Resource], answers: bool) -> Vec<Right> {
    let of_schema = schema_rights(answers).into_iter().map(or_created);
    of_schema.chain(table_rights(resources)).collect()
}

/// Returns what a role needs of the tables of `larder dispatch`, or with `is_installed` false what it needs to create them.
pub(crate) fn dispatch_rights(is_installed: bool) -> Vec<Right> {
    if is_installed {
        return of_dispatch().into();
    }
    let held = "has_schema_privilege(asked.role, to_regnamespace('larder'), 'create, usage')";
    let create = in_schema("create, usage on schema larder".to_owned(), held.to_owned());
    vec![or_created(create)]
}

/// Returns what a role needs of the tables of `larder dispatch`, if another one runs a script. `is_created`: it creates them.
pub(crate) fn dispatch_script_rights(is_created: bool) -> Vec<Right> {
    of_dispatch()
        .map(|right| if_not_created(right, is_created))
        .into()
}

/// Counts a right as held by a role that may create the schema, and will own it.
fn or_created(right: Right) -> Right {
    Right {
        is_held_sql: format!(
            "coalesce({}, has_database_privilege(asked.role, current_database(), 'create'))",
            right.is_held_sql
        ),
        ..right
    }
}

/// Counts a right as held only on what is there before a script.
fn if_not_created(right: Right, is_created: bool) -> Right {
    Right {
        is_held_sql: format!(
            "not {is_created} and coalesce({}, false)",
            right.is_held_sql
        ),
        ..right
    }
}

/// The same, if another role runs the statements that create schema larder. `is_created`: they create a part of it.
pub(super) fn script_rights(
    resources: &[&Resource],
    answers: bool,
    is_created: bool,
) -> Vec<Right> {
    let of_schema = schema_rights(answers).into_iter();
    let of_schema = of_schema.map(|right| if_not_created(right, is_created));
    of_schema.chain(table_rights(resources)).collect()
}

/// What a role needs to read and write documents of `resources`, if the feed has another role.
pub(super) fn request_rights(resources: &[&Resource], answers: bool) -> Vec<Right> {
    let held = |privilege: &str, table: &str| {
        let (privilege, table) = (literal(privilege), literal(&format!("larder.{table}")));
        format!("has_table_privilege(asked.role, to_regclass({table}), {privilege})")
    };
    let mut rights = vec![
        usage(),
        in_schema("select on larder.epoch".to_owned(), held("select", "epoch")),
    ];
    if answers && resources.iter().any(|resource| resource.writable.is_ok()) {
        let privileges = ["select", "insert", "update"];
        rights.push(in_schema(
            format!("{} on larder.answer", privileges.join(", ")),
            privileges
                .map(|privilege| held(privilege, "answer"))
                .join(" and "),
        ));
    }
    rights.extend(table_rights(resources));
    rights
}

/// What to do where only the owner of `table` may do something.
pub(super) async fn owner_remedy(
    connection: &mut PgConnection,
    table: &TableName,
) -> Result<String, SourceError> {
    let (owner, role, is_superuser): (String, String, bool) = sqlx::query_as(
        "select pg_get_userbyid(c.relowner)::text, current_user::text, coalesce(o.rolsuper, false) from pg_class c \
           left join pg_roles o on o.oid = c.relowner where c.oid::int8 = $1",
    )
    .bind(i64::from(table.oid))
    .fetch_one(connection)
    .await?;
    let (owner, role) = (identifier(&owner), identifier(&role));
    // A member of a superuser may become one.
    let sql = if is_superuser {
        let table = format!("{}.{}", identifier(&table.schema), identifier(&table.name));
        format!("alter table {table} owner to {role};")
    } else {
        format!("grant {owner} to {role};")
    };
    Ok(format!(
        "only the owner of a table may add triggers; run `larder install` as {owner}, or: {sql}"
    ))
}

/// Those on schema larder.
fn schema_rights(answers: bool) -> Vec<Right> {
    let mut written: Vec<String> = TABLES.iter().map(|name| format!("larder.{name}")).collect();
    if answers {
        written.push("larder.answer".to_owned());
    }
    let names: Vec<String> = written.iter().map(|name| literal(name)).collect();
    let names = names.join(", ");
    // The tables of other commands may belong to another role.
    let of_tables = |privilege: &str| {
        format!(
            "(select bool_and(has_table_privilege(asked.role, c.oid, {})) from pg_class c \
             where c.relnamespace = to_regnamespace('larder') and c.relkind = 'r' \
             and 'larder.' || c.relname in ({names}))",
            literal(privilege)
        )
    };
    let functions = "larder.prune(interval, bigint), larder.snapshot(xid8, xid8[])";
    let rights = [
        usage(),
        in_schema(
            "select on all tables in schema larder".to_owned(),
            of_tables("select"),
        ),
        in_schema(
            format!("insert, update, delete on {}", written.join(", ")),
            ["insert", "update", "delete"]
                .map(of_tables)
                .join(" and "),
        ),
        in_schema(
            format!("execute on function {functions}"),
            "(select bool_and(has_function_privilege(asked.role, p.oid, 'execute')) from pg_proc p \
             where p.pronamespace = to_regnamespace('larder') and p.proname in ('prune', 'snapshot'))"
                .to_owned(),
        ),
    ];
    rights.into()
}

/// Returns the rights on the tables of `larder dispatch`.
fn of_dispatch() -> [Right; 2] {
    let tables = DISPATCH_TABLES.map(|name| format!("larder.{name}"));
    let names = DISPATCH_TABLES.map(literal).join(", ");
    let held = format!(
        "(select bool_and(has_table_privilege(asked.role, c.oid, p.privilege)) from pg_class c \
         cross join unnest('{{select,insert,update,delete}}'::text[]) p (privilege) \
         where c.relnamespace = to_regnamespace('larder') and c.relname in ({names}))"
    );
    let privilege = format!("select, insert, update, delete on {}", tables.join(", "));
    [usage(), in_schema(privilege, held)]
}

fn usage() -> Right {
    in_schema(
        "usage on schema larder".to_owned(),
        "has_schema_privilege(asked.role, to_regnamespace('larder'), 'usage')".to_owned(),
    )
}

fn in_schema(privilege: String, is_held_sql: String) -> Right {
    Right {
        object: "schema larder".to_owned(),
        privilege,
        is_held_sql,
    }
}
