//! Documents over HTTP, and the admin address. Knows no tier and no SQL.
//!
//! `connection` serves a service over the connections of [`crate::server`], by hyper. That of the public address is
//! [`middleware::stack::PublicService`]: it makes a typed [`request`](self) of each head, passes it through the middleware,
//! answers what memory has, and hands the rest to `router`. `read` and `write` are the handlers of documents, `openapi`
//! describes them and `docs` shows that in a browser. `auth` finds the credential of a request, and refuses. `problem` is
//! the one place where an error gets its status. `admin` is never on the public address. Services need no socket, so tests
//! do not either.

pub mod admin;
pub mod auth;
mod body;
mod conditional;
pub mod connection;
mod docs;
mod forwarded;
mod full_body;
mod headers;
pub mod middleware;
mod openapi;
mod problem;
pub mod read;
mod request;
mod router;
mod state;
mod write;
