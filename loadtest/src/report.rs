//! What becomes of figures: the folder of a run, statistics, tables and charts.

pub(crate) mod benchmark_report;
pub(crate) mod charts;
pub(crate) mod plot;
pub(crate) mod results;
pub(crate) mod statistics;
pub(crate) mod sweep_run;
