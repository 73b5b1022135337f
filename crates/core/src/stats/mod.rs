//! What a number about drafting means, and how sure it is.
//!
//! Peers print different quantities under one name, so each has its own function here, with the name of the evaluation
//! file: counted statistics over verified rounds ([`acceptance`]), the same in other projects' terms ([`definitions`]),
//! what a user waits for ([`latency`]), the algebra from acceptance to time ([`length`]),
//! the offline estimate per round ([`renewal`]), intervals ([`bootstrap`]), tests of equality of law ([`chi_square`]),
//! and calibrated confidence with what is decided from it ([`calibration`], [`temperature_scaling`], [`schedule`]).
//! [`lookup`] drafts by copying from the text itself: the free baseline of every comparison.

pub mod acceptance;
pub mod bootstrap;
pub mod calibration;
pub mod chi_square;
pub mod definitions;
pub mod latency;
pub mod length;
pub mod lookup;
pub mod renewal;
pub mod replay;
pub mod schedule;
pub mod special;
pub mod temperature_scaling;

pub use acceptance::{Acceptance, Round};
pub use bootstrap::{Interval, Ratio, Resampling};
pub use definitions::{Call, Definitions, Finish};
pub use latency::{Arrival, Latency, Slo, Timeline};

/// Why a statistic cannot be computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StatsError {
    /// There is nothing to count.
    #[error("{what} is empty")]
    Empty {
        /// The argument that is empty.
        what: &'static str,
    },
    /// Two arguments that belong together differ in length.
    #[error("{what} has {found} entries where {expected} belong")]
    Length {
        /// The argument that does not fit.
        what: &'static str,
        /// Entries that were expected.
        expected: usize,
        /// Entries that were found.
        found: usize,
    },
    /// A value lies outside its range.
    #[error("{what}[{index}] is {value}, which is outside its range")]
    Range {
        /// The argument with the value.
        what: &'static str,
        /// Position of the value in the argument.
        index: usize,
        /// The value.
        value: f64,
    },
    /// Fewer than two bins keep an expectation of five samples.
    #[error("too few samples for a chi-square test: fewer than two bins expect five or more")]
    TooFewSamples,
}
