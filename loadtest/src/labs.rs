//! Laboratories: experiments about what larder stands on.

pub(crate) mod indexes;
