//! `where`: rows for which the condition is not true do not exist for larder.

mod mistakes;
mod owners;
mod soft_delete;
mod visibility;
mod writes;
