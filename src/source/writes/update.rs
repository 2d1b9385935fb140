//! Makes the rows of a document those of a body: what differs is found first, and only that is written.
//!
//! Rows that the body lacks are deleted, the lowest level first; then, from the root down, rows that differ are updated
//! and new ones inserted. A row that moves within the document is updated, so the row that it leaves is deleted after
//! that. What a trigger keeps keeps the rows below it. Where rows may refer to rows of later levels, new rows are inserted
//! first, then rows are updated, and deleted last, unless that has violated a unique constraint.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;

use sqlx::Row;

use crate::resource::writable::{LevelRows, Rows, Writable};
use crate::resource::write::WriteSql;
use crate::source::SourceError;
use crate::source::writes::Write;
use crate::source::writes::differences::{
    Differences, KeysByLevel, StoredKey, StoredRow, StoredRows, is_any, key_rows, place,
    row_of_number,
};
use crate::source::writes::error::{Failure, WriteError};
use crate::source::writes::forward::postpone;
use crate::source::writes::inputs::{Inputs, link_rows, select_rows};
use crate::source::writes::owned::without_missing_targets;
use crate::source::writes::transaction::{
    ROLLBACK_TO_SAVEPOINT, SAVEPOINT, Transaction, WriteTarget,
};

/// Rows of one level that triggers have kept from being deleted.
#[derive(Default)]
struct Kept {
    keys: HashSet<StoredKey>,
    /// Those of them that a condition hides now, as it does if the trigger marks them as deleted.
    hidden: HashSet<StoredKey>,
}

impl Transaction<'_> {
    async fn compare(
        &mut self,
        target: &WriteTarget<'_>,
        inputs: Inputs<'_>,
    ) -> Result<Differences, Failure> {
        let sql = &target.sql;
        let statement = match (inputs.stored, self.was_forbidden) {
            (Some(_), false) => &sql.compare_read,
            (None, false) => &sql.compare,
            // The rows that may be locked are locked already.
            (Some(_), true) => &sql.compare_read_unlocked,
            (None, true) => &sql.compare_unlocked,
        };
        let found = self.run_statement(target, statement, inputs).await?;
        Differences::of(target.writable, &found)
    }

    /// Makes the rows of the locked document those of `rows`. If the document was read, `stored` has its rows. Returns
    /// whether a trigger has kept rows that were to be deleted, and not hidden them.
    ///
    /// # Errors
    /// [`WriteError::Body`] if rows of the body would be hidden.
    /// A foreign key violation if a row of the body is another one afterwards because a row was deleted (`on delete cascade`
    /// or `set null`); [`WriteError::Vetoed`] if a trigger keeps a row that has lost a row below it before; what a restricted
    /// `write` may not write.
    pub(super) async fn update(
        &mut self,
        target: &WriteTarget<'_>,
        write: &Write,
        key: &str,
        rows: &mut Rows,
        stored: Option<&Rows>,
    ) -> Result<bool, Failure> {
        let inputs = Inputs::document(key, rows, stored);
        let mut differences = self.compare(target, inputs).await?;
        self.check_changed_targets(target, &write.writer, rows, &differences)
            .await?;
        let above_changed = mem::take(&mut differences.above_changed);
        let deletes_last = target.writable.has_forward_references() && !self.was_violated;
        let mut gone = mem::take(&mut differences.gone);
        let has_deleted = !gone.is_empty();
        let left = if deletes_last {
            mem::take(&mut gone)
        } else {
            gone.split_above(target.writable, above_changed)
        };
        let emptied = left.above(target.writable, &gone);
        let changed = &differences.changed;
        let released = self.release_references(target, key, rows, stored, changed);
        let mut postponed = released.await?;
        let mut has_kept = is_any(&self.delete_rows(target, gone).await?);
        self.defer_references(target).await?;
        let new = |level| differences.new.get(&level).cloned().unwrap_or_default();
        postponed.extend(postpone(target.writable, rows, new));
        for level in 0..target.writable.levels.len() {
            if let Some(changed) = differences.changed.get_mut(&level) {
                add_relinked(target.writable, level, rows, changed);
                if !deletes_last {
                    let inputs = Inputs::document(key, rows, stored);
                    self.update_level(target, level, changed, inputs).await?;
                }
            }
            if let Some(new) = differences.new.get(&level).filter(|_| level > 0) {
                let inserted = self.insert_level(target, level, rows, Some(new)).await;
                inserted.map_err(|failure| {
                    let scope = &write.writer;
                    without_missing_targets(target, scope, rows, Some(&differences), failure)
                })?;
            }
        }
        self.set_postponed(target, key, rows, stored, postponed)
            .await?;
        for (&level, changed) in differences.changed.iter().filter(|_| deletes_last) {
            let inputs = Inputs::document(key, rows, stored);
            self.update_level(target, level, changed, inputs).await?;
        }
        self.check_stored_targets(target, &write.writer, rows, Some(&differences))
            .await?;
        let kept = self.delete_rows(target, left).await?;
        let lost = |(level, keys): (&usize, &HashSet<StoredKey>)| {
            emptied
                .get(level)
                .is_some_and(|emptied| !emptied.is_disjoint(keys))
        };
        if kept.iter().any(lost) {
            return Err(WriteError::Vetoed.into());
        }
        has_kept |= is_any(&kept);
        self.check_visible(target, rows).await?;
        // What triggers change is theirs to say.
        let is_compared = !target.writable.has_triggers && target.resource.row_security.is_none();
        if has_deleted && is_compared {
            let inputs = Inputs::document(key, rows, stored);
            let after = self.compare(target, inputs).await?;
            if !after.new.is_empty() || !after.changed.is_empty() {
                return Err(WriteError::foreign_key_violation().into());
            }
        }
        Ok(has_kept)
    }

    /// Deletes all rows of the locked document if there are triggers, which may keep some of them.
    pub(super) async fn delete_document(
        &mut self,
        target: &WriteTarget<'_>,
        inputs: Inputs<'_>,
    ) -> Result<(), Failure> {
        let differences = self.compare(target, inputs).await?;
        self.delete_rows(target, differences.gone).await?;
        Ok(())
    }

    /// Deletes `gone`, the lowest level first. A row that a trigger keeps keeps the rows below it, too: then it is done
    /// again without these, at most once for each level. Returns the keys of the rows that triggers have kept and not hidden.
    ///
    /// # Errors
    /// [`WriteError::Vetoed`] if triggers keep other rows when it is done again.
    async fn delete_rows(
        &mut self,
        target: &WriteTarget<'_>,
        mut gone: StoredRows,
    ) -> Result<KeysByLevel, Failure> {
        let writable = target.writable;
        let may_keep = writable.has_triggers && target.may_keep();
        let may_fail = writable.has_triggers && target.sql.delete_given.is_some();
        if (may_keep || may_fail) && !gone.is_empty() {
            self.savepoint(SAVEPOINT).await?;
        }
        match self.delete_given(target, &gone).await {
            Ok(true) => return Ok(KeysByLevel::new()),
            // A trigger has kept a row, so that others refer to rows that are gone, or has changed another one.
            _ if may_fail => self.savepoint(ROLLBACK_TO_SAVEPOINT).await?,
            deleted => _ = deleted?,
        }
        let mut standing: KeysByLevel = BTreeMap::new();
        let mut hidden: KeysByLevel = BTreeMap::new();
        loop {
            let mut repeated = false;
            for level in (0..writable.levels.len()).rev() {
                let rows = gone.0.get(&level).map_or(&[][..], Vec::as_slice);
                let Kept {
                    keys: kept,
                    hidden: now_hidden,
                } = self.delete_level(target, level, rows).await?;
                hidden.insert(level, now_hidden);
                if let Some(known) = standing.get(&level) {
                    if *known != kept {
                        return Err(WriteError::Vetoed.into());
                    }
                    continue;
                }
                let removed = gone.remove_below(writable, level, &kept);
                standing.insert(level, kept);
                if removed.is_empty() {
                    continue;
                }
                if !may_keep {
                    return Err(WriteError::Vetoed.into());
                }
                for (level, keys) in &removed {
                    if let Some(known) = standing.get_mut(level) {
                        known.retain(|key| !keys.contains(key));
                    }
                }
                self.savepoint(ROLLBACK_TO_SAVEPOINT).await?;
                repeated = true;
                break;
            }
            if !repeated {
                for (level, keys) in &mut standing {
                    let hidden = hidden.remove(level).unwrap_or_default();
                    keys.retain(|key| !hidden.contains(key));
                }
                return Ok(standing);
            }
        }
    }

    /// Where rows may refer to rows of later levels: deletes the rows of all levels by one statement, at whose end PostgreSQL
    /// checks the references. Returns whether all rows were deleted.
    async fn delete_given(
        &mut self,
        target: &WriteTarget<'_>,
        gone: &StoredRows,
    ) -> Result<bool, Failure> {
        let Some(statement) = target.sql.delete_given.as_ref() else {
            return Ok(false);
        };
        if gone.is_empty() {
            return Ok(true);
        }
        let mut rows = Rows::of(target.writable);
        for (&level, stored) in &gone.0 {
            let mut keyed = key_rows(target.writable, level, stored);
            if let (Some(to), Some(from)) =
                (rows.levels.get_mut(level), keyed.levels.get_mut(level))
            {
                mem::swap(to, from);
            }
        }
        let found = self
            .run_statement(target, statement, Inputs::rows(&rows))
            .await?;
        let deleted: Option<i64> = match found.first() {
            Some(row) => row.try_get(0).map_err(SourceError::from)?,
            None => None,
        };
        let wanted = gone.0.values().map(Vec::len).sum();
        Ok(deleted.and_then(place) == Some(wanted))
    }

    /// Deletes `stored` rows of one level. Returns those that triggers have kept.
    ///
    /// # Errors
    /// That larder may not delete them, if a policy keeps some and there are no triggers.
    async fn delete_level(
        &mut self,
        target: &WriteTarget<'_>,
        level: usize,
        stored: &[StoredRow],
    ) -> Result<Kept, Failure> {
        let mut kept = Kept::default();
        let (Some(delete), Some(standing), Some(known)) = (
            target.sql.delete_rows.get(level),
            target.sql.standing_rows.get(level),
            target.writable.levels.get(level),
        ) else {
            return Ok(kept);
        };
        if stored.is_empty() {
            return Ok(kept);
        }
        let rows = key_rows(target.writable, level, stored);
        let inputs = Inputs::rows(&rows);
        let deleted = self.run_statement(target, delete, inputs).await?;
        let deleted: Option<i64> = match deleted.first() {
            Some(row) => row.try_get(0).map_err(SourceError::from)?,
            None => None,
        };
        if deleted.and_then(place) == Some(stored.len()) {
            return Ok(kept);
        }
        // A trigger, or the deletion of another row, may have deleted the others.
        let found = self.run_statement(target, standing, inputs).await?;
        for row in &found {
            let number: Option<i64> = row.try_get(0).map_err(SourceError::from)?;
            let standing = number
                .and_then(row_of_number)
                .and_then(|row| stored.get(row));
            let is_hidden: Option<bool> = match known.condition {
                Some(_) => row.try_get(1).map_err(SourceError::from)?,
                None => None,
            };
            if is_hidden == Some(true) {
                kept.hidden.extend(standing.map(|row| row.key.clone()));
            }
            kept.keys.extend(standing.map(|row| row.key.clone()));
        }
        if !target.writable.has_triggers && !kept.keys.is_empty() {
            return Err(WriteError::forbidden().into());
        }
        Ok(kept)
    }

    /// Updates the rows of one level that differ, with a statement for each set of columns.
    async fn update_level(
        &mut self,
        target: &WriteTarget<'_>,
        level: usize,
        changed: &[(usize, Vec<usize>)],
        inputs: Inputs<'_>,
    ) -> Result<(), Failure> {
        if self.was_violated && changed.len() > 1 {
            return self.update_row_by_row(target, level, changed, inputs).await;
        }
        let mut sets: Vec<(&[usize], Vec<usize>)> = Vec::new();
        let mut places: HashMap<&[usize], usize> = HashMap::new();
        for (row, columns) in changed {
            let place = *places.entry(columns).or_insert_with(|| {
                sets.push((columns, Vec::new()));
                sets.len() - 1
            });
            if let Some((_, rows)) = sets.get_mut(place) {
                rows.push(*row);
            }
        }
        for (columns, rows) in sets {
            self.update_rows(target, level, columns, &rows, inputs)
                .await?;
        }
        Ok(())
    }

    /// Sets `columns` of `rows` of the body.
    ///
    /// # Errors
    /// [`WriteError::Vetoed`] if a row has other values after that because a trigger has prevented its update; without
    /// triggers that the row was deleted together with another one, or that larder may not update it.
    pub(super) async fn update_rows(
        &mut self,
        target: &WriteTarget<'_>,
        level: usize,
        columns: &[usize],
        rows: &[usize],
        inputs: Inputs<'_>,
    ) -> Result<(), Failure> {
        let (writable, Some(body)) = (target.writable, inputs.rows) else {
            return Ok(());
        };
        let selected = select_rows(writable, body, level, rows);
        let statement = WriteSql::update_rows(target.resource, writable, level, columns);
        let updated = self
            .run_statement(target, &statement, Inputs::rows(&selected))
            .await?;
        let updated: Vec<i64> = match updated.first() {
            Some(row) => row.try_get(0).map_err(SourceError::from)?,
            None => Vec::new(),
        };
        if updated.len() == rows.len() {
            return Ok(());
        }
        let updated: HashSet<usize> = updated.into_iter().filter_map(row_of_number).collect();
        let rows = rows.iter().enumerate();
        let others = rows.filter(|(number, _)| !updated.contains(number));
        let others: HashSet<usize> = others.map(|(_, row)| *row).collect();
        // A trigger may have left out an update that would have changed nothing, after another has set the values.
        let differences = self.compare(target, inputs).await?;
        let changed = differences.changed.get(&level).into_iter().flatten();
        let is_same_column =
            |columns_now: &[usize]| columns_now.iter().any(|column| columns.contains(column));
        let mut changed = changed.filter(|(_, columns)| is_same_column(columns));
        let mut new = differences.new.get(&level).into_iter().flatten();
        let is_gone = new.any(|row| others.contains(row));
        let has_others = is_gone || changed.any(|(row, _)| others.contains(row));
        if !has_others {
            return Ok(());
        }
        Err(if writable.has_triggers {
            WriteError::Vetoed.into()
        } else if is_gone {
            WriteError::foreign_key_violation().into()
        } else {
            WriteError::forbidden().into()
        })
    }
}

/// Links the rows of a level to those above, and adds columns of the link to the `changed` ones of rows below new rows whose
/// keys a trigger has changed.
fn add_relinked(
    writable: &Writable,
    level: usize,
    rows: &mut Rows,
    changed: &mut [(usize, Vec<usize>)],
) {
    let before = rows.levels.get(level).cloned().unwrap_or_default();
    link_rows(writable, rows, level);
    let (Some(known), Some(now)) = (writable.levels.get(level), rows.levels.get(level)) else {
        return;
    };
    let links = known.link.iter().map(|(own, _)| *own);
    for own in links.filter(|own| !known.key.contains(own)) {
        let input = |rows: &'_ LevelRows, row: usize| rows.columns.get(own)?.get(row).cloned();
        for (row, columns) in changed.iter_mut() {
            if input(&before, *row) != input(now, *row) && !columns.contains(&own) {
                columns.push(own);
                columns.sort_unstable();
            }
        }
    }
}
