//! What a request asks of its answer's text, and one answer under it: the part of a decoder's state that plain and
//! speculative decoding share.

use crate::constraint::{Constraint, ConstraintError, ConstraintState, masks};
use crate::stats::Finish;
use crate::stopping::{Outcome, Progress, StopStrings, Stopping};
use crate::tree::Tree;
use std::sync::Arc;

/// What a request asks of its answer's text.
#[derive(Debug, Clone, Default)]
pub struct Form {
    /// Strings that end it.
    pub stop: StopStrings,
    /// What it must follow.
    pub constraint: Option<Arc<dyn Constraint>>,
    /// Tokens before the one that may end it.
    pub min_tokens: usize,
}

impl Form {
    /// The start of an answer of at most `max_tokens` that `end_tokens` end. Plain and speculative decoding both follow
    /// their answers by this.
    pub fn follow(&self, end_tokens: &[u32], max_tokens: usize) -> Follower {
        Follower {
            progress: self.progress(end_tokens, max_tokens),
            state: self.constraint.as_ref().map(|constraint| constraint.start()),
            failure: None,
        }
    }

    /// Reads the text of such an answer, where stop strings may cut it; without them there is nothing to read.
    pub fn reading(&self, end_tokens: &[u32], max_tokens: usize) -> Option<Progress> {
        (!self.stop.is_empty()).then(|| self.progress(end_tokens, max_tokens))
    }

    fn progress(&self, end_tokens: &[u32], max_tokens: usize) -> Progress {
        Progress::new(Stopping {
            strings: self.stop.clone(),
            end_tokens: end_tokens.to_vec(),
            max_tokens,
            min_tokens: self.min_tokens,
        })
    }
}

/// One answer as far as it is committed: where it ends and what may follow.
#[derive(Debug)]
pub struct Follower {
    progress: Progress,
    state: Option<Box<dyn ConstraintState>>,
    failure: Option<ConstraintError>,
}

impl Follower {
    /// Commits what may stay of `tokens`, all of which were allowed where they stand. Without a token nothing may
    /// follow: the answer ends.
    pub fn commit(&mut self, tokens: &[u32]) -> Outcome {
        let outcome = self.progress.advance(tokens);
        if let Some(state) = &mut self.state {
            let gone = tokens[..outcome.kept].iter().try_for_each(|&token| state.advance(token));
            self.failure = gone.err().or(self.failure.take());
        }
        outcome
    }

    /// Ends an answer that nothing may follow, and finds out whether that is so because the constraint gave up.
    pub fn exhausted(&mut self) -> Finish {
        let mask = self.state.as_ref().map(|state| state.mask());
        self.failure = self.failure.take().or(mask.and_then(Result::err));
        Finish::Stop
    }

    /// Why the constraint could not be followed to the end.
    pub fn failure(&self) -> Option<&ConstraintError> {
        self.failure.as_ref()
    }

    /// The tokens that may follow the committed text; `None` if all may, an empty mask if none may.
    pub fn mask(&self) -> Option<Vec<bool>> {
        self.state.as_ref().map(|state| state.mask().unwrap_or_default())
    }

    /// The tokens that may follow each node of a draft behind the committed text; see [`masks`].
    pub fn masks(&self, tree: &Tree) -> Option<Vec<Vec<bool>>> {
        self.state.as_ref().map(|state| masks(state.as_ref(), tree))
    }
}
