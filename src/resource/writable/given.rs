//! Which columns the rows of a body give. Inserts name only these, so PostgreSQL gives the others their present defaults,
//! and needs no privilege on them.

use std::collections::HashMap;

use crate::resource::writable::{ColumnInput, Level, LevelRows};

/// The columns that rows of a level give.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenColumns {
    /// The sets of columns, as places in [`Level::columns`], each in the order of these.
    pub sets: Vec<Vec<usize>>,
    /// For each row the place of its set in `sets`.
    pub of_rows: Vec<usize>,
}

impl GivenColumns {
    /// The rows of the set at the place `set`, of the rows with the numbers `rows`.
    pub fn rows_of(&self, set: usize, rows: &[usize]) -> Vec<usize> {
        let is_in_set = |row: &&usize| self.of_rows.get(**row) == Some(&set);
        rows.iter().filter(is_in_set).copied().collect()
    }
}

impl Level {
    /// The columns that `rows` of this level give. The sets have an order that does not depend on that of the rows.
    pub fn given_columns(&self, rows: &LevelRows) -> GivenColumns {
        let inserted = self.inserted_columns();
        let is_given = |column: usize, row: usize| {
            let input = rows.columns.get(column).and_then(|inputs| inputs.get(row));
            input.is_some_and(|input| *input != ColumnInput::Absent)
        };
        // Rows with one number give the same of the columns so far.
        let mut numbers = vec![0_usize; rows.count()];
        for &column in &inserted {
            let mut rows = 0..numbers.len();
            if rows.all(|row| is_given(column, row) == is_given(column, 0)) {
                continue;
            }
            let mut known: HashMap<(usize, bool), usize> = HashMap::new();
            for (row, number) in numbers.iter_mut().enumerate() {
                let next = known.len();
                let key = (*number, is_given(column, row));
                *number = *known.entry(key).or_insert(next);
            }
        }
        let mut sets: Vec<Vec<usize>> = Vec::new();
        for (row, &number) in numbers.iter().enumerate() {
            // Numbers are given in the order of the rows.
            if number == sets.len() {
                let given = inserted.iter().filter(|&&column| is_given(column, row));
                sets.push(given.copied().collect());
            }
        }
        let mut sorted = sets.clone();
        sorted.sort_unstable();
        let places = sets.iter().map(|set| sorted.binary_search(set));
        let places: Vec<usize> = places.map(Result::unwrap_or_default).collect();
        GivenColumns {
            of_rows: numbers.into_iter().map(|number| places[number]).collect(),
            sets: sorted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::body::testing;
    use crate::resource::writable::Rows;

    #[test]
    fn rows_are_sorted_by_the_columns_that_they_give() {
        let writable = testing::depts();
        let mut rows = Rows::of(&writable);
        let root = &mut rows.levels[0];
        for (number, given) in [&[0, 2][..], &[0, 1], &[], &[0, 2]].into_iter().enumerate() {
            let row = root.add(number as u32, 0);
            for &column in given {
                root.columns[column][row] = ColumnInput::Null;
            }
            // A generated column is never inserted.
            root.columns[3][row] = ColumnInput::Null;
        }
        let given = writable.levels[0].given_columns(&rows.levels[0]);
        assert_eq!(given.sets, [vec![], vec![0, 1], vec![0, 2]]);
        assert_eq!(given.of_rows, [2, 1, 0, 2]);
        assert_eq!(given.rows_of(2, &[1, 2, 3]), [3]);
    }
}
