//! larder answers a JSON document by key from memory, then disk, then PostgreSQL, and invalidates it when it changes.
//!
//! ```text
//! GET /depts/42
//!   │ http::middleware     makes a typed request: resource, key, client, rights
//!   ▼
//! cache::lookup ── memory (DashMap) ── hit ──► answer: body and entity tag are ready-made
//!   │ miss          └─ disk (sled) ─── hit ──► promote to memory, answer
//!   │ lease: one request leads, the others wait
//!   ▼
//! source::loader           the keys that wait, in one statement: … where key = any(…)
//!   │ document or absence
//!   ▼
//! cache::fill              memory at once; disk through the writer's queue
//!
//! PUT /depts/42
//!   │ http::write ── resource::body: from JSON to rows
//!   ▼
//! source::writes ── one transaction ── commit ──► answer, when a pass that covers the transaction has been applied
//!
//! any client ── commit ──► triggers ──► larder.change ── bell ──► feed: a pass ──► cache::invalidation
//! ```
//!
//! `docs/design.md` has the same in more detail, `docs/glossary.md` the terms, `docs/decisions` the reasons.
//!
//! # A hit
//! 1. [`http::middleware::stack`] makes a typed request of the head, and checks rate limit and rights before any
//!    router. `http::read::document` makes the key canonical ([`resource::key`]) and asks memory ([`documents`]).
//! 2. [`cache::Cache::try_memory`] checks that the last pass is recent enough on the boot-time clock ([`clock`]).
//! 3. [`cache::memory::Memory::get`] finds the document under the resource's epoch. Its body and entity tag are sent as
//!    they are.
//! 4. For one hit in a thousand, a task reads the document again from PostgreSQL and compares (`cache::audit`).
//!
//! # A miss
//! 1. [`cache::Cache::lookup_missed`], called through axum's router, asks the disk tier. If that has no document
//!    either, `Cache::load` notes the key's version and leads a load of the key, or joins one (`cache::lease`).
//! 2. [`source::loader`] takes all keys that wait for the resource, and reads them with one statement
//!    ([`resource::query`]).
//! 3. `Cache::fill` installs the document in memory if the version is still current, queues it for the disk, and wakes
//!    the requests that wait.
//!
//! # A write
//! 1. `http::write` converts the body to rows ([`resource::body`]). What does not fit the tables is refused here,
//!    without a query.
//! 2. [`source::writes`] runs one transaction on a task of its own. An insert is one statement for the rows of all
//!    levels ([`resource::write`]), and inserts share transactions.
//! 3. [`cache::Cache::catch_up`] waits for the pass that covers the transaction. That pass is an invalidation like any
//!    other.
//!
//! # An invalidation
//! 1. A transaction changes a row. The trigger of its table writes the key that leads to the document into
//!    `larder.change`, in that transaction, and sends a notification, the bell (`feed::triggers`).
//! 2. After the commit the feed runs a pass, because of the bell, of a write of this node, or of a poll. The pass reads
//!    what committed since the position, and maps it to documents, in one snapshot (`feed::change_log`).
//! 3. The feed checks that the log is complete: tables, triggers, policies and types are as they were
//!    (`feed::definition`), and no restore has replaced the log's nonce. `feed::history` compares the history of the
//!    database at each new connection.
//! 4. [`cache::Cache::apply_event`] raises each key's generation, removes it from memory, queues its drop for the disk,
//!    and then moves the position and `fresh_at`.
//!
//! # Invariants
//! - An entry in memory reflects every transaction in the position. So does an entry on disk whose stripe is clean.
//! - A mark on disk implies that the drops before it are on disk.
//! - A tier answers only while `fresh_at` is at most `max_staleness` ago.
//! - A document is what one snapshot held: one document, one statement. Every answer of PostgreSQL has to prove which
//!   statement made it (`resource::proof`).
//! - `resource` does no I/O, `cache` knows no HTTP, `source` no cache, `http` no tier and no SQL. DashMap is named only
//!   in `cache/memory.rs`, sled only in `cache/disk.rs` and `cache/disk/`.
//! - The files of the disk tier may be lost at any time. Content that fails a check is discarded and read again.
//!
//! To read the code, start at [`commands::serve`], which starts and connects all parts, and go on in the order of the
//! modules below.

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

pub mod dispatch;

pub mod cache;

pub mod feed;

pub mod source;

pub mod check;
pub mod resource;

pub mod clock;

mod sync;
mod unseen;

pub mod state;
