//! SQL text for keys: as parameters, as canonical text, and as the text that triggers log.

use crate::resource::calendar::MICROSECONDS_PER_DAY;
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
            let may_hold_comma = matches!(
                column.key_type,
                KeyType::Text | KeyType::Char | KeyType::Enum
            );
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
    let column = &columns[index];
    if columns.len() == 1 {
        return column.value_sql(&format!("({expression})"));
    }
    let part = format!("split_part({expression}, ',', {})", index + 1);
    column.value_sql(&format!("replace(replace({part}, '%2C', ','), '%25', '%')"))
}

impl KeyColumn {
    /// SQL for the value whose canonical text is `text`, an expression. Null if it is no label of the enum.
    pub(crate) fn value_sql(&self, text: &str) -> String {
        match self.key_type {
            KeyType::Bytea => format!("pg_catalog.decode({text}, 'hex')"),
            KeyType::Enum => format!(
                "(select l.v from {labels} as l(v) where pg_catalog.concat(l.v) = {text})",
                labels = self.labels_sql()
            ),
            _ => self.sql_type.value(text),
        }
    }

    /// The same where the value's place in the order counts: a text that is no label has none, so it is an error.
    pub(in crate::resource) fn place_sql(&self, text: &str) -> String {
        match self.key_type {
            KeyType::Enum => self.sql_type.value(text),
            _ => self.value_sql(text),
        }
    }

    /// SQL for parameter `number` of a statement as an array of values. The parameter is an array of integers for
    /// integers, and an array of canonical texts for all other types.
    pub(in crate::resource) fn parameter_sql(&self, number: usize) -> String {
        let own = self.sql_type.name();
        match self.key_type {
            KeyType::SmallInt | KeyType::Integer | KeyType::BigInt => format!("${number}::{own}[]"),
            KeyType::Bytea => format!(
                "array(select pg_catalog.decode(g.text, 'hex') \
                 from unnest(${number}::text[]) with ordinality as g(text, n) order by g.n)"
            ),
            KeyType::Enum => format!(
                "array(select l.v from unnest(${number}::text[]) with ordinality as g(text, n) \
                 left join {labels} as l(v) on pg_catalog.concat(l.v) = g.text order by g.n)",
                labels = self.labels_sql()
            ),
            _ => format!("${number}::text[]::{own}[]"),
        }
    }

    /// SQL for the labels of the enum as rows. A text that is no label is an error for a cast.
    fn labels_sql(&self) -> String {
        format!("unnest(pg_catalog.enum_range({}))", self.sql_type.null())
    }
}

impl KeyType {
    /// The type's name for casts in SQL text. It has no length, so that a cast never truncates. `None` for enums.
    pub(super) fn sql_type(self) -> Option<&'static str> {
        Some(match self {
            Self::SmallInt => "int2",
            Self::Integer => "int4",
            Self::BigInt => "int8",
            Self::Numeric { .. } => "numeric",
            Self::Text => "text",
            Self::Char => "bpchar",
            Self::Uuid => "uuid",
            Self::Date => "date",
            Self::Timestamp { .. } => "timestamp",
            Self::TimestampTz { .. } => "timestamptz",
            Self::Boolean => "bool",
            Self::Bytea => "bytea",
            Self::Inet => "inet",
            Self::Cidr => "cidr",
            Self::MacAddr => "macaddr",
            Self::Enum => return None,
        })
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
            Self::Bytea => Some(format!(
                "pg_catalog.octet_length({expression}) <= {}",
                KEY_BYTES_MAX / 2
            )),
            _ => None,
        }
    }

    /// SQL for the canonical text of `expression`. Of all session settings only the search path can change it.
    fn canonical_sql(self, expression: &str) -> String {
        match self {
            // The cast of an inet has the length of every prefix.
            Self::Date | Self::Inet => json_text_sql(expression),
            Self::Timestamp { .. } => in_utc_sql(expression),
            Self::TimestampTz { .. } => in_utc_sql(&format!(
                "pg_catalog.timezone('0'::pg_catalog.interval, {expression})"
            )),
            Self::Bytea => format!("pg_catalog.encode({expression}, 'hex')"),
            // The owner of an enum may have defined a cast.
            Self::Enum => format!(
                "case when {expression} is not null then pg_catalog.concat({expression}) end"
            ),
            _ => format!("{expression}::text"),
        }
    }

    /// SQL for the canonical text of `expression` in a trigger. `type_oid` is the column's type when the trigger was
    /// made.
    ///
    /// The type may change later, even to a user-defined type, and the trigger stays. So the SQL fails for no type. It
    /// calls no cast: the table's owner may have defined one, and triggers run with the rights of the role that
    /// installed them. It calls the type's output function, which only a superuser can define, where no setting
    /// changes its text. For other types it calls functions that take every type. If the type of such a column has changed,
    /// the result is null, which stands for every document. No setting of the session changes the
    /// text, not even the search path. The explicit collation compares bytes, whatever the column's collation is.
    fn logged_sql(self, expression: &str, type_oid: u32) -> String {
        let text = format!("pg_catalog.concat({expression}) collate pg_catalog.\"C\"");
        let by_type = match self {
            // The cast to text removes trailing blanks, too.
            Self::Char => return format!("pg_catalog.rtrim({text}, ' ')"),
            Self::Date | Self::Boolean => json_text_sql(expression),
            Self::Timestamp { .. } => in_utc_sql(expression),
            Self::TimestampTz { .. } => instant_sql(expression),
            Self::Bytea => sent_sql(expression),
            _ => return text,
        };
        format!(
            "case when pg_catalog.pg_typeof({expression})::pg_catalog.oid operator(pg_catalog.=) {type_oid} \
             then {by_type} end"
        )
    }
}

/// SQL for the JSON of `expression` as text, without quotes.
fn json_text_sql(expression: &str) -> String {
    format!("(pg_catalog.to_json({expression}) operator(pg_catalog.#>>) '{{}}')")
}

/// SQL for the text of the `timestamp` in `expression` as documents have it: with an offset, which stands before the era.
fn in_utc_sql(expression: &str) -> String {
    let text = json_text_sql(expression);
    format!(
        "pg_catalog.replace(pg_catalog.replace({text} operator(pg_catalog.||) '+00:00', \
         ' BC+00:00', '+00:00 BC'), 'infinity+00:00', 'infinity')"
    )
}

/// SQL for the hexadecimal digits of what PostgreSQL sends for `expression`. A record begins with the number of its
/// columns, and a column with its type and length, each of 4 bytes.
fn sent_sql(expression: &str) -> String {
    format!(
        "pg_catalog.substr(pg_catalog.encode(pg_catalog.record_send(row({expression})), 'hex'), 25)"
    )
}

/// SQL for the text of the `timestamptz` in `expression`, whatever the time zone of the session is. The conversion to UTC
/// takes no other type, so it can't be in a trigger. PostgreSQL sends the microseconds since 2000, and interval arithmetic is exact
/// for days and for the microseconds of a day.
fn instant_sql(expression: &str) -> String {
    let text = format!("pg_catalog.concat({expression})");
    let sent = sent_sql(expression);
    let microseconds =
        format!("('x' operator(pg_catalog.||) {sent})::pg_catalog.bit(64)::pg_catalog.int8");
    let in_utc = in_utc_sql(&format!(
        "(pg_catalog.make_timestamp(2000, 1, 1, 0, 0, 0) operator(pg_catalog.+) pg_catalog.make_interval(\
         days => ({microseconds} operator(pg_catalog./) {MICROSECONDS_PER_DAY})::pg_catalog.int4, \
         secs => ({microseconds} operator(pg_catalog.%) {MICROSECONDS_PER_DAY})::pg_catalog.float8 \
         operator(pg_catalog./) 1000000))"
    ));
    format!(
        "case when pg_catalog.strpos({text}, 'infinity') operator(pg_catalog.>) 0 then {text} else {in_utc} end"
    )
}
