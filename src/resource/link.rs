//! Links: which rows' changes touch which documents.
//!
//! Each table of a document has a link: the columns that lead from its rows towards the document. Triggers write the
//! canonical text of those columns to the change log, and a pass of the feed maps the text to documents. If the columns
//! hold the document's key, the text is that key. If they do not, the pass joins the rows above, in one snapshot.
//!
//! The name of a link consists of its table and columns and names no resource. So several resources, and instances of
//! larder with different configurations, can share a link.

use crate::resource::catalogue::TableName;
use crate::resource::key::KeyColumn;
use crate::resource::key::sql::{canonical_key_sql, key_part_sql, logged_key_sql};
use crate::resource::sql::{identifier, literal};
use crate::resource::{Pair, Resource, Row};

/// From the rows of one table towards the documents of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The table whose changes are logged.
    pub table: TableName,
    /// The columns that are logged. Without any, each change is logged as one of all keys.
    pub columns: Vec<KeyColumn>,
    /// How the logged text leads to documents of the resource.
    pub mapping: KeyMapping,
}

/// How a logged text leads to documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyMapping {
    /// The text is the document's key.
    Direct,
    /// A query finds the documents' keys.
    Query {
        /// SQL of a `select` that reads `c(path, key)` and returns keys of documents.
        select: String,
        /// The tables that it joins, each to the one before.
        joins: Vec<JoinedTable>,
    },
}

/// A table that a pass joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedTable {
    /// The table.
    pub table: TableName,
    /// The columns by which its rows are found.
    pub columns: Vec<KeyColumn>,
    /// What each of them is compared with: a column of the table before, or of the logged key.
    pub compared: Vec<KeyColumn>,
}

/// What a row of the change log says besides its key. It is the ending of the row's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathKind {
    /// Only inserts were logged.
    pub is_new: bool,
    /// The text is a range of keys, not a key.
    pub is_range: bool,
}

impl PathKind {
    /// A key of rows that were inserted, changed or deleted.
    pub const CHANGED: Self = Self::new(false, false);
    /// A range of such keys.
    pub const CHANGED_RANGE: Self = Self::new(false, true);
    /// A key of rows that were inserted.
    pub const NEW: Self = Self::new(true, false);
    /// A range of such keys.
    pub const NEW_RANGE: Self = Self::new(true, true);
    /// All kinds. Each kind of range follows the kind of its keys.
    pub const ALL: [Self; 4] = [
        Self::CHANGED,
        Self::CHANGED_RANGE,
        Self::NEW,
        Self::NEW_RANGE,
    ];

    const fn new(is_new: bool, is_range: bool) -> Self {
        Self { is_new, is_range }
    }

    /// The ending of paths of this kind. The name of a link never ends like this.
    pub fn ending(self) -> &'static str {
        match (self.is_new, self.is_range) {
            (false, false) => "",
            (false, true) => " range",
            (true, false) => " new",
            (true, true) => " new range",
        }
    }
}

impl Link {
    /// The link's name in `larder.change.path`.
    pub fn path(&self) -> String {
        path(&self.table, &self.columns)
    }

    /// The path in `larder.change` for rows of this kind.
    pub fn path_of(&self, kind: PathKind) -> String {
        format!("{}{}", self.path(), kind.ending())
    }

    /// SQL for the logged text of the rows called `alias`.
    pub fn key_sql(&self, alias: &str) -> String {
        logged_key_sql(&self.columns, alias)
    }

    /// The quoted column names, separated by commas.
    pub fn column_list(&self) -> String {
        column_list(&self.columns)
    }

    /// SQL for a row of nulls that has the logged columns.
    pub fn nulls_sql(&self) -> String {
        let nulls = self
            .columns
            .iter()
            .map(|column| format!("null::pg_catalog.text as {}", identifier(&column.name)));
        format!("select {}", nulls.collect::<Vec<_>>().join(","))
    }

    /// An SQL condition: no logged column of the rows called `alias` is null.
    pub fn not_null_sql(&self, alias: &str) -> String {
        let tests: Vec<String> = self
            .columns
            .iter()
            .map(|column| format!("{alias}.{} is not null", identifier(&column.name)))
            .collect();
        tests.join(" and ")
    }
}

/// `text` as an SQL string literal.
pub fn sql_literal(text: &str) -> String {
    literal(text)
}

/// The name of the link. It contains the types of the columns, so that after a change of a type the new link does not
/// read what the logger of the former type still writes.
fn path(table: &TableName, columns: &[KeyColumn]) -> String {
    let columns: Vec<String> = columns
        .iter()
        .map(|column| format!("{} {}", identifier(&column.name), column.type_text))
        .collect();
    format!("{}({})", table.sql(), columns.join(","))
}

fn column_list(columns: &[KeyColumn]) -> String {
    let names: Vec<String> = columns
        .iter()
        .map(|column| identifier(&column.name))
        .collect();
    names.join(",")
}

/// The links of a resource, the root's first, each once. Those of tables that types depend on have no columns: a change
/// concerns all documents.
pub fn links(resource: &Resource) -> Vec<Link> {
    let root = PathStep {
        table: &resource.root.table,
        on: &[],
        root_key: Some(resource.key.columns.clone()),
    };
    let mut links = vec![Link {
        table: root.table.clone(),
        columns: resource.key.columns.clone(),
        mapping: KeyMapping::Direct,
    }];
    collect(&resource.root, &mut vec![root], &mut links);
    let of_types = resource.type_tables.iter().cloned();
    links.extend(of_types.map(|table| Link {
        table,
        columns: Vec::new(),
        mapping: KeyMapping::Direct,
    }));
    links
}

/// A row between a document's root and a row below it, both included.
struct PathStep<'a> {
    table: &'a TableName,
    on: &'a [Pair],
    /// The columns of this row that hold the document's key.
    root_key: Option<Vec<KeyColumn>>,
}

/// Adds the links of all rows below `row`. `path` leads from the root to `row`.
fn collect<'a>(row: &'a Row, path: &mut Vec<PathStep<'a>>, links: &mut Vec<Link>) {
    let children = row.children.iter().map(|child| (&child.row, &child.on));
    let lookups = row.lookups.iter().map(|lookup| (&lookup.row, &lookup.on));
    for (below, on) in children.chain(lookups) {
        let step = PathStep {
            table: &below.table,
            on,
            root_key: path.last().and_then(|upper| inherited_key(upper, on)),
        };
        let link = link(&step, path);
        if !links.contains(&link) {
            links.push(link);
        }
        path.push(step);
        collect(below, path, links);
        path.pop();
    }
}

/// The columns of a row that hold the document's key; `None` unless the link to the row above contains the whole key.
fn inherited_key(upper: &PathStep<'_>, on: &[Pair]) -> Option<Vec<KeyColumn>> {
    let of_upper = upper.root_key.as_ref()?;
    of_upper
        .iter()
        .map(|column| {
            let pair = on.iter().find(|pair| pair.upper.name == column.name)?;
            Some(pair.own.clone())
        })
        .collect()
}

/// The link of the row `last`, below the rows `above`, the root first.
fn link(last: &PathStep<'_>, above: &[PathStep<'_>]) -> Link {
    if let Some(columns) = &last.root_key {
        return Link {
            table: last.table.clone(),
            columns: columns.clone(),
            mapping: KeyMapping::Direct,
        };
    }
    let columns: Vec<KeyColumn> = last.on.iter().map(|pair| pair.own.clone()).collect();
    let mut joins = String::new();
    let mut joined = Vec::new();
    let mut lower_on = last.on;
    let mut key = String::new();
    for (number, step) in above.iter().rev().enumerate() {
        let alias = format!("t{}", number + 1);
        let matches: Vec<String> = lower_on
            .iter()
            .enumerate()
            .map(|(index, pair)| {
                let lower = match number {
                    0 => key_part_sql(&columns, index, "c.key"),
                    _ => format!("t{number}.{}", identifier(&pair.own.name)),
                };
                format!("{alias}.{} = {lower}", identifier(&pair.upper.name))
            })
            .collect();
        joins.push_str(&format!(
            " join {} {alias} on {}",
            step.table.sql(),
            matches.join(" and ")
        ));
        joined.push(JoinedTable {
            table: step.table.clone(),
            columns: lower_on.iter().map(|pair| pair.upper.clone()).collect(),
            compared: lower_on.iter().map(|pair| pair.own.clone()).collect(),
        });
        if let Some(columns) = &step.root_key {
            // A row that belongs to no document must not give a null, since a null key stands for every document.
            let present = columns
                .iter()
                .map(|column| format!("{alias}.{} is not null", identifier(&column.name)));
            joins.push_str(&format!(
                " and {}",
                present.collect::<Vec<_>>().join(" and ")
            ));
            key = canonical_key_sql(columns, &alias);
            break;
        }
        lower_on = step.on;
    }
    let path = path(last.table, &columns);
    let [changed, new] =
        [false, true].map(|new| literal(&format!("{path}{}", PathKind::new(new, false).ending())));
    let select = format!(
        "select {key} as key from c{joins} where c.path in ({changed}, {new}) and c.key is not null"
    );
    Link {
        table: last.table.clone(),
        columns,
        mapping: KeyMapping::Query {
            select,
            joins: joined,
        },
    }
}
