//! The exact expected number of accepted drafts, estimated without bias from one sampled chain.
//!
//! With `x` sampled from the target, `P(L >= j) = E_x[ prod_{i<j} min(1, q_i(x_i)/p_i(x_i)) * alpha_j ]`: the weights turn
//! the law of the text into the law of accepted prefixes, lie in [0, 1], and the last factor is exact. Gradients flow
//! through the weights as well as the overlaps. It holds if `x` was sampled under the verifier's processors and each
//! `q_j` is conditioned as at run time.

use super::{ChainGradient, LossError, Row, total_variation};

/// One unroll step of a sampled chain.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainStep {
    /// The two distributions at this step, after the chain's earlier tokens.
    pub row: Row,
    /// The chain's token at this step as an index into the draft vocabulary; `None` if it lies outside.
    pub token: Option<usize>,
}

impl ChainStep {
    /// `min(1, exp(sign * (ln q - ln p)))` at the token; 0 outside the draft vocabulary.
    fn ratio(&self, sign: f64) -> f64 {
        self.token.map_or(0.0, |x| {
            let log_ratio = sign * (self.row.log_q()[x] - self.row.log_p()[x]);
            log_ratio.min(0.0).exp()
        })
    }
}

/// Expected accepted drafts, given a chain sampled from the target: `sum_j prod_{i<j} min(1, q_i/p_i) * alpha_j`.
pub fn length_of_target_sample(chain: &[ChainStep]) -> f64 {
    weighted_length(chain, 1.0)
}

/// Expected accepted drafts, given a chain sampled from the drafter: weights `min(1, p_i/q_i)`.
///
/// A number to compare with [`length_of_target_sample`], whose mean it shares. Its tokens depend on the drafter, so it
/// has no pathwise gradient.
pub fn length_of_draft_sample(chain: &[ChainStep]) -> f64 {
    weighted_length(chain, -1.0)
}

fn weighted_length(chain: &[ChainStep], sign: f64) -> f64 {
    let mut reach = 1.0;
    let mut length = 0.0;
    for step in chain {
        length += reach * step.row.overlap().alpha();
        reach *= step.ratio(sign);
    }
    length
}

/// `1 - length / steps` of a chain sampled from the target, with the gradient through weights and overlaps
/// (`prefix_weight = accept`; without weights this is [`super::end_to_end_tv`]).
///
/// # Errors
/// If there is no step, a token is no index of the draft vocabulary, or the target gives it no mass.
pub fn exact_length(chain: &[ChainStep]) -> Result<ChainGradient, LossError> {
    check(chain)?;
    let count = chain.len() as f64;
    let alpha: Vec<f64> = chain.iter().map(|step| step.row.overlap().alpha()).collect();
    let weight: Vec<f64> = chain.iter().map(|step| step.ratio(1.0)).collect();
    let mut reach = vec![1.0; chain.len()];
    for i in 1..chain.len() {
        reach[i] = reach[i - 1] * weight[i - 1];
    }
    // What the steps after i are worth once step i is accepted: d length / d weight_i = reach_i * later_i.
    let mut later = vec![0.0; chain.len()];
    for i in (0..chain.len() - 1).rev() {
        later[i] = alpha[i + 1] + weight[i + 1] * later[i + 1];
    }
    let logits = (0..chain.len()).map(|i| step_gradient(&chain[i], weight[i] * later[i], reach[i] / count)).collect();
    let length: f64 = reach.iter().zip(&alpha).map(|(r, a)| r * a).sum();
    Ok(ChainGradient { value: 1.0 - length / count, logits })
}

/// `scale * d(TV - weight * later)/dz`; the weight `q_x/p_x` has derivative `weight * (delta_xj - q_j) / T` while the
/// token is under-covered, and none once `q_x >= p_x`.
fn step_gradient(step: &ChainStep, worth: f64, scale: f64) -> Vec<f64> {
    let row = &step.row;
    let mut gradient = total_variation(row).logits;
    if let Some(token) = step.token.filter(|&x| row.is_under_covered(x)) {
        for (j, (g, log_q)) in gradient.iter_mut().zip(row.log_q()).enumerate() {
            let delta = f64::from(u8::from(j == token));
            *g -= worth * (delta - log_q.exp()) / row.temperature();
        }
    }
    gradient.into_iter().map(|g| g * scale).collect()
}

fn check(chain: &[ChainStep]) -> Result<(), LossError> {
    if chain.is_empty() {
        return Err(LossError::Empty { what: "chain" });
    }
    for token in chain.iter().filter_map(|step| step.token) {
        if chain.iter().any(|step| token >= step.row.log_q().len()) {
            return Err(LossError::Range { what: "token", value: token as f64 });
        }
    }
    let impossible = |step: &&ChainStep| step.token.is_some_and(|x| step.row.log_p()[x] == f64::NEG_INFINITY);
    match chain.iter().find(impossible) {
        Some(_) => Err(LossError::NoTargetMass),
        None => Ok(()),
    }
}
