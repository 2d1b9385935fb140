//! What becomes of figures: statistics, the folder of a run, charts.

pub(crate) mod charts;
pub(crate) mod results;
pub(crate) mod statistics;
