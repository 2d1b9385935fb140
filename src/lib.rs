//! larder.
pub mod cache;
pub mod cli;
pub mod commands;
pub mod config;
pub mod feed;
pub mod resource;
pub mod source;
pub mod telemetry;
