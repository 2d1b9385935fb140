//! After every change, by any client and any kind of statement, each document is right again, and documents that the
//! change did not touch are still hits.
//!
//! `testbed` holds larders and the oracle; `statements` changes rows one way after the other, `sessions` in unusual
//! sessions, `concurrent` from several transactions at once; `partitions` in partitions and inheriting tables;
//! `ancestors` through tables that are not followed; `several_larders` has several larders on one database;
//! `definitions` changes tables while larder runs; `catalogue_messages` has commits that other server processes have
//! not noticed; `overtaken` holds a load in its middle; `change_log` checks the change log itself, and `pruning` what
//! is deleted from it; `history` puts databases back to earlier states; `tokens` reads its own writes; `random` does
//! all of it without a plan.

mod ancestors;
mod catalogue_messages;
mod change_log;
mod concurrent;
pub(crate) mod definitions;
mod history;
mod key_ranges;
mod large_transactions;
mod overtaken;
mod partitions;
mod pruning;
mod random;
mod refused_passes;
mod sessions;
mod several_larders;
mod statements;
mod strict;
pub(crate) mod testbed;
mod tokens;
