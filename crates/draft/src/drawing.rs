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

    /// The first entry of the most likely token, and its mass at temperature 1 for who asks; none where none may follow.
    ///
    /// # Errors
    /// As [`Self::q`].
    pub fn best<'l>(
        &self,
        logits: &'l [f32],
        path: &[u32],
    ) -> Result<Option<(usize, impl Fn() -> f64 + use<'l>)>, RowError> {
        let ranked = self.ranked(logits, path)?;
        let best = argmax(&ranked) as usize;
        let top = ranked[best];
        let mass = move || 1.0 / ranked.iter().map(|&logit| f64::from(logit - top).exp()).sum::<f64>();
        Ok((top > f32::NEG_INFINITY).then_some((best, mass)))
    }

    /// Draft logits over the target's vocabulary: what the drafter lacks is barred.
    fn widened(&self, logits: &[f32]) -> Vec<f32> {
        let mut wide = vec![f32::NEG_INFINITY; self.vocabulary];
        self.d2t.iter().zip(logits).for_each(|(&token, &logit)| wide[token as usize] = logit);
        wide
    }
}

#[cfg(test)]
mod tests {
    use super::Drawing;
    use spectrain_core::constraint::{Constraint, ConstraintError, ConstraintState};
    use spectrain_core::form::Form;
    use spectrain_core::process::Processors;
    use spectrain_model::{Prefix, Request};

    /// Bars token 1.
    #[derive(Debug)]
    struct Without;

    impl Constraint for Without {
        fn start(&self) -> Box<dyn ConstraintState> {
            Box::new(Self)
        }
    }

    impl ConstraintState for Without {
        fn fork(&self) -> Box<dyn ConstraintState> {
            Box::new(Self)
        }

        fn advance(&mut self, _: u32) -> Result<(), ConstraintError> {
            Ok(())
        }

        fn mask(&self) -> Result<Vec<bool>, ConstraintError> {
            Ok(vec![true, false, true, true])
        }
    }

    fn logits(p: &[f64]) -> Vec<f32> {
        p.iter().map(|p| p.ln() as f32).collect()
    }

    /// Worked in the shared vectors: a mask on p alone accepts .4, on both .785714.
    #[test]
    fn a_mask_bars_in_drafts_what_it_bars_in_the_text() {
        let sampling = Processors::at(1.0);
        let request = Request { id: 0, prompt: vec![0], max_new_tokens: 1, sampling, seed: 0, form: Form::default() };
        let state = Without.start();
        let free = Prefix { request: &request, answer: &[], end_tokens: &[], state: None, script: None };
        let masked = Prefix { state: Some(state.as_ref()), ..free };
        let p = masked.distribution(&logits(&[0.5, 0.3, 0.2, 0.0]), &[]).expect("sound logits");
        // The draft vocabulary lacks token 3 and has its own order.
        let d2t = [2, 0, 1];
        let alpha = |prefix| {
            let drawing = Drawing { prefix, d2t: &d2t, vocabulary: 4 };
            let q = drawing.q(&logits(&[0.2, 0.2, 0.6]), &[]).expect("sound logits");
            d2t.iter().zip(q).map(|(&token, q)| q.min(p[token as usize])).sum::<f64>()
        };
        assert!((alpha(free) - 0.4).abs() < 1e-6, "{}", alpha(free));
        assert!((alpha(masked) - 11.0 / 14.0).abs() < 1e-6, "{}", alpha(masked));
        let row = logits(&[0.25, 0.15, 0.6]);
        let ranked = |prefix| {
            let best = Drawing { prefix, d2t: &d2t, vocabulary: 4 }.best(&row, &[]).expect("sound logits");
            best.map(|(best, mass)| (best, mass()))
        };
        let (free, masked) = (ranked(free).expect("a token"), ranked(masked).expect("a token"));
        assert_eq!((free.0, masked.0), (2, 0));
        // The mass is of what may follow.
        assert!((free.1 - 0.6).abs() < 1e-6 && (masked.1 - 0.625).abs() < 1e-6, "{free:?} {masked:?}");
    }
}
