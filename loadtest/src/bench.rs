//! What is measured, and next to what.
//!
//! A benchmark (`benchmark`) has cases that take turns (`runner`): `compare`, and those of `loadtest bench`. `sweep` is
//! none: its measurements follow each other, one number of connections after the other.

pub(crate) mod batches;
pub(crate) mod benchmark;
pub(crate) mod compare;
pub(crate) mod dispatch;
mod lists;
pub(crate) mod other_servers;
pub(crate) mod posts;
pub(crate) mod reads;
pub(crate) mod runner;
pub(crate) mod sweep;
pub(crate) mod triggers;
pub(crate) mod writes;
