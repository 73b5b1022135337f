//! What is left of the target once a proposal was rejected: the positive part of `scale · p − q`, normalised.

use super::{Ask, Chance, Proposal, RuleError};
use crate::rng::Purpose;

/// What to do when a rejection leaves no residual mass, which only rounding can cause (`p` and `q` nearly equal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ZeroResidual {
    /// Report an error.
    Strict,
    /// Draw from the target itself and count it in [`super::Verdict::fallbacks`].
    #[default]
    FallBack,
}

/// Positive part of `scale · p − q`, not normalised, and its mass. The positive part is taken first: rounding makes
/// differences slightly negative.
pub(super) fn excess(scale: f64, p: &[f64], q: &[f64]) -> (Vec<f64>, f64) {
    let rest: Vec<f64> = p.iter().zip(q).map(|(&p, &q)| (scale * p - q).max(0.0)).collect();
    let mass = rest.iter().sum();
    (rest, mass)
}

/// Mass of the positive part of `scale · p − q`, without building it.
pub(super) fn excess_mass(scale: f64, p: &[f64], proposal: Proposal<'_>, token: u32) -> f64 {
    match proposal {
        Proposal::Sampled(q) => p.iter().zip(q).map(|(&p, &q)| (scale * p - q).max(0.0)).sum(),
        Proposal::Point => {
            let token = token as usize;
            scale * (p[..token].iter().sum::<f64>() + p[token + 1..].iter().sum::<f64>())
        }
    }
}

/// Normalised residual of `scale · p` after the proposal of `token`, or `None` without mass.
///
/// A point proposal leaves `p` without the token, whatever the scale.
pub(super) fn residual(scale: f64, p: &[f64], proposal: Proposal<'_>, token: u32) -> Option<Vec<f64>> {
    let (mut rest, mass) = match proposal {
        Proposal::Sampled(q) => excess(scale, p, q),
        Proposal::Point => {
            let mut rest = p.to_vec();
            rest[token as usize] = 0.0;
            let mass = rest.iter().sum();
            (rest, mass)
        }
    };
    normalise(&mut rest, mass).then_some(rest)
}

/// Divides by `mass`; false, leaving the row as it is, when there is none.
pub(super) fn normalise(row: &mut [f64], mass: f64) -> bool {
    if mass > 0.0 {
        row.iter_mut().for_each(|entry| *entry /= mass);
    }
    mass > 0.0
}

/// The token after the accepted path, drawn from the target's row at `node`; `None` when every entry is masked.
///
/// # Errors
/// [`RuleError::NotProbabilities`] if an entry is negative or not finite.
pub(super) fn draw_target(
    row: &[f64],
    node: usize,
    ask: Ask,
    chance: &mut impl Chance,
) -> Result<Option<u32>, RuleError> {
    let mut positive = false;
    for &mass in row {
        if !(mass >= 0.0 && mass.is_finite()) {
            return Err(RuleError::NotProbabilities { node });
        }
        positive |= mass > 0.0;
    }
    Ok(positive.then(|| chance.draw(ask, row) as u32))
}

/// The token after a rejection at `node`: from `rest` if it has mass, else from the target row by the declared mode.
/// Also says whether the fallback was taken.
///
/// # Errors
/// [`RuleError::NoResidual`] in strict mode, [`RuleError::NotProbabilities`] for a malformed target row.
pub(super) fn draw_residual(
    rest: Option<&[f64]>,
    target: &[f64],
    (node, depth): (usize, usize),
    mode: ZeroResidual,
    chance: &mut impl Chance,
) -> Result<(Option<u32>, bool), RuleError> {
    let ask = Ask { depth, purpose: Purpose::Residual, index: 0 };
    if let Some(rest) = rest {
        return Ok((draw_target(rest, node, ask, chance)?, false));
    }
    let masked = target.iter().all(|&mass| mass == 0.0);
    if mode == ZeroResidual::Strict && !masked {
        return Err(RuleError::NoResidual { node });
    }
    Ok((draw_target(target, node, ask, chance)?, !masked))
}
