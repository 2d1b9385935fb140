//! What a principal may see, by plain SQL: the documents of a scope with their keys and aliases.

use serde::Deserialize;
use serde_json::Value;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::checks::scope::differential::principals::Right;
use crate::checks::scope::differential::schema::{Role, Schema, Table};

/// A document that is visible in a scope.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct VisibleDocument {
    /// Canonical texts of the key's parts.
    pub(super) key: Vec<String>,
    /// Canonical texts of the parts of each alias.
    pub(super) aliases: Vec<Vec<String>>,
    pub(super) document: Value,
}

/// Reads the documents of a scope, in the order of their keys; those after the key with the numbers `after`.
pub(super) async fn visible(
    connection: &mut PgConnection,
    schema: &Schema,
    right: Right,
    after: Option<&[i64]>,
) -> anyhow::Result<Vec<VisibleDocument>> {
    let Some(owned) = owned_sql(schema, right) else {
        return Ok(Vec::new());
    };
    let root = &schema.tables[0];
    // The canonical text, as JSON has it: a cast adds /32 to an address of type inet.
    let text = |name: &str| format!("to_jsonb(t0.{name}) #>> '{{}}'");
    let array = |texts: Vec<String>| format!("json_build_array({})", texts.join(", "));
    let key = array(
        root.of_role(Role::Key)
            .map(|column| text(&column.name))
            .collect(),
    );
    let aliases = schema
        .aliases
        .iter()
        .map(|alias| array(alias.columns.iter().map(|(name, _)| text(name)).collect()));
    let sql = format!(
        "select json_build_object('key', {key}, 'aliases', {aliases}, 'document', {document})::text \
         from {visible} t0 where {owned} and {after} order by {order}",
        after = after.map_or("true".to_owned(), |after| after_sql(schema, after)),
        aliases = array(aliases.collect()),
        document = object_sql(schema, 0, 0),
        visible = schema.visible_sql(0),
        order = root.key_names(),
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(sql))
        .fetch_all(connection)
        .await?;
    let documents = rows
        .iter()
        .map(|row| Ok(serde_json::from_str(row.try_get(0)?)?));
    documents.collect()
}

/// The condition of roots of a scope; `None` if it has none.
fn owned_sql(schema: &Schema, right: Right) -> Option<String> {
    match (right, &schema.owner) {
        (Right::None | Right::Own(None), _) => None,
        (Right::All, _) | (Right::Own(_), None) => Some("true".to_owned()),
        (Right::Own(Some(owner)), Some(of)) => Some(format!("o = {}", of.kind.literal(owner))),
    }
}

fn after_sql(schema: &Schema, after: &[i64]) -> String {
    let literals = schema.key_kinds().into_iter().zip(after);
    let literals =
        literals.map(|(kind, part)| format!("{}::{}", kind.literal(*part), kind.type_sql()));
    let literals: Vec<String> = literals.collect();
    format!(
        "row({}) > row({})",
        schema.tables[0].key_names(),
        literals.join(", ")
    )
}

/// SQL for the JSON of row `t{depth}` of a table, with what belongs to it.
fn object_sql(schema: &Schema, table: usize, depth: usize) -> String {
    let of = &schema.tables[table];
    let members = of
        .shown()
        .map(|column| format!("'{0}', t{depth}.{0}", column.name));
    let mut members: Vec<String> = members.collect();
    let below = depth + 1;
    for child in schema.children(table) {
        let linked = linked_sql(of, &schema.tables[child], depth);
        members.push(format!(
            "'{name}', (select coalesce(json_agg({object} order by t{below}.k0), '[]') from {visible} t{below} where {linked})",
            name = schema.tables[child].name,
            object = object_sql(schema, child, below),
            visible = schema.visible_sql(child),
        ));
    }
    for (lookup, column, _) in schema.lookups(table) {
        members.push(format!(
            "'{name}', (select {object} from {visible} t{below} where t{below}.k0 = t{depth}.{column})",
            name = schema.tables[lookup].name,
            object = object_sql(schema, lookup, below),
            visible = schema.visible_sql(lookup),
        ));
    }
    format!("json_build_object({})", members.join(", "))
}

/// The condition that row `t{depth + 1}` of `child` is below row `t{depth}` of `parent`.
fn linked_sql(parent: &Table, child: &Table, depth: usize) -> String {
    let pairs = parent.of_role(Role::Key).zip(child.of_role(Role::Link));
    let below = depth + 1;
    let equal = pairs.map(|(key, link)| format!("t{below}.{} = t{depth}.{}", link.name, key.name));
    equal.collect::<Vec<_>>().join(" and ")
}
