//! Conditions on rows (`where`): rows for which they are not true do not exist for larder.

use std::borrow::Cow;
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

    /// The columns that it reads, with repetitions.
    pub(crate) fn columns(&self) -> Vec<Cow<'_, str>> {
        let of_row = self.0.split(CONDITIONAL_ROW).skip(1);
        of_row
            .filter_map(|text| name(text.strip_prefix('.')?))
            .collect()
    }
}

/// The name that `text` begins with, as PostgreSQL writes it.
fn name(text: &str) -> Option<Cow<'_, str>> {
    let Some(quoted) = text.strip_prefix('"') else {
        let is_of_name = |c: char| c == '_' || c == '$' || c.is_alphanumeric();
        let end = text.find(|c| !is_of_name(c)).unwrap_or(text.len());
        return text
            .get(..end)
            .map(Cow::from)
            .filter(|name| !name.is_empty());
    };
    let mut name = String::new();
    let mut parts = quoted.split('"');
    name.push_str(parts.next()?);
    // An empty part is a quote that is doubled.
    while parts.next()?.is_empty() {
        let Some(more) = parts.next() else { break };
        name.push('"');
        name.push_str(more);
    }
    Some(name.into())
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

    #[test]
    fn the_columns_of_a_condition_are_read_from_its_text() {
        let text = "((ROW.a > 1) AND (ROW.\"b \"\"c\"\"\" IS NULL) AND ((ROW.pair).x = 'ROW'::text) OR ROW.\"\"\"\")";
        let condition = Condition::new(text.replace("ROW", CONDITIONAL_ROW));
        assert_eq!(condition.columns(), ["a", "b \"c\"", "pair", "\""]);
    }
}
