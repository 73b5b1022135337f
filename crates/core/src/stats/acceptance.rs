//! Counted statistics over verified rounds.

use serde::{Deserialize, Serialize};

use super::{Ratio, StatsError};

/// One target call: what was proposed and what became of it, after trimming at a stop or a cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Draft tokens submitted on the longest path of the proposal.
    pub drafted: usize,
    /// Draft tokens that were accepted and kept.
    pub accepted: usize,
    /// Tokens committed: `accepted`, plus one unless the text ended inside the accepted drafts.
    pub committed: usize,
}

/// Statistics of a set of rounds. Every mean is a ratio of sums over rounds, never a mean of means.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Acceptance {
    /// Target calls.
    pub target_calls: usize,
    /// Tokens committed in these calls.
    pub committed_tokens: usize,
    /// Committed tokens per target call, the extra token included: 1 for plain decoding.
    pub tokens_per_target_call: f64,
    /// Accepted draft tokens per target call.
    pub accepted_per_target_call: f64,
    /// Target calls per committed token.
    pub target_calls_per_output_token: f64,
    /// Accepted over submitted draft tokens; 0 if nothing was submitted.
    pub accept_rate_draft: f64,
    /// `accept_prefix[j-1] = P(L >= j)`: share of all rounds in which at least `j` drafts were accepted.
    pub accept_prefix: Vec<f64>,
    /// `accept_cond[j-1] = P(L >= j | L >= j-1)`; empty past the first length that no round reached.
    pub accept_cond: Vec<f64>,
    /// Number of rounds that accepted exactly `j` drafts, `j = 0..=k`.
    pub accept_len_hist: Vec<usize>,
}

/// Conditional acceptance `[length]` of rounds `(drafted, accepted)`: at each depth, of those that drafted so far and
/// accepted all before it, the share that accepted, shrunk by `weight` further rounds at the rate of all depths together,
/// itself shrunk so to one half.
pub fn shrunk(rounds: impl Iterator<Item = (usize, usize)>, length: usize, weight: f64) -> Vec<f64> {
    let (mut reached, mut accepted) = (vec![0.0; length], vec![0.0; length]);
    for (drafted, kept) in rounds {
        let depths = drafted.min(length);
        reached[..depths.min(kept + 1)].iter_mut().for_each(|n| *n += 1.0);
        accepted[..depths.min(kept)].iter_mut().for_each(|n| *n += 1.0);
    }
    let towards = |accepted: f64, reached: f64, rate: f64| (accepted + weight * rate) / (reached + weight);
    let all = towards(accepted.iter().sum(), reached.iter().sum(), 0.5);
    accepted.iter().zip(reached).map(|(&accepted, reached)| towards(accepted, reached, all)).collect()
}

impl Acceptance {
    /// The statistics of `rounds` whose proposals have at most `length` tokens on a path.
    ///
    /// # Errors
    /// If there is no round, or one accepts more than it drafted, drafts more than `length`, or commits anything but
    /// its accepted tokens with at most one more.
    pub fn of(rounds: &[Round], length: usize) -> Result<Self, StatsError> {
        if rounds.is_empty() {
            return Err(StatsError::Empty { what: "rounds" });
        }
        let mut hist = vec![0usize; length + 1];
        let (mut accepted, mut drafted, mut committed) = (0usize, 0usize, 0usize);
        for (index, round) in rounds.iter().enumerate() {
            check(round, length, index)?;
            hist[round.accepted] += 1;
            accepted += round.accepted;
            drafted += round.drafted;
            committed += round.committed;
        }
        let calls = rounds.len();
        let prefix = prefix_rates(&hist, calls);
        Ok(Self {
            target_calls: calls,
            committed_tokens: committed,
            tokens_per_target_call: committed as f64 / calls as f64,
            accepted_per_target_call: accepted as f64 / calls as f64,
            target_calls_per_output_token: calls as f64 / committed as f64,
            accept_rate_draft: accepted as f64 / drafted.max(1) as f64,
            accept_cond: super::length::conditional(&prefix),
            accept_prefix: prefix,
            accept_len_hist: hist,
        })
    }

    /// Committed tokens over target calls, to be resampled by question.
    pub fn ratio(&self) -> Ratio {
        Ratio { numerator: self.committed_tokens as f64, denominator: self.target_calls as f64 }
    }
}

fn check(round: &Round, length: usize, index: usize) -> Result<(), StatsError> {
    let range = |what, value: usize| StatsError::Range { what, index, value: value as f64 };
    if round.drafted > length {
        return Err(range("drafted", round.drafted));
    }
    if round.accepted > round.drafted {
        return Err(range("accepted", round.accepted));
    }
    let extra = round.committed.wrapping_sub(round.accepted);
    if extra > 1 || round.committed == 0 {
        return Err(range("committed", round.committed));
    }
    Ok(())
}

/// `P(L >= j)` for `j = 1..=k` from the histogram over `0..=k`.
fn prefix_rates(hist: &[usize], calls: usize) -> Vec<f64> {
    let mut reached = 0;
    let mut prefix: Vec<f64> = hist[1..]
        .iter()
        .rev()
        .map(|&count| {
            reached += count;
            reached as f64 / calls as f64
        })
        .collect();
    prefix.reverse();
    prefix
}
