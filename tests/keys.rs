//! Keys of every type: one spelling for each value, and requests of every kind by such keys; filters of all other types.

mod filters;
mod requests;
mod spelling;
