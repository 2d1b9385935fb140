//! The documents and what writers do to them: a model of the tables beside the SQL that changes them.
//!
//! A *plot* is a part of the tables that one transaction at a time, or a planned pair of overlapping ones, changes. So
//! what each commit makes of each document is known to the byte. No I/O.

pub(crate) mod counters;
pub(crate) mod history;
mod notes;
mod operations;
pub(crate) mod record;
mod tables;
pub(crate) mod viewer;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::workload::history::Digest;
use crate::workload::viewer::{Audience, owner_sql};

pub(crate) use notes::{NOTES, NOTES_PLAIN, NOTES_RESOURCE, NOTES_SCHEMA, Notes};
pub(crate) use operations::{crossing, random, rekeyed, revised_root};
pub(crate) use tables::{RESOURCE, SCHEMA, fill, seed};

/// The tables that documents are made of.
pub(crate) const TABLES: [&str; 4] = ["root", "child", "grandchild", "site"];
/// Plots of documents that writers change at random.
pub(crate) const PLOTS: usize = 4;
/// The plot of the client that measures the invalidation lag.
pub(crate) const PROBE_PLOT: usize = PLOTS;
/// So many documents point to one site.
const ROOTS_PER_SITE: u32 = 20;
/// Rows' ids of different plots never meet.
const ROWS_PER_PLOT: u64 = 1_000_000_000;
/// Gives a document the size of an ordinary one.
const PAD_BYTES: usize = 400;

/// A row of table `root` with what is below it.
#[derive(Clone, Debug, Default)]
pub(crate) struct RootRow {
    site: u32,
    revision: u64,
    owner: Option<u8>,
    children: BTreeMap<u64, ChildRow>,
}

/// A row of table `child` with what is below it.
#[derive(Clone, Debug, Default)]
struct ChildRow {
    revision: u64,
    /// Revisions of the rows of table `grandchild`.
    grandchildren: BTreeMap<u64, u64>,
}

/// A part of the tables and its documents.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    pub(crate) number: usize,
    keys: u32,
    roots: BTreeMap<u32, RootRow>,
    /// Revisions of the rows of table `site`.
    sites: BTreeMap<u32, u64>,
    next_row: u64,
}

/// A transaction: its statements and what they make of the plot.
#[derive(Clone, Debug)]
pub(crate) struct PlotChange {
    pub(crate) revision: u64,
    pub(crate) sql: String,
    /// Absent: deleted.
    roots: BTreeMap<u32, Option<RootRow>>,
    sites: BTreeMap<u32, u64>,
    next_row: u64,
}

/// A document as a transaction leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpectedDocument {
    pub(crate) key: u32,
    pub(crate) digest: Digest,
    pub(crate) audience: Audience,
}

impl ExpectedDocument {
    /// The document is not there.
    pub(crate) fn absent(key: u32) -> Self {
        Self {
            key,
            digest: Digest::ABSENT,
            audience: Audience::Everyone,
        }
    }
}

/// Keys of documents are 1 to this, whether the document is there or not.
pub(crate) fn keys(keys_per_plot: u32) -> u32 {
    part(PLOTS, keys_per_plot).end - 1
}

/// The ids of a plot's rows in a table where each plot has `size`.
fn part(plot: usize, size: u32) -> std::ops::Range<u32> {
    let first = u32::try_from(plot).unwrap_or(u32::MAX) * size + 1;
    first..first + size
}

fn pad(key: u32) -> String {
    let mut text = format!("{key:x}").repeat(PAD_BYTES);
    text.truncate(PAD_BYTES);
    text
}

impl Plot {
    /// The keys of its documents, whether they are there or not.
    pub(crate) fn keys(&self) -> std::ops::Range<u32> {
        part(self.number, self.keys)
    }

    fn sites(&self) -> std::ops::Range<u32> {
        part(self.number, self.keys / ROOTS_PER_SITE)
    }

    /// The document of `key` as it is now.
    pub(crate) fn made(&self, key: u32) -> ExpectedDocument {
        self.expected(key, self.roots.get(&key), &BTreeMap::new())
    }

    /// The documents that are there, as they are while table `site` is empty.
    pub(crate) fn made_without_sites(&self) -> Vec<ExpectedDocument> {
        let made = |(key, root): (&u32, &RootRow)| ExpectedDocument {
            key: *key,
            digest: Digest::of(body(*key, root, None).as_bytes()),
            audience: Audience::Owner(root.owner),
        };
        self.roots.iter().map(made).collect()
    }

    fn expected(
        &self,
        key: u32,
        root: Option<&RootRow>,
        sites: &BTreeMap<u32, u64>,
    ) -> ExpectedDocument {
        let Some(root) = root else {
            return ExpectedDocument::absent(key);
        };
        let site = sites.get(&root.site).or_else(|| self.sites.get(&root.site));
        let body = body(key, root, site.copied());
        ExpectedDocument {
            key,
            digest: Digest::of(body.as_bytes()),
            audience: Audience::Owner(root.owner),
        }
    }

    /// The documents that `change` touches, as it leaves them.
    pub(crate) fn touched(&self, change: &PlotChange) -> Vec<ExpectedDocument> {
        let mut keys: BTreeSet<u32> = change.roots.keys().copied().collect();
        if !change.sites.is_empty() {
            let points = |root: &RootRow| change.sites.contains_key(&root.site);
            let pointing = self.roots.iter().filter(|(_, root)| points(root));
            keys.extend(pointing.map(|(key, _)| *key));
        }
        let made = |key: u32| {
            let root = match change.roots.get(&key) {
                Some(changed) => changed.as_ref(),
                None => self.roots.get(&key),
            };
            self.expected(key, root, &change.sites)
        };
        keys.into_iter().map(made).collect()
    }

    /// The change was committed.
    pub(crate) fn apply(&mut self, change: PlotChange) {
        for (key, root) in change.roots {
            match root {
                Some(root) => self.roots.insert(key, root),
                None => self.roots.remove(&key),
            };
        }
        self.sites.extend(change.sites);
        self.next_row = self.next_row.max(change.next_row);
    }

    /// The change that leaves of this plot's documents what is in `tables` alone; the statements are the caller's.
    pub(crate) fn only(&self, tables: &[&str], revision: u64) -> PlotChange {
        let mut change = PlotChange::new(self, revision);
        for (key, old) in &self.roots {
            let mut new = old.clone();
            if !tables.contains(&"child") {
                new.children.clear();
            }
            if !tables.contains(&"grandchild") {
                let children = new.children.values_mut();
                children.for_each(|child| child.grandchildren.clear());
            }
            let there = tables.contains(&"root");
            change.roots.insert(*key, there.then_some(new));
        }
        change
    }

    /// The change of a statement that gave `revision` to every row of `tables`; the statement is the caller's.
    pub(crate) fn revised(&self, tables: &[&str], revision: u64) -> PlotChange {
        let mut change = PlotChange::new(self, revision);
        let (root, child) = (tables.contains(&"root"), tables.contains(&"child"));
        let grandchild = tables.contains(&"grandchild");
        for (key, old) in &self.roots {
            let mut new = old.clone();
            if root {
                new.revision = revision;
            }
            for row in new.children.values_mut() {
                if child {
                    row.revision = revision;
                }
                if grandchild {
                    row.grandchildren
                        .values_mut()
                        .for_each(|row| *row = revision);
                }
            }
            change.roots.insert(*key, Some(new));
        }
        if tables.contains(&"site") {
            change.sites = self.sites.keys().map(|site| (*site, revision)).collect();
        }
        change
    }
}

impl PlotChange {
    fn new(plot: &Plot, revision: u64) -> Self {
        Self {
            revision,
            sql: String::new(),
            roots: BTreeMap::new(),
            sites: BTreeMap::new(),
            next_row: plot.next_row,
        }
    }

    /// How many rows the statements affect.
    pub(crate) fn rows(&self) -> u64 {
        // One each; what foreign keys cascade does not count.
        self.sql.matches("; ").count() as u64
    }

    /// Has the statements name `other` in the place of `table`; those that insert only where `inserts`. Returns whether
    /// there is one.
    pub(crate) fn redirect(&mut self, table: &str, other: &str, inserts: bool) -> bool {
        let verbs: &[&str] = if inserts {
            &["update", "delete from", "insert into"]
        } else {
            &["update", "delete from"]
        };
        let mut sql = self.sql.clone();
        for verb in verbs {
            sql = sql.replace(&format!("{verb} {table} "), &format!("{verb} {other} "));
        }
        let redirected = sql != self.sql;
        self.sql = sql;
        redirected
    }

    fn push(&mut self, statement: std::fmt::Arguments<'_>) {
        // Writing to a string can't fail.
        write!(self.sql, "{statement}; ").unwrap_or_default();
    }
}

/// What larder answers, byte for byte.
fn body(key: u32, root: &RootRow, site_revision: Option<u64>) -> String {
    let mut text = String::with_capacity(2 * PAD_BYTES);
    let (site, revision, pad) = (root.site, root.revision, pad(key));
    let mut push = |piece: std::fmt::Arguments<'_>| text.write_fmt(piece).unwrap_or_default();
    let owner = owner_sql(root.owner);
    push(format_args!(
        r#"{{"id":{key},"site_id":{site},"revision":{revision},"pad":"{pad}","owner":{owner},"children":["#
    ));
    for (number, (id, child)) in root.children.iter().enumerate() {
        let comma = if number > 0 { "," } else { "" };
        let revision = child.revision;
        push(format_args!(
            r#"{comma}{{"id":{id},"root_id":{key},"revision":{revision},"grandchildren":["#
        ));
        for (number, (grandchild, revision)) in child.grandchildren.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            push(format_args!(
                r#"{comma}{{"id":{grandchild},"child_id":{id},"revision":{revision}}}"#
            ));
        }
        push(format_args!("]}}"));
    }
    match site_revision {
        Some(revision) => push(format_args!(
            r#"],"site":{{"id":{site},"revision":{revision}}}}}"#
        )),
        None => push(format_args!(r#"],"site":null}}"#)),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_reads_as_larder_writes_it() {
        let grandchildren = BTreeMap::from([(31, 7), (32, 8)]);
        let child = ChildRow {
            revision: 6,
            grandchildren,
        };
        let root = RootRow {
            site: 4,
            revision: 5,
            owner: Some(2),
            children: BTreeMap::from([(21, child), (22, ChildRow::default())]),
        };
        let expected = format!(
            "{{\"id\":10,\"site_id\":4,\"revision\":5,\"pad\":\"{}\",\"owner\":2,\"children\":[\
             {{\"id\":21,\"root_id\":10,\"revision\":6,\"grandchildren\":[\
             {{\"id\":31,\"child_id\":21,\"revision\":7}},{{\"id\":32,\"child_id\":21,\"revision\":8}}]}},\
             {{\"id\":22,\"root_id\":10,\"revision\":0,\"grandchildren\":[]}}],\
             \"site\":{{\"id\":4,\"revision\":9}}}}",
            "a".repeat(PAD_BYTES)
        );
        assert_eq!(body(10, &root, Some(9)), expected);
    }

    #[test]
    fn a_site_touches_every_document_that_points_to_it() {
        let (plot, _) = seed(0, 1_000, &mut fastrand::Rng::with_seed(1));
        let site = plot.roots.values().next().unwrap().site;
        let mut change = PlotChange::new(&plot, 2);
        change.sites.insert(site, 2);
        let touched: Vec<u32> = plot.touched(&change).iter().map(|made| made.key).collect();
        let pointing = plot.roots.iter().filter(|(_, root)| root.site == site);
        let pointing: Vec<u32> = pointing.map(|(key, _)| *key).collect();
        assert!(touched.len() > 1);
        assert_eq!(touched, pointing);
    }

    #[test]
    fn a_change_names_another_table_in_place_of_its_own() {
        let (plot, _) = seed(0, 1_000, &mut fastrand::Rng::with_seed(1));
        let mut change = PlotChange::new(&plot, 2);
        change.sql = "update child set id = 1; delete from grandchild where id = 2; \
            insert into child values (3); "
            .to_owned();
        assert_eq!(change.rows(), 3);
        assert!(!change.redirect("root", "above", true));
        assert!(change.redirect("child", "above", false));
        assert!(change.redirect("grandchild", "top", true));
        let expected =
            "update above set id = 1; delete from top where id = 2; insert into child values (3); ";
        assert_eq!(change.sql, expected);
        assert!(change.redirect("child", "above", true));
        assert!(change.sql.contains("insert into above values"));
    }

    #[test]
    fn applied_changes_leave_the_documents_as_expected() {
        let mut rng = fastrand::Rng::with_seed(3);
        let (mut plot, _) = seed(1, 1_000, &mut rng);
        for revision in 2..2_000 {
            let change = random(&plot, revision, &mut rng);
            let touched = plot.touched(&change);
            assert!(!touched.is_empty(), "{}", change.sql);
            plot.apply(change);
            for made in touched {
                assert_eq!(plot.made(made.key), made);
            }
        }
    }
}
