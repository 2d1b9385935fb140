//! A plan of PostgreSQL (`explain (format json, verbose)`): which tables it reads, and by which indexes.

use serde::Deserialize;

use crate::check::condition::{ColumnTest, Comparison, column_tests};

/// The nodes that read a table, and that another index might replace. A sample, rows by their place and foreign tables are
/// found by no index.
const INDEXABLE_SCANS: [&str; 4] = [
    "Seq Scan",
    "Index Scan",
    "Index Only Scan",
    "Bitmap Heap Scan",
];

/// The plan of a statement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its cost, in PostgreSQL's unit.
    pub cost: f64,
    /// How it reads each table of users, in the order of the plan.
    pub scans: Vec<Scan>,
}

/// How a plan reads a table.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The schema, unquoted.
    pub schema: String,
    /// The table or the partition, unquoted.
    pub table: String,
    /// The names of the row: its own, and that of the partitioned table above.
    pub aliases: Vec<String>,
    /// The indexes that it uses; empty if the table is read whole.
    pub indexes: Vec<IndexUse>,
    /// Conditions that are evaluated for rows that were read already. Those of joins are among them if the rows are joined to
    /// rows of which a condition selects some.
    pub filters: Vec<String>,
    /// If the rows are joined to others, a condition selects some of those.
    pub is_selective: bool,
    /// What the rows are sorted by after they were read, as PostgreSQL writes it; empty if they are not sorted.
    pub sort_keys: Vec<String>,
    /// The line of the plan, for users.
    pub line: String,
}

/// An index in a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexUse {
    /// Its name, unquoted; its schema is that of the table.
    pub name: String,
    /// The condition by which rows are found; `None` if the index is read from end to end.
    pub condition: Option<String>,
}

impl Plan {
    /// Reads the JSON of `explain`. `None` if it is not of the expected form.
    pub fn parse(json: &str) -> Option<Self> {
        let explained: Vec<Explained> = serde_json::from_str(json).ok()?;
        let root = explained.into_iter().next()?.plan;
        let mut scans = Vec::new();
        collect(&root, &Above::default(), &mut scans);
        Some(Self {
            cost: root.cost,
            scans,
        })
    }
}

impl Scan {
    /// The columns that an index of this name finds rows by, and how.
    pub fn found_by(&self, index: &IndexUse) -> Vec<ColumnTest> {
        tests(index.condition.as_deref().into_iter(), &self.aliases)
    }

    /// The columns that are compared only after a row was read, and how.
    pub fn filtered_by(&self) -> Vec<ColumnTest> {
        let filters = self.filters.iter().map(String::as_str);
        let mut tests = tests(filters, &self.aliases);
        tests.dedup();
        tests
    }

    /// Whether each of `columns` finds rows by `=` through one of the indexes.
    pub fn is_found_by_all(&self, index: &IndexUse, columns: &[String]) -> bool {
        let tests = self.found_by(index);
        let is_tested = |column: &String| {
            let mut tests = tests.iter();
            tests.any(|test| test.column == *column && test.comparison == Comparison::Equal)
        };
        columns.iter().all(is_tested)
    }

    /// The columns of the row called by `aliases`, of this scan or another one, that its conditions compare, and how.
    pub fn tests_of(&self, aliases: &[String]) -> Vec<ColumnTest> {
        let used = self.indexes.iter();
        let found_by = used.filter_map(|index| index.condition.as_deref());
        let filters = self.filters.iter().map(String::as_str);
        tests(found_by.chain(filters), aliases)
    }
}

fn tests<'c>(conditions: impl Iterator<Item = &'c str>, aliases: &[String]) -> Vec<ColumnTest> {
    let mut tests = Vec::new();
    for condition in conditions {
        for alias in aliases {
            tests.extend(column_tests(condition, alias));
        }
    }
    tests
}

#[derive(Deserialize)]
struct Explained {
    #[serde(rename = "Plan")]
    plan: Node,
}

#[derive(Deserialize)]
struct Node {
    #[serde(rename = "Node Type")]
    kind: String,
    #[serde(rename = "Parent Relationship")]
    relationship: Option<String>,
    #[serde(rename = "Relation Name")]
    table: Option<String>,
    #[serde(rename = "Schema")]
    schema: Option<String>,
    #[serde(rename = "Alias")]
    alias: Option<String>,
    #[serde(rename = "Index Name")]
    index: Option<String>,
    #[serde(rename = "Index Cond")]
    index_condition: Option<String>,
    #[serde(rename = "Filter")]
    filter: Option<String>,
    #[serde(rename = "Join Filter")]
    join_filter: Option<String>,
    #[serde(rename = "Sort Key", default)]
    sort_keys: Vec<String>,
    #[serde(rename = "Total Cost")]
    cost: f64,
    #[serde(rename = "Plans", default)]
    plans: Vec<Node>,
}

/// What the nodes above say of a node.
#[derive(Clone, Debug, Default)]
struct Above {
    /// The conditions of joins.
    join_filters: Vec<String>,
    is_partition: bool,
    sort_keys: Vec<String>,
    /// Whether a condition selects some of the rows that the node is joined to; `None` without joins.
    is_selective: Option<bool>,
}

impl Node {
    /// Whether it reads rows of which a condition selects some.
    fn is_selective(&self) -> bool {
        let is_source = self.table.is_none() && self.plans.is_empty();
        is_source
            || self.index_condition.is_some()
            || self.filter.is_some()
            || self.plans.iter().any(Node::is_selective)
    }

    fn collect_indexes(&self, indexes: &mut Vec<IndexUse>) {
        if let Some(name) = &self.index {
            indexes.push(IndexUse {
                name: name.clone(),
                condition: self.index_condition.clone(),
            });
        }
        let below = self.plans.iter();
        below
            .filter(|node| node.kind.starts_with("Bitmap"))
            .for_each(|node| node.collect_indexes(indexes));
    }

    fn scan(&self, above: &Above) -> Option<Scan> {
        let (table, schema) = (self.table.as_ref()?, self.schema.as_ref()?);
        let is_read_by_rows = INDEXABLE_SCANS.contains(&self.kind.as_str());
        if !is_read_by_rows || schema == "pg_catalog" {
            return None;
        }
        let alias = self.alias.as_ref()?;
        let mut aliases = vec![alias.clone()];
        if above.is_partition
            && let Some((base, number)) = alias.rsplit_once('_')
            && number.bytes().all(|byte| byte.is_ascii_digit())
        {
            aliases.push(base.to_owned());
        }
        let mut indexes = Vec::new();
        self.collect_indexes(&mut indexes);
        let own = self.filter.iter();
        Some(Scan {
            schema: schema.clone(),
            table: table.clone(),
            aliases,
            filters: own.chain(&above.join_filters).cloned().collect(),
            is_selective: above.is_selective.unwrap_or(true),
            sort_keys: above.sort_keys.clone(),
            line: self.line(&indexes),
            indexes,
        })
    }

    /// The line that a user sees.
    fn line(&self, indexes: &[IndexUse]) -> String {
        let table = self.table.as_deref().unwrap_or_default();
        let alias = self.alias.as_deref().unwrap_or_default();
        let names: Vec<&str> = indexes.iter().map(|index| index.name.as_str()).collect();
        let using = match names.as_slice() {
            [] => String::new(),
            names => format!(" using {}", names.join(", ")),
        };
        let mut line = format!("{}{using} on {table} {alias}", self.kind);
        let conditions = indexes.iter().filter_map(|index| index.condition.as_ref());
        for condition in conditions {
            line.push_str(&format!("; Index Cond: {condition}"));
        }
        if let Some(filter) = &self.filter {
            line.push_str(&format!("; Filter: {filter}"));
        }
        line
    }
}

fn collect(node: &Node, above: &Above, scans: &mut Vec<Scan>) {
    scans.extend(node.scan(above));
    for below in &node.plans {
        let is_subplan = matches!(below.relationship.as_deref(), Some("SubPlan" | "InitPlan"));
        let of_below = if is_subplan {
            Above::default()
        } else {
            above.extended(node, below)
        };
        collect(below, &of_below, scans);
    }
}

impl Above {
    /// The same for `below`, a node below `node`.
    fn extended(&self, node: &Node, below: &Node) -> Self {
        let mut above = self.clone();
        above.is_partition |= matches!(node.kind.as_str(), "Append" | "Merge Append");
        if matches!(node.kind.as_str(), "Sort" | "Incremental Sort") {
            above.sort_keys.clone_from(&node.sort_keys);
        }
        let mut others = node
            .plans
            .iter()
            .filter(|other| !std::ptr::eq(*other, below));
        let is_selective = others.any(Node::is_selective);
        if is_selective {
            above.join_filters.extend(node.join_filter.clone());
        }
        if node.kind == "Nested Loop" {
            above.is_selective = Some(is_selective || above.is_selective.unwrap_or(false));
        }
        above
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOINED: &str = r#"[{"Plan": {"Node Type": "Nested Loop", "Total Cost": 12.5, "Join Filter": "(b.a_id = a.id)",
      "Plans": [
        {"Node Type": "Index Scan", "Parent Relationship": "Outer", "Relation Name": "a", "Schema": "s", "Alias": "a",
         "Index Name": "a_x", "Index Cond": "(a.x = $1)", "Total Cost": 1},
        {"Node Type": "Append", "Parent Relationship": "Inner", "Total Cost": 2, "Plans": [
          {"Node Type": "Seq Scan", "Relation Name": "b1", "Schema": "s", "Alias": "b_1", "Total Cost": 1},
          {"Node Type": "Bitmap Heap Scan", "Relation Name": "b2", "Schema": "s", "Alias": "b_2", "Total Cost": 1, "Plans": [
            {"Node Type": "Bitmap Index Scan", "Index Name": "b2_y", "Index Cond": "(b_2.y = 1)", "Total Cost": 1}]}]}]}}]"#;

    #[test]
    fn scans_have_their_indexes_and_filters() {
        let plan = Plan::parse(JOINED).unwrap();
        assert_eq!(plan.cost, 12.5);
        let [a, b1, b2] = plan.scans.as_slice() else {
            panic!("{plan:?}");
        };
        assert!(a.is_found_by_all(&a.indexes[0], &["x".to_owned()]));
        assert!(!a.is_found_by_all(&a.indexes[0], &["y".to_owned()]));
        assert!(b1.indexes.is_empty());
        assert_eq!(b1.filtered_by()[0].column, "a_id");
        assert_eq!(b2.indexes[0].name, "b2_y");
        assert_eq!(b2.found_by(&b2.indexes[0])[0].column, "y");
        assert!(Plan::parse("[]").is_none());
    }

    #[test]
    fn what_no_index_can_replace_is_no_scan() {
        for kind in ["Foreign Scan", "Sample Scan", "Tid Scan", "ModifyTable"] {
            let json = JOINED.replace("Index Scan", kind).replace("Seq Scan", kind);
            let plan = Plan::parse(&json).unwrap();
            assert_eq!(plan.scans.len(), 1, "{kind}");
            assert_eq!(plan.scans[0].table, "b2");
        }
    }
}
