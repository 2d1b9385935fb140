//! What the end-to-end tests and `loadtest` have in common.

pub mod fault_proxy;
