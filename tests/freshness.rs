//! After every change, by whatever client and in whatever way, each document is right again, and what the change did
//! not touch was not asked of PostgreSQL once more.
//!
//! `testbed` holds larders and the oracle; `statements` changes rows one way after the other, `sessions` in unusual
//! sessions, `concurrent` from several transactions at once; `parts` in partitions and inheriting tables; `ancestors`
//! through tables that are not followed; `neighbours` has several larders on one database; `definitions` changes tables
//! while larder runs; `unheard` has commits that other server processes have not heard of; `overtaken` holds a load in
//! its middle; `log` looks at the change log itself, and `pruning` at what of it goes; `history` puts databases back to
//! earlier states; `tokens` reads its own writes; `random` does all of it without a plan.

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
mod sessions;
mod several_larders;
mod statements;
pub(crate) mod testbed;
mod tokens;
