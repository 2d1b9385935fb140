//! Other clients and administrators use the database as if larder were not there: `publications` of all tables and
//! their subscribers, `installing` beside writers, `locked_tables`, `schema_damage`, `migrations` after which a
//! resource does not fit, `prepared_transactions` and a crash, `restores` of dumps, `serializable` transactions,
//! limits on `temporary_files`, and `versions` of larder that share the database.

pub(crate) mod installing;
mod locked_tables;
mod migrations;
mod prepared_transactions;
pub(crate) mod publications;
pub(crate) mod restores;
pub(crate) mod schema_damage;
mod serializable;
mod temporary_files;
mod versions;
