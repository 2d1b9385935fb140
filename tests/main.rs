//! End-to-end tests, by way of the public API only and against a real PostgreSQL.
#![expect(
    clippy::unwrap_used,
    reason = "a test's helpers fail as its own body does"
)]
mod admin;
mod audit;
mod auth;
mod catalogue;
mod command;
mod defaults;
mod demo;
mod disk;
mod documents;
mod embedded;
mod encodings;
mod freshness;
mod harness;
mod histories;
mod http;
mod loading;
mod locks;
mod openapi;
mod others;
mod outage;
mod pooler;
mod seed;
mod state;
mod tls;
mod waits;
mod writes;
