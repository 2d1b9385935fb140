//! cache
pub mod disk;
pub mod memory;
