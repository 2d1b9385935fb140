//! Filters of lists: fields whose values are compared with a text of the query.
//!
//! A column of a type of keys is compared with the canonical text. Other columns are compared with the text that stands
//! for the value in documents, without quotes: a number as in JSON, else PostgreSQL's text. What larder does not know of a type is PostgreSQL's to
//! refuse.

use crate::resource::body::text_in_query;
use crate::resource::catalogue::Column;
use crate::resource::definition::Place;
use crate::resource::key::{KEY_BYTES_MAX, KeyColumn, plain_key_type};
use crate::resource::sql_type::{Equality, SqlType};
use crate::resource::value::ValueType;

/// A field that lists can be filtered by.
#[derive(Clone, Debug)]
pub struct Filter {
    /// The member's name in the document.
    pub name: String,
    /// The root table's column.
    pub column: FilterColumn,
    /// Its place in the configuration.
    pub place: Place,
}

/// The column of a filter.
#[derive(Clone, Debug)]
pub enum FilterColumn {
    /// Of a type of keys.
    Key(KeyColumn),
    /// Of another type.
    Other(OtherColumn),
}

/// A column of a type that is none of keys.
#[derive(Clone, Debug)]
pub struct OtherColumn {
    /// The column's name.
    pub name: String,
    /// Its values.
    pub value: ValueType,
    /// The type in SQL text, without a length or precision.
    sql_type: SqlType,
    /// How its values are compared.
    equality: Equality,
}

impl Filter {
    /// The text of a value of the filter's column, canonical for types of keys.
    ///
    /// # Errors
    /// If it is not a value of the column's type, the end of a sentence about it.
    pub fn text(&self, value: &str) -> Result<String, String> {
        match &self.column {
            FilterColumn::Key(column) => column.canonical(value).map(Into::into),
            FilterColumn::Other(_) if value.len() > KEY_BYTES_MAX => {
                Err(format!("is longer than {KEY_BYTES_MAX} bytes"))
            }
            FilterColumn::Other(column) => text_in_query(&column.value, value).map_err(Into::into),
        }
    }
}

impl FilterColumn {
    /// `column` as the column of a filter.
    ///
    /// # Errors
    /// If its values are not scalar, or PostgreSQL has no order of them and so no index, the end of a sentence about it.
    pub(super) fn new(column: &Column) -> Result<Self, String> {
        // Neither a collation nor a generated column is in the way: PostgreSQL alone compares the values.
        if let Some(key_type) = plain_key_type(column) {
            return Ok(Self::Key(KeyColumn::new(column, key_type)));
        }
        let sql_type = match column.value {
            ValueType::Numeric { .. } => "numeric",
            ValueType::Real => "float4",
            ValueType::Double => "float8",
            ValueType::Time => "time",
            ValueType::TimeTz => "timetz",
            ValueType::Interval => "interval",
            ValueType::Name | ValueType::Byte { .. } | ValueType::Bits { .. } => {
                return Ok(Self::other(column, column.plain_type.clone()));
            }
            ValueType::Other if column.equality.is_some() => {
                return Ok(Self::other(column, column.plain_type.clone()));
            }
            _ => {
                return Err(format!(
                    "is of type {}; filters are of scalar types for which PostgreSQL has btree indexes",
                    column.type_text
                ));
            }
        };
        Ok(Self::other(column, SqlType::Named(sql_type.to_owned())))
    }

    fn other(column: &Column, sql_type: SqlType) -> Self {
        Self::Other(OtherColumn {
            name: column.name.clone(),
            value: column.value.clone(),
            sql_type,
            equality: column.equality.clone().unwrap_or(Equality::BUILT_IN),
        })
    }

    /// The column's name.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Key(column) => &column.name,
            Self::Other(column) => &column.name,
        }
    }

    /// The type in SQL text.
    pub(crate) fn sql_type(&self) -> &SqlType {
        match self {
            Self::Key(column) => &column.sql_type,
            Self::Other(column) => &column.sql_type,
        }
    }

    /// How its values are compared.
    pub(crate) fn equality(&self) -> &Equality {
        match self {
            Self::Key(_) => &Equality::BUILT_IN,
            Self::Other(column) => &column.equality,
        }
    }

    /// SQL for the value with the text `text` ([`Filter::text`]), an expression.
    pub(crate) fn value_sql(&self, text: &str) -> String {
        match self {
            Self::Key(column) => column.value_sql(text),
            Self::Other(column) => column.sql_type.value(text),
        }
    }
}
