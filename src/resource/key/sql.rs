//! Keys in SQL text: as parameters, as canonical text, and as what triggers log.

use crate::resource::key::{KeyColumn, KeyType};
use crate::resource::sql::identifier;

/// SQL for the canonical text of `columns` of the row called `alias`.
pub(in crate::resource) fn canonical_key_sql(columns: &[KeyColumn], alias: &str) -> String {
    joined_sql(columns, |column| {
        let name = format!("{alias}.{}", identifier(&column.name));
        column.key_type.canonical_sql(&name)
    })
}

/// The same of `alias`, rows of a trigger's table, as a trigger logs it.
pub(in crate::resource) fn logged_key_sql(columns: &[KeyColumn], alias: &str) -> String {
    joined_sql(columns, |column| {
        let name = format!("{alias}.{}", identifier(&column.name));
        column.key_type.logged_sql(&name, column.type_oid)
    })
}

fn joined_sql(columns: &[KeyColumn], part: impl Fn(&KeyColumn) -> String) -> String {
    let parts: Vec<String> = columns
        .iter()
        .map(|column| {
            let text = part(column);
            let may_hold_comma = matches!(column.key_type, KeyType::Text | KeyType::Char);
            if columns.len() > 1 && may_hold_comma {
                format!("pg_catalog.replace(pg_catalog.replace({text}, '%', '%25'), ',', '%2C')")
            } else {
                text
            }
        })
        .collect();
    parts.join(" operator(pg_catalog.||) ',' operator(pg_catalog.||) ")
}

/// SQL for part `index` of the canonical text `expression` of `columns`, as a value of its type.
pub(in crate::resource) fn key_part_sql(
    columns: &[KeyColumn],
    index: usize,
    expression: &str,
) -> String {
    let cast = columns[index].key_type.sql_type();
    if columns.len() == 1 {
        return format!("({expression})::{cast}");
    }
    let part = format!("split_part({expression}, ',', {})", index + 1);
    format!("replace(replace({part}, '%2C', ','), '%25', '%')::{cast}")
}

impl KeyType {
    /// The type's name for casts in SQL text; without a length, so that a cast never cuts.
    pub(in crate::resource) fn sql_type(self) -> &'static str {
        match self {
            Self::SmallInt => "int2",
            Self::Integer => "int4",
            Self::BigInt => "int8",
            Self::Numeric { .. } => "numeric",
            Self::Text => "text",
            Self::Char => "bpchar",
            Self::Uuid => "uuid",
            Self::Date => "date",
        }
    }

    /// SQL for parameter `number` of a statement as an array of this type: integers come as they are, of their own
    /// width, everything else as text.
    pub(in crate::resource) fn parameter_sql(self, number: usize) -> String {
        let own = self.sql_type();
        match self {
            Self::SmallInt | Self::Integer | Self::BigInt => format!("${number}::{own}[]"),
            _ => format!("${number}::text[]::{own}[]"),
        }
    }

    /// SQL for the canonical text of `expression`, the same under every session setting but the search path.
    fn canonical_sql(self, expression: &str) -> String {
        match self {
            Self::Date => {
                format!("(pg_catalog.to_json({expression}) operator(pg_catalog.#>>) '{{}}')")
            }
            _ => format!("{expression}::text"),
        }
    }

    /// The same for a trigger that was made before the column's type changed, perhaps to one that somebody made. It
    /// fails for no type, and calls no cast: the table's owner may have defined that, and triggers run with the rights
    /// of whoever installed them. Output functions are superusers' work. Null stands for every document. No setting
    /// of the session changes the text, the search path neither. With a collation of its own it compares byte by byte
    /// and may stand beside any other, whatever the column's is by now.
    fn logged_sql(self, expression: &str, type_oid: u32) -> String {
        let text = format!("pg_catalog.concat({expression}) collate pg_catalog.\"C\"");
        match self {
            Self::Date => format!(
                "case when pg_catalog.pg_typeof({expression})::pg_catalog.oid operator(pg_catalog.=) {type_oid} \
                 then {} end",
                self.canonical_sql(expression)
            ),
            // As the cast to text does it.
            Self::Char => format!("pg_catalog.rtrim({text}, ' ')"),
            _ => text,
        }
    }
}
