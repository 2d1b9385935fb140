//! A document's JSON out of the record that PostgreSQL sends for it.
//!
//! The statement (`resource/query.rs`) nests rows as composites in PostgreSQL's binary format: for each member
//! its type and its bytes, whatever lies below it inside. [`Template`] knows the members' names and how they nest.
//! What is written is byte for byte what PostgreSQL's own `row_to_json` would give. Records come from outside: one
//! that is not as expected is an error.

mod order;
mod scalar;
pub(super) mod text;
mod wire;

pub(super) use order::Order;
pub(super) use scalar::{Scalar, timestamp_text};

use crate::resource::document::text::write_text;
use crate::resource::document::wire::Wire;
use crate::resource::{Rendering, Row};

/// The type of what the statement has turned into text, `text` (PostgreSQL's pg_type.dat).
const TEXT: u32 = 25;

/// The longest record of a document without hidden columns, in times of the document's JSON: short values outgrow it.
/// A level of rows below, each with the next level alone, takes 36 bytes there and 7 in `{"":[…]},`: length, number of
/// columns, type, length, array head of 20 bytes. The row `{"":1},` of one numeric takes 26.
const RECORD_BYTES_PER_BYTE: usize = 6;

/// A hidden column takes at most 24 bytes in the record of each row, a uuid's, and the row at least 3 in JSON: `{},`.
const HIDDEN_BYTES_PER_BYTE: usize = 8;

/// Why a record gives no document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The document is longer than allowed.
    #[error("the document is too long")]
    TooLong,
    /// The record is not as PostgreSQL writes it for the statement.
    #[error("a record is malformed: {0}")]
    Malformed(&'static str),
    /// A column's type is not the one that it had when the resource was checked.
    #[error("a column has become one of type {0}")]
    Type(u32),
}

/// The members of an object, and what to write around their values.
#[derive(Clone, Debug)]
pub struct Template {
    members: Vec<Member>,
    /// Columns that follow the members in the record and are not shown.
    hidden: usize,
}

#[derive(Clone, Debug)]
struct Member {
    /// From the end of the value before: `,"name":`.
    lead: Vec<u8>,
    value: Value,
}

#[derive(Clone, Debug)]
enum Value {
    Field(Rendering),
    /// Where there is no order, PostgreSQL has sorted them.
    Rows(Template, Option<Order>),
    Row(Template),
}

impl Template {
    /// The members of `row`, in the order of its statement.
    pub(crate) fn new(row: &Row) -> Self {
        let fields = row
            .fields
            .iter()
            .map(|field| (&field.name, Value::Field(field.rendering)));
        let children = row.children.iter().map(|child| {
            let order = Order::of(child);
            let template = Self {
                hidden: order.as_ref().map_or(0, |order| order.hidden.len()),
                ..Self::new(&child.row)
            };
            (&child.name, Value::Rows(template, order))
        });
        let lookups = row
            .lookups
            .iter()
            .map(|lookup| (&lookup.name, Value::Row(Self::new(&lookup.row))));
        let mut members = Vec::new();
        for (name, value) in fields.chain(children).chain(lookups) {
            let mut lead = vec![if members.is_empty() { b'{' } else { b',' }];
            write_text(name.as_bytes(), &mut lead);
            lead.push(b':');
            members.push(Member { lead, value });
        }
        Self { members, hidden: 0 }
    }

    /// The longest record that a document of so many bytes may have.
    pub(crate) fn record_bytes_max(&self, document_bytes_max: usize) -> usize {
        let times = RECORD_BYTES_PER_BYTE + HIDDEN_BYTES_PER_BYTE * self.hidden_max();
        document_bytes_max.saturating_mul(times)
    }

    /// The most hidden columns of a row.
    fn hidden_max(&self) -> usize {
        let below = self.members.iter().map(|member| match &member.value {
            Value::Rows(template, _) | Value::Row(template) => template.hidden_max(),
            Value::Field(_) => 0,
        });
        below.fold(self.hidden, usize::max)
    }

    /// Writes the document of `record` into `out`, which holds nothing else.
    ///
    /// # Errors
    /// [`RenderError`]; `out` then holds a part of the document.
    pub fn render(
        &self,
        record: &[u8],
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), RenderError> {
        self.write(record, bytes_max, out)?;
        // A database in SQL_ASCII may hold anything.
        match std::str::from_utf8(out) {
            Ok(_) => Ok(()),
            Err(_) => Err(RenderError::Malformed("text that is not UTF-8")),
        }
    }

    /// One object.
    fn write(&self, record: &[u8], bytes_max: usize, out: &mut Vec<u8>) -> Result<(), RenderError> {
        let mut wire = Wire(record);
        if wire.count()? != self.members.len() + self.hidden {
            return Err(RenderError::Malformed("another number of columns"));
        }
        if self.members.is_empty() {
            out.push(b'{');
        }
        for member in &self.members {
            out.extend_from_slice(&member.lead);
            let type_oid = wire.oid()?;
            match wire.value()? {
                None => out.extend_from_slice(b"null"),
                Some(bytes) => member.value.write(type_oid, bytes, bytes_max, out)?,
            }
            if out.len() > bytes_max {
                return Err(RenderError::TooLong);
            }
        }
        out.push(b'}');
        for _ in 0..self.hidden {
            wire.oid()?;
            wire.value()?;
        }
        wire.end()?;
        if out.len() > bytes_max {
            Err(RenderError::TooLong)
        } else {
            Ok(())
        }
    }

    /// An array of objects.
    fn write_rows(
        &self,
        array: &[u8],
        order: Option<&Order>,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), RenderError> {
        let mut wire = Wire(array);
        let length = wire.array_length()?;
        out.push(b'[');
        let begin = out.len();
        let write = |record, out: &mut Vec<u8>| {
            if out.len() > begin {
                out.push(b',');
            }
            self.write(record, bytes_max, out)
        };
        match order.filter(|_| length > 1) {
            Some(order) => {
                for record in order.sorted(wire, length)? {
                    write(record, out)?;
                }
            }
            None => {
                for _ in 0..length {
                    write(wire.record()?, out)?;
                }
                wire.end()?;
            }
        }
        out.push(b']');
        Ok(())
    }
}

impl Value {
    fn write(
        &self,
        type_oid: u32,
        bytes: &[u8],
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), RenderError> {
        match self {
            Self::Rows(template, order) if type_oid == wire::RECORDS => {
                template.write_rows(bytes, order.as_ref(), bytes_max, out)
            }
            Self::Row(template) if type_oid == wire::RECORD => {
                template.write(bytes, bytes_max, out)
            }
            Self::Field(Rendering::Scalar {
                scalar,
                type_oid: known,
            }) => {
                // A column that was altered since has another type, which PostgreSQL names as it sends it.
                let scalar = if type_oid == *known {
                    *scalar
                } else {
                    Scalar::of(type_oid).ok_or(RenderError::Type(type_oid))?
                };
                if scalar.is_text() && bytes.len() > bytes_max {
                    return Err(RenderError::TooLong);
                }
                scalar.write(bytes, out)
            }
            Self::Field(_) if type_oid != TEXT => Err(RenderError::Type(type_oid)),
            Self::Field(_) if bytes.len() > bytes_max => Err(RenderError::TooLong),
            Self::Field(Rendering::Bytea) => {
                write_text(bytes, out);
                Ok(())
            }
            Self::Field(_) => {
                out.extend_from_slice(bytes);
                Ok(())
            }
            Self::Rows(..) | Self::Row(_) => Err(RenderError::Type(type_oid)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Type, length and bytes of a value.
    fn value(type_oid: u32, bytes: &[u8]) -> Vec<u8> {
        let head = [type_oid, bytes.len() as u32].map(u32::to_be_bytes);
        [head.as_flattened(), bytes].concat()
    }

    fn record(values: &[Vec<u8>]) -> Vec<u8> {
        [&(values.len() as u32).to_be_bytes(), &*values.concat()].concat()
    }

    /// Where rows show nothing, what is hidden is nearly all of the record.
    #[test]
    fn hidden_columns_count_towards_the_longest_record() {
        const UUID: u32 = 2950;
        const ROWS: u32 = 100;
        for hidden in [0, 1, 5] {
            let row = record(&vec![value(UUID, &[7; 16]); hidden]);
            let element = [&(row.len() as u32).to_be_bytes(), &*row].concat();
            let head = [1, 0, wire::RECORD, ROWS, 1].map(u32::to_be_bytes);
            let rows = [head.as_flattened(), &element.repeat(ROWS as usize)].concat();
            let record = record(&[value(wire::RECORDS, &rows)]);
            let members = Vec::new();
            let lead = b"{\"rows\":".to_vec();
            let value = Value::Rows(Template { members, hidden }, None);
            let template = Template {
                members: vec![Member { lead, value }],
                hidden: 0,
            };
            let mut json = Vec::new();
            template.render(&record, 1 << 20, &mut json).unwrap();
            assert!(
                record.len() <= template.record_bytes_max(json.len()),
                "{hidden}"
            );
            let without = RECORD_BYTES_PER_BYTE * json.len();
            assert_eq!(record.len() > without, hidden > 0, "{hidden}");
        }
    }
}
