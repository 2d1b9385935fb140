//! Keys: the types of columns that can identify a document, and the canonical text of each key.
//!
//! A key is kept as its *canonical text*, the text that larder's triggers write: PostgreSQL's own output for the
//! value, parts of a composite key joined by `,` with `%` and `,` inside a part written `%25` and `%2C`. `042`, `+42`
//! and `42` are one key, as are an upper-case and a lower-case uuid. Where PostgreSQL's output depends on settings, the
//! text is the one of documents (`timestamp` and `timestamptz` in UTC) or hexadecimal digits (`bytea`). Two values of a type have the
//! same canonical text if and only if PostgreSQL calls them equal.
//!
//! ```
//! use larder::resource::key::{KeyColumn, KeyShape, KeyType, key_parts};
//! use larder::resource::sql_type::SqlType;
//!
//! let column = |name: &str, key_type, type_text: &str, type_oid| KeyColumn {
//!     name: name.into(),
//!     key_type,
//!     sql_type: SqlType::Named(type_text.into()),
//!     type_text: type_text.into(),
//!     type_oid,
//!     collation: 0,
//! };
//! let item = column("item", KeyType::BigInt, "bigint", 20);
//! let columns = vec![item, column("side", KeyType::Text, "text", 25)];
//! let shape = KeyShape { columns, fields: Vec::new() };
//! // /parts/+07,N%2CO
//! let canonical = shape.canonical("+07,N%2CO")?;
//! assert_eq!(canonical, "7,N%2CO");
//! assert_eq!(key_parts(&canonical, 2), ["7", "N,O"]);
//! assert_eq!(shape.json(&canonical), r#"[7,"N,O"]"#);
//! assert!(shape.canonical("seven,NO").is_err());
//! # Ok::<(), larder::resource::key::KeyError>(())
//! ```

mod address;
pub(in crate::resource) mod spelling;
pub(in crate::resource) mod sql;

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::resource::catalogue::Column;
use crate::resource::sql_type::SqlType;
use crate::resource::value::ValueType;

/// The most bytes of a part of a key, as UTF-8: in paths after percent-decoding, in bodies and in lists. An entry of a btree index has at most 2,704 bytes
/// (PostgreSQL manual, "B-Tree Implementation": a third of a page), so longer keys exist only if they can be
/// compressed.
pub const KEY_BYTES_MAX: usize = 4096;

/// The types that a column of a key can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyType {
    /// `smallint`
    SmallInt,
    /// `integer`
    Integer,
    /// `bigint`
    BigInt,
    /// `numeric(digits, 0)`
    Numeric {
        /// The precision.
        digits: u16,
    },
    /// `text`, `varchar`
    Text,
    /// `char(n)`: trailing blanks don't count
    Char,
    /// `uuid`
    Uuid,
    /// `date`
    Date,
    /// `timestamp`, read as UTC
    Timestamp {
        /// The digits after the second.
        precision: u8,
    },
    /// `timestamptz`
    TimestampTz {
        /// The digits after the second.
        precision: u8,
    },
    /// `boolean`
    Boolean,
    /// `bytea`
    Bytea,
    /// `inet`
    Inet,
    /// `cidr`
    Cidr,
    /// `macaddr`
    MacAddr,
    /// An enum. Its labels may change while larder runs, so every text may be one.
    Enum,
}

/// The type of a column as a part of a key.
///
/// # Errors
/// If the column can't be a part of a key, the end of a sentence about it.
pub(crate) fn key_type(column: &Column) -> Result<KeyType, String> {
    if column.is_virtual {
        return Err("is a virtual generated column, whose value triggers do not see".into());
    }
    owner_type(column)
}

/// The type of a column whose values are those of a claim: as that of a part of a key. Triggers need not see its value.
///
/// # Errors
/// As [`key_type`].
pub(super) fn owner_type(column: &Column) -> Result<KeyType, String> {
    if !column.deterministic {
        return Err("has a nondeterministic collation, which calls different texts equal".into());
    }
    plain_key_type(column).ok_or_else(|| unsupported(column))
}

/// The same whatever collation the column has, and whether triggers see its value.
pub(super) fn plain_key_type(column: &Column) -> Option<KeyType> {
    let modifier = column.type_modifier - 4;
    // Without a modifier it is that of microseconds.
    let precision = u8::try_from(column.type_modifier).unwrap_or(6);
    Some(match column.base_type.as_str() {
        _ if matches!(column.value, ValueType::Enum(_)) => KeyType::Enum,
        _ if !column.built_in => return None,
        "int2" => KeyType::SmallInt,
        "int4" => KeyType::Integer,
        "int8" => KeyType::BigInt,
        // pg_attribute.atttypmod of numeric: precision << 16 | scale, plus 4 (numeric.c, make_numeric_typmod).
        "numeric" if modifier >= 0 && modifier & 0x7ff == 0 => KeyType::Numeric {
            digits: u16::try_from(modifier >> 16).unwrap_or(u16::MAX),
        },
        "text" | "varchar" => KeyType::Text,
        "bpchar" => KeyType::Char,
        "uuid" => KeyType::Uuid,
        "date" => KeyType::Date,
        "timestamp" => KeyType::Timestamp { precision },
        "timestamptz" => KeyType::TimestampTz { precision },
        "bool" => KeyType::Boolean,
        "bytea" => KeyType::Bytea,
        "inet" => KeyType::Inet,
        "cidr" => KeyType::Cidr,
        "macaddr" => KeyType::MacAddr,
        _ => return None,
    })
}

fn unsupported(column: &Column) -> String {
    format!(
        "is of type {}; keys are smallint, integer, bigint, numeric(p,0), text, varchar, char, uuid, date, timestamp, \
         timestamptz, boolean, bytea, inet, cidr, macaddr or enums",
        column.type_text
    )
}

impl KeyType {
    /// A canonical text as JSON. A number keeps all of its digits.
    fn json(self, canonical: &str) -> String {
        match self {
            Self::SmallInt
            | Self::Integer
            | Self::BigInt
            | Self::Numeric { .. }
            | Self::Boolean => canonical.to_owned(),
            // Strings always serialise.
            _ => simd_json::to_string(canonical).unwrap_or_default(),
        }
    }

    /// The canonical text of the text that PostgreSQL reads as a value.
    ///
    /// # Errors
    /// As [`Self::canonical_part`].
    pub(super) fn canonical_input(self, input: &str) -> Result<Cow<'_, str>, String> {
        match self {
            Self::Bytea => self.canonical_part(input.strip_prefix("\\x").unwrap_or(input)),
            _ => self.canonical_part(input),
        }
    }

    /// The text that PostgreSQL reads as the value with a canonical text.
    pub(super) fn input(self, canonical: &str) -> String {
        match self {
            Self::Bytea => format!("\\x{canonical}"),
            _ => canonical.to_owned(),
        }
    }

    /// The canonical text of a part of a key.
    ///
    /// # Errors
    /// If it is too long, or not a value of this type, the end of a sentence about it.
    pub(super) fn canonical_part(self, text: &str) -> Result<Cow<'_, str>, String> {
        if text.len() > KEY_BYTES_MAX {
            return Err(format!("is longer than {KEY_BYTES_MAX} bytes"));
        }
        if text.contains('\0') {
            return Err("contains a zero byte".to_owned());
        }
        self.canonical(text)
    }

    /// Whether values of both types that PostgreSQL calls equal have the same canonical text.
    pub(super) fn same_text(self, other: Self) -> bool {
        self.family() == other.family()
    }

    fn family(self) -> u8 {
        match self {
            Self::SmallInt | Self::Integer | Self::BigInt | Self::Numeric { .. } => 0,
            Self::Text => 1,
            Self::Char => 2,
            Self::Uuid => 3,
            Self::Date => 4,
            Self::Timestamp { .. } => 5,
            Self::TimestampTz { .. } => 6,
            Self::Boolean => 7,
            Self::Bytea => 8,
            Self::Inet => 9,
            Self::Cidr => 10,
            Self::MacAddr => 11,
            Self::Enum => 12,
        }
    }
}

/// A column that is part of a key or of a link between rows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyColumn {
    /// The column's name.
    pub name: String,
    /// Its type.
    pub key_type: KeyType,
    /// The type in SQL text. It has no length, so that a cast never truncates.
    pub sql_type: SqlType,
    /// Its type as `format_type` writes it.
    pub type_text: String,
    /// `pg_attribute.atttypid`.
    pub type_oid: u32,
    /// `pg_attribute.attcollation`.
    pub collation: u32,
}

/// The oid in `pg_collation` of the database's default collation (PostgreSQL's pg_collation.dat,
/// `DEFAULT_COLLATION_OID`).
const DEFAULT_COLLATION: u32 = 100;

impl KeyColumn {
    /// A column of a table as a part of a key.
    pub(crate) fn new(column: &Column, key_type: KeyType) -> Self {
        Self {
            name: column.name.clone(),
            key_type,
            sql_type: match key_type.sql_type() {
                Some(name) => SqlType::Named(name.to_owned()),
                None => column.plain_type.clone(),
            },
            type_text: column.type_text.clone(),
            type_oid: column.type_oid,
            collation: column.collation,
        }
    }

    /// Whether values of both columns that PostgreSQL calls equal have the same canonical text.
    pub(super) fn same_text(&self, other: &Self) -> bool {
        // PostgreSQL compares no labels of different enums.
        let is_same_enum =
            self.key_type != KeyType::Enum || self.sql_type.name() == other.sql_type.name();
        is_same_enum && self.key_type.same_text(other.key_type)
    }

    /// Whether PostgreSQL can choose a collation to compare values of both columns: they have the same one, or one of
    /// them has none or the default.
    pub(super) fn is_comparable(&self, other: &Self) -> bool {
        let named = |collation| collation != 0 && collation != DEFAULT_COLLATION;
        self.collation == other.collation || !named(self.collation) || !named(other.collation)
    }
}

/// The parts of the canonical text of a key that has so many columns, with escapes undone.
pub fn key_parts(canonical: &str, columns: usize) -> Vec<Cow<'_, str>> {
    if columns == 1 {
        return vec![Cow::Borrowed(canonical)];
    }
    canonical
        .split(',')
        .map(|part| {
            if part.contains('%') {
                Cow::Owned(part.replace("%2C", ",").replace("%25", "%"))
            } else {
                Cow::Borrowed(part)
            }
        })
        .collect()
}

/// Why a text is not a key of a resource. The message is for the client; it never repeats the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KeyError(String);

/// The columns of a resource's key, in path order.
#[derive(Clone, Debug)]
pub struct KeyShape {
    /// At least one column.
    pub columns: Vec<KeyColumn>,
    /// For each column the field that shows it, for messages; `None`, or less of them, for columns that no field shows.
    pub fields: Vec<Option<String>>,
}

impl KeyShape {
    /// The canonical text of a key in the form that it has in a path: percent-encoded, with `,` between the parts.
    ///
    /// # Errors
    /// If the number of parts is wrong, or if a part is not UTF-8, too long, or not a value of its column's type. The
    /// message names the part.
    pub fn canonical<'t>(&self, path_segment: &'t str) -> Result<Cow<'t, str>, KeyError> {
        if self.columns.len() == 1 {
            return self.canonical_part(0, path_segment);
        }
        let given: Vec<&str> = path_segment.split(',').collect();
        self.check_count(given.len())?;
        let parts = given.into_iter().enumerate();
        let parts = parts.map(|(number, part)| self.canonical_part(number, part));
        Ok(Cow::Owned(joined(&parts.collect::<Result<Vec<_>, _>>()?)))
    }

    /// Checks that a key which PostgreSQL returned can stand in a path.
    ///
    /// # Errors
    /// If a part is too long or has no form there, as `NaN`.
    pub fn check(&self, canonical: &str) -> Result<(), KeyError> {
        let parts = key_parts(canonical, self.columns.len());
        for (number, (column, part)) in self.columns.iter().zip(parts).enumerate() {
            let checked = column.canonical(&part);
            checked.map_err(|why| self.refused(number, &why))?;
        }
        Ok(())
    }

    fn check_count(&self, given: usize) -> Result<(), KeyError> {
        if given == self.columns.len() {
            return Ok(());
        }
        let names = (0..self.columns.len()).map(|number| match self.field(number) {
            Some(field) => field.to_owned(),
            None => format!("part {}", number + 1),
        });
        Err(KeyError(format!(
            "the key has {} parts, separated by commas ({}); {given} given",
            self.columns.len(),
            names.collect::<Vec<_>>().join(",")
        )))
    }

    /// The field that shows part `number` of the key.
    fn field(&self, number: usize) -> Option<&str> {
        self.fields.get(number)?.as_deref()
    }

    /// The error for part `number` of a key. `why` is the end of a sentence about it.
    fn refused(&self, number: usize, why: &str) -> KeyError {
        KeyError(match self.field(number) {
            Some(field) => format!("the key's part {field} {why}"),
            None if self.columns.len() == 1 => format!("the key {why}"),
            None => format!("part {} of the key {why}", number + 1),
        })
    }

    fn canonical_part<'t>(
        &self,
        number: usize,
        encoded: &'t str,
    ) -> Result<Cow<'t, str>, KeyError> {
        let column = &self.columns[number];
        let canonical = match percent_decode_str(encoded).decode_utf8() {
            Err(_) => Err("is not valid UTF-8".to_owned()),
            Ok(Cow::Borrowed(text)) => column.canonical(text),
            Ok(Cow::Owned(text)) => column
                .canonical(&text)
                .map(|text| Cow::Owned(text.into_owned())),
        };
        canonical.map_err(|why| self.refused(number, &why))
    }

    /// The canonical text of a key from its parts, one for each column, which are not encoded.
    ///
    /// # Errors
    /// As [`KeyShape::canonical`], with the number of the part, which is 0 if the number of parts is wrong.
    pub fn canonical_of(&self, parts: &[Cow<'_, str>]) -> Result<String, (usize, KeyError)> {
        self.check_count(parts.len()).map_err(|why| (0, why))?;
        let mut canonical = Vec::with_capacity(parts.len());
        for (number, (column, part)) in self.columns.iter().zip(parts).enumerate() {
            let part = column.canonical(part);
            canonical.push(part.map_err(|why| (number, self.refused(number, &why)))?);
        }
        Ok(match canonical.as_slice() {
            [part] => part.to_string(),
            parts => joined(parts),
        })
    }

    /// A canonical text in the form that it has in a path or a query.
    pub fn encoded<'c>(&self, canonical: &'c str) -> Cow<'c, str> {
        if let [_] = self.columns.as_slice() {
            // To ask the encoder takes longer.
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            return if canonical.bytes().all(is_plain) {
                Cow::Borrowed(canonical)
            } else if matches!(canonical, "." | "..") {
                // As it is, clients would take it for a part of the path (RFC 3986, section 5.2.4).
                Cow::Owned(canonical.replace('.', "%2E"))
            } else {
                utf8_percent_encode(canonical, ENCODED).into()
            };
        }
        let parts = key_parts(canonical, self.columns.len());
        let parts = parts.iter().map(|part| utf8_percent_encode(part, ENCODED));
        let parts: Vec<Cow<'_, str>> = parts.map(Into::into).collect();
        Cow::Owned(parts.join(","))
    }

    /// A canonical text as JSON: a number or a string, or for several columns an array of these.
    pub fn json(&self, canonical: &str) -> String {
        let parts = key_parts(canonical, self.columns.len());
        let parts: Vec<String> = self
            .columns
            .iter()
            .zip(parts)
            .map(|(column, part)| column.key_type.json(&part))
            .collect();
        match parts.as_slice() {
            [part] => part.clone(),
            parts => format!("[{}]", parts.join(",")),
        }
    }
}

/// The characters that are percent-encoded: those that RFC 3986 reserves, and all that are not ASCII.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

fn joined(parts: &[Cow<'_, str>]) -> String {
    let escaped = parts
        .iter()
        .map(|part| part.replace('%', "%25").replace(',', "%2C"));
    escaped.collect::<Vec<_>>().join(",")
}

impl KeyColumn {
    /// The canonical text of a value, which is not encoded.
    ///
    /// # Errors
    /// If it is not a value of the column's type, the end of a sentence about it.
    pub(super) fn canonical<'t>(&self, text: &'t str) -> Result<Cow<'t, str>, String> {
        self.key_type.canonical_part(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients know fields, not columns.
    #[test]
    fn messages_name_the_field_or_the_place_of_a_part() {
        let mut one = shape(&[KeyType::Integer]);
        let wrong = |shape: &KeyShape, key: &str| shape.canonical(key).unwrap_err().to_string();
        assert!(wrong(&one, "x").starts_with("the key is "));
        one.fields = vec![Some("no".into())];
        assert!(wrong(&one, "x").starts_with("the key's part no is "));
        let mut two = shape(&[KeyType::Integer, KeyType::Integer]);
        two.fields = vec![Some("no".into()), None];
        assert!(wrong(&two, "x,1").starts_with("the key's part no is "));
        assert!(wrong(&two, "1,x").starts_with("part 2 of the key is "));
        assert!(wrong(&two, "1").contains("(no,part 2)"));
    }

    fn shape(types: &[KeyType]) -> KeyShape {
        let columns = types
            .iter()
            .enumerate()
            .map(|(index, &key_type)| KeyColumn {
                name: format!("c{index}"),
                key_type,
                sql_type: SqlType::Named(String::new()),
                type_text: String::new(),
                type_oid: 0,
                collation: 0,
            });
        KeyShape {
            columns: columns.collect(),
            fields: Vec::new(),
        }
    }

    fn one(key_type: KeyType, text: &str) -> Option<String> {
        let shape = shape(&[key_type]);
        shape.canonical(text).ok().map(Cow::into_owned)
    }

    #[test]
    fn integers_have_one_spelling() {
        for text in ["42", "042", "+42", "%2B42", "0000000000000000000000042"] {
            assert_eq!(one(KeyType::BigInt, text).as_deref(), Some("42"), "{text}");
        }
        assert_eq!(one(KeyType::BigInt, "-007").as_deref(), Some("-7"));
        assert_eq!(one(KeyType::BigInt, "-0").as_deref(), Some("0"));
        let min = i64::MIN.to_string();
        assert_eq!(one(KeyType::BigInt, &min), Some(min));
        for text in [
            "",
            "+",
            "-",
            " 42",
            "42%20",
            "4e1",
            "4.0",
            "0x2a",
            "٤٢",
            "9223372036854775808",
        ] {
            assert_eq!(one(KeyType::BigInt, text), None, "{text}");
        }
        assert_eq!(one(KeyType::SmallInt, "32768"), None);
        assert_eq!(
            one(KeyType::Integer, "-2147483648").as_deref(),
            Some("-2147483648")
        );
    }

    #[test]
    fn numerics_keep_every_digit() {
        let digits = KeyType::Numeric { digits: 30 };
        let long = "123456789012345678901234567890";
        assert_eq!(one(digits, &format!("+00{long}")).as_deref(), Some(long));
        assert_eq!(one(digits, &format!("{long}1")), None);
        assert_eq!(one(digits, "-00").as_deref(), Some("0"));
    }

    #[test]
    fn uuids_are_lower_case_and_hyphenated() {
        let lower = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";
        assert_eq!(
            one(KeyType::Uuid, &lower.to_uppercase()).as_deref(),
            Some(lower)
        );
        assert_eq!(one(KeyType::Uuid, &format!("%7B{lower}%7D")), None);
        assert_eq!(one(KeyType::Uuid, &lower.replace('-', "")), None);
    }

    #[test]
    fn dates_must_exist() {
        for text in [
            "2024-02-29",
            "10000-01-01",
            "infinity",
            "0044-03-15%20BC",
            "0005-02-29%20BC",
        ] {
            assert!(one(KeyType::Date, text).is_some(), "{text}");
        }
        for text in [
            "2023-02-29",
            "2023-13-01",
            "2023-1-1",
            "23-01-01",
            "02023-01-01",
            "0000-01-01",
            "today",
        ] {
            assert!(one(KeyType::Date, text).is_none(), "{text}");
        }
    }

    #[test]
    fn moments_are_in_utc() {
        let local = KeyType::Timestamp { precision: 6 };
        let instant = KeyType::TimestampTz { precision: 6 };
        let noon = "2024-02-29T12:00:00.5+00:00";
        for text in [
            noon,
            "2024-02-29T12:00:00.5Z",
            "2024-02-29t13:30:00.500000+01:30",
            "2024-02-29%2012:00:00.5-00",
        ] {
            assert_eq!(one(local, text).as_deref(), Some(noon), "{text}");
            assert_eq!(one(instant, text).as_deref(), Some(noon), "{text}");
        }
        assert_eq!(one(local, "2024-02-29T12:00:00.5").as_deref(), Some(noon));
        for text in ["2024-02-29T12:00:00.5", "2024-02-30T12:00:00Z", "now", ""] {
            assert_eq!(one(instant, text), None, "{text}");
        }
        for text in [
            "infinity",
            "-infinity",
            "0044-03-15T00:00:00+00:00 BC",
            "10000-01-01T00:00:00+00:00",
        ] {
            assert_eq!(one(instant, text).as_deref(), Some(text), "{text}");
        }
        let coarse = KeyType::TimestampTz { precision: 1 };
        assert_eq!(one(coarse, noon).as_deref(), Some(noon));
        assert_eq!(one(coarse, "2024-02-29T12:00:00.51Z"), None);
        assert_eq!(one(KeyType::Timestamp { precision: 0 }, noon), None);
    }

    #[test]
    fn bytes_are_pairs_of_digits_in_lower_case() {
        assert_eq!(one(KeyType::Bytea, "00fF").as_deref(), Some("00ff"));
        assert_eq!(one(KeyType::Bytea, "").as_deref(), Some(""));
        for text in ["0", "0g", "%5Cx00", "AP8="] {
            assert_eq!(one(KeyType::Bytea, text), None, "{text}");
        }
        assert_eq!(KeyType::Bytea.input("00ff"), "\\x00ff");
        let canonical = KeyType::Bytea.canonical_input("\\x00ff");
        assert_eq!(canonical.as_deref(), Ok("00ff"));
    }

    #[test]
    fn truth_has_two_texts() {
        assert_eq!(one(KeyType::Boolean, "true").as_deref(), Some("true"));
        for text in ["t", "TRUE", "1", "yes", ""] {
            assert_eq!(one(KeyType::Boolean, text), None, "{text}");
        }
        let shape = shape(&[KeyType::Enum, KeyType::Boolean]);
        assert_eq!(shape.json("so%2C so,false"), r#"["so, so",false]"#);
    }

    #[test]
    fn texts_are_decoded_once_and_never_split_alone() {
        assert_eq!(
            one(KeyType::Text, "a,b%2Cc%2525").as_deref(),
            Some("a,b,c%25")
        );
        assert_eq!(one(KeyType::Text, "").as_deref(), Some(""));
        assert_eq!(one(KeyType::Text, "a%00"), None);
        assert_eq!(one(KeyType::Text, "%ff"), None);
        assert_eq!(one(KeyType::Text, &"x".repeat(10_000)), None);
        assert_eq!(one(KeyType::Char, "ab%20%20").as_deref(), Some("ab"));
    }

    #[test]
    fn composite_parts_round_trip() {
        let shape = shape(&[KeyType::Text, KeyType::Integer]);
        let canonical = shape.canonical("a%2Cb%25,+7").map(Cow::into_owned);
        assert_eq!(canonical.as_deref(), Ok("a%2Cb%25,7"));
        assert_eq!(key_parts("a%2Cb%25,7", 2), ["a,b%", "7"]);
        assert_eq!(shape.canonical(",7").as_deref(), Ok(",7"));
        assert!(shape.canonical("7").is_err());
        assert!(shape.canonical("a,7,8").is_err());
    }
}
