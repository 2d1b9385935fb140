//! Questions with yes or no for an answer.

pub(crate) mod bulk_kills;
pub(crate) mod crowd;
pub(crate) mod drain;
pub(crate) mod faults;
pub(crate) mod full_disk;
pub(crate) mod fuzz;
pub(crate) mod lag;
pub(crate) mod outage;
pub(crate) mod polite;
pub(crate) mod poolers;
pub(crate) mod races;
pub(crate) mod restarts;
pub(crate) mod rude;
pub(crate) mod stale;
