//! Documents over HTTP, and the admin address. Knows no tier and no SQL.
//!
//! `public` is the service of the public address: what is in memory at once, everything else through axum's router.
//! `auth` says who may, `target` what a path names; `documents` answers `GET` and `HEAD`, `batch` where many are asked
//! for by key, `list` where by the page; `query` reads what a query says of it. `respond` makes the answers:
//! `conditional` decides on 304, `range` on 206, `negotiate` on the encoding; `labels` says which way they came, `cors`
//! who may see them; `writes` answers what changes documents, `bulk` where many come. `problem` is the one place where
//! an error gets its status. `openapi` describes all that, and `docs` shows it in a browser. `admin` is never on the
//! public address. Services need no socket, so tests don't; `accept` serves them, over `tls` where that is configured,
//! and `rate` says how often a client may ask, whom `forwarded` finds behind proxies; `access_log` tells of each answer.

pub mod accept;
pub mod access_log;
pub mod admin;
pub mod auth;
mod batch;
pub mod body;
mod bulk;
mod conditional;
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
pub mod rate;
mod respond;
mod target;
pub mod tls;
mod writes;
