//! larder.
pub mod cache;
pub mod cli;
pub mod clock;
pub mod commands;
pub mod config;
pub mod feed;
pub mod http;
pub mod metrics;
pub mod resource;
pub mod source;
pub mod state;
pub mod telemetry;
