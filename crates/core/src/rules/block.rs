//! Block rule for chains: a later acceptance rescues earlier rejections, so it never accepts fewer tokens on average
//! than the token rule.
//!
//! Sun et al., "Block verification accelerates speculative decoding", ICLR 2025. Output law: the target's.

use super::residual::{ZeroResidual, draw_residual, draw_target, excess_mass, residual};
use super::token::{chain_acceptance, check_chain};
use super::{Ask, Chance, Proposal, RuleError, Verdict};
use crate::rng::Purpose;

/// Judges a drafted chain; inputs and errors as for [`super::token::verify`].
///
/// With c_0 = 1, c_i = min(1, c_{i-1} p(x_i)/q(x_i)) and R_i the mass of max(c_i p - q, 0) after token i, the accepted
/// length is the largest i whose coin succeeds with h_i = R_i / (R_i + 1 - c_i) (h_k = c_k at the end). Coins are asked
/// from the end, so residual masses are computed only where later tokens failed.
pub fn verify<R: AsRef<[f64]>>(
    tokens: &[u32],
    proposals: &[Proposal<'_>],
    target: &[R],
    mode: ZeroResidual,
    chance: &mut impl Chance,
) -> Result<Verdict, RuleError> {
    check_chain(tokens, proposals, target)?;
    let k = tokens.len();
    let mut carried = vec![1.0; k + 1];
    for i in 0..k {
        carried[i + 1] = chain_acceptance(carried[i], target[i].as_ref(), proposals[i], i, tokens[i])?;
    }
    let keep = |i: usize| {
        if i == k {
            return carried[k];
        }
        let mass = excess_mass(carried[i], target[i].as_ref(), proposals[i], tokens[i]);
        keep_probability(mass, carried[i])
    };
    let coin = |i: usize| Ask { depth: i - 1, purpose: Purpose::Accept, index: 0 };
    let accepted = (1..=k).rev().find(|&i| chance.accept(coin(i), keep(i))).unwrap_or(0);
    let verdict = Verdict { path: (1..=accepted).collect(), tokens: tokens[..accepted].to_vec(), ..Default::default() };
    let p = target[accepted].as_ref();
    if accepted == k {
        let next = draw_target(p, k, Ask { depth: k, purpose: Purpose::Bonus, index: 0 }, chance)?;
        return Ok(Verdict { next, ..verdict });
    }
    let rest = residual(carried[accepted], p, proposals[accepted], tokens[accepted]);
    Ok(verdict.finish(draw_residual(rest.as_deref(), p, (accepted, accepted), mode, chance)?))
}

/// `R / (R + 1 - c)`, one where both vanish: the chance to stop at a node once all below it was rejected.
pub(super) fn keep_probability(residual_mass: f64, carried: f64) -> f64 {
    let total = residual_mass + (1.0 - carried);
    if total > 0.0 { residual_mass / total } else { 1.0 }
}
