//! The rules that judge plans: missing-index, foreign-key, column-order, hash-range and like-prefix.

mod users;

use std::collections::BTreeSet;

use crate::check::create::{Names, WantedIndex, drop_index};
use crate::check::plan::{Plan, Scan};
use crate::check::question::{Question, QuestionKind, Search};
use crate::check::table::{IndexShape, TableShape, TableShapes};
use crate::check::{Finding, Remedy, Rule};

/// A finding, and the index that it asks for.
#[derive(Clone, Debug)]
pub struct Advice {
    /// The finding, without statements and cost.
    pub finding: Finding,
    /// The oid of the table.
    pub table: u32,
    /// The oids of its parts that lack the index; its own, if it is not partitioned.
    pub lacking: Vec<u32>,
    /// The index.
    pub index: WantedIndex,
    /// Statements that create it on each part of the table that lacks it, for a trial.
    pub trial: Vec<String>,
    /// The indexes whose work it does as well: schema, name, and the statement that drops them.
    pub obsolete: Vec<((String, String), Remedy)>,
}

/// What the rules know besides plans.
#[derive(Clone, Copy, Debug)]
pub struct Judge<'s> {
    /// The tables.
    pub shapes: &'s TableShapes,
    /// B-trees keep equal values once (PostgreSQL 13).
    pub deduplicates: bool,
}

impl Judge<'_> {
    /// What the plans of a question show, one plan for each of its statements.
    pub fn advice(&self, question: &Question, plans: &[Plan]) -> Vec<Advice> {
        match (&question.kind, plans) {
            (QuestionKind::Rows(searches), [together, alone @ ..]) => {
                let searches = searches.iter().zip(alone);
                let missing = searches.filter_map(|(search, alone)| {
                    self.rows(search, together)?;
                    self.rows(search, alone)
                });
                missing.collect()
            }
            (QuestionKind::List(search), [alone, first, after]) => {
                let advice = self
                    .rows(search, alone)
                    .map(|missing| self.ordered_wrongly(search, after).unwrap_or(missing))
                    .or_else(|| self.sorted(search, alone, first));
                advice.into_iter().collect()
            }
            (QuestionKind::Order(search), [page]) => {
                self.unordered(search, page).into_iter().collect()
            }
            (QuestionKind::Users(statement), [plan]) => self.users(statement, plan),
            _ => Vec::new(),
        }
    }

    /// The findings of all `advice`, and the indexes that they drop, by schema and name. Each index is asked for once: a search
    /// of a pass and one of a document may lack the same, and a foreign key that larder's own statements search by needs no second
    /// finding.
    pub fn findings(&self, advice: Vec<Advice>) -> (Vec<Finding>, BTreeSet<(String, String)>) {
        let mut kept: Vec<Advice> = Vec::new();
        let mut sorted = advice;
        sorted.sort_by_key(|advice| {
            let is_foreign_key = advice.finding.rule == Rule::ForeignKey;
            // Of two indexes the longer one may serve both.
            (
                is_foreign_key,
                std::cmp::Reverse(advice.index.columns.len()),
            )
        });
        for advice in sorted {
            let is_covered = kept
                .iter()
                .any(|other| other.table == advice.table && other.index.covers(&advice.index));
            if !is_covered {
                kept.push(advice);
            }
        }
        kept.sort_by_cached_key(|advice| {
            let finding = &advice.finding;
            (
                finding.rule,
                finding.object.clone(),
                advice.index.columns.clone(),
            )
        });
        let mut names = Names::new(self.shapes);
        let mut dropped = BTreeSet::new();
        let mut findings = Vec::with_capacity(kept.len());
        for advice in kept {
            let mut finding = advice.finding;
            let tables = &self.shapes.tables;
            if let Some(table) = tables.get(&advice.table) {
                let lacking = advice.lacking.iter();
                let lacking = lacking.filter_map(|oid| tables.get(oid));
                let lacking: Vec<&TableShape> =
                    lacking.filter(|table| !advice.index.is_on(table)).collect();
                if lacking.is_empty() {
                    continue;
                }
                let deduplicates = self.deduplicates;
                (finding.remedies, finding.cost) =
                    advice
                        .index
                        .create(&mut names, table, &lacking, deduplicates);
            }
            let obsolete = advice.obsolete.into_iter();
            let obsolete = obsolete.filter(|(index, _)| dropped.insert(index.clone()));
            finding.remedies.extend(obsolete.map(|(_, remedy)| remedy));
            findings.push(finding);
        }
        (findings, dropped)
    }

    /// The indexes, by schema and name, that serve the statements of a question: those of its plans, and those that would
    /// serve a search as well.
    pub fn used(&self, question: &Question, plans: &[Plan]) -> BTreeSet<(String, String)> {
        let searches = match &question.kind {
            QuestionKind::Rows(searches) => searches.as_slice(),
            QuestionKind::List(search) => std::slice::from_ref(search),
            QuestionKind::Order(_) | QuestionKind::Users(_) => &[],
        };
        let mut used = BTreeSet::new();
        for scan in plans.iter().flat_map(|plan| &plan.scans) {
            let indexes = scan.indexes.iter();
            used.extend(indexes.map(|index| (scan.schema.clone(), index.name.clone())));
        }
        let scans = plans.iter().flat_map(|plan| {
            let searches = searches.iter();
            searches.flat_map(|search| {
                let scans = self.scans(search, plan).into_iter();
                scans.map(move |(table, _)| (table, search))
            })
        });
        for (table, search) in scans {
            let indexes = table.indexes.iter();
            let serving = indexes.filter(|index| index.begins_with(&search.columns));
            used.extend(serving.map(|index| (table.name.schema.clone(), index.name.clone())));
        }
        used
    }

    /// How `plan` reads the rows of a search: the scans of its table and of the parts of that.
    fn scans<'p>(&self, search: &Search, plan: &'p Plan) -> Vec<(&TableShape, &'p Scan)> {
        let scans = plan.scans.iter();
        let of_search = scans.filter(|scan| scan.aliases.contains(&search.alias));
        of_search
            .filter_map(|scan| Some((self.shapes.named(&scan.schema, &scan.table)?, scan)))
            .collect()
    }

    /// The finding that no index serves a search.
    fn rows(&self, search: &Search, plan: &Plan) -> Option<Advice> {
        let scans = self.scans(search, plan);
        let unserved: Vec<_> = scans
            .into_iter()
            .filter(|(table, scan)| !is_served(table, scan, &search.columns))
            .filter(|(table, scan)| can_be_served(table, scan, &search.columns))
            .collect();
        let (_, first) = unserved.first()?;
        let what = if first.indexes.is_empty() {
            "which reads the whole table, since no index finds them"
        } else {
            "which reads an index that does not begin with these columns: the whole of it, or from PostgreSQL 18 on a part for \
             each value of its first column"
        };
        let reason = format!(
            "{} rows of {} by ({}), {what}",
            search.subject,
            search.table,
            search.columns.join(", ")
        );
        let lacking: Vec<&TableShape> = unserved.iter().map(|(table, _)| *table).collect();
        self.finding(search, search.rule, reason, &first.line, &lacking)
    }

    /// The finding that the index which serves a search does not have its rows in the order of pages.
    fn sorted(&self, search: &Search, alone: &Plan, first: &Plan) -> Option<Advice> {
        let pages = self.scans(search, first);
        let is_in_order = |table: &TableShape, scan: &Scan| {
            let is_planned = scan.sort_keys.is_empty() && is_entered(table, scan, &search.columns);
            let mut indexes = table.indexes.iter();
            is_planned
                || indexes.any(|index| index.is_ordered_by(&search.index, search.columns.len()))
        };
        let mut lacking = Vec::new();
        let mut wrong: Vec<&IndexShape> = Vec::new();
        let mut line = None;
        for (table, scan) in self.scans(search, alone) {
            let page = pages.iter().find(|(other, _)| other.name == table.name);
            if page.is_some_and(|(_, scan)| is_in_order(table, scan)) || is_single(table, search) {
                continue;
            }
            lacking.push(table);
            line = line.or(page.map(|(_, page)| page.line.clone()));
            let used = scan.indexes.iter();
            wrong.extend(used.filter_map(|used| table.index(&used.name)));
        }
        let index = wrong.first()?;
        let rule = match index.method.as_str() {
            "hash" => Rule::HashRange,
            _ => Rule::ColumnOrder,
        };
        let reason = format!(
            "{} rows of {} by {}, whose index {} does not have them in the order of the key, so each page sorts all of them",
            search.subject,
            search.table,
            search.columns.join(", "),
            index.name,
        );
        let line = line.unwrap_or_default();
        self.finding(search, rule, reason, &line, &lacking)
    }

    /// The finding that no index has all rows of a table in the order of pages.
    fn unordered(&self, search: &Search, page: &Plan) -> Option<Advice> {
        let scans = self.scans(search, page).into_iter();
        let sorted: Vec<_> = scans
            .filter(|(table, scan)| {
                let mut indexes = table.indexes.iter();
                let is_in_order = !scan.indexes.is_empty() && scan.sort_keys.is_empty();
                !is_in_order && !indexes.any(|index| index.is_ordered_by(&search.index, 0))
            })
            .collect();
        let (_, first) = sorted.first()?;
        let reason = format!(
            "{} all rows of {} and sorts them, since no index has them in the order of the key ({})",
            search.subject,
            search.table,
            search.index.join(", ")
        );
        let lacking: Vec<&TableShape> = sorted.iter().map(|(table, _)| *table).collect();
        self.finding(search, search.rule, reason, &first.line, &lacking)
    }

    /// The finding that pages are read by an index that has the key before the column of the search.
    fn ordered_wrongly(&self, search: &Search, after: &Plan) -> Option<Advice> {
        let scans = self.scans(search, after);
        let wrong = |table: &'_ TableShape, scan: &Scan| {
            let mut used = scan.indexes.iter();
            used.find_map(|used| {
                let index = table.index(&used.name)?;
                let first = index.columns.first()?.column.as_ref()?;
                let is_found = scan.is_found_by_all(used, &search.columns);
                (is_found && !search.columns.contains(first)).then(|| index.name.clone())
            })
        };
        let names: Option<Vec<String>> = scans
            .iter()
            .map(|(table, scan)| wrong(table, scan))
            .collect();
        let name = names?.into_iter().next()?;
        let (_, scan) = scans.first()?;
        let reason = format!(
            "{} rows of {} by {}, which stands behind a range in index {name}, so each page reads all later rows of the index",
            search.subject,
            search.table,
            search.columns.join(", "),
        );
        let lacking: Vec<&TableShape> = scans.iter().map(|(table, _)| *table).collect();
        self.finding(search, Rule::ColumnOrder, reason, &scan.line, &lacking)
    }

    /// The indexes of `table` that are of no more use once it has `index`, on its parts in `lacking`. A hash index is
    /// smaller than a B-tree of long values, so it is dropped only where it can't do what is asked for.
    fn obsolete(
        &self,
        table: &TableShape,
        lacking: &[&TableShape],
        index: &WantedIndex,
        rule: Rule,
    ) -> Vec<((String, String), Remedy)> {
        let partitioned = self.shapes.is_whole(table, lacking).then_some(table);
        let tables = lacking.iter().copied().chain(partitioned);
        let indexes = tables.flat_map(|table| table.indexes.iter().map(move |own| (table, own)));
        let is_obsolete = |own: &IndexShape| {
            index.operator_class.is_none()
                && (own.method == "btree" || rule == Rule::HashRange)
                && own.is_redundant_beside(&index.columns)
        };
        let obsolete = indexes.filter(|(_, own)| is_obsolete(own));
        obsolete
            .map(|(table, own)| {
                let name = (table.name.schema.clone(), own.name.clone());
                (name, drop_index(table, own))
            })
            .collect()
    }

    fn finding(
        &self,
        search: &Search,
        rule: Rule,
        reason: String,
        line: &str,
        lacking: &[&TableShape],
    ) -> Option<Advice> {
        let table = self.shapes.tables.get(&search.table.oid)?;
        let index = WantedIndex::of(&search.index, search.columns.len());
        Some(Advice {
            obsolete: self.obsolete(table, lacking, &index, rule),
            finding: Finding {
                rule,
                severity: search.severity,
                object: search.table.to_string(),
                place: search.place.clone(),
                reason,
                plan_line: Some(line.to_owned()),
                remedies: Vec::new(),
                cost: None,
                is_unproven: false,
            },
            table: search.table.oid,
            lacking: lacking.iter().map(|table| table.name.oid).collect(),
            index,
            trial: Vec::new(),
        })
    }
}

/// Whether an index finds the rows of a scan by `columns`.
///
/// Between indexes of a table of few rows PostgreSQL may choose any. So one that it has not chosen counts as well, unless
/// it chose none. One that is not valid will serve once it is built: no second one is needed.
fn is_served(table: &TableShape, scan: &Scan, columns: &[String]) -> bool {
    let mut indexes = table.indexes.iter();
    let may_be_served = |index: &IndexShape| !scan.indexes.is_empty() || !index.is_valid;
    is_entered(table, scan, columns)
        || indexes.any(|index| may_be_served(index) && index.begins_with(columns))
}

/// Whether an index on `columns` could find the rows of a scan: not if that compares a value as another type.
fn can_be_served(table: &TableShape, scan: &Scan, columns: &[String]) -> bool {
    let tests = scan.tests_of(&scan.aliases);
    let mut tests = tests.iter().filter(|test| columns.contains(&test.column));
    tests.all(|test| {
        let column = table.column(&test.column);
        column.is_none_or(|column| column.is_comparable_as(test.cast.as_deref()))
    })
}

/// Whether the index that a scan uses finds its rows by `columns`.
fn is_entered(table: &TableShape, scan: &Scan, columns: &[String]) -> bool {
    let mut used = scan.indexes.iter();
    used.any(|used| {
        let Some(index) = table.index(&used.name) else {
            return false;
        };
        let is_key = index.is_unique
            && index.columns.iter().all(|column| {
                let own = column.column.as_slice();
                !own.is_empty() && scan.is_found_by_all(used, own)
            });
        let first = index
            .columns
            .first()
            .and_then(|first| first.column.as_ref());
        let is_first = match index.method.as_str() {
            // It tells only which blocks may have such rows.
            "brin" => false,
            "gin" => true,
            _ => first.is_some_and(|first| columns.contains(first)),
        };
        is_key || is_first && scan.is_found_by_all(used, columns)
    })
}

/// Whether a search finds at most one row.
fn is_single(table: &TableShape, search: &Search) -> bool {
    table.indexes.iter().any(|index| {
        let mut columns = index.columns.iter();
        index.is_unique
            && index.is_valid
            && index.predicate.is_none()
            && columns.all(|column| {
                let name = column.column.as_ref();
                name.is_some_and(|name| search.columns.contains(name))
            })
    })
}
