//! End-to-end tests, by way of the public API only and against a real PostgreSQL.
#![expect(
    clippy::unwrap_used,
    reason = "a test's helpers fail as its own body does"
)]
mod admin;
mod audit;
mod auth;
mod catalogue;
mod check;
mod coexistence;
mod command;
mod connections;
mod database_encodings;
mod defaults;
mod demo;
mod disk;
mod dispatch;
mod documents;
mod embedded;
mod freshness;
mod harness;
mod histories;
mod http;
mod init;
mod keys;
mod loading;
mod locks;
mod login_triggers;
mod openapi;
mod outage;
mod plans;
mod pooler;
mod readiness;
mod scope;
mod seed;
mod slow;
mod state;
mod tls;
mod unknown_servers;
mod writes;
