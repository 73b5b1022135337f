//! What was measured, for a person: a table for the terminal, one page `report.html`, and single SVG pictures.
//!
//! The page stands alone: no script, no font and no picture is fetched, so it can be mailed or kept for years. The
//! figures are drawn by a few functions of our own, because their colours must follow the reader's light or dark
//! scheme through style sheets, and a drawing library writes fixed colours. All markup is written through
//! [`markup::Markup`], which escapes every text and closes every element.
#![warn(missing_docs)]

mod axis;
mod bars;
mod costs;
mod figure;
mod lines;
mod markup;
mod measured;
mod number;
mod offline;
mod page;
mod series;
mod speed;
mod stacked;
mod table;
mod tables;
mod training;
mod transcript;
mod tree;
mod waterfall;
mod words;

pub use costs::{advice, cost_table, predictions};
pub use measured::curve_svg;
pub use offline::{differences, offline_table};
pub use page::Report;
pub use table::table;
pub use training::{TrainingError, TrainingPoint, read_training};
pub use transcript::{Origin, Transcript};
pub use tree::tree_table;
pub use waterfall::waterfall_table;
