//! What others do with the database goes on as if larder were not there: `publications` of all tables and their
//! subscribers, `installing` beside writers, `locked` tables, `damage` of schema larder, `migrations`
//! that a resource does not fit, what a crash leaves of prepared transactions, `serializable` ones, and limits on
//! `temporary_files`.

pub(crate) mod installing;
mod locked_tables;
mod migrations;
mod prepared_transactions;
pub(crate) mod publications;
pub(crate) mod restores;
pub(crate) mod schema_damage;
mod serializable;
mod temporary_files;
