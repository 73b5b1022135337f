//! End-to-end tests: the real code paths, against references and against each other. One binary, since each links Burn.
#![allow(clippy::unwrap_used)]

mod accumulation;
mod enumerated;
mod export;
mod faulty;
mod forms;
mod identity;
mod law;
mod leaving;
mod lengths;
mod loss_rows;
mod measure;
mod mixed;
mod offline;
mod packing;
mod pages;
mod parity;
mod processed;
mod reconcile;
mod refused;
mod replay;
mod resume;
mod rollback;
mod room;
mod selection;
mod serve;
mod stream;
mod support;
mod tensorboard;
mod tiny;
mod training;
mod tree_law;
mod tree_rows;
mod tree_text;
mod untrained;
mod witness;
