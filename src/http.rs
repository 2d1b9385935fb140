//! Documents over HTTP, and the admin address. Knows no tier and no SQL.
//!
//! `public` is the service of the public address: what is in memory at once, everything else through axum's router.
//! `auth` says who may, `target` what a path names; `documents` answers `GET` and `HEAD`, `batch` where many are asked
//! for by key, `list` where by the page; `query` reads what a query says of it. `respond` makes the answers:
//! `conditional` decides on 304, `range` on 206, `negotiate` on the encoding; `labels` says which way they came, `cors`
//! who may see them; `writes` answers what changes documents, `bulk` where many come. `problem` is the one place where
//! an error gets its status. `openapi` describes all that, and `docs` shows it in a browser. `admin` is never on the
//! public address. Services need no socket, so tests do not either; `connection` serves them over the connections of
//! [`crate::server`], `rate_limit` refuses what is too much of a client, which `forwarded` finds behind proxies, and
//! `access_log` writes a line for each answer.

pub mod access_log;
pub mod admin;
pub mod auth;
mod batch;
pub mod body;
mod bulk;
mod conditional;
pub mod connection;
pub mod cors;
mod docs;
mod documents;
mod forwarded;
pub mod labels;
mod list;
mod negotiate;
mod openapi;
mod problem;
pub mod public;
mod query;
mod range;
pub mod rate_limit;
mod respond;
mod target;
mod writes;
