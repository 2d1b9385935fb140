//! Documents over HTTP, and the admin address. Reads and writes documents only through `documents`, and knows no SQL.
//!
//! `connection` serves a service over the connections of [`crate::server`], by hyper. The service of the public address is
//! [`middleware::stack::PublicService`]. It makes a typed [`request`](self) from each head, passes it through the
//! middleware, answers from memory if it can, and passes other requests to `router`. `read` and `write` are the handlers of
//! documents. `openapi` and `index` describe them by `description`, and `docs` shows the former in a browser; `page` serves
//! the files of that and of the dashboard. `auth` finds the credential of a request and refuses requests. `problem` alone
//! maps errors to statuses. `admin` is never served on the public address. Services need no socket, so tests don't either.

pub mod admin;
pub mod answers;
pub mod auth;
mod bodies;
mod body;
mod conditional;
pub mod connection;
mod decoding;
mod description;
mod docs;
mod forwarded;
mod full_body;
mod headers;
mod in_progress;
mod index;
mod internal_error;
pub mod middleware;
mod negotiate;
mod openapi;
mod origin;
mod page;
mod problem;
mod protocol;
mod range;
pub mod read;
mod request;
mod router;
mod scope;
mod state;
mod work;
mod write;
