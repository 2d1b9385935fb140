//! Sorts children, if the bytes of their columns determine the order. For PostgreSQL, sorting ten rows costs more than
//! finding them.

use std::cmp::Ordering;

use crate::resource::document::wire::BinaryReader;
use crate::resource::document::{RenderError, Scalar};
use crate::resource::{Child, Rendering};

/// The columns that children are sorted by.
#[derive(Clone, Debug)]
pub(in crate::resource) struct RowOrder {
    columns: Vec<SortColumn>,
    /// Columns that are in the record only for the sort, after all others.
    pub(in crate::resource) hidden: Vec<String>,
}

#[derive(Clone, Debug)]
struct SortColumn {
    /// The number of columns before it in the record.
    place: usize,
    type_oid: u32,
    is_signed: bool,
}

impl RowOrder {
    /// The order of `child`; `None` if PostgreSQL has to sort.
    pub(in crate::resource) fn of(child: &Child) -> Option<Self> {
        let row = &child.row;
        let members = row.fields.len() + row.children.len() + row.lookups.len();
        let mut order = Self {
            columns: Vec::with_capacity(child.order_by.len()),
            hidden: Vec::new(),
        };
        for column in &child.order_by {
            let Rendering::Scalar { scalar, type_oid } = column.rendering else {
                return None;
            };
            let shown = row.fields.iter().position(|field| {
                field.column == column.name && matches!(field.rendering, Rendering::Scalar { .. })
            });
            let place = shown.unwrap_or_else(|| {
                order.hidden.push(column.name.clone());
                members + order.hidden.len() - 1
            });
            order.columns.push(SortColumn {
                place,
                type_oid,
                is_signed: is_signed(scalar)?,
            });
        }
        Some(order)
    }

    /// The records of an array, sorted.
    pub(super) fn sorted<'r>(
        &self,
        mut array: BinaryReader<'r>,
        length: usize,
    ) -> Result<Vec<&'r [u8]>, RenderError> {
        // The length comes from PostgreSQL. It may be wrong, so no more is allocated than the bytes allow.
        let mut keyed = Vec::with_capacity(length.min(array.0.len() / 8));
        for _ in 0..length {
            let record = array.record()?;
            keyed.push((record, self.key(record)?));
        }
        array.end()?;
        keyed.sort_by(|(_, one), (_, other)| self.compare(one, other));
        Ok(keyed.into_iter().map(|(record, _)| record).collect())
    }

    /// The values that a record is sorted by.
    fn key<'r>(&self, record: &'r [u8]) -> Result<Vec<Option<&'r [u8]>>, RenderError> {
        self.columns
            .iter()
            .map(|column| {
                let mut reader = BinaryReader(record);
                if reader.count()? <= column.place {
                    return Err(RenderError::Malformed("too few columns"));
                }
                for _ in 0..column.place {
                    reader.oid()?;
                    reader.value()?;
                }
                let type_oid = reader.oid()?;
                if type_oid == column.type_oid {
                    reader.value()
                } else {
                    Err(RenderError::Type(type_oid))
                }
            })
            .collect()
    }

    fn compare(&self, one: &[Option<&[u8]>], other: &[Option<&[u8]>]) -> Ordering {
        let pairs = one.iter().zip(other).zip(&self.columns);
        pairs
            .map(|((one, other), column)| match (one, other) {
                // Nulls come last.
                (None, None) => Ordering::Equal,
                (None, Some(_)) => Ordering::Greater,
                (Some(_), None) => Ordering::Less,
                (Some(one), Some(other)) if column.is_signed => signed(one).cmp(&signed(other)),
                (Some(one), Some(other)) => one.cmp(other),
            })
            .find(|ordering| ordering.is_ne())
            .unwrap_or(Ordering::Equal)
    }
}

/// Whether the first bit of a value is a sign; `None` if the bytes do not determine the order.
fn is_signed(scalar: Scalar) -> Option<bool> {
    match scalar {
        Scalar::SmallInt | Scalar::Integer | Scalar::BigInt | Scalar::Date | Scalar::Timestamp => {
            Some(true)
        }
        Scalar::Bool | Scalar::Uuid => Some(false),
        Scalar::Numeric | Scalar::Text | Scalar::Json | Scalar::Jsonb => None,
    }
}

/// The bytes of a signed number in a form that compares as the number does.
fn signed(bytes: &[u8]) -> Option<(i8, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    Some((first.cast_signed(), rest))
}
