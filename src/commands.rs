//! What the subcommands do, one module each.
pub mod config;
pub mod database;
pub mod hash_password;
pub mod install;
pub mod prune;
pub mod purge;
pub mod seed;
pub mod serve;
