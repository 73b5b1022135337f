//! How a drafter's logits become tokens: under the processors and the constraint of the request, over its own text.
//!
//! A drafter that draws without the target's penalties, truncations and masks proposes what the target will not take, and a
//! `q` that is reported otherwise than it was drawn from changes what is written. So there is one function for both.

use spectrain_core::process::RowError;
use spectrain_model::Prefix;
use spectrain_model::sample::argmax;
use std::borrow::Cow;

/// What drawing for one slot in one round depends on besides the drafter's logits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drawing<'a> {
    /// Chance, processors, committed text and constraint.
    pub prefix: Prefix<'a>,
    /// Target token of every draft vocabulary entry.
    pub d2t: &'a [u32],
    /// Entries of the target's vocabulary.
    pub vocabulary: usize,
}

impl Drawing<'_> {
    /// The distribution over the draft vocabulary of a token behind `path` (target tokens); zeros where none may follow.
    ///
    /// # Errors
    /// [`RowError`] for logits, or a text, that the processors cannot take.
    pub fn q(&self, logits: &[f32], path: &[u32]) -> Result<Vec<f64>, RowError> {
        if !self.prefix.reads_text() {
            return self.prefix.distribution(logits, path);
        }
        let wide = self.prefix.distribution(&self.widened(logits), path)?;
        Ok(self.d2t.iter().map(|&token| wide[token as usize]).collect())
    }

    /// The logits by which the most likely tokens are taken: after what the text so far does to them, which moves tokens
    /// from their places. Temperature and truncations do not, and a tree that they thinned would leave nodes unused.
    ///
    /// # Errors
    /// As [`Self::q`].
    pub fn ranked<'l>(&self, logits: &'l [f32], path: &[u32]) -> Result<Cow<'l, [f32]>, RowError> {
        if !self.prefix.reads_text() {
            self.prefix.checked(logits, path)?;
            return Ok(Cow::Borrowed(logits));
        }
        let wide = self.prefix.ranked(&self.widened(logits), path)?;
        Ok(self.d2t.iter().map(|&token| wide[token as usize] as f32).collect())
    }

    /// The first entry of the most likely token; none where none may follow.
    ///
    /// # Errors
    /// As [`Self::q`].
    pub fn best(&self, logits: &[f32], path: &[u32]) -> Result<Option<usize>, RowError> {
        let ranked = self.ranked(logits, path)?;
        let best = argmax(&ranked) as usize;
        Ok((ranked[best] > f32::NEG_INFINITY).then_some(best))
    }

    /// Draft logits over the target's vocabulary: what the drafter lacks is barred.
    fn widened(&self, logits: &[f32]) -> Vec<f32> {
        let mut wide = vec![f32::NEG_INFINITY; self.vocabulary];
        self.d2t.iter().zip(logits).for_each(|(&token, &logit)| wide[token as usize] = logit);
        wide
    }
}
