//! Which columns the rows of a body give. Inserts name only these, so PostgreSQL gives the others their present defaults,
//! and needs no privilege on them.
//!
//! A column without a default is null in rows that do not give it, so rows with and without it share an insert: a
//! second insert into a table makes the statement a tenth slower, since the keys of its rows come between those of the
//! first. That a column has no default is part of the definition, which the transaction has compared.

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
    /// Those of the rows with the numbers `rows` whose set is at the place `set`. `rows` are the rows that
    /// [`Level::given_columns`] has looked at.
    pub fn rows_of(&self, set: usize, rows: &[usize]) -> Vec<usize> {
        let rows = rows.iter().zip(&self.of_rows);
        let of_set = rows.filter(|(_, of)| **of == set);
        of_set.map(|(row, _)| *row).collect()
    }
}

impl Level {
    /// The columns that the rows with the numbers `selected` give, of the rows `rows` of this level: a column without a
    /// default counts as given by all of them if one gives it. The sets have an order that does not depend on that of the
    /// rows.
    pub fn given_columns(&self, rows: &LevelRows, selected: &[usize]) -> GivenColumns {
        let inserted = self.inserted_columns();
        let has = |column: usize, row: usize| {
            let input = rows.columns.get(column).and_then(|inputs| inputs.get(row));
            input.is_some_and(|input| *input != ColumnInput::Absent)
        };
        let columns = 0..self.columns.len();
        let filled = columns.map(|column| {
            self.is_null_by_default(column) && selected.iter().any(|&row| has(column, row))
        });
        let filled: Vec<bool> = filled.collect();
        let is_given = |column: usize, row: usize| filled[column] || has(column, row);
        // Rows with one number give the same of the columns so far.
        let mut numbers = vec![0_usize; selected.len()];
        for &column in &inserted {
            let mut rows = selected.iter().map(|&row| is_given(column, row));
            let first = rows.next();
            if rows.all(|given| Some(given) == first) {
                continue;
            }
            let mut known: HashMap<(usize, bool), usize> = HashMap::new();
            for (number, &row) in numbers.iter_mut().zip(selected) {
                let next = known.len();
                let key = (*number, is_given(column, row));
                *number = *known.entry(key).or_insert(next);
            }
        }
        let mut sets: Vec<Vec<usize>> = Vec::new();
        for (&number, &row) in numbers.iter().zip(selected) {
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

    /// Whether the column is null in a new row that has no value for it.
    fn is_null_by_default(&self, column: usize) -> bool {
        let is_linked = self.link.iter().any(|(own, _)| *own == column);
        !self.columns[column].has_default && !is_linked && !self.key.contains(&column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::body::testing;
    use crate::resource::value::ValueType;
    use crate::resource::writable::Rows;

    #[test]
    fn rows_are_sorted_by_the_columns_that_they_give() {
        let mut writable = testing::depts();
        for column in &mut writable.levels[0].columns {
            column.has_default = true;
        }
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
        let given = writable.levels[0].given_columns(&rows.levels[0], &[0, 1, 2, 3]);
        assert_eq!(given.sets, [vec![], vec![0, 1], vec![0, 2]]);
        assert_eq!(given.of_rows, [2, 1, 0, 2]);
        assert_eq!(given.rows_of(2, &[0, 1, 2, 3]), [0, 3]);
        let given = writable.levels[0].given_columns(&rows.levels[0], &[1, 3]);
        assert_eq!(given.sets, [[0, 1], [0, 2]]);
        assert_eq!(given.rows_of(1, &[1, 3]), [3]);
    }

    #[test]
    fn all_rows_give_a_column_without_a_default_that_one_gives() {
        let mut writable = testing::depts();
        let level = &mut writable.levels[1];
        level.columns.push(testing::column("a", ValueType::Integer));
        level.columns.push(testing::column("b", ValueType::Integer));
        let mut rows = Rows::of(&writable);
        for row in 0..3 {
            rows.levels[1].add(0, row);
        }
        // The key, which has a default, the link, and one of the three others.
        for column in [0, 1, 3] {
            rows.levels[1].columns[column][2] = ColumnInput::Null;
        }
        let given = writable.levels[1].given_columns(&rows.levels[1], &[0, 1, 2]);
        assert_eq!(given.sets, [vec![0, 1, 3], vec![3]]);
        assert_eq!(given.of_rows, [1, 1, 0]);
        // No selected row gives it.
        let given = writable.levels[1].given_columns(&rows.levels[1], &[0, 1]);
        assert_eq!(given.sets, [Vec::<usize>::new()]);
    }
}
