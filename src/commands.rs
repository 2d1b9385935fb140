//! What larder's commands do, one module each.
pub mod config;
