//! One position: the target's and the drafter's distributions over the draft vocabulary, as logarithms.

use super::LossError;
use super::log_space::{log_softmax, log_sum_exp};

/// Which side the loss temperature divides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Temperature {
    /// `T_q`: the drafter's logits only; the target stays as the verifier samples it.
    Draft(f64),
    /// `T_pq`: both sides, as when the verifier samples at this temperature.
    Both(f64),
}

/// The two distributions at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    log_p: Vec<f64>,
    log_q: Vec<f64>,
    temperature: f64,
}

/// The overlap of a row and how it splits at `q < p`, as logarithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlap {
    /// `ln alpha = ln sum_v min(p_v, q_v)`, the log-probability that a sampled draft is accepted.
    pub log_alpha: f64,
    /// `ln S`: the drafter's mass on under-covered tokens (`q_v < p_v`).
    pub log_under: f64,
    /// `ln (1 - S)`: the drafter's mass on the others.
    pub log_over: f64,
}

impl Overlap {
    /// `alpha`; 0 where it underflows.
    pub fn alpha(&self) -> f64 {
        self.log_alpha.exp()
    }
}

impl Row {
    /// A row from logits (or log-probabilities) of both models.
    ///
    /// # Shapes
    /// - `target` `[V]`: target logits over the full vocabulary; negative infinity marks a masked token.
    /// - `draft` `[D]`: draft logits over the draft vocabulary.
    /// - `vocabulary` `[D]`: the target id of each draft token, rising; `None` if the two vocabularies are one.
    ///
    /// # Errors
    /// If the shapes do not fit, the temperature is not positive, or an argument holds no logits.
    pub fn new(
        target: &[f64],
        draft: &[f64],
        vocabulary: Option<&[usize]>,
        temperature: Temperature,
    ) -> Result<Self, LossError> {
        let (t_p, t_q) = match temperature {
            Temperature::Draft(t) => (1.0, t),
            Temperature::Both(t) => (t, t),
        };
        if !(t_q > 0.0 && t_q.is_finite()) {
            return Err(LossError::Range { what: "temperature", value: t_q });
        }
        let full = log_softmax(&scaled(target, t_p, "target logits")?);
        let log_q = log_softmax(&scaled(draft, t_q, "draft logits")?);
        let log_p = match vocabulary {
            Some(ids) => selected(&full, ids)?,
            None => full,
        };
        if log_p.len() != log_q.len() {
            return Err(LossError::Length { what: "draft logits", expected: log_p.len(), found: log_q.len() });
        }
        Ok(Self { log_p, log_q, temperature: t_q })
    }

    /// A row whose target is known by some tokens only: `known` pairs an index of the draft vocabulary with `ln p` there,
    /// and what is not named counts as nothing. One pair `(token, 0)` is a target that is certain of the token.
    ///
    /// For the `m` likeliest tokens of a target whose other tokens have `tail_p` together, the overlap is too small by at
    /// most `min(tail_p, tail_q)` with `tail_q` the drafter's mass outside them.
    ///
    /// # Errors
    /// If an index lies outside the draft vocabulary, the named masses exceed 1, or `draft` holds no logits.
    pub fn of_known(known: &[(usize, f64)], draft: &[f64]) -> Result<Self, LossError> {
        let log_q = log_softmax(&scaled(draft, 1.0, "draft logits")?);
        let mut log_p = vec![f64::NEG_INFINITY; log_q.len()];
        for &(token, log_mass) in known {
            let entry = log_p.get_mut(token).ok_or(LossError::Range { what: "token", value: token as f64 })?;
            *entry = log_mass;
        }
        let mass = log_sum_exp(log_p.iter().copied()).exp();
        if mass.is_nan() || mass > 1.0 + 1e-6 {
            return Err(LossError::Range { what: "the known mass", value: mass });
        }
        Ok(Self { log_p, log_q, temperature: 1.0 })
    }

    /// `ln p` on the draft vocabulary, `[D]`, not renormalised there.
    pub fn log_p(&self) -> &[f64] {
        &self.log_p
    }

    /// `ln q`, `[D]`.
    pub fn log_q(&self) -> &[f64] {
        &self.log_q
    }

    /// The temperature that divides the draft logits: the factor `1/T` of every gradient.
    pub fn temperature(&self) -> f64 {
        self.temperature
    }

    /// `ln p(D)`: the ceiling that the draft vocabulary puts on acceptance.
    pub fn log_ceiling(&self) -> f64 {
        log_sum_exp(self.log_p.iter().copied())
    }

    /// `ln` of the target renormalised on the draft vocabulary, `[D]`.
    ///
    /// # Errors
    /// If the target has no mass there.
    pub fn log_p_renormalised(&self) -> Result<Vec<f64>, LossError> {
        let ceiling = self.log_ceiling();
        if ceiling == f64::NEG_INFINITY {
            return Err(LossError::NoTargetMass);
        }
        Ok(self.log_p.iter().map(|lp| lp - ceiling).collect())
    }

    /// Whether the drafter gives token `index` less than the target does.
    pub(super) fn is_under_covered(&self, index: usize) -> bool {
        self.log_q[index] < self.log_p[index]
    }

    /// The overlap, with the true target probabilities. `ln alpha` is the log-sum-exp of minima, so it is exact where
    /// `alpha` itself underflows.
    pub fn overlap(&self) -> Overlap {
        let pairs = || self.log_p.iter().zip(&self.log_q);
        let part = |under: bool| log_sum_exp(pairs().filter(move |(p, q)| (q < p) == under).map(|(_, q)| *q));
        Overlap {
            log_alpha: log_sum_exp(pairs().map(|(p, q)| p.min(*q))),
            log_under: part(true),
            log_over: part(false),
        }
    }
}

/// `logits / temperature`, checked.
fn scaled(logits: &[f64], temperature: f64, what: &'static str) -> Result<Vec<f64>, LossError> {
    if logits.is_empty() {
        return Err(LossError::Empty { what });
    }
    let unusable = |x: &f64| x.is_nan() || *x == f64::INFINITY;
    if logits.iter().any(unusable) || !logits.iter().any(|x| x.is_finite()) {
        return Err(LossError::NotLogits { what });
    }
    Ok(logits.iter().map(|x| x / temperature).collect())
}

/// The entries of `full` at rising `ids`.
fn selected(full: &[f64], ids: &[usize]) -> Result<Vec<f64>, LossError> {
    let out_of_order = ids.windows(2).position(|pair| pair[1] <= pair[0]);
    let bad = out_of_order.map(|i| i + 1).or_else(|| ids.iter().position(|&id| id >= full.len()));
    match bad {
        Some(index) => Err(LossError::Vocabulary { index }),
        None => Ok(ids.iter().map(|&id| full[id]).collect()),
    }
}
