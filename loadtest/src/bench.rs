//! What is measured, and next to what.

pub(crate) mod compare;
pub(crate) mod limit;
pub(crate) mod rivals;
pub(crate) mod sweep;
