//! The report on hand-made measurements: its table, its page, and the numbers in its figures.

#![allow(clippy::unwrap_used)]

mod page;
mod picture;
mod sample;
mod table;
mod training;
