//! Pages of lists: the keys of a resource's documents, in their order. SQL text only.

use crate::resource::filter::Filter;
use crate::resource::key::sql::canonical_key_sql;
use crate::resource::key::{KeyColumn, key_parts};
use crate::resource::proof::{PROOF, ProvedSql};
use crate::resource::row_security::{RowSecurity, unchanged_sql};
use crate::resource::sql::identifier;
use crate::resource::{Owner, Resource};

/// The query parameters of a list that are not filters. No filter can have one of these names.
pub const PARAMETERS: [&str; 6] = ["keys", "key", "by", "limit", "after", "fields"];

/// One page of a resource's keys.
#[derive(Clone, Debug)]
pub struct Page {
    /// The canonical key that the page begins after; `None` for the first page.
    pub after: Option<String>,
    /// The filters: places in [`Resource::filters`] in ascending order, and for each the text of a value
    /// ([`Filter::text`]), or `None` for null.
    pub filters: Vec<(usize, Option<String>)>,
    /// The canonical text of the owner of its documents; `None`: whoever owns them.
    pub owner: Option<String>,
    /// The most keys.
    pub limit: usize,
}

impl Page {
    /// SQL that returns one row, the proof and the page's keys as an array. Its parameters are the parts of `after` as
    /// text, the values of the filters that are not null, the owner, and the limit.
    ///
    /// The text has a condition for each filter, so that PostgreSQL can use their indexes. The order and the comparison
    /// with `after` follow the columns' types and collations. With `row_security` PostgreSQL refuses the statement
    /// unless larder's role sees what `row_security` says.
    pub fn sql(&self, resource: &Resource, row_security: Option<&RowSecurity>) -> ProvedSql {
        let (key, from) = self.parts(resource, true);
        let unchanged = unchanged_sql(row_security);
        ProvedSql::new(&format!(
            "select {PROOF} as proof, array(select {key} {from}) as keys{unchanged}"
        ))
    }

    /// As [`Self::sql`], for keys that may have no UTF-8 form, also those that can't stand in a path: it returns them as the bytes that the database stores,
    /// with the name of the database's encoding. The last parameter is the number of keys to skip.
    pub fn stored_sql(&self, resource: &Resource, row_security: Option<&RowSecurity>) -> ProvedSql {
        let (key, from) = self.parts(resource, false);
        let parameters = self.parameter_count(resource);
        ProvedSql::new(&format!(
            "select {PROOF} as proof, pg_catalog.getdatabaseencoding()::text as encoding, \
             array(select pg_catalog.convert_to({key}, pg_catalog.getdatabaseencoding()) {from} \
             offset ${offset}) as keys{unchanged}",
            offset = parameters + 2,
            unchanged = unchanged_sql(row_security),
        ))
    }

    /// The texts that PostgreSQL has to read: for each the name of its parameter in the query, and SQL for its value from `$1`.
    pub(crate) fn texts(&self, resource: &Resource) -> Vec<(String, String, String)> {
        let columns = &resource.key.columns;
        let parts = self.after.iter();
        let parts = parts.flat_map(|after| columns.iter().zip(key_parts(after, columns.len())));
        let after = parts.map(|(column, part)| {
            let value = column.place_sql("$1::text");
            ("after".to_owned(), value, part.into_owned())
        });
        let filters = self.filters.iter().filter_map(|(place, text)| {
            let Filter { name, column, .. } = resource.filters.get(*place)?;
            let value = column.value_sql("$1::text");
            Some((name.clone(), value, text.clone()?))
        });
        after.chain(filters).collect()
    }

    /// The number of parameters before the limit.
    fn parameter_count(&self, resource: &Resource) -> usize {
        let after = match self.after {
            Some(_) => resource.key.columns.len(),
            None => 0,
        };
        let filters = self.filters.iter().filter(|(_, value)| value.is_some());
        after + filters.count() + usize::from(self.owner.is_some())
    }

    /// SQL for the canonical key of a row, and for the rows of the page; if they are `in_path`, only those whose keys can
    /// stand in a path, since no path leads to other rows and no page can begin after them.
    fn parts(&self, resource: &Resource, in_path: bool) -> (String, String) {
        let columns = &resource.key.columns;
        let name = |column: &KeyColumn| format!("t0.{}", identifier(&column.name));
        let names: Vec<String> = columns.iter().map(name).collect();
        let mut parameters = 0;
        let mut parameter = || {
            parameters += 1;
            format!("${parameters}::text")
        };
        // A row whose key has a null has no document.
        let mut conditions: Vec<String> = names
            .iter()
            .map(|name| format!("{name} is not null"))
            .collect();
        if in_path {
            let columns = columns.iter().zip(&names);
            conditions
                .extend(columns.filter_map(|(column, name)| column.key_type.in_path_sql(name)));
        }
        let exists = resource.root.condition.iter();
        conditions.extend(exists.map(|condition| condition.sql("t0")));
        if self.after.is_some() {
            let after = columns.iter().map(|column| column.place_sql(&parameter()));
            let after: Vec<String> = after.collect();
            conditions.push(format!("({}) > ({})", names.join(", "), after.join(", ")));
        }
        for (place, value) in &self.filters {
            let Some(Filter { column, .. }) = resource.filters.get(*place) else {
                continue;
            };
            let name = format!("t0.{}", identifier(column.name()));
            conditions.push(match value {
                Some(_) => column
                    .equality()
                    .sql(&name, &column.value_sql(&parameter())),
                None => format!("{name} is null"),
            });
        }
        if let (Some(_), Some(Owner { column, .. })) = (&self.owner, &resource.owner) {
            let owner = column.value_sql(&parameter());
            conditions.push(format!("{} = {owner}", name(column)));
        }
        let from = format!(
            "from {table} t0 where {conditions} order by {order} limit ${limit}",
            table = resource.root.table.sql(),
            conditions = conditions.join(" and "),
            order = names.join(", "),
            limit = parameters + 1,
        );
        (canonical_key_sql(columns, "t0"), from)
    }
}
