//! The rows of suggested documents: their columns, children and lookups.

use crate::resource::catalogue::{Column, ForeignKey, Table, is_same_set};
use crate::resource::kept::ALIASES_MAX;
use crate::resource::key::key_type;
use crate::resource::page::PARAMETERS;
use crate::resource::suggest::kinds::not_deleted;
use crate::resource::suggest::names::{Names, of_child, of_lookup, segment};
use crate::resource::suggest::relations::Belonging;
use crate::resource::suggest::tables::positions;
use crate::resource::suggest::{
    LeftOut, SuggestedAlias, SuggestedChild, SuggestedLookup, SuggestedRow, Suggester,
};

/// The way from the root to a row.
struct Path<'p, 'a> {
    /// The foreign key by which the row belongs to the one above, and the other one of a table that links two.
    link: Option<(&'p ForeignKey, Option<&'a ForeignKey>)>,
    /// The tables of the rows above and of this row.
    tables: Vec<u32>,
}

impl<'a> Suggester<'a> {
    /// The root row; `None` if no column can be shown.
    pub(super) fn root(&self, table: &'a Table) -> Option<SuggestedRow> {
        let path = Path {
            link: None,
            tables: vec![table.name.oid],
        };
        self.row(table, &path)
    }

    fn row(&self, table: &'a Table, path: &Path<'_, 'a>) -> Option<SuggestedRow> {
        let mut row = self.columns(table)?;
        let mut names = Names::default();
        for field in &row.fields {
            names.take(field);
        }
        row.children = self.children(table, path, &mut names);
        row.lookups = self.lookups(table, path, &mut names);
        Some(row)
    }

    /// The row's own columns, without children and lookups.
    fn columns(&self, table: &'a Table) -> Option<SuggestedRow> {
        let mut row = SuggestedRow {
            table: table.name.clone(),
            fields: Vec::new(),
            left_out: Vec::new(),
            needed: Vec::new(),
            not_deleted: not_deleted(table),
            children: Vec::new(),
            lookups: Vec::new(),
        };
        for column in &table.columns {
            match self.why_hidden(table, column) {
                None => row.fields.push(column.name.clone()),
                Some(why) => {
                    let name = column.name.clone();
                    let is_filled = column.default.is_some() || column.generated;
                    if column.not_null && !is_filled {
                        row.needed.push(name.clone());
                    }
                    row.left_out.push(LeftOut { name, why });
                }
            }
        }
        (!row.fields.is_empty()).then_some(row)
    }

    /// Why a column is not shown, as the end of a sentence about it.
    fn why_hidden(&self, table: &'a Table, column: &Column) -> Option<String> {
        if let Some(why) = self.tables.no_column(table, &column.name) {
            return Some(why.to_owned());
        }
        if let Some(why) = &column.dependent {
            return Some(why.clone());
        }
        let is_secret = self.tables.is_secret(table, &column.name);
        is_secret.then(|| "which may hold a secret".to_owned())
    }

    fn children(
        &self,
        table: &'a Table,
        path: &Path<'_, 'a>,
        names: &mut Names,
    ) -> Vec<SuggestedChild> {
        let level = path.tables.len();
        if level > self.options.depth {
            return Vec::new();
        }
        let mut children = Vec::new();
        for (child, key) in self.tables.referring(table) {
            let Some(belonging) = self.tables.belonging(child, key, table) else {
                continue;
            };
            // What is offered only would repeat the database below every row.
            if belonging == Belonging::Reference && level > 1
                || belonging != Belonging::Reference && path.tables.contains(&child.name.oid)
            {
                continue;
            }
            let Some(order_by) = order(child) else {
                continue;
            };
            let off = self.tables.child_doubt(child, key, belonging);
            let row = match &off {
                Some(_) => self.columns(child),
                None => {
                    let other = match belonging {
                        Belonging::Link(other) => Some(other),
                        Belonging::Part | Belonging::Reference => None,
                    };
                    let mut tables = path.tables.clone();
                    tables.push(child.name.oid);
                    let link = Some((*key, other));
                    self.row(child, &Path { link, tables })
                }
            };
            if let Some(row) = row {
                children.push(SuggestedChild {
                    name: names.give(&of_child(&child.name, &key.columns)),
                    foreign_key: key.columns.clone(),
                    order_by,
                    off,
                    row,
                });
            }
        }
        children
    }

    /// The rows that foreign keys of `table` lead to, but for the one to the row above; then those that refer to this row
    /// alone.
    fn lookups(
        &self,
        table: &'a Table,
        path: &Path<'_, 'a>,
        names: &mut Names,
    ) -> Vec<SuggestedLookup> {
        let mut lookups = Vec::new();
        let (up, other) = match path.link {
            Some((up, other)) => (Some(up), other),
            None => (None, None),
        };
        for key in self.tables.foreign_keys(table) {
            let target = self.tables.usable(key.target);
            let Some(target) = target.filter(|_| up != Some(*key)) else {
                continue;
            };
            // What a link leads to is what it is for, however large that table is.
            let mut off = self.doubt_lookup(table, &key.columns, target);
            if other == Some(*key)
                && self
                    .tables
                    .most_rows(table, &key.columns)
                    .is_none_or(|most| most <= self.most_documents())
            {
                off = None;
            }
            if let Some(row) = self.looked_up(target) {
                lookups.push(SuggestedLookup {
                    name: names.give(&of_lookup(&key.columns, &target.name)),
                    column: key.columns.clone(),
                    references: None,
                    off,
                    row,
                });
            }
        }
        for (pointing, key) in self.tables.referring(table) {
            let is_above = path.tables.contains(&pointing.name.oid);
            if is_above || !pointing.is_unique(&key.columns) {
                continue;
            }
            if let Some(row) = self.looked_up(pointing) {
                lookups.push(SuggestedLookup {
                    name: names.give(&of_lookup(&[], &pointing.name)),
                    column: key.target_columns.clone(),
                    references: Some(key.columns.clone()),
                    off: self.doubt_lookup(pointing, &[], pointing),
                    row,
                });
            }
        }
        lookups
    }

    /// A row that is only read.
    fn looked_up(&self, table: &'a Table) -> Option<SuggestedRow> {
        let row = self.columns(table)?;
        Some(SuggestedRow {
            needed: Vec::new(),
            ..row
        })
    }

    fn doubt_lookup(&self, table: &Table, columns: &[String], target: &Table) -> Option<String> {
        let most = self.most_documents();
        self.tables.lookup_doubt(table, columns, target, most)
    }

    /// The most documents that should show the same row.
    fn most_documents(&self) -> f64 {
        f64::from(self.options.keys_per_statement)
    }

    /// Other unique keys of columns that are not null.
    pub(super) fn aliases(&self, table: &'a Table, key: &[String]) -> Vec<SuggestedAlias> {
        if table.kind == 'r' && !table.descendants.is_empty() {
            return Vec::new();
        }
        let mut keys: Vec<&Vec<String>> =
            table.unique_keys.iter().map(|key| &key.columns).collect();
        keys.retain(|columns| !is_same_set(columns, key) && self.may_be_alias(table, columns));
        keys.sort_by_key(|columns| positions(table, columns));
        keys.dedup_by(|one, other| is_same_set(one, other));
        keys.truncate(ALIASES_MAX);
        let mut names = Names::default();
        let aliases = keys.into_iter().map(|columns| SuggestedAlias {
            name: names.give(&[segment(&columns.join("_"))]),
            columns: columns.clone(),
        });
        aliases.collect()
    }

    fn may_be_alias(&self, table: &'a Table, columns: &[String]) -> bool {
        columns.iter().all(|name| {
            let column = table.column(name);
            column.is_some_and(|column| {
                column.not_null
                    && key_type(column).is_ok()
                    && !self.tables.is_secret(table, name)
                    && self.tables.no_column(table, name).is_none()
            })
        })
    }
}

/// The fields that lists could be filtered by: an index begins with their column.
pub(super) fn filters(table: &Table, key: &[String], fields: &[String]) -> Vec<String> {
    let is_useful = |name: &&String| {
        let column = table.column(name);
        table.is_indexed(&[name.as_str()])
            && key != [(*name).clone()]
            && !PARAMETERS.contains(&name.as_str())
            && column.is_some_and(|column| key_type(column).is_ok())
    };
    fields.iter().filter(is_useful).cloned().collect()
}

/// The columns that sort the rows of a child: `Some(None)` is the primary key. Without any unique key, nothing sorts them
/// always in the same way.
fn order(table: &Table) -> Option<Option<Vec<String>>> {
    if table.primary_key().is_some() {
        return Some(None);
    }
    let mut keys: Vec<&Vec<String>> = table.unique_keys.iter().map(|key| &key.columns).collect();
    keys.sort_by_key(|columns| (columns.len(), positions(table, columns)));
    keys.first().map(|columns| Some((*columns).clone()))
}
