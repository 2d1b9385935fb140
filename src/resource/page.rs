//! Pages of keys: which documents of a resource there are, in the order of their keys. SQL text only.

use crate::resource::key::KeyColumn;
use crate::resource::key::sql::canonical_key_sql;
use crate::resource::proof::{PROOF, Proved};
use crate::resource::row_security::{RowSecurity, unchanged_sql};
use crate::resource::sql::identifier;
use crate::resource::{Filter, Resource};

/// The parameters of a list's query that larder gives a meaning. No filter has one of these names.
pub const PARAMETERS: [&str; 5] = ["keys", "key", "limit", "after", "fields"];

/// One page of a resource's keys.
#[derive(Clone, Debug)]
pub struct Page {
    /// The canonical key before the first; none for the first page.
    pub after: Option<String>,
    /// Places in the resource's list of filters, rising, and what the column equals: a canonical text, or null.
    pub filters: Vec<(usize, Option<String>)>,
    /// Keys, at most.
    pub limit: usize,
}

impl Filter {
    /// What a filter of this column is to equal, as text of its type.
    ///
    /// # Errors
    /// Why it is none, for the end of a sentence about it.
    pub fn canonical(&self, value: &str) -> Result<String, String> {
        self.column.canonical(value).map(Into::into)
    }
}

impl Page {
    /// SQL for one row, its proof and the page's keys as an array: the parts of `after` come as text in `$1, …`, then the
    /// values of the filters, then the limit.
    ///
    /// Which filters there are is part of the text, so that PostgreSQL can use their indexes. The order is that of the
    /// columns, their collations included, and so is the comparison with `after`. With `row_security` PostgreSQL refuses
    /// the statement unless larder's role sees what that says.
    pub fn sql(&self, resource: &Resource, row_security: Option<&RowSecurity>) -> Proved {
        let (key, from) = self.parts(resource);
        let unchanged = unchanged_sql(row_security);
        Proved::new(&format!(
            "select {PROOF} as proof, array(select {key} {from}) as keys{unchanged}"
        ))
    }

    /// The same for keys that UTF-8 may not carry: as the bytes that the database stores, whose encoding is given beside,
    /// and with the number of keys to pass over as the last parameter.
    pub fn stored_sql(&self, resource: &Resource, row_security: Option<&RowSecurity>) -> Proved {
        let (key, from) = self.parts(resource);
        let parameters = self.parameters(resource);
        Proved::new(&format!(
            "select {PROOF} as proof, pg_catalog.getdatabaseencoding()::text as encoding, \
             array(select pg_catalog.convert_to({key}, pg_catalog.getdatabaseencoding()) {from} \
             offset ${offset}) as keys{unchanged}",
            offset = parameters + 2,
            unchanged = unchanged_sql(row_security),
        ))
    }

    /// Parameters before the limit.
    fn parameters(&self, resource: &Resource) -> usize {
        let after = match self.after {
            Some(_) => resource.key.columns.len(),
            None => 0,
        };
        let filters = self.filters.iter().filter(|(_, value)| value.is_some());
        after + filters.count()
    }

    /// The canonical key of a row, and which rows there are.
    fn parts(&self, resource: &Resource) -> (String, String) {
        let columns = &resource.key.columns;
        let name = |column: &KeyColumn| format!("t0.{}", identifier(&column.name));
        let names: Vec<String> = columns.iter().map(name).collect();
        let mut parameters = 0;
        let mut parameter = |column: &KeyColumn| {
            parameters += 1;
            format!("${parameters}::text::{}", column.key_type.sql_type())
        };
        // A row without a whole key has no document.
        let mut conditions: Vec<String> = names
            .iter()
            .map(|name| format!("{name} is not null"))
            .collect();
        if self.after.is_some() {
            let after: Vec<String> = columns.iter().map(&mut parameter).collect();
            conditions.push(format!("({}) > ({})", names.join(", "), after.join(", ")));
        }
        for (place, value) in &self.filters {
            let Some(Filter { column, .. }) = resource.filters.get(*place) else {
                continue;
            };
            conditions.push(match value {
                Some(_) => format!("{} = {}", name(column), parameter(column)),
                None => format!("{} is null", name(column)),
            });
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
