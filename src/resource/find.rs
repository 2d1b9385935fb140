//! Which documents exist, by their keys or by an alias, and perhaps only those of one owner: SQL text only.

use crate::resource::Resource;
use crate::resource::kept::KeptColumns;
use crate::resource::key::KeyShape;
use crate::resource::key::sql::canonical_key_sql;
use crate::resource::proof::{PROOF, ProvedSql};
use crate::resource::query::{documents_of_rows_sql, rows_of_keys};
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
        resource.shape_of(self.alias)
    }

    /// SQL that returns one row: the proof, and as arrays, or null, the texts that lead to a document and the keys of these
    /// documents; one of them if there are several, since a unique index was dropped a moment ago. Its parameters are the texts, as for the statement that reads documents, and the owner.
    ///
    /// With `row_security` PostgreSQL refuses the statement unless larder's role sees what `row_security` says.
    pub(crate) fn sql(&self, resource: &Resource, row_security: Option<&RowSecurity>) -> ProvedSql {
        ProvedSql::new(&format!(
            "select {PROOF} as proof, f.texts, f.keys from (select array_agg(r.text) as texts, array_agg(r.key) as keys \
             from (select text, min(key collate \"C\") as key from (select {text} as text, {key} as key from {rows}) k \
             group by text) r) f{unchanged}",
            text = canonical_key_sql(&self.shape(resource).columns, "t0"),
            key = canonical_key_sql(&resource.key.columns, "t0"),
            rows = self.rows_sql(resource),
            unchanged = unchanged_sql(row_security),
        ))
    }

    /// SQL that returns the documents as the statement does that reads them by their keys. The last parameter is the most
    /// bytes of a record.
    pub(crate) fn documents_sql(
        &self,
        resource: &Resource,
        row_security: Option<&RowSecurity>,
    ) -> ProvedSql {
        // Two are enough to know that there are several.
        let rows = format!("{} limit 2", self.rows_sql(resource));
        let bound = self.shape(resource).columns.len() + 1 + usize::from(self.owner.is_some());
        let kept = KeptColumns::new(resource.owner.as_ref(), &resource.by);
        let (key, root) = (&resource.key, &resource.root);
        documents_of_rows_sql(&rows, bound, key, root, &kept, row_security)
    }

    /// The root rows, called `t0`.
    fn rows_sql(&self, resource: &Resource) -> String {
        let shape = self.shape(resource);
        let mut rows = rows_of_keys(shape, &resource.root);
        // No path leads to a row whose key has a null or can't stand in a path.
        for column in &resource.key.columns {
            let name = format!("t0.{}", identifier(&column.name));
            if let Some(in_path) = column.key_type.in_path_sql(&name) {
                rows.push_str(&format!(" and {in_path}"));
            }
            rows.push_str(&format!(" and {name} is not null"));
        }
        if let (Some(_), Some(owner)) = (&self.owner, &resource.owner) {
            let owned = owner.owned_sql("t0", shape.columns.len() + 1);
            rows.push_str(&format!(" and {owned}"));
        }
        rows
    }
}
