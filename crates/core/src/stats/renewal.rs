//! Committed tokens per target call, estimated offline from the target's own sampled text.
//!
//! The verifier's headline averages over the places where rounds start, and rounds start more often in hard text. A
//! mean over all rows of a text is therefore too high, by a third where difficulty is clustered. The estimate here
//! follows the text and carries the probability that a round starts after each token; given the text it is exact, and
//! it needs the two models' log-probabilities at the sampled tokens only.

use super::{Ratio, StatsError};

/// Round starts along one text, and what the rounds commit.
#[derive(Clone, Debug, PartialEq)]
pub struct Renewal {
    /// `starts[t]`, `t = 0..n`: probability that a round starts after `t` tokens of the text.
    pub starts: Vec<f64>,
    /// Text tokens over expected rounds. The last round may reach past the end of the text.
    pub all_rounds: Ratio,
    /// Expected tokens over expected number of the rounds that the end of the text does not cut short: the side of a
    /// comparison with a verifier that leaves such rounds out. Both parts are zero if every round may be cut.
    pub complete_rounds: Ratio,
    /// What `complete_rounds` would be if a round started after every token: the plain mean over rows, biased upwards
    /// because easy stretches hold fewer starts than they hold tokens.
    pub every_row: Ratio,
}

/// Rounds of sampled chains of `length` drafts under the token rule, along a text of `n` tokens sampled from `p`.
///
/// # Shapes
/// - `log_p` `[n]`: `log p(x_{t+1} | x_1..x_t)` for `t = 0..n`, natural logarithm, processed as in the verifier.
/// - `log_q` `[n, length]`, row-major: entry `(t, i)` is draft step `i`'s `log q(x_{t+i+1})` in a round that starts
///   after `t` tokens. Entries with `t + i >= n` lie past the text and are not read.
///
/// With `w_j = prod_{i<=j} min(1, q/p)`, a round commits exactly `j + 1` of the text's tokens with probability
/// `w_j - w_{j+1}` for `j < length`, and `length + 1` with probability `w_length`.
///
/// # Errors
/// If the shapes do not fit, the text is empty, a `log_p` is not finite (the text is then no sample of `p`), or a
/// `log_q` that is read is NaN or positive infinity.
pub fn sampled_chain(log_p: &[f64], log_q: &[f64], length: usize) -> Result<Renewal, StatsError> {
    let n = log_p.len();
    check(log_p, log_q, length)?;
    let mut starts = vec![0.0; n];
    starts[0] = 1.0;
    let (mut complete, mut every) = (NONE, NONE);
    for t in 0..n {
        let start = starts[t];
        let mut reach = 1.0;
        for accepted in 0..=length {
            let end = t + accepted + 1;
            if end > n {
                break;
            }
            let further = if accepted < length {
                let log_ratio = log_q[t * length + accepted] - log_p[t + accepted];
                reach * log_ratio.min(0.0).exp()
            } else {
                0.0
            };
            let mass = start * (reach - further);
            add(&mut complete, mass, accepted + 1);
            add(&mut every, reach - further, accepted + 1);
            if end < n {
                starts[end] += mass;
            }
            reach = further;
        }
    }
    Ok(finish(starts, complete, every))
}

/// Rounds of deterministic proposals (any tree, greedy or sampled target) along a text of `n` tokens.
///
/// `matched[t]` is the depth of the deepest node, of the tree proposed after `t` tokens, whose path is the text's
/// continuation: 0 where the first token is missed. The next round starts after `matched[t] + 1` tokens.
///
/// # Errors
/// If the text is empty.
pub fn deterministic(matched: &[usize]) -> Result<Renewal, StatsError> {
    let n = matched.len();
    if n == 0 {
        return Err(StatsError::Empty { what: "matched" });
    }
    let mut starts = vec![0.0; n];
    let (mut complete, mut every) = (NONE, NONE);
    let mut next = 0;
    for (t, matched) in matched.iter().enumerate() {
        let committed = matched + 1;
        let whole = t + committed <= n;
        if whole {
            add(&mut every, 1.0, committed);
        }
        if t == next {
            starts[t] = 1.0;
            if whole {
                add(&mut complete, 1.0, committed);
            }
            next = t + committed;
        }
    }
    Ok(finish(starts, complete, every))
}

const NONE: Ratio = Ratio { numerator: 0.0, denominator: 0.0 };

/// Adds `mass` rounds of `committed` tokens.
fn add(rounds: &mut Ratio, mass: f64, committed: usize) {
    rounds.numerator += mass * committed as f64;
    rounds.denominator += mass;
}

fn finish(starts: Vec<f64>, complete_rounds: Ratio, every_row: Ratio) -> Renewal {
    let all_rounds = Ratio { numerator: starts.len() as f64, denominator: starts.iter().sum() };
    Renewal { starts, all_rounds, complete_rounds, every_row }
}

fn check(log_p: &[f64], log_q: &[f64], length: usize) -> Result<(), StatsError> {
    let n = log_p.len();
    if n == 0 {
        return Err(StatsError::Empty { what: "log_p" });
    }
    if log_q.len() != n * length {
        return Err(StatsError::Length { what: "log_q", expected: n * length, found: log_q.len() });
    }
    if let Some(index) = log_p.iter().position(|value| !value.is_finite()) {
        return Err(StatsError::Range { what: "log_p", index, value: log_p[index] });
    }
    let unusable =
        |index: usize, value: f64| index / length + index % length < n && (value.is_nan() || value == f64::INFINITY);
    match log_q.iter().enumerate().find(|&(i, &v)| unusable(i, v)) {
        Some((index, &value)) => Err(StatsError::Range { what: "log_q", index, value }),
        None => Ok(()),
    }
}
