//! Documents over HTTP, and the admin address. Knows no tier and no SQL.
//!
//! `public` is the service of the public address: what is in memory at once, everything else through axum's router.
//! `target` says what a path names, `documents` answers `GET` and `HEAD`, `batch` where many are asked for by
//! key, `list` by the page, `query` reads how;
//! `conditional` decides on 304; `problem` is the one place where an error gets its status; `admin` is never on the
//! public address. Services need no socket, so tests don't; `accept` serves them.

pub mod accept;
pub mod admin;
mod batch;
pub mod body;
mod conditional;
mod documents;
mod list;
mod problem;
pub mod public;
mod query;
mod target;
