//! Which documents exist, by their keys or by an alias, and perhaps only those of one owner: SQL text only.

use crate::resource::Resource;
use crate::resource::key::KeyShape;
use crate::resource::key::sql::canonical_key_sql;
use crate::resource::proof::{PROOF, ProvedSql};
use crate::resource::query::rows_of_keys;
use crate::resource::row_security::{RowSecurity, unchanged_sql};
use crate::resource::sql::identifier;

/// Documents that are looked for.
#[derive(Clone, Debug)]
pub struct Find {
    /// The alias whose texts these are: its place in [`Resource::by`]. `None`: they are keys.
    pub alias: Option<usize>,
    /// Canonical texts, all different.
    pub texts: Vec<String>,
    /// The canonical text of the owner; `None`: whoever owns the documents.
    pub owner: Option<String>,
}

impl Find {
    /// The columns of the texts.
    pub(crate) fn shape<'r>(&self, resource: &'r Resource) -> &'r KeyShape {
        let alias = self.alias.and_then(|alias| resource.by.get(alias));
        alias.map_or(&resource.key, |alias| &alias.key)
    }

    /// SQL that returns one row: the proof, and as arrays, or null, the texts that lead to a document and the keys of these
    /// documents. Its parameters are the texts, as for the statement that reads documents, and the owner.
    ///
    /// With `row_security` PostgreSQL refuses the statement unless larder's role sees what `row_security` says.
    pub(crate) fn sql(&self, resource: &Resource, row_security: Option<&RowSecurity>) -> ProvedSql {
        let shape = self.shape(resource);
        // No path leads to a row whose key has a null or can't stand in a path.
        let mut conditions = Vec::new();
        for column in &resource.key.columns {
            let name = format!("t0.{}", identifier(&column.name));
            conditions.extend(column.key_type.in_path_sql(&name));
            conditions.push(format!("{name} is not null"));
        }
        if let (Some(_), Some(owner)) = (&self.owner, &resource.owner) {
            let parameter = shape.columns.len() + 1;
            conditions.push(owner.owned_sql("t0", parameter));
        }
        ProvedSql::new(&format!(
            "select {PROOF} as proof, f.texts, f.keys from (select array_agg(r.text) as texts, array_agg(r.key) as keys \
             from (select {text} as text, {key} as key from {rows} and {conditions}) r) f{unchanged}",
            text = canonical_key_sql(&shape.columns, "t0"),
            key = canonical_key_sql(&resource.key.columns, "t0"),
            rows = rows_of_keys(shape, &resource.root),
            conditions = conditions.join(" and "),
            unchanged = unchanged_sql(row_security),
        ))
    }
}
