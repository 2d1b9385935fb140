//! larder's own `lease.rs`, `generation.rs`, `memory.rs`, `document.rs`, `eviction.rs` and `ghosts.rs`, compiled once
//! more over locks, atomics and a DashMap that shuttle's scheduler controls, and scenarios in which their steps meet in
//! every order that it finds.
//!
//! A package of its own: these files must be compiled without `cfg(test)`, whose tests need real locks, and `dashmap`
//! must mean shuttle's. What the files name besides comes from larder as it is. tokio's `watch` is the real one: to the
//! scheduler each of its operations is one step.

#![expect(
    dead_code,
    unreachable_pub,
    reason = "the scenarios need only a part of the files that they include, whose items are public in larder"
)]

mod clock {
    pub(crate) use larder::clock::Boottime;
}

mod resource {
    pub(crate) use larder::resource::{ResourceId, kept};
}

mod source {
    pub(crate) use larder::source::SourceError;
    pub(crate) mod loader {
        pub(crate) use larder::source::loader::SentAt;
    }
}

/// In the place of larder's module of this name.
mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicU8, AtomicU64};
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};
}

mod cache {
    pub(crate) use larder::cache::encoding;

    #[path = "../../../../src/cache/document.rs"]
    mod document;
    #[path = "../../../../src/cache/eviction.rs"]
    mod eviction;
    #[path = "../../../../src/cache/generation.rs"]
    mod generation;
    #[path = "../../../../src/cache/ghosts.rs"]
    mod ghosts;
    #[path = "../../../../src/cache/lease.rs"]
    mod lease;
    #[path = "../../../../src/cache/memory.rs"]
    mod memory;

    pub mod scenarios;
}

pub use cache::scenarios;
