//! What others do with the database goes on as if larder were not there: `publications` of all tables and their
//! subscribers, `installing` beside writers, `locked` tables, `damage` of schema larder, `migrations`
//! that a resource does not fit, and what a crash leaves of prepared transactions.

mod damage;
mod installing;
mod locked;
mod migrations;
mod prepared;
mod publications;
mod restores;
