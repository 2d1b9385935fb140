//! The tables, larder's configuration for them, and what is in them at the start.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::viewer::{owner_sql, some_owner};
use super::{ChildRow, Plot, ROOTS_PER_SITE, ROWS_PER_PLOT, RootRow, TABLES, pad, part};

/// The tables. `ledger` is the checker's own: it tells whether a transaction whose acknowledgement was lost was committed.
pub(crate) const SCHEMA: &str = "
create table site (id integer primary key, revision bigint not null);
create table root (
  id integer primary key, site_id integer not null references site, revision bigint not null, pad text not null,
  owner integer);
create index on root (site_id);
create index on root (owner, id);
create table child (
  id bigint primary key, root_id integer not null references root on delete cascade, revision bigint not null);
create index on child (root_id);
create table grandchild (
  id bigint primary key, child_id bigint not null references child on delete cascade, revision bigint not null);
create index on grandchild (child_id);
create table ledger (plot integer, slot integer, revision bigint not null, primary key (plot, slot));
";

/// The path segment of the documents, how larder is told of them, and who may read them: [`Viewer`](super::viewer::Viewer).
pub(crate) const RESOURCE: &str = r#"
[[auth.key]]
name = "staff"
hash = "1562206543da764123c21bd524674f0a8aaf49c8a89744c97352fe677f7e4006"
roles = ["staff"]

[[auth.key]]
name = "customer1"
hash = "dea26157fa355301663174eac368538cff8939f36681d6712dedba439ab98b70"
roles = ["customer"]
claims = { sub = "1" }

[[auth.key]]
name = "customer2"
hash = "c8c7cb5b9e8f7a1b3d1d02602ada62327132391dbe0e8ee07913cd550eea1f3b"
roles = ["customer"]
claims = { sub = "2" }

[[resource]]
name = "roots"
table = "public.root"
key = "id"
read = ["staff", "customer"]
write = []

  [resource.owner]
  column = "owner"
  claim = "sub"
  roles = ["customer"]

  [[resource.children]]
  name = "children"
  table = "public.child"
  foreign_key = "root_id"

    [[resource.children.children]]
    name = "grandchildren"
    table = "public.grandchild"

  [[resource.lookups]]
  name = "site"
  table = "public.site"
  column = "site_id"
"#;

/// One document in so many is not there at the start.
const ABSENT_SHARE: u32 = 10;
/// Rows of a plot in `ledger`: sessions whose transactions overlap write to different ones.
const LEDGER_SLOTS: u32 = 3;
const CHILDREN_MAX: u64 = 4;
const GRANDCHILDREN_MAX: u64 = 3;

/// A new plot of so many keys and the statements that fill its tables.
pub(crate) fn seed(number: usize, keys: u32, rng: &mut fastrand::Rng) -> (Plot, String) {
    let mut plot = Plot {
        number,
        keys,
        roots: BTreeMap::new(),
        sites: part(number, keys / ROOTS_PER_SITE)
            .map(|site| (site, 1))
            .collect(),
        next_row: u64::try_from(number).unwrap_or_default() * ROWS_PER_PLOT + 1,
    };
    for key in plot.keys() {
        if rng.u32(..ABSENT_SHARE) > 0 {
            let root = root(&mut plot, rng);
            plot.roots.insert(key, root);
        }
    }
    let slots: Vec<String> = (0..LEDGER_SLOTS)
        .map(|slot| format!("({number}, {slot}, 0)"))
        .collect();
    let sql = fill(&plot, &TABLES) + "insert into ledger values " + slots.join(", ").as_str();
    (plot, sql)
}

fn root(plot: &mut Plot, rng: &mut fastrand::Rng) -> RootRow {
    let site = rng.u32(plot.sites());
    let mut next = || {
        plot.next_row += 1;
        plot.next_row - 1
    };
    let mut children = BTreeMap::new();
    for _ in 0..rng.u64(..=CHILDREN_MAX) {
        let id = next();
        let grandchildren = (0..rng.u64(..=GRANDCHILDREN_MAX)).map(|_| (next(), 1));
        let child = ChildRow {
            revision: 1,
            grandchildren: grandchildren.collect(),
        };
        children.insert(id, child);
    }
    RootRow {
        site,
        revision: 1,
        owner: some_owner(rng),
        children,
    }
}

/// The statements that insert what the plot has in `tables`.
pub(crate) fn fill(plot: &Plot, tables: &[&str]) -> String {
    let mut rows = [const { String::new() }; TABLES.len()];
    let [roots, children, grandchildren, sites] = &mut rows;
    let row = |text: &mut String, row: std::fmt::Arguments<'_>| {
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a string can't fail.
        write!(text, "{comma}({row})").unwrap_or_default();
    };
    for (id, revision) in &plot.sites {
        row(sites, format_args!("{id},{revision}"));
    }
    for (key, root) in &plot.roots {
        let (site, revision, pad) = (root.site, root.revision, pad(*key));
        let owner = owner_sql(root.owner);
        row(
            roots,
            format_args!("{key},{site},{revision},'{pad}',{owner}"),
        );
        for (id, child) in &root.children {
            row(children, format_args!("{id},{key},{}", child.revision));
            for (grandchild, revision) in &child.grandchildren {
                row(grandchildren, format_args!("{grandchild},{id},{revision}"));
            }
        }
    }
    let mut filled: Vec<_> = TABLES.into_iter().zip(rows).collect();
    // Foreign keys want sites first.
    filled.rotate_right(1);
    filled.retain(|(table, rows)| tables.contains(table) && !rows.is_empty());
    let insert = |(table, rows)| format!("insert into {table} values {rows}; ");
    filled.into_iter().map(insert).collect()
}
