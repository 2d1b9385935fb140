//! Questions with yes or no for an answer.

pub(crate) mod alerts;
pub(crate) mod bulk_kills;
pub(crate) mod dashboard;
pub(crate) mod differential_writes;
pub(crate) mod drain;
pub(crate) mod faults;
pub(crate) mod full_disk;
pub(crate) mod fuzz;
pub(crate) mod hostile_clients;
pub(crate) mod idle_clients;
pub(crate) mod installs;
pub(crate) mod lag;
pub(crate) mod linearizable;
pub(crate) mod outage;
pub(crate) mod poolers;
pub(crate) mod races;
pub(crate) mod restarts;
pub(crate) mod rolling;
pub(crate) mod schemas;
pub(crate) mod scope;
pub(crate) mod stale;
mod twins;
pub(crate) mod upgrade;
