//! Choosing a token from logits: shared by the plain path, the verifier and the drafters, so that all mean the same
//! distribution and, for the same key, the same token.

use crate::Request;
use spectrain_core::constraint::{ConstraintState, mask_after};
use spectrain_core::process::{Context, ProcessError, Processed, RowError};
use spectrain_core::rng::Purpose;
use spectrain_core::rules::{Ask, Chance, Draws, Script, greedy, keyed};
use spectrain_kernels::softmax::probabilities;

/// Index of the largest logit; the lowest index among equals.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, &l) in logits.iter().enumerate() {
        if l > logits[best] {
            best = i;
        }
    }
    best as u32
}

/// The committed text of a request: what the distribution of a token behind it depends on besides the logits.
#[derive(Debug, Clone, Copy)]
pub struct Prefix<'a> {
    /// The request: its prompt, its processors, the address of its draws.
    pub request: &'a Request,
    /// Committed answer tokens.
    pub answer: &'a [u32],
    /// Tokens that end an answer.
    pub end_tokens: &'a [u32],
    /// Where the request's constraint stands behind the text; none where there is none.
    pub state: Option<&'a dyn ConstraintState>,
    /// Decides the request's random events in place of its keyed numbers: for tests that walk through all outcomes.
    pub script: Option<&'a dyn Script>,
}

impl<'a> Prefix<'a> {
    /// Absolute position of the token that follows the drafted tokens `path`.
    pub fn position(&self, path: &[u32]) -> usize {
        self.request.prompt.len() + self.answer.len() + path.len()
    }

    /// The draws of the round whose root is the newest token.
    pub fn chance(&self) -> Draws<'a> {
        let root = self.position(&[]) - 1;
        let keyed = || Draws::Keyed(keyed(self.request.seed, self.request.id, root));
        self.script.map_or_else(keyed, |script| Draws::Scripted { script, root })
    }

    /// Whether the distribution depends on the text otherwise than through the logits.
    pub fn reads_text(&self) -> bool {
        self.request.sampling.reads_history() || self.state.is_some()
    }

    /// The distribution of the token behind `path` whose logits are `logits`, after the request's processors and within
    /// its constraint; zeros where no token may follow.
    ///
    /// # Errors
    /// [`RowError`] for logits, or a text, that the processors cannot take.
    pub fn distribution(&self, logits: &[f32], path: &[u32]) -> Result<Vec<f64>, RowError> {
        self.masses(logits, path).map(|row| row.unwrap_or_else(|| vec![0.0; logits.len()]))
    }

    /// The most likely token behind `path` by [`Self::ranked`]; ties go to the lowest id.
    ///
    /// # Errors
    /// As [`Self::distribution`].
    pub fn best(&self, logits: &[f32], path: &[u32]) -> Result<Option<u32>, RowError> {
        if self.reads_text() {
            return Ok(greedy::argmax(&self.ranked(logits, path)?));
        }
        Ok(self.checked(logits, path)?.then(|| argmax(logits)))
    }

    /// The token behind the text, as the plain path chooses it: the best at temperature 0, else drawn by its position.
    /// None where no token may follow.
    ///
    /// # Errors
    /// As [`Self::distribution`].
    pub fn choose(&self, logits: &[f32]) -> Result<Option<u32>, RowError> {
        if self.request.sampling.temperature == 0.0 {
            return self.best(logits, &[]);
        }
        let ask = Ask { depth: 0, purpose: Purpose::Target, index: 0 };
        Ok(self.masses(logits, &[])?.map(|p| self.chance().draw(ask, &p) as u32))
    }

    /// The logits behind `path` after penalties, minimum length, bad words and the constraint.
    ///
    /// # Errors
    /// As [`Self::distribution`].
    pub fn ranked(&self, logits: &[f32], path: &[u32]) -> Result<Vec<f64>, RowError> {
        let mut row = widened(logits);
        let mask = self.mask(path, row.len());
        let ranked = self.request.sampling.rank(&mut row, &self.context(path, mask.as_deref()));
        ranked.map(|()| row).map_err(|fault| self.fault(path, fault))
    }

    /// Whether any token may follow by the `logits` alone; they are checked as the processors do.
    ///
    /// # Errors
    /// As [`Self::distribution`].
    pub fn checked(&self, logits: &[f32], path: &[u32]) -> Result<bool, RowError> {
        // Folds without an exit: they cost a few microseconds a row.
        if !logits.iter().fold(true, |sound, &l| sound & (l < f32::INFINITY)) {
            let token = logits.iter().position(|&l| l.is_nan() || l == f32::INFINITY).unwrap_or(0);
            return Err(self.fault(path, ProcessError::Logit { token, value: f64::from(logits[token]) }));
        }
        Ok(logits.iter().fold(false, |any, &l| any | (l > f32::NEG_INFINITY)))
    }

    /// As [`Self::distribution`]; `None` for zeros.
    fn masses(&self, logits: &[f32], path: &[u32]) -> Result<Option<Vec<f64>>, RowError> {
        let sampling = &self.request.sampling;
        if sampling.temperature_only() && sampling.temperature > 0.0 && self.state.is_none() {
            return Ok(self.checked(logits, path)?.then(|| probabilities(logits, sampling.temperature)));
        }
        let mut row = widened(logits);
        let mask = self.mask(path, row.len());
        match sampling.apply(&mut row, &self.context(path, mask.as_deref())) {
            Ok(Processed::Distribution) => Ok(Some(row)),
            Ok(Processed::Finished) => Ok(None),
            Err(fault) => Err(self.fault(path, fault)),
        }
    }

    /// The tokens that the constraint allows behind `path`; none where `path` already breaks it.
    fn mask(&self, path: &[u32], vocabulary: usize) -> Option<Vec<bool>> {
        self.state.map(|state| mask_after(state, path).unwrap_or_else(|_| vec![false; vocabulary]))
    }

    fn context<'b>(&'b self, path: &'b [u32], mask: Option<&'b [bool]>) -> Context<'b> {
        let Self { request, answer, end_tokens, .. } = *self;
        Context { prompt: &request.prompt, answer, path, end_tokens, mask }
    }

    fn fault(&self, path: &[u32], fault: ProcessError) -> RowError {
        RowError { request: self.request.id, position: self.position(path), fault }
    }
}

fn widened(logits: &[f32]) -> Vec<f64> {
    logits.iter().map(|&l| f64::from(l)).collect()
}
