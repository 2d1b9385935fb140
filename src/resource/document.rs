//! From the record that PostgreSQL sends for a document to the document's JSON.
//!
//! The statement (`resource/query.rs`) returns nested rows as composites in PostgreSQL's binary format, which has the
//! type and the bytes of each member. [`DocumentTemplate`] has the names of the members and their structure. The JSON
//! is byte for byte that of PostgreSQL's `row_to_json`, but for values of `timestamp` and `bytea`, at every depth. A record that does not have the expected form is an error.

mod nested;
mod order;
mod scalar;
pub(super) mod text;
mod wire;

pub(super) use order::RowOrder;
pub(super) use scalar::{Scalar, timestamp_text};

use crate::resource::document::text::write_text;
use crate::resource::document::wire::BinaryReader;
use crate::resource::kept::{Kept, KeptColumns};
use crate::resource::{Rendering, Row};

/// The type `text`, which the statement converts some members to (PostgreSQL's pg_type.dat).
const TEXT: u32 = 25;

/// The most bytes of a record for each byte of the document's JSON, without hidden columns. Short values take more
/// bytes in the record. A row that has only an array of rows takes 36 bytes in the record (length, number of columns,
/// type, length, array head of 20 bytes), and 7 bytes in JSON, `{"":[…]},`. A row of one numeric, `{"":1},`, takes 26.
const RECORD_BYTES_PER_BYTE: usize = 6;

/// The same for each hidden column. It takes at most 24 bytes in the record of a row (a uuid), and the row takes at
/// least 3 bytes in JSON, `{},`.
const HIDDEN_BYTES_PER_BYTE: usize = 8;

const WRONG_COUNT: RenderError = RenderError::Malformed("the number of columns is wrong");

/// Why a record can't be converted to a document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The document is longer than allowed.
    #[error("the document is too long")]
    TooLong,
    /// The record is not of the form that PostgreSQL sends for the statement.
    #[error("a record is malformed: {0}")]
    Malformed(&'static str),
    /// The type of a column has changed since the resource was checked, to the one with this oid.
    #[error("the type of a column has changed to the type with the oid {0}")]
    Type(u32),
}

/// The members of a JSON object, and the text around their values.
#[derive(Clone, Debug, Default)]
pub struct DocumentTemplate {
    members: Vec<MemberTemplate>,
    /// The number of columns that follow the members in the record and are not shown.
    hidden: usize,
    /// The number of kept values, which follow these.
    kept: usize,
    /// The most bytes of the kept values in the record.
    kept_bytes_max: usize,
}

#[derive(Clone, Debug)]
struct MemberTemplate {
    /// The text between the value before and this one: `,"name":`.
    lead: Vec<u8>,
    value: ValueTemplate,
}

#[derive(Clone, Debug)]
enum ValueTemplate {
    Field(Rendering),
    /// Without an order, PostgreSQL has sorted them.
    Rows(DocumentTemplate, Option<RowOrder>),
    Row(DocumentTemplate),
}

impl DocumentTemplate {
    /// The template of documents with this root, with their members in the order of the statement.
    pub(super) fn new(root: &Row, kept: &KeptColumns<'_>) -> Self {
        Self {
            kept: kept.count(),
            kept_bytes_max: kept.record_bytes_max(),
            ..Self::of_row(root)
        }
    }

    fn of_row(row: &Row) -> Self {
        let fields = row
            .fields
            .iter()
            .map(|field| (&field.name, ValueTemplate::Field(field.rendering.clone())));
        let children = row.children.iter().map(|child| {
            let order = RowOrder::of(child);
            let template = Self {
                hidden: order.as_ref().map_or(0, |order| order.hidden.len()),
                ..Self::of_row(&child.row)
            };
            (&child.name, ValueTemplate::Rows(template, order))
        });
        let lookups = row
            .lookups
            .iter()
            .map(|lookup| (&lookup.name, ValueTemplate::Row(Self::of_row(&lookup.row))));
        let mut members = Vec::new();
        for (name, value) in fields.chain(children).chain(lookups) {
            let mut lead = vec![if members.is_empty() { b'{' } else { b',' }];
            write_text(name.as_bytes(), &mut lead);
            lead.push(b':');
            members.push(MemberTemplate { lead, value });
        }
        Self {
            members,
            ..Self::default()
        }
    }

    /// The most bytes of the record of a document that has at most `document_bytes_max` bytes.
    pub(crate) fn record_bytes_max(&self, document_bytes_max: usize) -> usize {
        let times = RECORD_BYTES_PER_BYTE + HIDDEN_BYTES_PER_BYTE * self.hidden_max();
        let bytes = document_bytes_max.saturating_mul(times);
        bytes.saturating_add(self.kept_bytes_max)
    }

    /// The most hidden columns that a row at any level has.
    fn hidden_max(&self) -> usize {
        let below = self.members.iter().map(|member| match &member.value {
            ValueTemplate::Rows(template, _) | ValueTemplate::Row(template) => {
                template.hidden_max()
            }
            ValueTemplate::Field(_) => 0,
        });
        below.fold(self.hidden, usize::max)
    }

    /// Writes the document of `record` to `out`, which must be empty.
    ///
    /// # Errors
    /// [`RenderError`]; `out` then has a part of the document.
    pub fn render(
        &self,
        record: &[u8],
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), RenderError> {
        self.write(record, bytes_max, out)?;
        // A database in SQL_ASCII may have texts that are not UTF-8.
        match std::str::from_utf8(out) {
            Ok(_) => Ok(()),
            Err(_) => Err(RenderError::Malformed("a text is not UTF-8")),
        }
    }

    /// Writes the kept values of `record` to `out` ([`Kept`]); nothing if the resource has none.
    ///
    /// # Errors
    /// [`RenderError::Malformed`].
    pub fn write_kept(&self, record: &[u8], out: &mut Vec<u8>) -> Result<(), RenderError> {
        if self.kept == 0 {
            return Ok(());
        }
        let mut reader = BinaryReader(record);
        let before = self.members.len() + self.hidden;
        if reader.count()? != before + self.kept {
            return Err(WRONG_COUNT);
        }
        for _ in 0..before {
            reader.oid()?;
            reader.value()?;
        }
        let mut values = Vec::with_capacity(self.kept);
        for _ in 0..self.kept {
            reader.oid()?;
            values.push(reader.value()?);
        }
        reader.end()?;
        Kept::write(&values, out);
        Ok(())
    }

    /// Writes one object.
    fn write(&self, record: &[u8], bytes_max: usize, out: &mut Vec<u8>) -> Result<(), RenderError> {
        let mut reader = BinaryReader(record);
        let after = self.hidden + self.kept;
        if reader.count()? != self.members.len() + after {
            return Err(WRONG_COUNT);
        }
        if self.members.is_empty() {
            out.push(b'{');
        }
        for member in &self.members {
            out.extend_from_slice(&member.lead);
            let type_oid = reader.oid()?;
            match reader.value()? {
                None => out.extend_from_slice(b"null"),
                Some(bytes) => member.value.write(type_oid, bytes, bytes_max, out)?,
            }
            if out.len() > bytes_max {
                return Err(RenderError::TooLong);
            }
        }
        out.push(b'}');
        for _ in 0..after {
            reader.oid()?;
            reader.value()?;
        }
        reader.end()?;
        if out.len() > bytes_max {
            Err(RenderError::TooLong)
        } else {
            Ok(())
        }
    }

    /// Writes an array of objects.
    fn write_rows(
        &self,
        array: &[u8],
        order: Option<&RowOrder>,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), RenderError> {
        let mut reader = BinaryReader(array);
        let length = reader.array_length()?;
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
                for record in order.sorted(reader, length)? {
                    write(record, out)?;
                }
            }
            None => {
                for _ in 0..length {
                    write(reader.record()?, out)?;
                }
                reader.end()?;
            }
        }
        out.push(b']');
        Ok(())
    }
}

impl ValueTemplate {
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
                // The column's type may have changed. The record has the oid of the present type.
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
            // Bytes take up to two thirds less in base64 than in hexadecimal.
            Self::Field(Rendering::Nested(value)) if bytes.len() / 3 <= bytes_max => {
                let before = out.len();
                nested::write(value, bytes, out)?;
                if out.len() - before > bytes_max {
                    return Err(RenderError::TooLong);
                }
                Ok(())
            }
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
    use std::sync::Arc;

    use super::*;
    use crate::resource::value::ValueType;

    /// Type, length and bytes of a value.
    fn value(type_oid: u32, bytes: &[u8]) -> Vec<u8> {
        let head = [type_oid, bytes.len() as u32].map(u32::to_be_bytes);
        [head.as_flattened(), bytes].concat()
    }

    fn record(values: &[Vec<u8>]) -> Vec<u8> {
        [&(values.len() as u32).to_be_bytes(), &*values.concat()].concat()
    }

    /// Rows without members consist of hidden columns alone.
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
            let lead = b"{\"rows\":".to_vec();
            let rows = DocumentTemplate {
                hidden,
                ..DocumentTemplate::default()
            };
            let value = ValueTemplate::Rows(rows, None);
            let template = DocumentTemplate {
                members: vec![MemberTemplate { lead, value }],
                ..DocumentTemplate::default()
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

    /// Bytes are longer in hexadecimal, as PostgreSQL sends them.
    #[test]
    fn nested_values_count_with_the_length_that_they_have_in_documents() {
        let bytes = ValueType::Array(Box::new(ValueType::Bytea));
        let value = ValueTemplate::Field(Rendering::Nested(Arc::new(bytes)));
        let sent = format!("[\"\\\\x{}\"]", "00".repeat(300));
        let written = |bytes_max| {
            let mut json = Vec::new();
            let written = value.write(TEXT, sent.as_bytes(), bytes_max, &mut json);
            written.map(|()| json.len())
        };
        assert_eq!(written(404), Ok(404));
        assert_eq!(written(403), Err(RenderError::TooLong));
    }

    #[test]
    fn kept_values_follow_the_members() {
        let null = [TEXT.to_be_bytes(), (-1_i32).to_be_bytes()].concat();
        let record = record(&[value(TEXT, b"1"), value(TEXT, b"17"), null]);
        let lead = b"{\"a\":".to_vec();
        let value = ValueTemplate::Field(Rendering::Json);
        let template = |kept| DocumentTemplate {
            members: vec![MemberTemplate {
                lead: lead.clone(),
                value: value.clone(),
            }],
            kept,
            ..DocumentTemplate::default()
        };
        let (mut json, mut block) = (Vec::new(), Vec::new());
        template(2).render(&record, 100, &mut json).unwrap();
        template(2).write_kept(&record, &mut block).unwrap();
        assert_eq!(json, b"{\"a\":1}");
        let kept = Kept::parse(&block).unwrap();
        assert_eq!((kept.owner(), kept.alias(0)), (Some(&b"17"[..]), None));
        assert_eq!(kept.as_bytes(), block);
        for kept in [1, 3] {
            let wrong = template(kept).write_kept(&record, &mut block);
            assert_eq!(wrong, Err(WRONG_COUNT));
        }
        block.clear();
        template(0).write_kept(&record, &mut block).unwrap();
        assert!(block.is_empty());
    }
}
