//! Updates rows that take each other's unique values: one by one, each after the row that has its value.

use std::collections::VecDeque;

use crate::source::writes::error::{Failure, WriteError};
use crate::source::writes::inputs::{Inputs, select_rows};
use crate::source::writes::transaction::{
    RELEASE_SAVEPOINT, ROLLBACK_TO_SAVEPOINT, SAVEPOINT, Transaction, WriteTarget,
};

/// A row of the body, and the columns in which it differs from the stored row.
pub(super) type ChangedRow = (usize, Vec<usize>);

impl Transaction<'_> {
    /// Updates rows one by one, in an order in which none takes a unique value that another one still has.
    ///
    /// # Errors
    /// [`WriteError::Cycle`] if there is no such order.
    pub(super) async fn update_row_by_row(
        &mut self,
        target: &WriteTarget<'_>,
        level: usize,
        changed: &[ChangedRow],
        inputs: Inputs<'_>,
    ) -> Result<(), Failure> {
        let holders = self.holders(target, level, changed, inputs).await?;
        let mut open = after_holders(changed, &holders);
        self.savepoint(SAVEPOINT).await?;
        while !open.is_empty() {
            let mut refused = None;
            let mut waiting = Vec::new();
            for &change in &open {
                let (row, columns) = change;
                match self
                    .update_rows(target, level, columns, &[*row], inputs)
                    .await
                {
                    Ok(()) => {
                        self.savepoint(RELEASE_SAVEPOINT).await?;
                        self.savepoint(SAVEPOINT).await?;
                    }
                    Err(failure) if failure.error.is_unique_violation() => {
                        self.savepoint(ROLLBACK_TO_SAVEPOINT).await?;
                        waiting.push(change);
                        refused = Some(failure);
                    }
                    Err(failure) => return Err(failure),
                }
            }
            if let Some(failure) = refused.filter(|_| waiting.len() == open.len()) {
                return Err(match failure.error {
                    WriteError::Refused {
                        code, violation, ..
                    } if waiting.len() > 1 => WriteError::Cycle {
                        code,
                        constraint: violation.constraint,
                    }
                    .into(),
                    error => error.into(),
                });
            }
            // Where the holders are not known, a chain of values that ends at the other end of the list takes two passes
            // instead of one for each row.
            waiting.reverse();
            open = waiting;
        }
        self.savepoint(RELEASE_SAVEPOINT).await?;
        Ok(())
    }

    /// Pairs of places in `changed`: a row that takes a unique value, and the row that has it.
    async fn holders(
        &mut self,
        target: &WriteTarget<'_>,
        level: usize,
        changed: &[ChangedRow],
        inputs: Inputs<'_>,
    ) -> Result<Vec<(usize, usize)>, Failure> {
        let (Some(Some(statement)), Some(body)) = (target.sql.holders.get(level), inputs.rows)
        else {
            return Ok(Vec::new());
        };
        let rows: Vec<usize> = changed.iter().map(|(row, _)| *row).collect();
        let selected = select_rows(target.writable, body, level, &rows);
        let inputs = Inputs::rows(&selected);
        let found = self.find_numbers(target, statement, inputs).await?;
        let place = |number: usize| number.saturating_sub(1);
        let pairs = found.iter();
        let pairs = pairs.map(|[_, taker, holder]| (place(*taker), place(*holder)));
        Ok(pairs.collect())
    }
}

/// The rows of `changed`, each after the rows that hold its values; `holders` are pairs of places of takers and holders.
/// Rows in and behind cycles come last. This is Kahn's algorithm (A. B. Kahn, "Topological sorting of large networks",
/// 1962).
fn after_holders<'c>(changed: &'c [ChangedRow], holders: &[(usize, usize)]) -> Vec<&'c ChangedRow> {
    let mut held = vec![0_usize; changed.len()];
    let mut takers = vec![Vec::new(); changed.len()];
    for &(taker, holder) in holders {
        if let (Some(count), Some(takers)) = (held.get_mut(taker), takers.get_mut(holder)) {
            *count += 1;
            takers.push(taker);
        }
    }
    let mut free: VecDeque<usize> = (0..changed.len())
        .filter(|place| held.get(*place) == Some(&0))
        .collect();
    let mut order = Vec::with_capacity(changed.len());
    while let Some(place) = free.pop_front() {
        order.extend(changed.get(place));
        for &taker in takers.get(place).into_iter().flatten() {
            if let Some(count) = held.get_mut(taker) {
                *count -= 1;
                if *count == 0 {
                    free.push_back(taker);
                }
            }
        }
    }
    let in_cycles = changed.iter().zip(&held).filter(|(_, held)| **held > 0);
    order.extend(in_cycles.map(|(change, _)| change));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_follow_those_that_hold_their_values() {
        let changed: Vec<ChangedRow> = (0..6).map(|row| (row, Vec::new())).collect();
        // 4 takes the values of 3 and 1; 2 and 5 exchange theirs.
        let holders = [(0, 4), (4, 3), (4, 1), (2, 5), (5, 2)];
        let order = after_holders(&changed, &holders);
        let order: Vec<usize> = order.iter().map(|(row, _)| *row).collect();
        assert_eq!(order, [1, 3, 4, 0, 2, 5]);
    }
}
