//! What the end-to-end tests and `loadtest` have in common.

pub mod fault_proxy;
pub mod http;
pub mod raw;
