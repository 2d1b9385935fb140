//! The rules about users' statements. What their plans do not show in an understood form gives no advice.

use crate::check::condition::{ColumnTest, Comparison, is_understood};
use crate::check::create::WantedIndex;
use crate::check::judge::{Advice, Judge};
use crate::check::plan::{Plan, Scan};
use crate::check::question::UserStatement;
use crate::check::table::{IndexShape, TableShape};
use crate::check::{Finding, Rule, Severity};

/// No index for users' statements has more columns: each makes it larger, and after so many of them few rows are left.
const COLUMNS_MAX: usize = 3;

/// What a scan of one table or partition asks for.
struct Wish<'p> {
    rule: Rule,
    index: WantedIndex,
    why: String,
    scan: &'p Scan,
}

impl Judge<'_> {
    /// What the plan of a statement of users shows. Nothing of it is proven.
    pub(super) fn users(&self, statement: &UserStatement, plan: &Plan) -> Vec<Advice> {
        let mut wishes: Vec<(&TableShape, Vec<&TableShape>, Wish<'_>)> = Vec::new();
        for scan in &plan.scans {
            let Some(table) = self.shapes.named(&scan.schema, &scan.table) else {
                continue;
            };
            let Some(wish) = wish(table, scan) else {
                continue;
            };
            if wish.rule != Rule::ColumnOrder && self.is_found_by_join(plan, scan, table) {
                continue;
            }
            let root = self.root_read(plan, table);
            let same = wishes
                .iter_mut()
                .find(|(known, _, other)| known.name == root.name && other.index == wish.index);
            match same {
                Some((_, lacking, _)) if lacking.iter().any(|known| known.name == table.name) => {}
                Some((_, lacking, _)) => lacking.push(table),
                None => wishes.push((root, vec![table], wish)),
            }
        }
        let advice = wishes
            .into_iter()
            .map(|(root, lacking, wish)| self.wished(statement, root, &lacking, wish));
        advice.collect()
    }

    /// The table at the top that `table` is a part of, and of which the plan reads all parts.
    fn root_read<'t>(&'t self, plan: &Plan, table: &'t TableShape) -> &'t TableShape {
        let is_read = |part: &&TableShape| {
            let mut scans = plan.scans.iter();
            scans.any(|scan| scan.schema == part.name.schema && scan.table == part.name.name)
        };
        let parent = table.parent.and_then(|oid| self.shapes.tables.get(&oid));
        match parent.filter(|parent| self.shapes.leaves(parent).iter().all(is_read)) {
            Some(parent) => self.root_read(plan, parent),
            None => table,
        }
    }

    /// Whether an index finds the rows of a scan by those of another table, which are found by an index, too.
    ///
    /// In tables of few rows PostgreSQL may join in another order, in which the scan's own conditions come first.
    fn is_found_by_join(&self, plan: &Plan, scan: &Scan, table: &TableShape) -> bool {
        let mut others = plan.scans.iter();
        others.any(|other| {
            let Some(source) = self.shapes.named(&other.schema, &other.table) else {
                return false;
            };
            let finds = |table: &TableShape, test: &ColumnTest| {
                let columns = std::slice::from_ref(&test.column);
                table.indexes.iter().any(|index| index.begins_with(columns))
            };
            let own = other.tests_of(&other.aliases);
            let mut own = own.iter().filter(|test| !test.is_joined);
            let joined = other.tests_of(&scan.aliases);
            let mut joined = joined
                .iter()
                .filter(|test| test.is_joined && test.comparison == Comparison::Equal);
            !std::ptr::eq(other, scan)
                && own.any(|test| finds(source, test))
                && joined.any(|test| finds(table, test))
        })
    }

    fn wished(
        &self,
        statement: &UserStatement,
        table: &TableShape,
        lacking: &[&TableShape],
        wish: Wish<'_>,
    ) -> Advice {
        let severity = match wish.rule {
            Rule::LikePrefix => Severity::Info,
            _ => Severity::Warning,
        };
        Advice {
            obsolete: self.obsolete(table, lacking, &wish.index, wish.rule),
            finding: Finding {
                rule: wish.rule,
                severity,
                object: table.name.to_string(),
                place: statement.place.clone(),
                reason: format!("{} reads {} {}", statement.name, table.name, wish.why),
                plan_line: Some(wish.scan.line.clone()),
                remedies: Vec::new(),
                cost: None,
                is_unproven: true,
            },
            table: table.name.oid,
            lacking: lacking.iter().map(|table| table.name.oid).collect(),
            trial: wish.index.create_on_each(lacking),
            index: wish.index,
        }
    }
}

fn wish<'p>(table: &TableShape, scan: &'p Scan) -> Option<Wish<'p>> {
    let mut entered = false;
    for used in &scan.indexes {
        let tests = scan.found_by(used);
        let index = table.index(&used.name)?;
        if let Some(wish) = reordered(table, scan, index, &tests) {
            return Some(wish);
        }
        let first = index.columns.first()?;
        let is_ordered = matches!(index.method.as_str(), "btree" | "hash");
        let mut condition = used.condition.iter();
        entered |= condition
            .any(|condition| !is_ordered || !is_understood(condition, &scan.aliases))
            || tests
                .iter()
                .any(|test| Some(&test.column) == first.column.as_ref());
    }
    if entered {
        return None;
    }
    let found = scan.indexes.iter().flat_map(|used| scan.found_by(used));
    let mut tests: Vec<ColumnTest> = scan.filtered_by().into_iter().chain(found).collect();
    tests.retain(|test| is_worth_an_index(table, test) && (scan.is_selective || !test.is_joined));
    let of = |comparison| {
        let mut columns: Vec<&String> = Vec::new();
        let wanted = tests.iter().filter(|test| test.comparison == comparison);
        for test in wanted {
            if !columns.contains(&&test.column) {
                columns.push(&test.column);
            }
        }
        columns
    };
    let (equal, range) = (of(Comparison::Equal), of(Comparison::Range));
    let equal = most_selective(table, equal);
    let like = of(Comparison::LikePrefix);
    let first_range = range.iter().find(|column| !equal.contains(column));
    let columns = equal.iter().chain(first_range).take(COLUMNS_MAX);
    let columns: Vec<String> = columns.copied().cloned().collect();
    match (columns.as_slice(), like.as_slice()) {
        ([], []) => sorted_by_hashed(table, scan),
        ([], [column, ..]) => like_prefix(table, scan, column),
        ([column], _) if equal.is_empty() && is_hashed(table, column) => Some(Wish {
            rule: Rule::HashRange,
            why: format!("whole: its hash index on {column} has no order"),
            index: WantedIndex::of(&columns, equal.len()),
            scan,
        }),
        _ if is_indexed(table, &columns, &of(Comparison::Null)) => None,
        _ => Some(Wish {
            rule: Rule::MissingIndex,
            why: format!("whole, since no index begins with ({})", columns.join(", ")),
            index: WantedIndex::of(&columns, equal.len()),
            scan,
        }),
    }
}

/// Of columns that are compared by `=` those with the most different values, in the order in which they were.
fn most_selective<'c>(table: &TableShape, columns: Vec<&'c String>) -> Vec<&'c String> {
    let distinct = |name: &String| table.column(name).map_or(0.0, |column| column.distinct);
    let mut best = columns.clone();
    best.sort_by(|one, other| distinct(other).total_cmp(&distinct(one)));
    best.truncate(COLUMNS_MAX);
    let is_best = |column: &&String| best.contains(column);
    columns.into_iter().filter(is_best).collect()
}

/// Whether an index begins with `columns`, or with these and those that have to be null.
fn is_indexed(table: &TableShape, columns: &[String], null: &[&String]) -> bool {
    let all: Vec<String> = columns
        .iter()
        .chain(null.iter().copied())
        .cloned()
        .collect();
    let mut indexes = table.indexes.iter();
    indexes.any(|index| index.begins_with(columns) || index.begins_with(&all))
}

/// Whether an index on the column serves a test, and finds few rows: one of the two values of a boolean column is in many of
/// them, and whole documents are rarely searched for by `=`. PostgreSQL finds texts by how they begin only if they are of its own
/// types.
fn is_worth_an_index(table: &TableShape, test: &ColumnTest) -> bool {
    let Some(column) = table.column(&test.column) else {
        return false;
    };
    let kind = column.base_type.as_str();
    let is_worth = match test.comparison {
        Comparison::LikePrefix => matches!(kind, "text" | "varchar" | "bpchar"),
        _ => !matches!(kind, "bool" | "jsonb" | "tsvector" | "tsquery"),
    };
    is_worth && column.is_comparable_as(test.cast.as_deref())
}

/// The wish to have the columns that are compared by `=` before the one of a range.
fn reordered<'p>(
    table: &TableShape,
    scan: &'p Scan,
    index: &IndexShape,
    tests: &[ColumnTest],
) -> Option<Wish<'p>> {
    let is = |name: &String, comparison| {
        let mut tests = tests.iter();
        tests.any(|test| test.column == *name && test.comparison == comparison)
    };
    let names = index.columns.iter().map(|column| column.column.as_ref());
    let names: Vec<&String> = names.collect::<Option<_>>()?;
    let (first, rest) = names.split_first()?;
    let is_range = is(first, Comparison::Range) && !is(first, Comparison::Equal);
    let equal = rest.iter().filter(|name| is(name, Comparison::Equal));
    let mut columns: Vec<String> = equal.map(|name| (*name).clone()).collect();
    if !is_range || columns.is_empty() || index.method != "btree" {
        return None;
    }
    let equal = columns.len();
    columns.push((*first).clone());
    // In tables of few rows PostgreSQL may choose either.
    let mut others = table.indexes.iter();
    if others.any(|other| other.is_ordered_by(&columns, equal)) {
        return None;
    }
    Some(Wish {
        rule: Rule::ColumnOrder,
        why: format!(
            "by index {}, which has the range of {first} before what is compared by =, so all of the range is read",
            index.name
        ),
        index: WantedIndex::of(&columns, equal),
        scan,
    })
}

fn is_hashed(table: &TableShape, column: &str) -> bool {
    table.indexes.iter().any(|index| {
        let first = index
            .columns
            .first()
            .and_then(|first| first.column.as_ref());
        index.method == "hash" && index.is_valid && first.is_some_and(|first| first == column)
    })
}

/// The wish for an index that finds texts by how they begin, unless there is one.
fn like_prefix<'p>(table: &TableShape, scan: &'p Scan, column: &String) -> Option<Wish<'p>> {
    let shape = table.column(column);
    let is_in_byte_order = shape.is_some_and(|shape| shape.is_in_byte_order);
    let mut indexes = table.indexes.iter();
    if indexes.any(|index| index.finds_prefixes(column, is_in_byte_order)) {
        return None;
    }
    let class = match shape.map(|shape| shape.base_type.as_str()) {
        _ if is_in_byte_order => None,
        Some("bpchar") => Some("bpchar_pattern_ops"),
        Some("varchar") => Some("varchar_pattern_ops"),
        _ => Some("text_pattern_ops"),
    };
    let (rule, why) = if is_hashed(table, column) {
        (
            Rule::HashRange,
            format!("whole: its hash index on {column} has no order"),
        )
    } else if is_in_byte_order {
        (
            Rule::MissingIndex,
            format!("whole, since no index begins with ({column})"),
        )
    } else {
        (
            Rule::LikePrefix,
            format!(
                "whole: in the collation of {column}, no index with default operator class finds texts by how they begin"
            ),
        )
    };
    Some(Wish {
        rule,
        why,
        index: WantedIndex {
            columns: vec![column.clone()],
            equal: 0,
            operator_class: class,
        },
        scan,
    })
}

/// The wish for a B-tree on a column that all rows are sorted by, and that has a hash index.
fn sorted_by_hashed<'p>(table: &TableShape, scan: &'p Scan) -> Option<Wish<'p>> {
    let first = scan.sort_keys.first()?;
    let column = table.columns.iter().find(|column| {
        let mut aliases = scan.aliases.iter();
        let is_named = |alias: &String| {
            let name = first.strip_suffix(" DESC").unwrap_or(first);
            name.split_once('.') == Some((alias, &column.name))
        };
        aliases.any(is_named) && is_hashed(table, &column.name)
    })?;
    Some(Wish {
        rule: Rule::HashRange,
        why: format!(
            "whole and sorts it: its hash index on {} has no order",
            column.name
        ),
        index: WantedIndex::of(std::slice::from_ref(&column.name), 0),
        scan,
    })
}
