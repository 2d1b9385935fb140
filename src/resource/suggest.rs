//! Definitions of resources for a database that no configuration describes yet: what `larder init` writes. Does no I/O.
//!
//! [`suggest`] decides it from the catalogue and from a [`Survey`]: `kinds` and `tables` tell what is not served and which
//! columns are left out, `relations` which tables are children of which, `names` finds names, `rows` builds the documents,
//! and `fit` takes out of force what [`resolve`](crate::resource::resolve) refuses. What is *off* is suggested, but not in
//! force, and says why.
//!
//! Each table that may be served is a resource or is shown in the documents of one, or [`Suggestion::left_out`] says why
//! not. Equal catalogues and statistics give equal suggestions: nothing depends on oids.

mod fit;
mod kinds;
mod names;
mod relations;
mod rows;
pub mod secret_values;
pub mod survey;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use crate::resource::catalogue::{Catalogue, Table, TableName};
use crate::resource::suggest::fit::Fitted;
use crate::resource::suggest::names::Names;
use crate::resource::suggest::rows::Root;
use crate::resource::suggest::survey::{Survey, SurveyedTable};
use crate::resource::suggest::tables::{Tables, exclusion};

/// The most rows, that is children and lookups at all levels, of a resource with children.
const ROWS_OF_RESOURCE_MAX: usize = 1_000;
/// The same of all resources together.
const ROWS_MAX: usize = 100_000;

/// What is suggested.
#[derive(Clone, Debug)]
pub struct SuggestOptions {
    /// Levels of children.
    pub depth: usize,
    /// Documents may be written.
    pub is_writable: bool,
    /// The schemas of resources; empty: all.
    pub schemas: Vec<String>,
    /// The oids of the tables of resources; `None`: all that need to be resources, so that every table is shown.
    pub tables: Option<BTreeSet<u32>>,
    /// A row that more documents show is not suggested as a lookup (`feed.keys_per_statement`).
    pub keys_per_statement: u32,
}

/// Resources, and the tables without one.
#[derive(Clone, Debug, Default)]
pub struct Suggestion {
    /// In the order of the survey.
    pub resources: Vec<SuggestedResource>,
    /// Tables that are shown in no document.
    pub left_out: Vec<LeftOut>,
}

/// A table or a column that is not shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its name.
    pub name: String,
    /// The end of a sentence about it.
    pub why: String,
    /// It is a column that may hold a secret.
    pub is_secret: bool,
}

/// A suggested resource.
#[derive(Clone, Debug)]
pub struct SuggestedResource {
    /// The path segment.
    pub name: String,
    /// The key's columns, if it is not the primary key.
    pub key: Option<Vec<String>>,
    /// Why it is not in force.
    pub off: Option<String>,
    /// Columns that lists could be filtered by.
    pub filters: Vec<String>,
    /// Other keys that the documents could have.
    pub by: Vec<SuggestedAlias>,
    /// Why documents can't be written although they should be.
    pub read_only: Option<String>,
    /// The levels of children, if there are fewer than [`SuggestOptions::depth`] since their number would be too large.
    pub depth: Option<usize>,
    /// The root row.
    pub row: SuggestedRow,
}

/// Another key of the same documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuggestedAlias {
    /// The path segment.
    pub name: String,
    /// The root table's columns.
    pub columns: Vec<String>,
}

/// What a row of a document shows.
#[derive(Clone, Debug)]
pub struct SuggestedRow {
    /// The row's table.
    pub table: TableName,
    /// The columns that are shown.
    pub fields: Vec<String>,
    /// The columns that are not, and why.
    pub left_out: Vec<LeftOut>,
    /// Columns that are left out, although a new row needs a value.
    pub needed: Vec<String>,
    /// The condition that would hide rows that are marked as deleted.
    pub not_deleted: Option<String>,
    /// Arrays of rows.
    pub children: Vec<SuggestedChild>,
    /// Rows that this row refers to, or that refer to this row alone.
    pub lookups: Vec<SuggestedLookup>,
}

/// Rows that belong to the row above.
#[derive(Clone, Debug)]
pub struct SuggestedChild {
    /// The field.
    pub name: String,
    /// The child's columns that hold the key of the row above.
    pub foreign_key: Vec<String>,
    /// The columns that sort the rows, where there is no primary key.
    pub order_by: Option<Vec<String>>,
    /// Why it is not in force.
    pub off: Option<String>,
    /// The rows.
    pub row: SuggestedRow,
}

/// A row that is looked up.
#[derive(Clone, Debug)]
pub struct SuggestedLookup {
    /// The field.
    pub name: String,
    /// The columns of the row above.
    pub column: Vec<String>,
    /// The columns of the looked-up row that hold the same, if the foreign key is there.
    pub references: Option<Vec<String>>,
    /// Why it is not in force.
    pub off: Option<String>,
    /// The row.
    pub row: SuggestedRow,
}

impl Suggestion {
    /// The resources in force.
    pub fn active(&self) -> impl Iterator<Item = &SuggestedResource> {
        let resources = self.resources.iter();
        resources.filter(|resource| resource.off.is_none())
    }
}

impl SuggestedRow {
    /// The tables whose rows are shown, this one first, with repetitions.
    pub fn tables(&self) -> Vec<&TableName> {
        let mut tables = vec![&self.table];
        let children = self.children.iter().filter(|child| child.off.is_none());
        tables.extend(children.flat_map(|child| child.row.tables()));
        let lookups = self.lookups.iter().filter(|lookup| lookup.off.is_none());
        tables.extend(lookups.flat_map(|lookup| lookup.row.tables()));
        tables
    }

    /// The tables of this row and of the children that are shown.
    fn held_tables(&self) -> Vec<u32> {
        let mut tables = vec![self.table.oid];
        let children = self.children.iter().filter(|child| child.off.is_none());
        tables.extend(children.flat_map(|child| child.row.held_tables()));
        tables
    }
}

/// Suggests resources for the tables of `survey`, which `catalogue` describes.
pub fn suggest(survey: &Survey, catalogue: &Catalogue, options: &SuggestOptions) -> Suggestion {
    let tables = Tables::new(survey, catalogue);
    let mut suggester = Suggester {
        catalogue,
        options,
        names: Names::of_resources(),
        found: Vec::new(),
        held: BTreeSet::new(),
        rows_left: ROWS_MAX,
        tables,
    };
    let chosen: Vec<(usize, &SurveyedTable)> = survey
        .tables
        .iter()
        .enumerate()
        .filter(|(_, surveyed)| suggester.is_chosen(surveyed))
        .collect();
    let usable = chosen
        .iter()
        .filter_map(|(at, surveyed)| Some((*at, suggester.tables.usable(surveyed.name.oid)?)));
    let usable: Vec<(usize, &Table)> = usable.collect();
    let (first, others): (Vec<_>, Vec<_>) = usable
        .into_iter()
        .partition(|(_, table)| suggester.stands_alone(table));
    for (at, table) in first.into_iter().chain(others) {
        if suggester.needs_resource(table) {
            suggester.add(at, table);
        }
    }
    let found = suggester.found.iter();
    let found = found.map(|(_, resource)| resource.row.table.oid);
    let named: BTreeSet<u32> = suggester.held.iter().copied().chain(found).collect();
    let unnamed = chosen
        .into_iter()
        .filter(|(_, surveyed)| !named.contains(&surveyed.name.oid));
    let left_out = unnamed.map(|(_, surveyed)| LeftOut {
        name: surveyed.name.to_string(),
        why: suggester.refusal(surveyed),
        is_secret: false,
    });
    let left_out = left_out.collect();
    let mut found = suggester.found;
    found.sort_by_key(|(at, _)| *at);
    Suggestion {
        resources: found.into_iter().map(|(_, resource)| resource).collect(),
        left_out,
    }
}

struct Suggester<'a> {
    catalogue: &'a Catalogue,
    options: &'a SuggestOptions,
    tables: Tables<'a>,
    names: Names,
    /// Resources with the place of their table in the survey.
    found: Vec<(usize, SuggestedResource)>,
    /// The tables of resources, and of children that are shown.
    held: BTreeSet<u32>,
    /// Of [`ROWS_MAX`].
    rows_left: usize,
}

impl<'a> Suggester<'a> {
    /// Whether the user wants to serve a table.
    fn is_chosen(&self, surveyed: &SurveyedTable) -> bool {
        let SuggestOptions {
            schemas, tables, ..
        } = self.options;
        let name = &surveyed.name;
        (schemas.is_empty() || schemas.contains(&name.schema))
            && tables
                .as_ref()
                .is_none_or(|tables| tables.contains(&name.oid))
    }

    /// Whether the rows of a table are no parts of others, so that the table needs a resource.
    fn stands_alone(&self, table: &Table) -> bool {
        let is_part = self.tables.is_part(table) || self.tables.is_link(table);
        self.options.tables.is_some() || !is_part || self.tables.is_referenced(table)
    }

    /// Whether a table needs a resource in addition to those that there are.
    fn needs_resource(&self, table: &Table) -> bool {
        self.stands_alone(table) || !self.held.contains(&table.name.oid)
    }

    /// Adds a resource, if the table has a key.
    fn add(&mut self, at: usize, table: &'a Table) {
        let Ok((key, is_primary)) = self.tables.key(table) else {
            return;
        };
        let rows_max = ROWS_OF_RESOURCE_MAX.min(self.rows_left);
        let Some(Root { row, rows, depth }) = self.root(table, rows_max) else {
            return;
        };
        self.rows_left = self.rows_left.saturating_sub(rows);
        let mut resource = SuggestedResource {
            name: self.names.give(&names::of_resource(&table.name)),
            off: doubt(&self.tables, table, &key),
            filters: rows::filters(table, &key, &row.fields),
            by: self.aliases(table, &key),
            key: (!is_primary).then_some(key),
            read_only: None,
            depth,
            row,
        };
        match fit::fit(&mut resource, self.catalogue, self.options.is_writable) {
            Fitted::InForce { read_only } => {
                self.held.extend(resource.row.held_tables());
                resource.read_only = read_only;
            }
            Fitted::Off => {}
        }
        self.found.push((at, resource));
    }

    /// Why a table that was chosen is in no resource.
    fn refusal(&self, surveyed: &SurveyedTable) -> String {
        let why = match self.tables.usable(surveyed.name.oid) {
            Some(table) => self.tables.key(table).err(),
            None => exclusion(surveyed, self.catalogue.table(&surveyed.name)),
        };
        why.unwrap_or_else(|| "has no column that could be shown".to_owned())
    }
}

/// Why a resource should not be in force unless the user says so.
fn doubt<'a>(tables: &Tables<'a>, table: &'a Table, key: &[String]) -> Option<String> {
    let secret = key
        .iter()
        .find(|column| tables.secret(table, column).is_some());
    let secret = secret.map(|column| {
        format!("column {column} of its key may hold a secret, and a key stands in paths and in Link headers")
    });
    secret
        .or_else(|| kinds::transience(table).map(str::to_owned))
        .or_else(|| kinds::exposure(table))
        .or_else(|| kinds::repetition(table).map(str::to_owned))
}
