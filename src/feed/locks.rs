//! The advisory locks that larder takes in PostgreSQL. Each has two keys: [`LOCK_CLASS`] and a number of its own
//! (`classid` and `objid` in `pg_locks`).

/// The first key of all advisory locks of larder: "lard" as a number.
pub(super) const LOCK_CLASS: i32 = 0x6c61_7264;

/// Held by the transaction that installs or removes: larders do so one at a time.
pub(super) const INSTALL_LOCK: i32 = 1;

/// The bell: held by the one open transaction that sends notifications, or by a feed that runs passes without pause.
pub(super) const BELL_LOCK: i32 = 2;
