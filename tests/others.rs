//! What others do with the database goes on as if larder were not there: `publications` of all tables and their
//! subscribers, `installing` beside writers, and what a crash leaves of prepared transactions.

mod installing;
mod prepared;
mod publications;
