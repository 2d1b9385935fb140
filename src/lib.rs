//! larder answers a JSON document by key from memory, then disk, then PostgreSQL, and forgets it when it changes.
//!
//! ```text
//! GET /depts/42
//!   │ http::middleware     a typed request: resource, key, client, rights
//!   ▼
//! cache::lookup ── memory (DashMap) ── hit ──► answer: body and headers are ready-made
//!   │ miss          └─ disk (sled) ─── hit ──► promote to memory, answer
//!   │ lease: one leader, the rest wait
//!   ▼
//! source::loader           the keys that wait, one statement: … where key = any(…)
//!   │ document, or "there is none"
//!   ▼
//! cache::fill              memory now; disk through the writer's queue
//!
//! PUT /depts/42
//!   │ http::write ── resource::body: rows, checked by the catalogue
//!   ▼
//! source::writes ── one transaction ── commit ──► as any client's; answered when the pass has been applied
//!
//! any client ── commit ──► triggers ──► larder.change ── bell ──► feed: a pass ──► cache::invalidation
//! ```
//!
//! # A hit
//! 1. [`http::middleware::stack`] makes a typed request of the head, and checks rate and rights before any router.
//!    `http::read::document` makes the key canonical ([`resource::key`]) and asks memory ([`documents`]).
//! 2. [`cache::Cache::try_memory`] compares the boot-time clock ([`clock`]) with the last pass: are the tiers fresh?
//! 3. The memory tier has the document under the resource's epoch; its body and entity tag are sent as they are.
//! 4. One hit in a thousand is read again from PostgreSQL beside serving, and must not be stale (`cache::audit`).
//!
//! # A miss
//! 1. Neither tier has it ([`cache::Cache::lookup_missed`], through axum's router). The request leads or joins the
//!    key's lease, which notes the key's generation.
//! 2. [`source::loader`] takes all keys that wait for the resource and runs its one statement ([`resource::query`]).
//! 3. `fill` installs the document if the generation still stands, queues it for the disk, and wakes all who wait.
//!
//! # A write
//! 1. `http::write` takes the body for rows ([`resource::body`]): what does not fit costs PostgreSQL nothing.
//! 2. [`source::writes`] runs one transaction on a task of its own, with one statement for the rows of all levels
//!    ([`resource::write`]); documents that are only inserted share it.
//! 3. The answer waits for the pass that covers the transaction ([`cache::Cache::catch_up`]), which is an invalidation
//!    like any other.
//!
//! # An invalidation
//! 1. A transaction touches a row; the trigger of its table writes the key that leads to the document into
//!    `larder.change`, inside that transaction, and rings (`feed::triggers`).
//! 2. It commits. The feed hears the bell, a write of this node rings for itself, or the poll comes round; the feed
//!    reads what committed since its position, mapped to documents in one snapshot (`feed::change_log`).
//! 3. It makes sure that what is logged is all: tables, triggers, policies and types are as they were
//!    (`feed::definition`), and so is the history of the database (`feed::history`).
//! 4. [`cache::Cache::follow`] raises each key's generation, drops it from memory, queues its drop for the disk, then
//!    moves the position and the time up to which all is known.
//!
//! # Invariants
//! - What memory holds reflects every transaction in the position. So does a disk entry whose stripe is clean.
//! - A mark on disk implies that its drops are on disk.
//! - A tier answers only while the feed's knowledge is at most `max_staleness` old.
//! - A document is what one snapshot held: one document, one statement. No answer is used that does not prove which
//!   statement made it (`resource::proof`).
//! - `resource` does no I/O, `cache` knows no HTTP, `source` no cache, `http` no tier and no SQL. DashMap is named only
//!   in `cache/memory.rs`, sled only in `cache/disk`.
//! - Losing memory or disk costs time, never truth: whatever is odd on disk is discarded.
//!
//! Why it is so is told in `docs/decisions`. Start reading at [`commands::serve`], where everything is put together.

// In reading order, top down; the blank lines keep it.
pub mod cli;

pub mod config;

pub mod commands;

pub mod telemetry;

pub mod metrics;

pub mod http;

pub mod auth;

pub mod server;

pub mod documents;

pub mod cache;

pub mod feed;

pub mod source;

pub mod resource;

pub mod clock;

mod sync;

pub mod state;
