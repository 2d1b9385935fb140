//! larder.
pub mod cache;
pub mod config;
pub mod feed;
pub mod resource;
pub mod source;
pub mod telemetry;
