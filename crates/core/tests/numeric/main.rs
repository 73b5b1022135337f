//! Losses, statistics and random numbers against the worked vectors, finite differences and exact enumeration.

#![allow(clippy::unwrap_used)]

mod advice;
mod bootstrap;
mod calibration;
mod chain;
mod chi_square;
mod definitions;
mod evaluation;
mod gradients;
mod latency;
mod lengths;
mod lookup;
mod losses;
mod policies;
mod renewal;
mod rng;
mod schedule;
mod vectors;
