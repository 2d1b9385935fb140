//! Laboratories: experiments whose question is not about larder alone.

pub(crate) mod indexes;
pub(crate) mod models;
pub(crate) mod workers;
