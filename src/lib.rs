//! larder.
pub mod cache;
pub mod clock;
pub mod commands;
pub mod config;
pub mod feed;
pub mod metrics;
pub mod resource;
pub mod source;
pub mod state;
