//! What every request of the public address passes before a handler: `stack` composes it, for the server and for tests
//! alike.

pub mod access_log;
pub mod cors;
pub mod stack;
