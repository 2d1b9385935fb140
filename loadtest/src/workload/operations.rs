//! What transactions do: single rows, several levels at once, moves between parents, and pairs that overlap.

use std::collections::BTreeMap;

use super::viewer::{owner_sql, some_owner};
use super::{ChildRow, Plot, PlotChange, RootRow, pad};

/// None, and nothing done, where what was picked has no such row.
type Operation = fn(&mut PlotChange, &Plot, &mut fastrand::Rng) -> Option<()>;

/// The more often, the more of it.
const OPERATIONS: [Operation; 18] = [
    revise_root,
    revise_root,
    give_root,
    give_root,
    revise_child,
    revise_child,
    revise_grandchild,
    revise_grandchild,
    revise_all_levels,
    revise_all_levels,
    insert_child,
    insert_grandchild,
    delete_child,
    delete_grandchild,
    move_child,
    move_grandchild,
    insert_or_delete_root,
    revise_site,
];
/// One transaction in so many does several things.
const SEVERAL_SHARE: u32 = 8;
const SEVERAL_MAX: u32 = 6;

/// A transaction.
pub(crate) fn random(plot: &Plot, revision: u64, rng: &mut fastrand::Rng) -> PlotChange {
    let mut change = PlotChange::new(plot, revision);
    let several = rng.u32(..SEVERAL_SHARE) == 0;
    let count = if several { rng.u32(2..=SEVERAL_MAX) } else { 1 };
    for _ in 0..count {
        let operation = OPERATIONS[rng.usize(..OPERATIONS.len())];
        if operation(&mut change, plot, rng).is_none() {
            revise_site(&mut change, plot, rng);
        }
    }
    change
}

/// Gives a root another revision, the smallest change.
pub(crate) fn revised_root(
    plot: &Plot,
    revision: u64,
    rng: &mut fastrand::Rng,
) -> Option<PlotChange> {
    let mut change = PlotChange::new(plot, revision);
    revise_root(&mut change, plot, rng)?;
    Some(change)
}

/// Gives a row another key: a root without children, a child without grandchildren, or a grandchild. None where what
/// was picked is no such row.
pub(crate) fn rekeyed(plot: &Plot, revision: u64, rng: &mut fastrand::Rng) -> Option<PlotChange> {
    let mut change = PlotChange::new(plot, revision);
    if rng.u32(..3) == 0 {
        let childless = |key: &u32| {
            let root = plot.roots.get(key);
            root.is_some_and(|root| root.children.is_empty())
        };
        let key = plot.keys().find(childless)?;
        let target = plot.keys().find(|key| !plot.roots.contains_key(key))?;
        let (mut root, pad) = (plot.roots.get(&key)?.clone(), pad(target));
        change.push(format_args!(
            "update root set id = {target}, revision = {revision}, pad = '{pad}' where id = {key}"
        ));
        root.revision = revision;
        change.roots.insert(key, None);
        change.roots.insert(target, Some(root));
        return Some(change);
    }
    let (key, id) = some_child(&change, plot, rng)?;
    let row = change.row();
    let root = change.root_mut(plot, key)?;
    if let Some((grandchild, _)) = some(&root.children.get(&id)?.grandchildren, rng) {
        let child = root.children.get_mut(&id)?;
        let old = child.grandchildren.remove(&grandchild)?;
        child.grandchildren.insert(row, old);
        change.push(format_args!(
            "update grandchild set id = {row} where id = {grandchild}"
        ));
    } else {
        let child = root.children.remove(&id)?;
        root.children.insert(row, child);
        change.push(format_args!("update child set id = {row} where id = {id}"));
    }
    Some(change)
}

/// Two transactions that touch different rows of the same documents, in the order of their commits.
///
/// The second is what it is on top of the first, but the statements of both may run before either commits: what one
/// moves, the other changes, and neither sees it in its snapshot.
pub(crate) fn crossing(
    plot: &Plot,
    revisions: [u64; 2],
    rng: &mut fastrand::Rng,
) -> Option<[PlotChange; 2]> {
    let mut changes = revisions.map(|revision| PlotChange::new(plot, revision));
    let mover = usize::from(rng.bool());
    let key = some_key(&changes[0], plot, rng)?;
    let root = plot.roots.get(&key)?.clone();
    if rng.bool() {
        let target = some_key(&changes[0], plot, rng).filter(|target| *target != key)?;
        cross_child(
            &mut changes,
            mover,
            [(key, root), (target, plot.roots.get(&target)?.clone())],
            rng,
        )?;
    } else {
        cross_site(&mut changes, mover, (key, root), rng.u32(plot.sites()));
    }
    Some(changes)
}

/// `changes[mover]` moves a child from the first root to the second, the other changes what is below that child.
fn cross_child(
    changes: &mut [PlotChange; 2],
    mover: usize,
    [(from, mut giver), (to, mut receiver)]: [(u32, RootRow); 2],
    rng: &mut fastrand::Rng,
) -> Option<()> {
    let (id, child) = some(&giver.children, rng)?;
    let (grandchild, _) = some(&child.grandchildren, rng)?;
    let mut moved = false;
    for (number, change) in changes.iter_mut().enumerate() {
        let revision = change.revision;
        if number == mover {
            change.push(format_args!(
                "update child set root_id = {to}, revision = {revision} where id = {id}"
            ));
            let mut child = giver.children.remove(&id)?;
            child.revision = revision;
            receiver.children.insert(id, child);
            moved = true;
            change.roots.insert(from, Some(giver.clone()));
            change.roots.insert(to, Some(receiver.clone()));
        } else {
            change.set_grandchild(grandchild);
            let (key, holder) = if moved {
                (to, &mut receiver)
            } else {
                (from, &mut giver)
            };
            let child = holder.children.get_mut(&id)?;
            child.grandchildren.insert(grandchild, revision);
            change.roots.insert(key, Some(holder.clone()));
        }
    }
    Some(())
}

/// `changes[mover]` points the root at a site, the other changes that site.
fn cross_site(
    changes: &mut [PlotChange; 2],
    mover: usize,
    (key, mut root): (u32, RootRow),
    site: u32,
) {
    for (number, change) in changes.iter_mut().enumerate() {
        if number == mover {
            root.site = site;
            change.push(format_args!(
                "update root set site_id = {site} where id = {key}"
            ));
            change.roots.insert(key, Some(root.clone()));
        } else {
            change.set_site(site);
            change.sites.insert(site, change.revision);
        }
    }
}

impl PlotChange {
    /// The document as this change has it so far.
    fn root<'a>(&'a self, plot: &'a Plot, key: u32) -> Option<&'a RootRow> {
        match self.roots.get(&key) {
            Some(changed) => changed.as_ref(),
            None => plot.roots.get(&key),
        }
    }

    /// The document, to be changed.
    fn root_mut(&mut self, plot: &Plot, key: u32) -> Option<&mut RootRow> {
        let root = self.root(plot, key)?.clone();
        self.roots.insert(key, Some(root));
        self.roots.get_mut(&key)?.as_mut()
    }

    fn row(&mut self) -> u64 {
        self.next_row += 1;
        self.next_row - 1
    }

    fn set_root(&mut self, key: u32) {
        let revision = self.revision;
        self.push(format_args!(
            "update root set revision = {revision} where id = {key}"
        ));
    }

    fn set_child(&mut self, id: u64) {
        let revision = self.revision;
        self.push(format_args!(
            "update child set revision = {revision} where id = {id}"
        ));
    }

    fn set_grandchild(&mut self, id: u64) {
        let revision = self.revision;
        self.push(format_args!(
            "update grandchild set revision = {revision} where id = {id}"
        ));
    }

    fn set_site(&mut self, id: u32) {
        let revision = self.revision;
        self.push(format_args!(
            "update site set revision = {revision} where id = {id}"
        ));
    }
}

/// A key with a document.
fn some_key(change: &PlotChange, plot: &Plot, rng: &mut fastrand::Rng) -> Option<u32> {
    let first = rng.u32(plot.keys());
    let there = |key: &u32| change.root(plot, *key).is_some();
    (first..plot.keys().end)
        .chain(plot.keys().start..first)
        .find(there)
}

/// One entry of a map.
fn some<'a, V>(map: &'a BTreeMap<u64, V>, rng: &mut fastrand::Rng) -> Option<(u64, &'a V)> {
    let number = rng.usize(..map.len().max(1));
    map.iter().nth(number).map(|(id, value)| (*id, value))
}

/// A key and one of its document's children.
fn some_child(change: &PlotChange, plot: &Plot, rng: &mut fastrand::Rng) -> Option<(u32, u64)> {
    let key = some_key(change, plot, rng)?;
    let (id, _) = some(&change.root(plot, key)?.children, rng)?;
    Some((key, id))
}

fn some_grandchild(
    change: &PlotChange,
    plot: &Plot,
    rng: &mut fastrand::Rng,
) -> Option<(u32, u64, u64)> {
    let (key, id) = some_child(change, plot, rng)?;
    let child = change.root(plot, key)?.children.get(&id)?;
    let (grandchild, _) = some(&child.grandchildren, rng)?;
    Some((key, id, grandchild))
}

fn revise_root(change: &mut PlotChange, plot: &Plot, rng: &mut fastrand::Rng) -> Option<()> {
    let key = some_key(change, plot, rng)?;
    change.set_root(key);
    let revision = change.revision;
    change.root_mut(plot, key)?.revision = revision;
    Some(())
}

/// Gives a root another owner.
fn give_root(change: &mut PlotChange, plot: &Plot, rng: &mut fastrand::Rng) -> Option<()> {
    let key = some_key(change, plot, rng)?;
    let (revision, owner) = (change.revision, some_owner(rng));
    change.push(format_args!(
        "update root set owner = {}, revision = {revision} where id = {key}",
        owner_sql(owner)
    ));
    let root = change.root_mut(plot, key)?;
    root.revision = revision;
    root.owner = owner;
    Some(())
}

fn revise_child(change: &mut PlotChange, plot: &Plot, rng: &mut fastrand::Rng) -> Option<()> {
    let (key, id) = some_child(change, plot, rng)?;
    change.set_child(id);
    let revision = change.revision;
    let root = change.root_mut(plot, key)?;
    root.children.get_mut(&id)?.revision = revision;
    Some(())
}

fn revise_grandchild(change: &mut PlotChange, plot: &Plot, rng: &mut fastrand::Rng) -> Option<()> {
    let (key, id, grandchild) = some_grandchild(change, plot, rng)?;
    change.set_grandchild(grandchild);
    let revision = change.revision;
    let child = change.root_mut(plot, key)?.children.get_mut(&id)?;
    child.grandchildren.insert(grandchild, revision);
    Some(())
}

fn revise_all_levels(change: &mut PlotChange, plot: &Plot, rng: &mut fastrand::Rng) -> Option<()> {
    let (key, id, grandchild) = some_grandchild(change, plot, rng)?;
    change.set_root(key);
    change.set_child(id);
    change.set_grandchild(grandchild);
    let revision = change.revision;
    let root = change.root_mut(plot, key)?;
    root.revision = revision;
    let child = root.children.get_mut(&id)?;
    child.revision = revision;
    child.grandchildren.insert(grandchild, revision);
    Some(())
}

fn insert_child(change: &mut PlotChange, plot: &Plot, rng: &mut fastrand::Rng) -> Option<()> {
    let key = some_key(change, plot, rng)?;
    let (id, revision) = (change.row(), change.revision);
    change.push(format_args!(
        "insert into child values ({id}, {key}, {revision})"
    ));
    let child = ChildRow {
        revision,
        ..ChildRow::default()
    };
    change.root_mut(plot, key)?.children.insert(id, child);
    Some(())
}

fn insert_grandchild(change: &mut PlotChange, plot: &Plot, rng: &mut fastrand::Rng) -> Option<()> {
    let (key, id) = some_child(change, plot, rng)?;
    let (row, revision) = (change.row(), change.revision);
    change.push(format_args!(
        "insert into grandchild values ({row}, {id}, {revision})"
    ));
    let child = change.root_mut(plot, key)?.children.get_mut(&id)?;
    child.grandchildren.insert(row, revision);
    Some(())
}

fn delete_child(change: &mut PlotChange, plot: &Plot, rng: &mut fastrand::Rng) -> Option<()> {
    let (key, id) = some_child(change, plot, rng)?;
    change.push(format_args!("delete from child where id = {id}"));
    change.root_mut(plot, key)?.children.remove(&id);
    Some(())
}

fn delete_grandchild(change: &mut PlotChange, plot: &Plot, rng: &mut fastrand::Rng) -> Option<()> {
    let (key, id, grandchild) = some_grandchild(change, plot, rng)?;
    change.push(format_args!(
        "delete from grandchild where id = {grandchild}"
    ));
    let child = change.root_mut(plot, key)?.children.get_mut(&id)?;
    child.grandchildren.remove(&grandchild);
    Some(())
}

fn move_child(change: &mut PlotChange, plot: &Plot, rng: &mut fastrand::Rng) -> Option<()> {
    let (key, id) = some_child(change, plot, rng)?;
    let target = some_key(change, plot, rng)?;
    let revision = change.revision;
    change.push(format_args!(
        "update child set root_id = {target}, revision = {revision} where id = {id}"
    ));
    let mut child = change.root_mut(plot, key)?.children.remove(&id)?;
    child.revision = revision;
    change.root_mut(plot, target)?.children.insert(id, child);
    Some(())
}

fn move_grandchild(change: &mut PlotChange, plot: &Plot, rng: &mut fastrand::Rng) -> Option<()> {
    let (key, id, grandchild) = some_grandchild(change, plot, rng)?;
    let (target, new_parent) = some_child(change, plot, rng)?;
    let revision = change.revision;
    change.push(format_args!(
        "update grandchild set child_id = {new_parent}, revision = {revision} where id = {grandchild}"
    ));
    let child = change.root_mut(plot, key)?.children.get_mut(&id)?;
    child.grandchildren.remove(&grandchild);
    let root = change.root_mut(plot, target)?;
    let child = root.children.get_mut(&new_parent)?;
    child.grandchildren.insert(grandchild, revision);
    Some(())
}

/// So that about as many are there as at the start.
fn insert_or_delete_root(
    change: &mut PlotChange,
    plot: &Plot,
    rng: &mut fastrand::Rng,
) -> Option<()> {
    let absent: Vec<u32> = plot
        .keys()
        .filter(|key| change.root(plot, *key).is_none())
        .collect();
    if absent.len() * 10 < plot.keys().len() {
        let key = some_key(change, plot, rng)?;
        change.push(format_args!("delete from root where id = {key}"));
        change.roots.insert(key, None);
        return Some(());
    }
    let key = absent[rng.usize(..absent.len())];
    let (site, revision, pad) = (rng.u32(plot.sites()), change.revision, pad(key));
    let (child, grandchild) = (change.row(), change.row());
    let owner = some_owner(rng);
    change.push(format_args!(
        "insert into root values ({key}, {site}, {revision}, '{pad}', {})",
        owner_sql(owner)
    ));
    change.push(format_args!(
        "insert into child values ({child}, {key}, {revision})"
    ));
    change.push(format_args!(
        "insert into grandchild values ({grandchild}, {child}, {revision})"
    ));
    let row = ChildRow {
        revision,
        grandchildren: [(grandchild, revision)].into(),
    };
    let root = RootRow {
        site,
        revision,
        owner,
        children: [(child, row)].into(),
    };
    change.roots.insert(key, Some(root));
    Some(())
}

fn revise_site(change: &mut PlotChange, plot: &Plot, rng: &mut fastrand::Rng) -> Option<()> {
    let site = rng.u32(plot.sites());
    change.set_site(site);
    change.sites.insert(site, change.revision);
    Some(())
}
