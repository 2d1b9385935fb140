//! Types in SQL text: how statements convert texts to values of a column's type, and compare values.

use std::borrow::Cow;
use std::sync::Arc;

use crate::resource::sql::{identifier, literal};

/// The type of a column, below all domains.
///
/// PostgreSQL needs no right on the schema of a type to read and write a column, but it does to find the type by its name.
/// So a type is only named if it is built in or in the schema of the column's table, which every statement needs anyway.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SqlType {
    /// The type's name for casts.
    Named(String),
    /// A type of another schema.
    OfColumn {
        /// The type's name, for comparisons.
        name: String,
        /// SQL for a row of the column's table without values. It is not null if a domain of the table may refuse null.
        row: Arc<str>,
        /// The column's name.
        column: String,
    },
}

impl SqlType {
    /// The name of the type, with which statements may not find it.
    pub(in crate::resource) fn name(&self) -> &str {
        match self {
            Self::Named(name) | Self::OfColumn { name, .. } => name,
        }
    }

    /// SQL for the value with the text `text`, an expression of type text that is in parentheses where it needs them.
    pub(crate) fn value(&self, text: &str) -> String {
        match self {
            Self::Named(name) => format!("{text}::{name}"),
            Self::OfColumn { row, column, .. } => format!(
                "(pg_catalog.json_populate_record({row}, pg_catalog.json_build_object({key}, {text}))).{column}",
                key = literal(column),
                column = identifier(column),
            ),
        }
    }

    /// SQL for null of this type.
    pub(in crate::resource) fn null(&self) -> String {
        match self {
            Self::Named(name) => format!("null::{name}"),
            // With a null of unknown type the result is of the type below the domain.
            Self::OfColumn { row, column, .. } => {
                format!("coalesce(({row}).{}, null)", identifier(column))
            }
        }
    }

    /// SQL for parameter `number`, which a statement compares with a column of this type.
    pub(crate) fn compared_parameter(&self, number: usize) -> String {
        match self {
            Self::Named(name) => format!("${number}::text::{name}"),
            Self::OfColumn { .. } => format!("${number}"),
        }
    }
}

/// How statements compare values of a type: as an index does that has its default btree operator class.
///
/// Operators of other schemas than pg_catalog are not in the search path. Without its schema, `=` may not be found, or may be that
/// of a type to which PostgreSQL casts: two values of `citext` would be compared as texts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Equality {
    /// The operator as SQL, with its schema unless it is pg_catalog.
    Operator(Cow<'static, str>),
    /// larder's role may not use the operator's schema. PostgreSQL compares records without a name, and without an index.
    Records,
}

impl Equality {
    /// That of types of pg_catalog, and of arrays, ranges and records of any types.
    pub const BUILT_IN: Self = Self::Operator(Cow::Borrowed("="));

    /// A condition: `left` equals `right`. Both are expressions that are in parentheses where they need them.
    pub(crate) fn sql(&self, left: &str, right: &str) -> String {
        match self {
            Self::Operator(operator) => format!("{left} {operator} {right}"),
            Self::Records => {
                format!("row({left})::record operator(pg_catalog.=) row({right})::record")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_have_their_schema_and_records_need_none() {
        let of_citext = Equality::Operator("operator(public.=)".into());
        let sql = [of_citext, Equality::BUILT_IN, Equality::Records].map(|by| by.sql("a", "b"));
        assert_eq!(
            sql,
            [
                "a operator(public.=) b",
                "a = b",
                "row(a)::record operator(pg_catalog.=) row(b)::record"
            ]
        );
    }

    #[test]
    fn a_type_of_another_schema_is_not_named() {
        let mood = SqlType::OfColumn {
            name: "types.mood".into(),
            row: "null::\"public\".\"t\"".into(),
            column: "it's".into(),
        };
        let texts = [mood.value("u.c0"), mood.null(), mood.compared_parameter(1)];
        assert_eq!(
            texts,
            [
                "(pg_catalog.json_populate_record(null::\"public\".\"t\", \
                 pg_catalog.json_build_object('it''s', u.c0))).\"it's\"",
                "coalesce((null::\"public\".\"t\").\"it's\", null)",
                "$1"
            ]
        );
    }
}
