//! The values that a column can have, by its type in the catalogue. Bodies of writes are checked against them, and the
//! OpenAPI document describes them.

use std::collections::HashMap;

/// The most types within each other that are followed, such as a composite type in an array in a domain.
const DEPTH_MAX: usize = 32;

/// `pg_attribute.atttypmod` of a type with a length or a precision is larger than these by this number (`VARHDRSZ`).
const MODIFIER_BASE: i32 = 4;

/// The most bytes of a value of type `name`: `NAMEDATALEN` - 1.
pub(in crate::resource) const NAME_BYTES_MAX: usize = 63;

/// The values that a column can have: its type, with domains replaced by the types below them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// `boolean`
    Boolean,
    /// `smallint`
    SmallInt,
    /// `integer`
    Integer,
    /// `bigint`
    BigInt,
    /// `real`
    Real,
    /// `double precision`
    Double,
    /// `numeric`
    Numeric {
        /// Precision and scale in decimal digits, if the type has them. The scale may be negative, or above the
        /// precision.
        digits: Option<(u16, i16)>,
    },
    /// `text`, `varchar`
    Text {
        /// The most characters.
        max: Option<u32>,
    },
    /// `char(n)`, where trailing blanks don't count
    Char {
        /// The most characters before the trailing blanks; `None` for `bpchar`.
        length: Option<u32>,
    },
    /// `name`: PostgreSQL cuts what is longer than 63 bytes
    Name,
    /// `"char"`: a byte
    Byte {
        /// PostgreSQL writes and reads bytes that are not ASCII as `\ooo`, as 14 does not.
        octal: bool,
    },
    /// `bit(n)`, `bit varying(n)`
    Bits {
        /// The number of bits; `None` for `bit varying` without a length.
        length: Option<u32>,
        /// Values may be shorter.
        varying: bool,
    },
    /// `uuid`
    Uuid,
    /// `date`
    Date,
    /// `timestamp`, read as UTC
    Timestamp,
    /// `timestamptz`
    TimestampTz,
    /// `time`
    Time,
    /// `timetz`
    TimeTz,
    /// `interval`
    Interval,
    /// `bytea`, base64 in documents
    Bytea,
    /// `json`
    Json,
    /// `jsonb`
    Jsonb,
    /// An enum, with its labels in order
    Enum(Vec<String>),
    /// An array of any number of dimensions, with its elements' type
    Array(Box<ValueType>),
    /// A composite type, with its attributes' names and types; an object in documents
    Composite(Vec<(String, ValueType)>),
    /// A type whose text may have numbers that PostgreSQL writes digit by digit, without exponents: `jsonpath`, and ranges
    /// of `numeric` and of types that have it. A string.
    NumericText,
    /// A type whose JSON in documents is not its text form, and which larder can't turn back into a value: `hstore` and
    /// other types with a cast to `json`, `int2vector`, `oidvector`, arrays whose elements are not separated by commas
    /// (`box[]`)
    Unwritable,
    /// Any other type. A body has the type's text as a string; a document has what PostgreSQL's `to_json` makes of it,
    /// which is the same for most types.
    Other,
}

impl ValueType {
    /// Whether values of the type have parts of type `json`.
    pub(in crate::resource) fn has_json(&self) -> bool {
        self.has_part(&|part| *part == Self::Json)
    }

    /// Whether larder can't turn the JSON of its values back into them: it is [`ValueType::Unwritable`], or has such a part.
    pub fn is_unwritable(&self) -> bool {
        self.has_part(&|part| *part == Self::Unwritable)
    }

    /// Whether documents have parts of its values in another form than PostgreSQL's `to_json` writes.
    pub(in crate::resource) fn has_own_form(&self) -> bool {
        self.has_part(&|part| matches!(part, Self::Timestamp | Self::Bytea))
    }

    /// Whether values may have numbers of type `numeric`.
    fn has_numeric(&self) -> bool {
        self.has_part(&|part| {
            matches!(part, Self::Numeric { .. } | Self::Jsonb | Self::NumericText)
        })
    }

    /// Whether `is_wanted` is true for the type or for one that it consists of.
    fn has_part(&self, is_wanted: &impl Fn(&Self) -> bool) -> bool {
        match self {
            Self::Array(element) => element.has_part(is_wanted),
            Self::Composite(attributes) => {
                let mut parts = attributes.iter();
                parts.any(|(_, value)| value.has_part(is_wanted))
            }
            other => is_wanted(other),
        }
    }
}

/// A type as `pg_type` describes it.
#[derive(Clone, Debug)]
pub struct CatalogueType {
    /// `typname`
    pub name: String,
    /// It is a built-in type, in schema `pg_catalog`.
    pub built_in: bool,
    /// What it consists of.
    pub form: TypeForm,
}

/// What a type consists of.
#[derive(Clone, Debug)]
pub enum TypeForm {
    /// No other types.
    Base,
    /// [`ValueType::Byte`].
    Byte {
        /// As there.
        octal: bool,
    },
    /// A domain over a type with a modifier.
    Domain {
        /// The type below.
        base: u32,
        /// Its modifier, -1 for none.
        modifier: i32,
    },
    /// An array whose elements are separated by commas; they share its modifier.
    Array {
        /// The elements' type.
        element: u32,
    },
    /// A range or multirange of values of another type.
    Range {
        /// The type of the bounds.
        subtype: u32,
    },
    /// [`ValueType::Unwritable`].
    Unwritable,
    /// An enum.
    Enum {
        /// In order.
        labels: Vec<String>,
    },
    /// A composite type.
    Composite {
        /// Names, types and modifiers, in order.
        attributes: Vec<(String, u32, i32)>,
    },
}

impl ValueType {
    /// The values of the type `oid` with `modifier`, or -1 without one. `types` has this type and all that it consists
    /// of.
    pub fn of(types: &HashMap<u32, CatalogueType>, oid: u32, modifier: i32) -> Self {
        Self::below(types, oid, modifier, DEPTH_MAX)
    }

    fn below(types: &HashMap<u32, CatalogueType>, oid: u32, modifier: i32, depth: usize) -> Self {
        let (Some(found), Some(depth)) = (types.get(&oid), depth.checked_sub(1)) else {
            return Self::Other;
        };
        match &found.form {
            TypeForm::Domain { base, modifier } => Self::below(types, *base, *modifier, depth),
            TypeForm::Array { element } => {
                Self::Array(Box::new(Self::below(types, *element, modifier, depth)))
            }
            TypeForm::Range { subtype } => {
                if Self::below(types, *subtype, -1, depth).has_numeric() {
                    Self::NumericText
                } else {
                    Self::Other
                }
            }
            TypeForm::Enum { labels } => Self::Enum(labels.clone()),
            TypeForm::Composite { attributes } => {
                let attributes = attributes.iter().map(|(name, oid, modifier)| {
                    (name.clone(), Self::below(types, *oid, *modifier, depth))
                });
                Self::Composite(attributes.collect())
            }
            TypeForm::Byte { octal } => Self::Byte { octal: *octal },
            TypeForm::Unwritable => Self::Unwritable,
            TypeForm::Base if found.built_in => Self::named(&found.name, modifier),
            TypeForm::Base => Self::Other,
        }
    }

    fn named(name: &str, modifier: i32) -> Self {
        let length = u32::try_from(modifier - MODIFIER_BASE).ok();
        match name {
            "bool" => Self::Boolean,
            "int2" => Self::SmallInt,
            "int4" => Self::Integer,
            "int8" => Self::BigInt,
            "float4" => Self::Real,
            "float8" => Self::Double,
            "numeric" => Self::Numeric {
                digits: length.map(numeric_digits),
            },
            "text" => Self::Text { max: None },
            "varchar" => Self::Text { max: length },
            "name" => Self::Name,
            // Their modifiers are lengths.
            "bit" | "varbit" => Self::Bits {
                length: u32::try_from(modifier).ok(),
                varying: name == "varbit",
            },
            "bpchar" => Self::Char { length },
            "uuid" => Self::Uuid,
            "date" => Self::Date,
            "timestamp" => Self::Timestamp,
            "timestamptz" => Self::TimestampTz,
            "time" => Self::Time,
            "timetz" => Self::TimeTz,
            "interval" => Self::Interval,
            "bytea" => Self::Bytea,
            "json" => Self::Json,
            "jsonb" => Self::Jsonb,
            "jsonpath" => Self::NumericText,
            _ => Self::Other,
        }
    }
}

/// Precision and scale (numeric.c, `make_numeric_typmod`): the scale has 11 bits, sign and all.
fn numeric_digits(modifier: u32) -> (u16, i16) {
    let scale = (modifier & 0x7ff) as i16;
    ((modifier >> 16) as u16, (scale ^ 1024) - 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modifiers_give_lengths_and_digits() {
        let types: HashMap<u32, CatalogueType> = [
            (1, "numeric"),
            (2, "varchar"),
            (3, "bpchar"),
            (4, "bit"),
            (5, "varbit"),
        ]
        .map(|(oid, name)| {
            let name = name.to_owned();
            let (built_in, form) = (true, TypeForm::Base);
            (
                oid,
                CatalogueType {
                    name,
                    built_in,
                    form,
                },
            )
        })
        .into();
        let of = |oid, modifier| ValueType::of(&types, oid, modifier);
        let digits = |modifier| match of(1, modifier) {
            ValueType::Numeric { digits } => digits,
            other => panic!("{other:?}"),
        };
        assert_eq!(digits(-1), None);
        assert_eq!(digits(((12 << 16) | 4) + 4), Some((12, 4)));
        assert_eq!(digits(((3 << 16) | (-2 & 0x7ff)) + 4), Some((3, -2)));
        assert_eq!(of(2, 24), ValueType::Text { max: Some(20) });
        assert_eq!(of(2, -1), ValueType::Text { max: None });
        assert_eq!(of(3, 9), ValueType::Char { length: Some(5) });
        assert_eq!(of(9, -1), ValueType::Other);
        let bits = |length, varying| ValueType::Bits { length, varying };
        assert_eq!(of(4, 3), bits(Some(3), false));
        assert_eq!(of(5, -1), bits(None, true));
    }

    #[test]
    fn types_within_types_are_followed() {
        let form = |name: &str, built_in, form| CatalogueType {
            name: name.to_owned(),
            built_in,
            form,
        };
        let labels = vec!["glad".to_owned()];
        let types: HashMap<u32, CatalogueType> = [
            (1, form("bytea", true, TypeForm::Base)),
            (2, form("_bytea", true, TypeForm::Array { element: 1 })),
            (
                3,
                form(
                    "d",
                    false,
                    TypeForm::Domain {
                        base: 2,
                        modifier: -1,
                    },
                ),
            ),
            (
                4,
                form(
                    "mood",
                    false,
                    TypeForm::Enum {
                        labels: labels.clone(),
                    },
                ),
            ),
            (
                5,
                form(
                    "pair",
                    false,
                    TypeForm::Composite {
                        attributes: vec![("a".into(), 3, -1), ("b".into(), 4, -1)],
                    },
                ),
            ),
            (7, form("numeric", true, TypeForm::Base)),
            (8, form("numrange", true, TypeForm::Range { subtype: 7 })),
            (9, form("moods", false, TypeForm::Range { subtype: 4 })),
            (10, form("ranges", false, TypeForm::Range { subtype: 11 })),
            (11, form("_numrange", true, TypeForm::Array { element: 8 })),
            // No catalogue has such a type.
            (6, form("loop", false, TypeForm::Array { element: 6 })),
        ]
        .into();
        let array = |element| ValueType::Array(Box::new(element));
        assert_eq!(ValueType::of(&types, 3, -1), array(ValueType::Bytea));
        let attributes = vec![
            ("a".to_owned(), array(ValueType::Bytea)),
            ("b".to_owned(), ValueType::Enum(labels)),
        ];
        assert_eq!(
            ValueType::of(&types, 5, -1),
            ValueType::Composite(attributes)
        );
        ValueType::of(&types, 6, -1);
        assert_eq!(ValueType::of(&types, 8, -1), ValueType::NumericText);
        assert_eq!(ValueType::of(&types, 9, -1), ValueType::Other);
        assert_eq!(ValueType::of(&types, 10, -1), ValueType::NumericText);
        assert_eq!(ValueType::of(&types, 11, -1), array(ValueType::NumericText));
    }
}
