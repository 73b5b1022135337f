//! The mathematics and the text side of spectrain, free of Burn: what is accepted, what is lost, what a number means.
//!
//! Every tensor form elsewhere is checked against the plain f64 functions here.
#![warn(missing_docs)]

pub mod advice;
pub mod chat;
pub mod constraint;
pub mod costs;
pub mod detokenizer;
pub mod evaluation;
pub mod form;
pub mod loss;
pub mod offline;
pub mod process;
pub mod recipe;
pub mod reconciliation;
pub mod rng;
pub mod rules;
pub mod stats;
pub mod stopping;
pub mod token_bytes;
pub mod tokenizer;
pub mod tree;
pub mod waterfall;
