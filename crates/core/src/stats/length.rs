//! From acceptance to expected tokens, and from expected tokens and costs to the best draft length.
//!
//! `survival[j-1]` is `s_j = P(L >= j)`, `conditional[j-1]` is `c_j = P(L >= j | L >= j-1)`; the two are often confused
//! on model cards. Speed-up and the constant-rate optimum follow Leviathan et al. (2023), with `c` as the cost of a
//! target call over the cost of a draft token (the inverse of that paper's letter).

/// Survival from conditional acceptance: running products, `[k] -> [k]`.
pub fn survival(conditional: &[f64]) -> Vec<f64> {
    let mut product = 1.0;
    conditional
        .iter()
        .map(|c| {
            product *= c;
            product
        })
        .collect()
}

/// Conditional acceptance from survival: ratios of neighbours, cut before the first position that is never reached.
pub fn conditional(survival: &[f64]) -> Vec<f64> {
    let mut before = 1.0;
    let mut rates = Vec::with_capacity(survival.len());
    for &reached in survival {
        if before <= 0.0 {
            break;
        }
        rates.push(reached / before);
        before = reached;
    }
    rates
}

/// `E[N] = 1 + sum_j s_j`: committed tokens per target call, the extra token included.
pub fn expected_tokens(survival: &[f64]) -> f64 {
    1.0 + survival.iter().sum::<f64>()
}

/// `E[N]` for `length` drafts of one constant acceptance: `(1 - a^{k+1}) / (1 - a)`, and `k + 1` at `a = 1`.
pub fn expected_tokens_constant(acceptance: f64, length: usize) -> f64 {
    expected_tokens(&survival(&vec![acceptance; length]))
}

/// Time of one round, in any unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundTime {
    /// All draft steps.
    pub draft: f64,
    /// The target call over the proposal.
    pub verify: f64,
    /// Commit, rollback and what else belongs to neither model.
    pub state: f64,
}

/// Speed-up over plain decoding: expected tokens times the plain time per token (`plain`), over the time of a round.
pub fn speedup(expected_tokens: f64, plain: f64, round: RoundTime) -> f64 {
    expected_tokens * plain / (round.draft + round.verify + round.state)
}

/// Speed-up with constant acceptance, free state handling and a target call as dear as a plain one: `E[N] / (1 + k/c)`.
pub fn speedup_constant(acceptance: f64, length: usize, cost_ratio: f64) -> f64 {
    let round = RoundTime { draft: length as f64 / cost_ratio, verify: 1.0, state: 0.0 };
    speedup(expected_tokens_constant(acceptance, length), 1.0, round)
}

/// The marginal rule: drafting one more token raises tokens per time iff `s_k / dT_k > E[N]_{k-1} / T_{k-1}`.
///
/// `survival` is `s_k` of the new token and `added` its time; `expected` and `time` are the round's before it.
pub fn extends(survival: f64, added: f64, expected: f64, time: f64) -> bool {
    survival * time > expected * added
}

/// The fastest draft length of at most `max` for constant acceptance and cost ratio, by the marginal rule, which is
/// exact here because tokens per time have one maximum.
pub fn optimal_length(acceptance: f64, cost_ratio: f64, max: usize) -> usize {
    let (mut expected, mut reach) = (1.0, 1.0);
    for length in 0..max {
        reach *= acceptance;
        if !extends(reach, 1.0, expected, cost_ratio + length as f64) {
            return length;
        }
        expected += reach;
    }
    max
}

/// Measured times of a round by draft length, in any one unit.
#[derive(Clone, Debug, PartialEq)]
pub struct CostTable {
    /// `draft[k]`: time to draft `k` tokens.
    pub draft: Vec<f64>,
    /// `verify[k]`: time of the target call over `k` drafts.
    pub verify: Vec<f64>,
    /// Time of commit and rollback, the same for each length.
    pub state: f64,
}

impl CostTable {
    /// Tokens per time at each length that both the table and `survival` know, from length 0 on.
    pub fn rates(&self, survival: &[f64]) -> Vec<f64> {
        let lengths = self.draft.len().min(self.verify.len()).min(survival.len() + 1);
        (0..lengths).map(|k| expected_tokens(&survival[..k]) / (self.draft[k] + self.verify[k] + self.state)).collect()
    }

    /// The length with most tokens per time, the shorter of equals.
    ///
    /// Measured times are staircases, so the first length that gains nothing need not be the best: all are compared.
    pub fn best_length(&self, survival: &[f64]) -> usize {
        let rates = self.rates(survival);
        (0..rates.len()).fold(0, |best, k| if rates[k] > rates[best] { k } else { best })
    }
}
