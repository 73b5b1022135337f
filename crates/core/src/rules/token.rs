//! Token rule for chains: every drafted token is tested by itself, left to right, up to the first rejection.
//!
//! Leviathan et al. 2023, algorithm 1; Chen et al. 2023. Output law: the target's.

use super::candidate::checked_acceptance;
use super::residual::{ZeroResidual, draw_residual, draw_target, residual};
use super::{Ask, Chance, Proposal, RuleError, Verdict, check_rows, check_width};
use crate::rng::Purpose;

/// Judges a drafted chain.
///
/// `tokens` are the k drafted ids; `proposals[i]` says how token i was chosen; `target[i]` is `p` given the root and
/// tokens before i, so that there are k + 1 rows of one width. Position i's rows must condition on the drafted tokens
/// before it. Whether a token is submitted must not depend on the token itself (it may depend on all before it).
///
/// Nothing is copied for accepted tokens; one row is built at the first rejection.
///
/// # Errors
/// A [`RuleError`] if rows and tokens do not fit together or are no probabilities.
pub fn verify<R: AsRef<[f64]>>(
    tokens: &[u32],
    proposals: &[Proposal<'_>],
    target: &[R],
    mode: ZeroResidual,
    chance: &mut impl Chance,
) -> Result<Verdict, RuleError> {
    check_chain(tokens, proposals, target)?;
    let mut verdict = Verdict::default();
    for (depth, (&token, &proposal)) in tokens.iter().zip(proposals).enumerate() {
        let p = target[depth].as_ref();
        let probability = chain_acceptance(1.0, p, proposal, depth, token)?;
        if chance.accept(Ask { depth, purpose: Purpose::Accept, index: 0 }, probability) {
            verdict.push(depth + 1, token);
            continue;
        }
        let rest = residual(1.0, p, proposal, token);
        return Ok(verdict.finish(draw_residual(rest.as_deref(), p, (depth, depth), mode, chance)?));
    }
    let depth = tokens.len();
    let ask = Ask { depth, purpose: Purpose::Bonus, index: 0 };
    verdict.next = draw_target(target[depth].as_ref(), depth, ask, chance)?;
    Ok(verdict)
}

/// `min(1, scale · p/q)` of drafted token `depth`; `q` is one for a point proposal.
pub(super) fn chain_acceptance(
    scale: f64,
    p: &[f64],
    proposal: Proposal<'_>,
    depth: usize,
    token: u32,
) -> Result<f64, RuleError> {
    let q = match proposal {
        Proposal::Sampled(q) => q[token as usize],
        Proposal::Point => 1.0,
    };
    checked_acceptance(scale, p[token as usize], q, depth + 1, token)
}

/// Checks the inputs of the chain rules.
pub(super) fn check_chain<R: AsRef<[f64]>>(
    tokens: &[u32],
    proposals: &[Proposal<'_>],
    target: &[R],
) -> Result<(), RuleError> {
    let vocabulary = check_rows(target, tokens.iter().copied())?;
    if proposals.len() != tokens.len() {
        return Err(RuleError::Rows { what: "draft", expected: tokens.len(), found: proposals.len() });
    }
    for (i, proposal) in proposals.iter().enumerate() {
        if let Proposal::Sampled(q) = proposal {
            check_width("draft", i, q, vocabulary)?;
        }
    }
    Ok(())
}
