//! One row: the drafter's logits `z` and the target's logits `t` over the draft vocabulary, to value and gradient.
//!
//! Everything stays in log space: `log α = logsumexp min(log p, log q)` needs no clamp, and the factor `1/α` of the LK
//! gradient never overflows because each of its terms is a probability ratio below one. Gradients replace `z`; tokens
//! that the target rules out (`t = -inf`) have `p = 0`.

use super::DraftLoss;
use crate::simd::{exp, exp_m1, exp_shifted, flushed, kernel, ln_1p, max, sum, sum64};

/// What all losses of a row are made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Statistics {
    /// The drafter's softmax.
    q: Norm,
    /// The target over its whole vocabulary: `p`.
    p: Norm,
    /// The target over the draft vocabulary only: `p̃`.
    own: Norm,
    /// `ln α`.
    log_alpha: f32,
    /// `S`, the drafter's mass on tokens that it gives less than the target does, and its mass on the others.
    sides: [f32; 2],
    /// Whether the verifier accepts nothing here, whatever `α` says.
    refused: bool,
}

/// A softmax: `ln q = (z - top) - log`. The largest logit goes first, so that little is lost beside large logits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Norm {
    top: f32,
    log: f32,
    /// `e^-log`, and not by way of `log`: a logarithm of size 10 has no more digits than its rounding leaves.
    share: f32,
}

impl Norm {
    #[inline(always)]
    fn of(self, logit: f32) -> f32 {
        (logit - self.top) - self.log
    }

    /// The probability where the rounding of `ln q`, a number of size 10, is too much: what the difference of the
    /// logits loses is put back.
    #[inline(always)]
    fn mass(self, logit: f32) -> f32 {
        let below = logit - self.top;
        let back = below - logit;
        let lost = (logit - (below - back)) - (self.top + back);
        let mass = exp(below) * self.share;
        // A logit of -inf has no mass, and what it loses is no number.
        if mass > 0.0 { lost.mul_add(mass, mass) } else { 0.0 }
    }
}

/// A row of the target, which several rows of the drafter meet.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    /// Logits `t`.
    pub logits: &'a [f32],
    /// `p`, in the place that [`Target::new`] was given.
    pub mass: &'a [f32],
    p: Norm,
    own: Norm,
    /// Whether the target has mass on the draft vocabulary. If it has none, the row is rejected whatever the drafter
    /// does: it has a metric but no gradient.
    within: bool,
}

impl<'a> Target<'a> {
    /// Reads a row that has the log denominator `lse` over its whole vocabulary, and writes its distribution to `mass`.
    pub fn new(logits: &'a [f32], lse: f32, mass: &'a mut [f32], scratch: &mut Vec<f32>) -> Self {
        if max(logits) == f32::NEG_INFINITY {
            mass.fill(0.0);
            let none = Norm { top: 0.0, log: 0.0, share: 0.0 };
            return Self { logits, mass, p: none, own: none, within: false };
        }
        let own = norm(logits, scratch);
        let log = lse - own.top;
        let p = Norm { top: own.top, log, share: exp(-log) };
        masses(logits, p, mass);
        Self { logits, mass, p, own, within: true }
    }
}

/// What a chain makes of one of its rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Factor {
    /// Factor on the gradient.
    pub scale: f32,
    /// What acceptance of the chain's token is worth to the steps behind, where more of `q` on it would help.
    pub worth: f32,
}

impl Factor {
    /// A row that stands for itself.
    pub const ALONE: Self = Self { scale: 1.0, worth: 0.0 };
}

impl Statistics {
    /// Reads a row.
    pub fn new(z: &[f32], target: &Target, scratch: &mut Vec<f32>) -> Self {
        let (q, log_alpha, sides) = overlap(z, target.logits, target.mass, target.p, scratch);
        Self { q, p: target.p, own: target.own, log_alpha, sides, refused: false }
    }

    /// The same row where the verifier accepts nothing: it keeps other tokens than those that are read here.
    pub fn refused(self) -> Self {
        Self { refused: true, ..self }
    }

    /// The chance that a sampled draft is accepted.
    pub fn accepted(&self) -> f32 {
        if self.refused { 0.0 } else { self.alpha() }
    }

    /// Whether `token` is the drafter's likeliest, the lowest among equals.
    pub fn is_likeliest(&self, z: &[f32], token: usize) -> bool {
        z.iter().position(|&z| z == self.q.top) == Some(token)
    }

    /// The overlap `Σ min(p, q)`.
    pub fn alpha(&self) -> f32 {
        exp(self.log_alpha)
    }

    /// `p(argmax q)`, of the lowest token among equals.
    pub fn target_only(&self, z: &[f32], t: &[f32]) -> f32 {
        z.iter().position(|&z| z == self.q.top).map_or(0.0, |token| exp(self.p.of(t[token])))
    }

    /// `q` of the token with this logit.
    pub fn share(&self, z: f32) -> f32 {
        exp(self.q.of(z))
    }

    /// `q/p` of the token with these logits.
    pub fn ratio(&self, z: f32, t: f32) -> f32 {
        // A token that the target rules out is in no text of its own.
        let possible = t > f32::NEG_INFINITY && !self.refused;
        if possible { exp((self.q.of(z) - self.p.of(t)).min(88.0)) } else { 0.0 }
    }

    /// Replaces `z` by the gradient of `loss`, times `factor.scale`, and returns its value. Chain losses differentiate
    /// `1 - α` of this row, as `factor` says, along the chain's `token`.
    pub fn gradient(
        &self,
        loss: DraftLoss,
        z: &mut [f32],
        target: &Target,
        token: Option<usize>,
        factor: Factor,
        scratch: &mut Vec<f32>,
    ) -> f32 {
        scratch.resize(z.len(), 0.0);
        let Self { q, p, own, log_alpha, sides, .. } = *self;
        let weight = factor.scale;
        if !target.within {
            z.fill(0.0);
            let rejected = loss.is_chain() || loss == DraftLoss::TotalVariation;
            return if rejected { 1.0 } else { 0.0 };
        }
        let t = target.logits;
        match loss {
            DraftLoss::Kl => forward_kl(z, target, q, 1.0, weight, scratch),
            DraftLoss::CrossEntropy => forward_kl(z, target, q, 0.0, weight, scratch),
            DraftLoss::ReverseKl => reverse_kl(z, t, q, own, weight, scratch),
            DraftLoss::JensenShannon => jensen_shannon(z, t, q, own, weight, scratch),
            DraftLoss::Lk => {
                lk(z, t, q, p, log_alpha, exp(sides[0].ln() - log_alpha), weight);
                -log_alpha
            }
            DraftLoss::LkLambda { eta } => {
                let mix = exp(-eta * self.alpha());
                let kl = lk_mixed(z, t, q, p, own, sides, mix, weight, scratch);
                mix * kl + (1.0 - mix) * (1.0 - self.alpha())
            }
            DraftLoss::TotalVariation | DraftLoss::EndToEndTv | DraftLoss::ExactLength => {
                let under = token.filter(|&x| q.of(z[x]) < p.of(t[x]));
                let worth = if under.is_some() { factor.worth } else { 0.0 };
                total_variation(z, t, q, p, [sides[0] + worth, sides[1] - worth], weight);
                if let Some(x) = under {
                    z[x] -= weight * worth;
                }
                1.0 - self.alpha()
            }
        }
    }
}

/// The softmax of `z`; leaves `e^(z - max z)` in `scratch`.
#[inline(always)]
fn norm_of(z: &[f32], scratch: &mut [f32]) -> Norm {
    let top = max(z);
    for (s, z) in scratch.iter_mut().zip(z) {
        *s = flushed(exp(z - top));
    }
    let total = sum(scratch);
    Norm { top, log: total.ln(), share: 1.0 / total }
}

kernel! {
    /// The softmax of `z`.
    pub(super) fn norm(z: &[f32], scratch: &mut Vec<f32>) -> Norm {
        scratch.resize(z.len(), 0.0);
        norm_of(z, scratch)
    }
}

/// Log of the softmax denominator of `z`.
pub(super) fn log_denominator(z: &[f32], scratch: &mut Vec<f32>) -> f32 {
    let Norm { top, log, .. } = norm(z, scratch);
    top + log
}

kernel! {
    /// The distribution of a row of logits.
    fn masses(t: &[f32], p: Norm, mass: &mut [f32]) {
        for (mass, t) in mass.iter_mut().zip(t) {
            *mass = flushed(exp(p.of(*t)));
        }
    }
}

kernel! {
    /// The drafter's softmax, `ln α`, and the drafter's mass on either side of the target.
    fn overlap(z: &[f32], t: &[f32], p_mass: &[f32], p: Norm, scratch: &mut Vec<f32>) -> (Norm, f32, [f32; 2]) {
        scratch.resize(2 * z.len(), 0.0);
        let (mass, smaller) = scratch.split_at_mut(z.len());
        let q = norm_of(z, mass);
        let total = sum(mass);
        let share = 1.0 / total;
        for ((((s, m), z), t), p_mass) in smaller.iter_mut().zip(mass.iter_mut()).zip(z).zip(t).zip(p_mass) {
            let under = q.of(*z) < p.of(*t);
            *s = if under { *m * share } else { *p_mass };
            // The sign says on which side the mass is.
            *m = if under { *m } else { -*m };
        }
        let alpha = sum(smaller);
        let mut log_alpha = alpha.ln();
        // Too little for sums of f32: the logarithms themselves.
        if alpha < 1e-18 {
            for ((s, z), t) in smaller.iter_mut().zip(z).zip(t) {
                let (log_q, log_p) = (q.of(*z), p.of(*t));
                *s = if log_q < log_p { log_q } else { log_p };
            }
            let top = max(smaller);
            exp_shifted(smaller, top);
            log_alpha = if top > f32::NEG_INFINITY { top + sum(smaller).ln() } else { top };
        }
        for (s, m) in smaller.iter_mut().zip(mass.iter_mut()) {
            *s = if *m < 0.0 { -*m } else { 0.0 };
            *m = if *m > 0.0 { *m } else { 0.0 };
        }
        (q, log_alpha, [sum(mass) / total, sum(smaller) / total])
    }
}

kernel! {
    /// `Σ p̃ (entropy · ln p̃ - ln q)`: KL with `entropy` 1, cross-entropy with 0.
    fn forward_kl(z: &mut [f32], target: &Target, q: Norm, entropy: f32, weight: f32, scratch: &mut [f32]) -> f32 {
        let own = target.own;
        let all = (f64::from(target.p.log) - f64::from(own.log)).exp() as f32;
        for (((s, z), t), p) in scratch.iter_mut().zip(z.iter_mut()).zip(target.logits).zip(target.mass) {
            let (log_p, log_q) = (own.of(*t), q.of(*z));
            let p = p * all;
            // Where p is nothing, its logarithm may be infinite.
            *s = if p > 0.0 { p * (entropy * log_p - log_q) } else { 0.0 };
            *z = weight * flushed(exp(log_q) - p);
        }
        sum(scratch)
    }
}

/// `ln (q/p)` without the two logarithms, which are large beside their difference.
#[derive(Clone, Copy)]
struct Ratio(f64);

impl Ratio {
    #[inline(always)]
    fn new(q: Norm, p: Norm) -> Self {
        Self((f64::from(q.top) - f64::from(p.top)) + (f64::from(q.log) - f64::from(p.log)))
    }

    #[inline(always)]
    fn of(self, z: f32, t: f32) -> f64 {
        (f64::from(z) - f64::from(t)) - self.0
    }
}

kernel! {
    /// `Σ q (ln q - ln p̃)`.
    ///
    /// Of a certain drafter's likeliest token the gradient is `q` times next to nothing, the token's own `ln (q/p̃)` less
    /// a mean that it makes up alone. Ratios are therefore counted from that token's.
    fn reverse_kl(z: &mut [f32], t: &[f32], q: Norm, own: Norm, weight: f32, scratch: &mut Vec<f32>) -> f32 {
        scratch.resize(2 * z.len(), 0.0);
        let (masses, terms) = scratch.split_at_mut(z.len());
        let ratio = Ratio::new(q, own);
        // An infinite one makes the divergence infinite, whatever it is counted from.
        let centre = Some(centre(z, t, q, ratio)).filter(|centre| centre.is_finite()).unwrap_or(0.0);
        for (((m, s), z), t) in masses.iter_mut().zip(terms.iter_mut()).zip(z.iter()).zip(t) {
            *m = q.mass(*z);
            *s = if *m > 0.0 { *m * (ratio.of(*z, *t) - centre) as f32 } else { 0.0 };
        }
        let mean = sum64(terms) / sum64(masses);
        for ((z, t), mass) in z.iter_mut().zip(t).zip(masses) {
            let excess = if *mass > 0.0 { (ratio.of(*z, *t) - centre - mean) as f32 } else { 0.0 };
            *z = weight * flushed(*mass * excess);
        }
        (centre + mean) as f32
    }
}

/// `ln (q/p̃)` of the drafter's likeliest token: infinite where the target rules that out.
#[inline(always)]
fn centre(z: &[f32], t: &[f32], q: Norm, ratio: Ratio) -> f64 {
    z.iter().position(|&z| z == q.top).map_or(0.0, |top| ratio.of(z[top], t[top]))
}

kernel! {
    /// Jensen–Shannon divergence: `½ KL(p̃ ‖ m) + ½ KL(q ‖ m)` with `m` the mean of both.
    ///
    /// The gradient is `q` times what `ln (q/m)` is above its mean. All are near `ln 2` where the distributions hardly
    /// meet, and near 0 where they are alike, so differences from one token's value are computed, not the values: of
    /// the drafter's likeliest, for the reason above.
    fn jensen_shannon(z: &mut [f32], t: &[f32], q: Norm, own: Norm, weight: f32, scratch: &mut Vec<f32>) -> f32 {
        scratch.resize(3 * z.len(), 0.0);
        let (masses, rest) = scratch.split_at_mut(z.len());
        let (above, terms) = rest.split_at_mut(z.len());
        let ratio = Ratio::new(q, own);
        // A token so much below the target that the lower bound holds is not one that the drafter is certain of; beyond
        // the upper one the value is that of a token which the target rules out.
        let centre = centre(z, t, q, ratio).clamp(-0.7, 80.0);
        let of_centre = below_ln_2(centre as f32);
        let slope = (1.0 / (1.0 + centre.exp())) as f32;
        for ((((h, m), s), z), t) in above.iter_mut().zip(masses.iter_mut()).zip(terms.iter_mut()).zip(z.iter()).zip(t) {
            let (over, p) = (ratio.of(*z, *t), own.mass(*t));
            *m = q.mass(*z);
            *h = if *m > 0.0 { over_centre(over, centre, of_centre, slope) } else { 0.0 };
            *s = if p > 0.0 { p * (std::f32::consts::LN_2 - below_ln_2(-over as f32)) } else { 0.0 };
        }
        let of_p = sum64(terms);
        for ((s, h), m) in terms.iter_mut().zip(above.iter()).zip(masses.iter()) {
            *s = *m * *h;
        }
        let mean = sum64(terms) / sum64(masses);
        for ((z, h), m) in z.iter_mut().zip(above.iter()).zip(masses.iter()) {
            *z = 0.5 * weight * flushed(*m * (f64::from(*h) - mean) as f32);
        }
        let of_q = std::f64::consts::LN_2 - f64::from(of_centre) + mean;
        (0.5 * (of_q + of_p)) as f32
    }
}

/// What `ln (a/m)`, with `m` the mean of `a` and `b`, lacks to `ln 2`: `ln (1 + b/a)`, from `ln (a/b)`.
#[inline(always)]
fn below_ln_2(log_ratio: f32) -> f32 {
    let below = if log_ratio < 0.0 { -log_ratio } else { 0.0 };
    ln_1p(exp(-log_ratio.abs())) + below
}

/// `below_ln_2(centre) - below_ln_2(x)`: near the centre as `-ln (1 + slope · (e^(centre - x) - 1))`, with `slope` the
/// share `1/(1 + e^centre)`, and as it stands where it is of the size of its parts.
#[inline(always)]
fn over_centre(x: f64, centre: f64, of_centre: f32, slope: f32) -> f32 {
    let below = centre - x;
    let rounded = (below as f32).clamp(-87.0, 88.0);
    let grown = exp_m1(rounded);
    // The difference is of size 10; what its rounding loses is put back.
    let lost = ((below - f64::from(rounded)) as f32).clamp(-1e-5, 1e-5);
    let y = slope * (grown + 1.0).mul_add(lost, grown);
    let near = -ln_1p(y.clamp(-0.5, 1.0));
    if y.abs() < 0.5 { near } else { of_centre - below_ln_2(x as f32) }
}

kernel! {
    /// Gradient of `-ln α`; `covered` is the under-covered tokens' share of `α`.
    fn lk(z: &mut [f32], t: &[f32], q: Norm, p: Norm, log_alpha: f32, covered: f32, weight: f32) {
        for (z, t) in z.iter_mut().zip(t) {
            let (log_q, log_p) = (q.of(*z), p.of(*t));
            // The ratio q/α of an under-covered token is at most one: it is a part of α.
            let ratio = if log_q < log_p { exp((log_q - log_alpha).min(0.0)) } else { 0.0 };
            *z = weight * flushed(exp(log_q) * covered - ratio);
        }
    }
}

kernel! {
    /// Gradient of `mix · KL(p̃ ‖ q) + (1 - mix) · (1 - α)`; returns the KL.
    fn lk_mixed(z: &mut [f32], t: &[f32], q: Norm, p: Norm, own: Norm, sides: [f32; 2], mix: f32, weight: f32, scratch: &mut [f32]) -> f32 {
        for ((s, z), t) in scratch.iter_mut().zip(z.iter_mut()).zip(t) {
            let (log_p, log_q) = (own.of(*t), q.of(*z));
            let (p_own, mass) = (exp(log_p), exp(log_q));
            *s = if p_own > 0.0 { p_own * (log_p - log_q) } else { 0.0 };
            let side = if log_q < p.of(*t) { -sides[1] } else { sides[0] };
            *z = weight * flushed(mix * (mass - p_own) + (1.0 - mix) * mass * side);
        }
        sum(scratch)
    }
}

kernel! {
    /// Gradient of `1 - α`: `q S` where `q >= p`, else `q (S - 1)`, with `S` and `1 - S` as sums of their own.
    fn total_variation(z: &mut [f32], t: &[f32], q: Norm, p: Norm, sides: [f32; 2], weight: f32) {
        for (z, t) in z.iter_mut().zip(t) {
            let log_q = q.of(*z);
            let side = if log_q < p.of(*t) { -sides[1] } else { sides[0] };
            *z = weight * flushed(exp(log_q) * side);
        }
    }
}
