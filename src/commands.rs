//! What the subcommands do, one module each.
pub mod seed;
