//! What a request asks of its answer's text, and one answer under it: the part of a decoder's state that plain and
//! speculative decoding share.

use crate::constraint::{Constraint, ConstraintError, ConstraintState};
use crate::stats::Finish;
use crate::stopping::{Outcome, Progress, StopStrings, Stopping};
use std::sync::Arc;

/// What a request asks of its answer's text.
#[derive(Debug, Clone, Default)]
pub struct Form {
    /// Strings that end it.
    pub stop: StopStrings,
    /// What it must follow.
    pub constraint: Option<Arc<dyn Constraint>>,
}

/// Where an answer ends besides at its stop strings.
#[derive(Debug, Clone, Copy)]
pub struct Ends<'a> {
    /// Tokens that end it.
    pub tokens: &'a [u32],
    /// Most tokens.
    pub max_tokens: usize,
    /// Tokens before the one that may end it.
    pub min_tokens: usize,
}

impl Form {
    /// The start of an answer. Plain and speculative decoding both follow their answers by this.
    pub fn follow(&self, ends: Ends) -> Follower {
        let state = self.constraint.as_ref().map(|constraint| constraint.start());
        Follower { progress: self.progress(ends), state }
    }

    /// Reads the text of such an answer, where stop strings may cut it; without them there is nothing to read.
    pub fn reading(&self, ends: Ends) -> Option<Progress> {
        (!self.stop.is_empty()).then(|| self.progress(ends))
    }

    fn progress(&self, Ends { tokens, max_tokens, min_tokens }: Ends) -> Progress {
        let (strings, end_tokens) = (self.stop.clone(), tokens.to_vec());
        Progress::new(Stopping { strings, end_tokens, max_tokens, min_tokens })
    }
}

/// One answer as far as it is committed: where it ends and what may follow.
#[derive(Debug)]
pub struct Follower {
    progress: Progress,
    state: Option<Box<dyn ConstraintState>>,
}

impl Follower {
    /// Commits what may stay of `tokens`, all of which were allowed where they stand.
    pub fn commit(&mut self, tokens: &[u32]) -> Outcome {
        let outcome = self.progress.advance(tokens);
        if let Some(state) = &mut self.state {
            // A state that cannot go on lets nothing follow, and says why when it is asked.
            let _ = tokens[..outcome.kept].iter().try_for_each(|&token| state.advance(token));
        }
        outcome
    }

    /// Where the constraint stands behind the committed text; none where there is none.
    pub fn state(&self) -> Option<&dyn ConstraintState> {
        self.state.as_deref()
    }

    /// Why the constraint gave up, if that is what left an answer that ended by `finish` without a next token.
    pub fn failure(&self, finish: Finish) -> Option<ConstraintError> {
        let masked = self.state.as_ref().filter(|_| finish == Finish::Masked);
        masked.and_then(|state| state.mask().err())
    }
}
