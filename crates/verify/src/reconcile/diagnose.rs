//! From logits that differ to the fault that makes them differ: hypotheses are tried until one gives what was seen.

use super::fault::{Fault, Norm, Position, Shift, Stale};
use super::suspect::{Frozen, Suspect};
use super::trace::Trace;
use super::{BOUND, Trained, off, training};
use burn::tensor::Tensor;
use spectrain_model::host_rows;
use std::ops::ControlFlow;

/// Rotary bases that are tried lie between these powers of ten.
const BASES: (f64, f64) = (2.0, 9.0);
/// Distance of the first bases that are tried, as a power of ten.
const BASE_STEP: f64 = 0.05;
/// Distance at which the search ends: 0.02 % of the base.
const BASE_END: f64 = 1e-4;

/// Names what makes the logits of `traces` differ from training's. `at_once` says that they do so in the first round's
/// first step.
pub(super) fn diagnose(trained: &Trained, traces: &[Trace], at_once: bool) -> Fault {
    let layers: Vec<usize> = (0..=trained.target.config().layers).collect();
    let features = traces.iter().map(|t| training::features(trained, &t.text, &layers)).collect();
    let bench = Bench { trained, traces, features, frozen: Frozen::new(trained) };
    let shifted = match handed_shift(traces) {
        Some(0) => None,
        by => Some(by.map_or(Fault::Unexplained, |by| Fault::LabelShift(Shift::Handed(by)))),
    };
    if let Some(fault) = shifted.or_else(|| bench.handed_features()) {
        return fault;
    }
    let explaining = hypotheses(trained).into_iter().filter_map(|fault| Some((bench.worst(&fault)?, fault)));
    let known = explaining.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, fault)| fault);
    let base = || at_once.then(|| bench.base()).flatten();
    known.or_else(base).unwrap_or(Fault::Unexplained)
}

/// Faults with a finite number of forms.
fn hypotheses(trained: &Trained) -> Vec<Fault> {
    let shifts = [Shift::OwnToken, Shift::EarlierFeature, Shift::Ahead, Shift::Behind].map(Fault::LabelShift);
    let norms =
        [Norm::Feature, Norm::Hidden, Norm::Stream, Norm::Embedding, Norm::Residual, Norm::PassedOn, Norm::Head];
    let positions =
        [Position::Frozen, Position::Restarted, Position::Offset(-1), Position::Offset(1)].map(Fault::Position);
    let stale = [Stale::Accepted, Stale::Rejected].map(Fault::StaleCache);
    // A run time without a fault: then training has it.
    let known =
        std::iter::once(Fault::Unroll).chain(shifts).chain(norms.map(Fault::Norm)).chain(positions).chain(stale);
    known.chain(other_taps(trained)).collect()
}

/// One tap of another layer, all of them off by one, two of them exchanged.
fn other_taps(trained: &Trained) -> Vec<Fault> {
    let taps = &trained.drafter.config.taps;
    let layers = trained.target.config().layers;
    let mut served: Vec<Vec<usize>> = Vec::new();
    for by in [-1, 1] {
        served.extend(taps.iter().map(|&t| t.checked_add_signed(by).filter(|&t| t <= layers)).collect::<Option<_>>());
    }
    for place in 0..taps.len() {
        for layer in (0..=layers).filter(|l| *l != taps[place]) {
            let mut other = taps.clone();
            other[place] = layer;
            served.push(other);
        }
        for second in place + 1..taps.len() {
            let mut other = taps.clone();
            other.swap(place, second);
            served.push(other);
        }
    }
    served.into_iter().map(|served| Fault::Taps { trained: taps.clone(), served }).collect()
}

/// By how many positions the tokens that the decoder handed over lie behind the ones after the features; none where
/// they follow no text that is shifted as a whole.
fn handed_shift(traces: &[Trace]) -> Option<isize> {
    let fits = |by: &isize| {
        traces.iter().all(|trace| {
            let tokens = trace.handed.iter().flat_map(|h| &h.next);
            let at = |row: usize| (row + 1).checked_add_signed(*by).and_then(|i| trace.text.get(i));
            tokens.enumerate().all(|(row, token)| at(row).is_none_or(|t| t == token))
        })
    };
    [0, -1, 1, -2, 2].into_iter().find(fits)
}

struct Bench<'a> {
    trained: &'a Trained<'a>,
    traces: &'a [Trace],
    /// By conversation and layer.
    features: Vec<Vec<Tensor<2>>>,
    frozen: Frozen,
}

impl Bench<'_> {
    /// The largest difference between what was seen and what a drafter with this fault gives; none if it is larger
    /// than rounding.
    fn worst(&self, fault: &Fault) -> Option<f64> {
        let suspect = Suspect::new(self.trained, &self.frozen, fault);
        let mut worst: f64 = 0.0;
        let same = self.traces.iter().zip(&self.features).all(|(trace, features)| {
            let replayed = suspect.replay(trace, features, |round, step, row| {
                let apart = off(&trace.rounds[round].draft.logits[step], row);
                worst = worst.max(apart);
                if apart <= BOUND { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            replayed.is_continue()
        });
        same.then_some(worst)
    }

    /// How far a drafter with this rotary base is from the first logits of the longest prompt.
    fn misses(&self, power: f64) -> f64 {
        let longest = self.traces.iter().enumerate().filter(|(_, t)| !t.rounds.is_empty());
        let Some((i, trace)) = longest.max_by_key(|(_, t)| t.rounds[0].known) else { return f64::NAN };
        let fault = self.base_of(power);
        let mut miss = f64::NAN;
        // It breaks after the first row.
        let _ = Suspect::new(self.trained, &self.frozen, &fault).replay(trace, &self.features[i], |_, _, row| {
            miss = off(&trace.rounds[0].draft.logits[0], row);
            ControlFlow::Break(())
        });
        miss
    }

    fn base_of(&self, power: f64) -> Fault {
        Fault::Theta { trained: self.trained.drafter.config.rope_theta, served: 10_f64.powf(power) }
    }

    /// The rotary base that gives what was seen: a grid, then the nearest of its points ever closer.
    fn base(&self) -> Option<Fault> {
        let count = ((BASES.1 - BASES.0) / BASE_STEP).round() as usize;
        let grid = (0..=count).map(|i| BASES.0 + i as f64 * BASE_STEP);
        let (mut best, mut miss) =
            grid.map(|p| (p, self.misses(p))).min_by(|a, b| a.1.total_cmp(&b.1)).filter(|b| b.1.is_finite())?;
        let mut step = BASE_STEP / 2.0;
        while step > BASE_END {
            let sides = [best - step, best + step].map(|p| (p, self.misses(p)));
            match sides.into_iter().min_by(|a, b| a.1.total_cmp(&b.1)).filter(|b| b.1 < miss) {
                Some(nearer) => (best, miss) = nearer,
                None => step /= 2.0,
            }
        }
        Some(self.base_of(best)).filter(|fault| self.worst(fault).is_some())
    }

    /// Whether the features that were handed over are those of the layers that training tapped.
    fn handed_features(&self) -> Option<Fault> {
        let trained = self.trained.drafter.config.taps.clone();
        let served: Vec<usize> =
            (0..self.taps_handed()).map(|tap| self.layer_handed(tap, trained.get(tap))).collect::<Option<_>>()?;
        (served != trained).then_some(Fault::Taps { trained, served })
    }

    fn taps_handed(&self) -> usize {
        self.traces.iter().flat_map(|t| &t.handed).map(|h| h.features.len()).next().unwrap_or(0)
    }

    /// The layer whose hidden states were handed over as tap number `tap`, `expected` if it is that.
    fn layer_handed(&self, tap: usize, expected: Option<&usize>) -> Option<usize> {
        let layers = 0..=self.trained.target.config().layers;
        expected.copied().into_iter().chain(layers).find(|&layer| {
            self.traces.iter().zip(&self.features).all(|(trace, features)| {
                let mut first = 0;
                trace.handed.iter().all(|handed| {
                    let (rows, found) = (handed.next.len(), handed.features[tap].clone());
                    let own = features[layer].clone().narrow(0, first, rows);
                    first += rows;
                    same_rows(&host_rows(found), &host_rows(own), rows)
                })
            })
        })
    }
}

/// Whether every row lies within the bound of the other's, in parts of that row's length: a few dimensions that are the
/// same in all layers must not hide the rest.
fn same_rows(found: &[f32], expected: &[f32], rows: usize) -> bool {
    let width = expected.len() / rows;
    let length = |row: &mut dyn Iterator<Item = f64>| row.map(|v| v * v).sum::<f64>().sqrt();
    found.chunks(width).zip(expected.chunks(width)).all(|(f, e)| {
        let apart = length(&mut f.iter().zip(e).map(|(f, e)| f64::from(f - e)));
        apart <= 10.0 * BOUND * length(&mut e.iter().map(|e| f64::from(*e)))
    })
}

#[cfg(test)]
mod tests {
    use super::super::trace::Handed;
    use super::*;

    fn handed(next: &[&[u32]]) -> Trace {
        let handed = next.iter().map(|next| Handed { next: next.to_vec(), features: Vec::new() });
        Trace { text: vec![3, 1, 4, 1, 5, 9, 2, 6], handed: handed.collect(), rounds: Vec::new() }
    }

    #[test]
    fn a_decoder_that_hands_over_other_tokens_is_seen() {
        let right = || handed(&[&[1, 4, 1], &[5, 9]]);
        assert_eq!(handed_shift(&[right()]), Some(0));
        assert_eq!(handed_shift(&[handed(&[&[3, 1, 4], &[1, 5]])]), Some(-1));
        assert_eq!(handed_shift(&[handed(&[&[4, 1, 5], &[9, 2]])]), Some(1));
        assert_eq!(handed_shift(&[right(), handed(&[&[3, 1, 4], &[1, 5]])]), None);
        assert_eq!(handed_shift(&[handed(&[&[1, 4, 1], &[1, 5]])]), None);
    }
}
