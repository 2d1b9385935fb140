//! The statements that create an index, also on a partitioned table.

use std::collections::HashSet;

use crate::check::cost::index_cost;
use crate::check::table::{IndexShape, TableShape, TableShapes};
use crate::check::{IndexCost, Remedy};
use crate::resource::catalogue::TableName;
use crate::resource::sql::identifier;

/// Names are cut to this many bytes (`NAMEDATALEN - 1`).
pub(super) const NAME_BYTES_MAX: usize = 63;

const CONCURRENTLY: Option<&str> = Some("SHARE UPDATE EXCLUSIVE");

/// An index to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedIndex {
    /// Its columns, in order.
    pub columns: Vec<String>,
    /// So many of the first columns are compared by `=`, so it serves as well with these in another order.
    pub equal: usize,
    /// The operator class of the first column, if it is not the default one.
    pub operator_class: Option<&'static str>,
}

impl WantedIndex {
    /// A B-tree with default operator classes. So many of the first columns are compared by `=`.
    pub fn of(columns: &[String], equal: usize) -> Self {
        Self {
            columns: columns.to_owned(),
            equal,
            operator_class: None,
        }
    }

    /// Whether it serves all that `other` would.
    pub fn covers(&self, other: &Self) -> bool {
        let leading = self.columns.get(..other.columns.len()).unwrap_or_default();
        let (equal, rest) = leading.split_at(other.equal.min(leading.len()));
        self.operator_class == other.operator_class
            && !leading.is_empty()
            && other.columns.ends_with(rest)
            && equal.iter().all(|name| other.columns.contains(name))
    }

    /// Whether `table` has a valid index that equals it, so PostgreSQL has judged that already.
    pub fn is_on(&self, table: &TableShape) -> bool {
        table.indexes.iter().any(|index| {
            index.is_valid
                && index.columns.len() == self.columns.len()
                && match (self.operator_class, self.columns.first()) {
                    (Some(_), Some(first)) => index.finds_prefixes(first, false),
                    _ => index.predicate.is_none() && index.is_ordered_by(&self.columns, 0),
                }
        })
    }

    /// The columns of `table`. PostgreSQL has no index on a virtual generated column, but on its expression.
    fn columns_sql(&self, table: &TableShape) -> String {
        let mut columns = self.columns.iter().map(|name| {
            let expression = table
                .column(name)
                .and_then(|column| column.expression.as_ref());
            expression.map_or_else(|| identifier(name), Clone::clone)
        });
        let first = columns.next().unwrap_or_default();
        let first = match self.operator_class {
            Some(class) => format!("{first} {class}"),
            None => first,
        };
        let columns: Vec<String> = [first].into_iter().chain(columns).collect();
        columns.join(", ")
    }

    /// The statements that create it on `table`, on whose parts in `lacking` it is missing, and what it takes there. The
    /// new indexes get their names from `names`.
    ///
    /// If all partitions lack it and none is a foreign table, the table gets an index that the indexes of the partitions are
    /// attached to, so that later partitions have it, too.
    pub fn create(
        &self,
        names: &mut Names<'_>,
        table: &TableShape,
        lacking: &[&TableShape],
        deduplicates: bool,
    ) -> (Vec<Remedy>, Option<IndexCost>) {
        let mut remedies = Vec::new();
        if names.shapes.is_whole(table, lacking) {
            self.create_on_partitions(names, table, &mut remedies);
        } else {
            for leaf in lacking {
                let name = names.give(&leaf.name, &self.columns);
                remedies.push(concurrently(&leaf.name, &name, &self.columns_sql(leaf)));
            }
        }
        let columns: Vec<&str> = self.columns.iter().map(String::as_str).collect();
        let mut total = Some(IndexCost {
            bytes: 0,
            bytes_per_row: 0,
        });
        for leaf in lacking {
            let cost = index_cost(leaf, &columns, deduplicates);
            total = total.zip(cost).map(|(total, cost)| IndexCost {
                bytes: total.bytes + cost.bytes,
                bytes_per_row: total.bytes_per_row.max(cost.bytes_per_row),
            });
        }
        (remedies, total.filter(|_| !lacking.is_empty()))
    }

    /// Statements that create it on each of `tables`.
    pub fn create_on_each(&self, tables: &[&TableShape]) -> Vec<String> {
        let tables = tables.iter();
        tables
            .map(|table| {
                let columns = self.columns_sql(table);
                format!("create index on {} ({columns})", table.name.sql())
            })
            .collect()
    }

    /// Creates it on a partitioned table and on all that is below. Returns its name.
    fn create_on_partitions(
        &self,
        names: &mut Names<'_>,
        table: &TableShape,
        remedies: &mut Vec<Remedy>,
    ) -> String {
        let own = names.give(&table.name, &self.columns);
        let columns = self.columns_sql(table);
        remedies.push(Remedy {
            sql: format!(
                "create index {} on only {} ({columns});",
                identifier(&own),
                table.name.sql()
            ),
            lock: Some("SHARE"),
        });
        for below in names.shapes.partitions(table) {
            let name = match below.kind {
                'p' => self.create_on_partitions(names, below, remedies),
                _ => {
                    let name = names.give(&below.name, &self.columns);
                    remedies.push(concurrently(&below.name, &name, &self.columns_sql(below)));
                    name
                }
            };
            remedies.push(Remedy {
                sql: format!(
                    "alter index {} attach partition {};",
                    qualified(&table.name, &own),
                    qualified(&below.name, &name)
                ),
                lock: Some("ACCESS EXCLUSIVE on the partition's index"),
            });
        }
        own
    }
}

/// The statement that drops `index` of `table`.
pub fn drop_index(table: &TableShape, index: &IndexShape) -> Remedy {
    drop_statement(&qualified(&table.name, &index.name), table.kind == 'p')
}

/// The statement that drops the index `name`, which is quoted and has its schema: while its table is used, unless that is
/// partitioned.
pub fn drop_statement(name: &str, is_partitioned: bool) -> Remedy {
    if is_partitioned {
        Remedy {
            sql: format!("drop index {name};"),
            lock: Some("ACCESS EXCLUSIVE"),
        }
    } else {
        Remedy {
            sql: format!("drop index concurrently {name};"),
            lock: CONCURRENTLY,
        }
    }
}

fn qualified(table: &TableName, index: &str) -> String {
    format!("{}.{}", identifier(&table.schema), identifier(index))
}

fn concurrently(table: &TableName, name: &str, columns: &str) -> Remedy {
    Remedy {
        sql: format!(
            "create index concurrently {} on {} ({columns});",
            identifier(name),
            table.sql()
        ),
        lock: CONCURRENTLY,
    }
}

/// Names for the new indexes of a report.
pub struct Names<'s> {
    shapes: &'s TableShapes,
    given: HashSet<(String, String)>,
}

impl<'s> Names<'s> {
    /// Names that nothing in `shapes` has.
    pub fn new(shapes: &'s TableShapes) -> Self {
        Self {
            shapes,
            given: HashSet::new(),
        }
    }

    /// A name that nothing in the table's schema has, as PostgreSQL would make it.
    fn give(&mut self, table: &TableName, columns: &[String]) -> String {
        let base = format!("{}_{}", table.name, columns.join("_"));
        for number in 0_usize.. {
            let ending = match number {
                0 => "_idx".to_owned(),
                number => format!("_idx{number}"),
            };
            let mut length = base.len().min(NAME_BYTES_MAX - ending.len());
            while !base.is_char_boundary(length) {
                length -= 1;
            }
            let (start, _) = base.split_at(length);
            let name = (table.schema.clone(), format!("{start}{ending}"));
            if !self.shapes.taken_names.contains(&name) && self.given.insert(name.clone()) {
                return name.1;
            }
        }
        base
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::table::IndexColumn;

    fn table(oid: u32, kind: char, partitions: &[u32]) -> TableShape {
        TableShape {
            name: TableName {
                oid,
                schema: "s".to_owned(),
                name: format!("t{oid}"),
            },
            kind,
            rows: 0.0,
            deletes: 0,
            columns: Vec::new(),
            indexes: Vec::new(),
            partitions: partitions.to_owned(),
            parent: None,
        }
    }

    /// What is created on table 1, whose partitions are of these kinds.
    fn created(kinds: &[char]) -> Vec<String> {
        let oids: Vec<u32> = (2..).take(kinds.len()).collect();
        let parts = oids.iter().zip(kinds);
        let parts = parts.map(|(&oid, &kind)| table(oid, kind, &[]));
        let tables = parts.chain([table(1, 'p', &oids)]);
        let shapes = TableShapes {
            tables: tables.map(|table| (table.name.oid, table)).collect(),
            ..TableShapes::default()
        };
        let root = &shapes.tables[&1];
        let index = WantedIndex::of(&["a".to_owned()], 1);
        let lacking = shapes.leaves(root);
        let (remedies, _) = index.create(&mut Names::new(&shapes), root, &lacking, true);
        remedies.into_iter().map(|remedy| remedy.sql).collect()
    }

    #[test]
    fn foreign_tables_get_no_index_and_keep_the_others_apart() {
        assert_eq!(created(&['r', 'r']).len(), 5);
        assert_eq!(
            created(&['r', 'f']),
            ["create index concurrently \"t2_a_idx\" on \"s\".\"t2\" (\"a\");"]
        );
    }

    #[test]
    fn an_index_is_on_a_table_that_has_a_valid_equal() {
        let column = |name: &str| IndexColumn {
            column: Some(name.to_owned()),
            is_plain: true,
            is_of_patterns: false,
            is_descending: false,
            has_default_nulls: true,
        };
        let mut table = table(1, 'r', &[]);
        table.indexes.push(IndexShape {
            name: "i".to_owned(),
            method: "btree".to_owned(),
            columns: vec![column("a"), column("b")],
            has_included: false,
            is_unique: false,
            is_needed: false,
            predicate: None,
            is_valid: true,
        });
        let wanted = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            WantedIndex::of(&names, 0)
        };
        assert!(wanted(&["a", "b"]).is_on(&table));
        assert!(!wanted(&["a"]).is_on(&table));
        assert!(!wanted(&["b", "a"]).is_on(&table));
        let changes: [fn(&mut IndexShape); 4] = [
            |index| index.is_valid = false,
            |index| index.method = "hash".to_owned(),
            |index| index.predicate = Some("(a IS NOT NULL)".to_owned()),
            |index| index.columns[1].is_plain = false,
        ];
        for change in changes {
            let mut other = table.clone();
            change(&mut other.indexes[0]);
            assert!(!wanted(&["a", "b"]).is_on(&other));
        }
    }

    #[test]
    fn an_index_covers_one_whose_range_stands_at_the_same_place() {
        let index = |columns: [&str; 2], equal| WantedIndex::of(&columns.map(str::to_owned), equal);
        let wanted = index(["a", "b"], 1);
        assert!(wanted.covers(&index(["b", "a"], 2)));
        assert!(wanted.covers(&index(["a", "b"], 0)));
        assert!(!wanted.covers(&index(["b", "a"], 1)));
        assert!(!wanted.covers(&index(["a", "c"], 1)));
        assert!(!wanted.covers(&WantedIndex::of(&[], 0)));
        let patterns = WantedIndex {
            operator_class: Some("text_pattern_ops"),
            ..wanted.clone()
        };
        assert!(!wanted.covers(&patterns));
    }
}
