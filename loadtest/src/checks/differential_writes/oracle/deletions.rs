//! Deletes rows, children before parents, and spares what lies below a row that a trigger keeps.

use serde_json::Value;

use crate::checks::differential_writes::oracle::{Oracle, Stop, statements};
use crate::checks::differential_writes::schema::Schema;
use crate::checks::differential_writes::state::{State, is_below, is_same_key, key_of};

impl Oracle<'_> {
    /// Deletes the rows `removed` of each level of `stored`.
    ///
    /// If a trigger keeps some of them, the deletions are undone and repeated without what lies below these, at most once
    /// for each level.
    pub(super) async fn delete_rows(
        &mut self,
        stored: &State,
        removed: &[Vec<usize>],
    ) -> Result<(), Stop> {
        if removed.iter().all(Vec::is_empty) {
            return Ok(());
        }
        let schema = self.schema;
        let mut removed = removed.to_vec();
        let mut expected = None;
        for _ in 0..=schema.levels.len() {
            self.plain("savepoint deletions").await?;
            for number in (0..schema.levels.len()).rev() {
                let level = &schema.levels[number];
                let rows = removed[number].iter();
                let keys = rows.map(|&at| key_of(level, &stored.levels[number][at]));
                let keys: Vec<Vec<Value>> = keys.collect();
                if !keys.is_empty() {
                    self.statement(&statements::delete_sql(schema, number, &keys))
                        .await?;
                }
            }
            let standing = self.standing(stored, &removed).await?;
            let has_kept = !standing.iter().all(Vec::is_empty);
            if !has_kept || Some(&standing) == expected.as_ref() {
                self.has_kept |= has_kept;
                return Ok(());
            }
            self.plain("rollback to savepoint deletions").await?;
            spare_below(schema, stored, &standing, &mut removed);
            let still = |(number, rows): (usize, Vec<usize>)| -> Vec<usize> {
                let rows = rows.into_iter();
                rows.filter(|at| removed[number].contains(at)).collect()
            };
            expected = Some(standing.into_iter().enumerate().map(still).collect());
        }
        Err(Stop::Refused(409))
    }

    /// Whether a trigger has kept a row of `last` although a row below it, of `first`, was deleted before.
    pub(super) async fn has_lost_below(
        &mut self,
        stored: &State,
        first: &[Vec<usize>],
        last: &[Vec<usize>],
    ) -> Result<bool, Stop> {
        let standing = self.standing(stored, last).await?;
        let schema = self.schema;
        Ok(standing.iter().enumerate().any(|(number, rows)| {
            let has_below = |&at: &usize| {
                let above = &stored.levels[number][at];
                schema.below(number).any(|child| {
                    let mut below = first[child].iter();
                    below.any(|&below| {
                        let (upper, level) = (&schema.levels[number], &schema.levels[child]);
                        is_below(upper, above, level, &stored.levels[child][below])
                    })
                })
            };
            rows.iter().any(has_below)
        }))
    }

    /// Those of the removed rows that are still there.
    async fn standing(
        &mut self,
        stored: &State,
        removed: &[Vec<usize>],
    ) -> Result<Vec<Vec<usize>>, Stop> {
        let state = State::read(self.connection, self.schema).await?;
        let numbered = removed.iter().enumerate();
        let standing = numbered.map(|(number, rows)| {
            let level = &self.schema.levels[number];
            let is_standing = |at: &usize| {
                let key = key_of(level, &stored.levels[number][*at]);
                let mut rows = state.levels[number].iter();
                rows.any(|row| is_same_key(&key_of(level, row), &key))
            };
            rows.iter().copied().filter(is_standing).collect()
        });
        Ok(standing.collect())
    }
}

/// Takes what lies below the rows `standing` out of `removed`.
fn spare_below(
    schema: &Schema,
    stored: &State,
    standing: &[Vec<usize>],
    removed: &mut [Vec<usize>],
) {
    let mut spared = standing.to_vec();
    for (number, level) in schema.levels.iter().enumerate() {
        let Some(parent) = level.parent else {
            continue;
        };
        let above = &schema.levels[parent];
        let is_spared = |at: &usize| {
            let row = &stored.levels[number][*at];
            let mut uppers = spared[parent].iter();
            uppers.any(|&upper| is_below(above, &stored.levels[parent][upper], level, row))
        };
        let below: Vec<usize> = removed[number].iter().copied().filter(is_spared).collect();
        removed[number].retain(|at| !below.contains(at));
        spared[number].extend(below);
    }
}
