//! The rows of suggested documents: their columns, children and lookups.

use std::cell::Cell;

use crate::resource::catalogue::{Column, ForeignKey, Table, is_same_set};
use crate::resource::filter::FilterColumn;
use crate::resource::kept::ALIASES_MAX;
use crate::resource::key::key_type;
use crate::resource::page::PARAMETERS;
use crate::resource::suggest::kinds::not_deleted;
use crate::resource::suggest::names::{Names, of_child, of_lookup, segment};
use crate::resource::suggest::relations::{Belonging, lookup_target_doubt};
use crate::resource::suggest::tables::positions;
use crate::resource::suggest::{
    LeftOut, SuggestedAlias, SuggestedChild, SuggestedLookup, SuggestedRow, Suggester,
};

/// A root row with all below it.
pub(super) struct Root {
    pub(super) row: SuggestedRow,
    /// The number of rows below it.
    pub(super) rows: usize,
    /// The levels of children, if they are fewer than asked for.
    pub(super) depth: Option<usize>,
}

/// How much a document may show.
struct Extent {
    /// Levels of children.
    depth: usize,
    rows_max: usize,
    /// Rows so far.
    rows: Cell<usize>,
}

impl Extent {
    /// Counts a row below the root. False if there are too many.
    fn add_row(&self) -> bool {
        self.rows.set(self.rows.get() + 1);
        self.rows.get() <= self.rows_max
    }

    fn is_exceeded(&self) -> bool {
        self.rows.get() > self.rows_max
    }
}

/// The way from the root to a row.
struct Path<'p, 'a> {
    extent: &'p Extent,
    /// The foreign key by which the row belongs to the one above, and the other one of a table that links two.
    link: Option<(&'p ForeignKey, Option<&'a ForeignKey>)>,
    /// The tables of the rows above and of this row.
    tables: Vec<u32>,
}

impl<'a> Suggester<'a> {
    /// The root row, with so many levels of children that it has at most `rows_max` rows below it; `None` if no column can be
    /// shown. Where tables belong to each other, each level has many times the rows of the level above.
    pub(super) fn root(&self, table: &'a Table, rows_max: usize) -> Option<Root> {
        // Without children there are as many rows as foreign keys.
        let mut found = self.root_to(table, 0, usize::MAX)?;
        for depth in 1..=self.options.depth {
            match self.root_to(table, depth, rows_max) {
                Some(deeper) if deeper.rows > found.rows => found = deeper,
                Some(_) => break,
                None => {
                    found.depth = Some(depth - 1);
                    break;
                }
            }
        }
        Some(found)
    }

    /// The root row with so many levels of children; `None` if no column can be shown, or there are too many rows.
    fn root_to(&self, table: &'a Table, depth: usize, rows_max: usize) -> Option<Root> {
        let extent = Extent {
            depth,
            rows_max,
            rows: Cell::new(0),
        };
        let path = Path {
            extent: &extent,
            link: None,
            tables: vec![table.name.oid],
        };
        let row = self.row(table, &path)?;
        (!extent.is_exceeded()).then(|| Root {
            row,
            rows: extent.rows.get(),
            depth: None,
        })
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
            not_deleted: not_deleted(table, |name| self.tables.no_column(table, name).is_none()),
            children: Vec::new(),
            lookups: Vec::new(),
        };
        for column in &table.columns {
            match self.why_hidden(table, column) {
                None => row.fields.push(column.name.clone()),
                Some(why) => {
                    let name = column.name.clone();
                    let is_filled = column.has_default || column.generated;
                    if column.not_null && !is_filled {
                        row.needed.push(name.clone());
                    }
                    let is_secret = self.tables.secret(table, &name).is_some();
                    row.left_out.push(LeftOut {
                        name,
                        why,
                        is_secret,
                    });
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
        self.tables.secret(table, &column.name).map(str::to_owned)
    }

    fn children(
        &self,
        table: &'a Table,
        path: &Path<'_, 'a>,
        names: &mut Names,
    ) -> Vec<SuggestedChild> {
        let level = path.tables.len();
        if level > path.extent.depth {
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
            let Some(order_by) = order(child, &key.columns) else {
                continue;
            };
            if !path.extent.add_row() {
                break;
            }
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
                    let extent = path.extent;
                    let path = Path {
                        extent,
                        link,
                        tables,
                    };
                    self.row(child, &path)
                }
            };
            if let Some(mut row) = row {
                // larder fills them.
                row.needed.retain(|name| !key.columns.contains(name));
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
            let is_other_side = other == Some(*key)
                && self
                    .tables
                    .most_rows(table, &key.columns)
                    .is_none_or(|most| most <= self.most_documents());
            let off = if is_other_side {
                lookup_target_doubt(target)
            } else {
                self.doubt_lookup(table, &key.columns, target)
            };
            if !path.extent.add_row() {
                break;
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
            if !path.extent.add_row() {
                break;
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
                    && self.tables.secret(table, name).is_none()
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
            && column.is_some_and(|column| FilterColumn::new(column).is_ok())
    };
    fields.iter().filter(is_useful).cloned().collect()
}

/// The columns that sort the rows of a child: `Some(None)` is the primary key. Without any unique key, nothing sorts them
/// always in the same way, nor does one that may be null, but for the columns `found_by` that they are found by: rows with a
/// null are not unique.
fn order(table: &Table, found_by: &[String]) -> Option<Option<Vec<String>>> {
    if table.primary_key().is_some() {
        return Some(None);
    }
    let not_null = |name: &String| {
        found_by.contains(name) || table.column(name).is_some_and(|column| column.not_null)
    };
    let mut keys: Vec<&Vec<String>> = table.unique_keys.iter().map(|key| &key.columns).collect();
    keys.retain(|columns| columns.iter().all(not_null));
    keys.sort_by_key(|columns| (columns.len(), positions(table, columns)));
    keys.first().map(|columns| Some((*columns).clone()))
}
