//! Keys of every type: one spelling for each value, and requests of every kind by such keys.

mod requests;
mod spelling;
