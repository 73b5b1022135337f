//! Exact laws of the acceptance rules on small vocabularies: every random outcome is visited with its probability, so
//! nothing here is statistical and a wrong rule cannot pass by luck.
#![allow(clippy::unwrap_used)]

mod edges;
mod enumerate;
mod keyed;
mod laws;
mod model;
mod oracle;
mod processors;
mod reference;
mod rounds;
mod trees;
mod vectors;
mod wrong;
