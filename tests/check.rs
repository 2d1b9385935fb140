//! `larder check` against a real PostgreSQL.

mod indexes;
