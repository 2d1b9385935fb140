//! Children sorted here where bytes alone say how: PostgreSQL pays more for sorting ten rows than for finding them.

use std::cmp::Ordering;

use crate::resource::document::wire::Wire;
use crate::resource::document::{RenderError, Scalar};
use crate::resource::{Child, Rendering};

/// How children are sorted by larder.
#[derive(Clone, Debug)]
pub(in crate::resource) struct Order {
    columns: Vec<OrderColumn>,
    /// Columns that the record holds for sorting only, after all others.
    pub(in crate::resource) hidden: Vec<String>,
}

#[derive(Clone, Debug)]
struct OrderColumn {
    /// In the record.
    place: usize,
    type_oid: u32,
    signed: bool,
}

impl Order {
    /// The order of `child`; none where PostgreSQL must sort.
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
            order.columns.push(OrderColumn {
                place,
                type_oid,
                signed: is_signed(scalar)?,
            });
        }
        Some(order)
    }

    /// The records of an array, in order.
    pub(super) fn sorted<'r>(
        &self,
        mut array: Wire<'r>,
        length: usize,
    ) -> Result<Vec<&'r [u8]>, RenderError> {
        // A length is trusted only as far as there are bytes for so many.
        let mut keyed = Vec::with_capacity(length.min(array.0.len() / 8));
        for _ in 0..length {
            let record = array.record()?;
            keyed.push((record, self.key(record)?));
        }
        array.end()?;
        keyed.sort_by(|(_, one), (_, other)| self.compare(one, other));
        Ok(keyed.into_iter().map(|(record, _)| record).collect())
    }

    /// The values to sort a record by.
    fn key<'r>(&self, record: &'r [u8]) -> Result<Vec<Option<&'r [u8]>>, RenderError> {
        self.columns
            .iter()
            .map(|column| {
                let mut wire = Wire(record);
                if wire.count()? <= column.place {
                    return Err(RenderError::Malformed("too few columns"));
                }
                for _ in 0..column.place {
                    wire.oid()?;
                    wire.value()?;
                }
                let type_oid = wire.oid()?;
                if type_oid == column.type_oid {
                    wire.value()
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
                (Some(one), Some(other)) if column.signed => signed(one).cmp(&signed(other)),
                (Some(one), Some(other)) => one.cmp(other),
            })
            .find(|ordering| ordering.is_ne())
            .unwrap_or(Ordering::Equal)
    }
}

/// Whether the first bit of a value is a sign; none where more than the bytes decides.
fn is_signed(scalar: Scalar) -> Option<bool> {
    match scalar {
        Scalar::SmallInt | Scalar::Integer | Scalar::BigInt | Scalar::Date | Scalar::Timestamp => {
            Some(true)
        }
        Scalar::Bool | Scalar::Uuid => Some(false),
        Scalar::Numeric | Scalar::Text | Scalar::Json | Scalar::Jsonb => None,
    }
}

/// The order of a signed number's bytes.
fn signed(bytes: &[u8]) -> Option<(i8, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    Some((first.cast_signed(), rest))
}
