//! Inserts and updates rows.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::checks::differential_writes::oracle::plan::{Plan, PlannedRow};
use crate::checks::differential_writes::oracle::{Oracle, Stop, statements, values_of};
use crate::checks::differential_writes::schema::{Column, Filling, Role, RowValues, Uniqueness};
use crate::checks::differential_writes::state::{State, is_same, is_same_key, key_of, value_of};

/// An update of one row: its number in the level, and its changed columns.
type RowUpdate<'s> = (usize, Vec<(&'s Column, Value)>);

impl Oracle<'_> {
    /// Inserts the rows of a new document. Returns its key.
    pub(super) async fn insert_plan(&mut self, mut plan: Plan) -> Result<Vec<Value>, Stop> {
        for number in 0..self.schema.levels.len() {
            self.insert_level(&mut plan, number).await?;
        }
        let root = plan.levels[0].first().and_then(|root| root.key.clone());
        root.ok_or(Stop::Refused(409))
    }

    /// Makes the rows `stored` of a document those of `plan`.
    pub(super) async fn replace(&mut self, mut plan: Plan, stored: State) -> Result<u16, Stop> {
        let schema = self.schema;
        plan.match_stored(schema, &stored);
        plan.clear_left_out(schema);
        let [first, last] = plan.removed(schema, &stored);
        self.delete_rows(&stored, &first).await?;
        for number in 0..schema.levels.len() {
            self.update_level(&plan, &stored, number).await?;
            self.insert_level(&mut plan, number).await?;
        }
        self.delete_rows(&stored, &last).await?;
        if self.has_lost_below(&stored, &first, &last).await? {
            // Only another order of deletions could keep what lies below a kept row.
            return Err(Stop::Refused(409));
        }
        Ok(200)
    }

    /// Inserts the new rows of a level: one statement for each set of given columns, of which all rows give those without a
    /// default that one gives. They get the keys that are stored, which triggers may have changed.
    async fn insert_level(&mut self, plan: &mut Plan, number: usize) -> Result<(), Stop> {
        let level = &self.schema.levels[number];
        let mut sets: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
        let is_new = |planned: &&PlannedRow| planned.stored.is_none();
        let is_null_by_default =
            |column: &Column| column.default == Filling::Nothing && column.role == Role::Shown;
        for (row, planned) in plan.levels[number].iter().enumerate() {
            if !is_new(&planned) {
                continue;
            }
            let shown = level.shown().enumerate();
            let given = shown.filter(|(_, column)| {
                let mut rows = plan.levels[number].iter().filter(is_new);
                planned.values.contains_key(&column.name)
                    || is_null_by_default(column)
                        && rows.any(|other| other.values.contains_key(&column.name))
            });
            // The columns of links come after those that a document shows.
            let links = (0..level.links().count()).map(|at| level.shown().count() + at);
            let given = given.map(|(at, _)| at).chain(links).collect();
            sets.entry(given).or_default().push(row);
        }
        for new in sets.into_values() {
            let rows = new.iter().map(|&row| {
                let link = plan.link(self.schema, number, row).unwrap_or_default();
                (link, &plan.levels[number][row].values)
            });
            let rows: Vec<(Vec<Value>, &RowValues)> = rows.collect();
            let sql = statements::insert_sql(self.schema, number, &rows);
            let keys = values_of(&self.statement(&sql).await?)?;
            if keys.len() != new.len() {
                // A trigger has left rows out.
                return Err(Stop::Refused(409));
            }
            for (row, key) in new.into_iter().zip(keys) {
                plan.levels[number][row].key = Some(key);
            }
        }
        Ok(())
    }

    /// Updates the kept rows of a level that change: one statement for each set of changed columns.
    async fn update_level(
        &mut self,
        plan: &Plan,
        stored: &State,
        number: usize,
    ) -> Result<(), Stop> {
        let rows = 0..plan.levels[number].len();
        let updates = rows.map(|row| (row, plan.changes(self.schema, stored, number, row)));
        let updates: Vec<RowUpdate<'_>> =
            updates.filter(|(_, changes)| !changes.is_empty()).collect();
        let is_unique = |(column, _): &(&Column, Value)| column.unique != Uniqueness::None;
        let changes_unique = |(_, changes): &&RowUpdate<'_>| changes.iter().any(is_unique);
        if self.choice.updates_single_rows && updates.iter().filter(changes_unique).count() > 1 {
            return self.update_single_rows(plan, number, updates).await;
        }
        let mut groups: Vec<Vec<RowUpdate<'_>>> = Vec::new();
        for update in &updates {
            let names = column_names(update);
            match groups
                .iter_mut()
                .find(|group| column_names(&group[0]) == names)
            {
                Some(group) => group.push(update.clone()),
                None => groups.push(vec![update.clone()]),
            }
        }
        if self.choice.has_reversed_updates {
            groups.reverse();
        }
        self.plain("savepoint updates").await?;
        for group in groups {
            match self.update_group(plan, number, &group).await {
                Ok(()) => {}
                Err(stop) if stop.is_conflict() && updates.len() > 1 => {
                    self.plain("rollback to savepoint updates").await?;
                    return self.update_single_rows(plan, number, updates).await;
                }
                Err(stop) => return Err(stop),
            }
        }
        Ok(())
    }

    /// Updates rows one by one, in an order that frees each unique value before another row takes it.
    async fn update_single_rows(
        &mut self,
        plan: &Plan,
        number: usize,
        mut updates: Vec<RowUpdate<'_>>,
    ) -> Result<(), Stop> {
        while !updates.is_empty() {
            let before = updates.len();
            let mut conflict = None;
            let mut waiting = Vec::new();
            for update in updates {
                self.plain("savepoint single").await?;
                match self
                    .update_group(plan, number, std::slice::from_ref(&update))
                    .await
                {
                    Ok(()) => {}
                    Err(stop) if stop.is_conflict() => {
                        self.plain("rollback to savepoint single").await?;
                        conflict = Some(stop);
                        waiting.push(update);
                    }
                    Err(stop) => return Err(stop),
                }
            }
            updates = waiting;
            if updates.len() == before {
                return Err(conflict.unwrap_or(Stop::Refused(409)));
            }
        }
        Ok(())
    }

    /// Updates rows that have the same changed columns.
    async fn update_group(
        &mut self,
        plan: &Plan,
        number: usize,
        group: &[RowUpdate<'_>],
    ) -> Result<(), Stop> {
        let Some((_, changes)) = group.first() else {
            return Ok(());
        };
        let columns: Vec<&Column> = changes.iter().map(|(column, _)| *column).collect();
        let rows = group.iter().map(|(row, changes)| {
            let key = plan.levels[number][*row].key.clone().unwrap_or_default();
            let values = changes.iter().map(|(_, value)| value.clone());
            (key, values.collect())
        });
        let rows: Vec<(Vec<Value>, Vec<Value>)> = rows.collect();
        let sql = statements::update_sql(self.schema, number, &columns, &rows);
        let updated = values_of(&self.statement(&sql).await?)?.len();
        if updated == rows.len() || self.has_values(number, &columns, &rows).await? {
            return Ok(());
        }
        Err(Stop::Refused(409))
    }

    /// Whether all rows have these values, as after an update that `suppress_redundant_updates_trigger` left alone.
    async fn has_values(
        &mut self,
        number: usize,
        columns: &[&Column],
        rows: &[(Vec<Value>, Vec<Value>)],
    ) -> Result<bool, Stop> {
        let state = State::read(self.connection, self.schema).await?;
        let level = &self.schema.levels[number];
        Ok(rows.iter().all(|(key, values)| {
            let mut stored = state.levels[number].iter();
            let stored = stored.find(|row| is_same_key(&key_of(level, row), key));
            let mut pairs = columns.iter().zip(values);
            stored.is_some_and(|row| {
                pairs.all(|(column, value)| is_same(value, &value_of(row, &column.name)))
            })
        }))
    }
}

fn column_names<'s>((_, changes): &RowUpdate<'s>) -> Vec<&'s str> {
    changes.iter().map(|(column, _)| &*column.name).collect()
}
