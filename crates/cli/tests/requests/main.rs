//! What the command line does with right and wrong requests, from outside.
#![allow(clippy::unwrap_used)]

mod curves;
mod exchange;
mod inspect;
mod kills;
mod offline;
mod place;
mod prompts;
mod reconcile;
mod refusals;
mod replay;
mod selection;
mod wrong;
