//! SQL text for keys: as parameters, as canonical text, and as the text that triggers log.

use crate::resource::key::{KEY_BYTES_MAX, KeyColumn, KeyType};
use crate::resource::sql::identifier;

/// SQL for the canonical text of `columns` of the row called `alias`.
pub(in crate::resource) fn canonical_key_sql(columns: &[KeyColumn], alias: &str) -> String {
    joined_sql(columns, |column| {
        let name = format!("{alias}.{}", identifier(&column.name));
        column.key_type.canonical_sql(&name)
    })
}

/// The same, but null if a column is null or if its value can't stand in a path.
pub(in crate::resource) fn kept_key_sql(columns: &[KeyColumn], alias: &str) -> String {
    joined_sql(columns, |column| {
        let name = format!("{alias}.{}", identifier(&column.name));
        let text = column.key_type.canonical_sql(&name);
        match column.key_type.in_path_sql(&name) {
            Some(in_path) => format!("case when {in_path} then {text} end"),
            None => text,
        }
    })
}

/// As [`canonical_key_sql`], for a trigger that logs the rows called `alias`: see [`KeyType::logged_sql`].
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

/// SQL for part `index` of the canonical text `expression` of a key with `columns`, as a value of the part's type.
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
    /// The type's name for casts in SQL text. It has no length, so that a cast never truncates.
    pub(crate) fn sql_type(self) -> &'static str {
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

    /// SQL for parameter `number` of a statement as an array of this type. The parameter is an array of this type for
    /// integers, and an array of texts for all other types.
    pub(in crate::resource) fn parameter_sql(self, number: usize) -> String {
        let own = self.sql_type();
        match self {
            Self::SmallInt | Self::Integer | Self::BigInt => format!("${number}::{own}[]"),
            _ => format!("${number}::text[]::{own}[]"),
        }
    }

    /// A condition: the value `expression`, not null, can stand in a path. `None` if each value of the type can.
    pub(in crate::resource) fn in_path_sql(self, expression: &str) -> Option<String> {
        // A character has at most four bytes in UTF-8, and at least one as it is stored.
        let short = KEY_BYTES_MAX / 4;
        match self {
            Self::Text | Self::Char => Some(format!(
                "case when pg_catalog.octet_length({expression}::text) > {short} \
                 then pg_catalog.octet_length(pg_catalog.convert_to({expression}::text, 'UTF8')) else 0 end <= {KEY_BYTES_MAX}"
            )),
            Self::Numeric { .. } => Some(format!("{expression} <> 'NaN'")),
            _ => None,
        }
    }

    /// SQL for the canonical text of `expression`. Of all session settings only the search path can change it.
    fn canonical_sql(self, expression: &str) -> String {
        match self {
            Self::Date => {
                format!("(pg_catalog.to_json({expression}) operator(pg_catalog.#>>) '{{}}')")
            }
            _ => format!("{expression}::text"),
        }
    }

    /// SQL for the canonical text of `expression` in a trigger. `type_oid` is the column's type when the trigger was
    /// made.
    ///
    /// The type may change later, even to a user-defined type, and the trigger stays. So the SQL fails for no type. It
    /// calls no cast: the table's owner may have defined one, and triggers run with the rights of the role that
    /// installed them. It calls the type's output function, which only a superuser can define. For a date column whose
    /// type has changed the result is null, which stands for every document. No setting of the session changes the
    /// text, not even the search path. The explicit collation compares bytes, whatever the column's collation is.
    fn logged_sql(self, expression: &str, type_oid: u32) -> String {
        let text = format!("pg_catalog.concat({expression}) collate pg_catalog.\"C\"");
        match self {
            Self::Date => format!(
                "case when pg_catalog.pg_typeof({expression})::pg_catalog.oid operator(pg_catalog.=) {type_oid} \
                 then {} end",
                self.canonical_sql(expression)
            ),
            // The cast to text removes trailing blanks, too.
            Self::Char => format!("pg_catalog.rtrim({text}, ' ')"),
            _ => text,
        }
    }
}
