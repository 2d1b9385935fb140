//! The atomics and locks of `cache/lease`, `generation`, `document`, `memory` and `eviction`.
//!
//! `tests/interleavings` compiles those files with a module of this name whose types a scheduler controls.

pub(crate) use std::sync::atomic::{AtomicU8, AtomicU64};
pub(crate) use std::sync::{Mutex, MutexGuard};
