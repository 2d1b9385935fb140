//! From values of PostgreSQL's built-in types in the binary format of their `…_send` functions to JSON.

mod date_time;
mod number;

pub(in crate::resource) use self::date_time::timestamp_text;
use crate::resource::document::RenderError;
use crate::resource::document::text::{write_hexadecimal, write_text};

/// A type whose values larder converts to JSON. PostgreSQL converts values of all other types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// `boolean`
    Bool,
    /// `smallint`
    SmallInt,
    /// `integer`
    Integer,
    /// `bigint`
    BigInt,
    /// `numeric`
    Numeric,
    /// `text`, `varchar`, `char(n)` with its blanks, `name`
    Text,
    /// `uuid`
    Uuid,
    /// `date`
    Date,
    /// `timestamp`, read as UTC, and `timestamptz`
    Timestamp,
    /// `json`
    Json,
    /// `jsonb`
    Jsonb,
}

/// The oids and names of these types (PostgreSQL's pg_type.dat; neither ever changes).
const TYPES: [(u32, &str, Scalar); 15] = [
    (16, "bool", Scalar::Bool),
    (19, "name", Scalar::Text),
    (20, "int8", Scalar::BigInt),
    (21, "int2", Scalar::SmallInt),
    (23, "int4", Scalar::Integer),
    (25, "text", Scalar::Text),
    (114, "json", Scalar::Json),
    (1042, "bpchar", Scalar::Text),
    (1043, "varchar", Scalar::Text),
    (1082, "date", Scalar::Date),
    (1114, "timestamp", Scalar::Timestamp),
    (1184, "timestamptz", Scalar::Timestamp),
    (1700, "numeric", Scalar::Numeric),
    (2950, "uuid", Scalar::Uuid),
    (3802, "jsonb", Scalar::Jsonb),
];

impl Scalar {
    /// The built-in type with this oid.
    pub(super) fn of(type_oid: u32) -> Option<Self> {
        let found = TYPES.iter().find(|(oid, ..)| *oid == type_oid);
        found.map(|&(_, _, scalar)| scalar)
    }

    /// The built-in type of this name in `pg_type.typname`.
    pub(in crate::resource) fn named(name: &str) -> Option<Self> {
        let found = TYPES.iter().find(|(_, known, _)| *known == name);
        found.map(|&(_, _, scalar)| scalar)
    }

    /// Whether the JSON is at least as long as the bytes that PostgreSQL sends, apart from the version byte of `jsonb`.
    pub(super) fn is_text(self) -> bool {
        matches!(self, Self::Text | Self::Json | Self::Jsonb)
    }

    /// Writes the value that PostgreSQL sent as `bytes`.
    pub(super) fn write(self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), RenderError> {
        match self {
            Self::Bool => out.extend_from_slice(match exact(bytes)? {
                [0] => b"false",
                [_] => b"true",
            }),
            Self::SmallInt => number::write_integer(i16::from_be_bytes(exact(bytes)?), out),
            Self::Integer => number::write_integer(i32::from_be_bytes(exact(bytes)?), out),
            Self::BigInt => number::write_integer(i64::from_be_bytes(exact(bytes)?), out),
            Self::Numeric => number::write_numeric(bytes, out)?,
            Self::Text => write_text(bytes, out),
            Self::Uuid => write_uuid(exact(bytes)?, out),
            Self::Date => date_time::write_date(i32::from_be_bytes(exact(bytes)?), out),
            Self::Timestamp => date_time::write_timestamp(i64::from_be_bytes(exact(bytes)?), out),
            Self::Json => out.extend_from_slice(bytes),
            Self::Jsonb => match bytes {
                [1, text @ ..] => out.extend_from_slice(text),
                _ => return Err(RenderError::Malformed("the version of jsonb is unknown")),
            },
        }
        Ok(())
    }
}

fn exact<const N: usize>(bytes: &[u8]) -> Result<[u8; N], RenderError> {
    bytes
        .try_into()
        .map_err(|_| RenderError::Malformed("the length of a value is wrong"))
}

fn write_uuid(bytes: [u8; 16], out: &mut Vec<u8>) {
    out.push(b'"');
    for (place, byte) in bytes.into_iter().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) {
            out.push(b'-');
        }
        write_hexadecimal(byte, out);
    }
    out.push(b'"');
}
