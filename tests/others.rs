//! What others do with the database goes on as if larder were not there: `publications` of all tables and their
//! subscribers, `installing` beside writers, `locked` tables, `damage` of schema larder, `migrations`
//! that a resource does not fit, what a crash leaves of prepared transactions, `serializable` ones, and limits on
//! `temporary_files`.

pub(crate) mod damage;
pub(crate) mod installing;
mod locked;
mod migrations;
mod prepared;
pub(crate) mod publications;
pub(crate) mod restores;
mod serializable;
mod temporary_files;
