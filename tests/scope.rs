//! Which documents exist for whom: conditions on rows.

mod conditions;
