//! Conditions on rows (`where`): rows for which they are not true do not exist for larder.

use std::fmt;

/// The name of the row in a [`Condition`]. The text that a user has written never contains it.
pub const CONDITIONAL_ROW: &str = "larder_conditional_row";

/// A condition on the rows of a table, as it is written in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WrittenCondition {
    /// The table's name as it is written.
    pub table: String,
    /// The condition.
    pub text: String,
}

/// A condition on the rows of a table, which PostgreSQL has accepted and written in its own form. The row alone decides
/// it.
///
/// Names of columns are qualified with the row's name. A column that is dropped later is an error then, and not a column
/// of another table of the statement.
#[derive(Clone, PartialEq, Eq)]
pub struct Condition(String);

/// A condition that PostgreSQL has accepted, and what it says about the rows for which it is true.
#[derive(Clone, Debug)]
pub struct AcceptedCondition {
    /// The condition.
    pub condition: Condition,
    /// The columns of partial unique indexes that contain all these rows.
    pub unique_columns: Vec<Vec<String>>,
}

impl Condition {
    /// The condition that PostgreSQL has written for the row [`CONDITIONAL_ROW`].
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// SQL for the condition on the row called `alias`, in parentheses.
    pub fn sql(&self, alias: &str) -> String {
        format!("({})", self.0.replace(CONDITIONAL_ROW, alias))
    }
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A condition to append, ` and …`: the row called `alias` exists for larder. Empty without a condition.
pub(crate) fn and_sql(condition: Option<&Condition>, alias: &str) -> String {
    condition.map_or_else(String::new, |condition| {
        format!(" and {}", condition.sql(alias))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_column_gets_the_name_of_the_row() {
        let text = format!("{CONDITIONAL_ROW}.a = {CONDITIONAL_ROW}.\"b c\"");
        let condition = Condition::new(text);
        assert_eq!(condition.sql("t1"), "(t1.a = t1.\"b c\")");
        assert_eq!(and_sql(Some(&condition), "r"), " and (r.a = r.\"b c\")");
        assert_eq!(and_sql(None, "r"), "");
    }
}
