//! What a document is: its key, its rows, its SQL text. Does no I/O.
pub mod definition;
