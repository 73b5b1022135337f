//! What may follow where in an answer: the interface of grammars.
//!
//! The committed state is advanced by committed tokens only; what is drafted is followed on forks, one a node of the
//! tree, so that a rejected suffix leaves nothing behind that would have to be undone.

use crate::tree::Tree;
use std::fmt::Debug;

/// What answers must follow, for example a grammar. Shared by requests.
pub trait Constraint: Debug + Send + Sync {
    /// The state before the first token of an answer.
    fn start(&self) -> Box<dyn ConstraintState>;
}

/// One answer, or one branch of a draft behind it.
pub trait ConstraintState: Debug + Send + Sync {
    /// A state of its own at the same place.
    fn fork(&self) -> Box<dyn ConstraintState>;

    /// Goes on by `token`.
    ///
    /// # Errors
    /// [`ConstraintError::Refused`] for a token that may not follow; then nothing may.
    fn advance(&mut self, token: u32) -> Result<(), ConstraintError>;

    /// The tokens that may follow, one entry per token of the target's vocabulary. None may: the answer ends here.
    ///
    /// # Errors
    /// [`ConstraintError::Failed`].
    fn mask(&self) -> Result<Vec<bool>, ConstraintError>;
}

/// Why a constraint cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// The token may not stand there.
    #[error("token {0} may not follow here")]
    Refused(u32),
    /// The constraint's own machinery gave up.
    #[error("the constraint cannot be followed further: {0}")]
    Failed(String),
}

/// The tokens that may follow `path` behind `state`, which stays where it is.
///
/// # Errors
/// [`ConstraintError`].
pub fn mask_after(state: &dyn ConstraintState, path: &[u32]) -> Result<Vec<bool>, ConstraintError> {
    let mut fork = state.fork();
    path.iter().try_for_each(|&token| fork.advance(token))?;
    fork.mask()
}

/// The tokens that may follow each node of `tree`, whose root is the token that `state` has read last. An empty mask
/// stands where nothing may: behind a node that may not stand where it does.
pub fn masks(state: &dyn ConstraintState, tree: &Tree) -> Vec<Vec<bool>> {
    let mut forks: Vec<Option<Box<dyn ConstraintState>>> = Vec::with_capacity(tree.len());
    for node in 0..tree.len() {
        let fork = match tree.parent(node) {
            None => Some(state.fork()),
            Some(parent) => forks[parent].as_ref().map(|parent| parent.fork()).and_then(|mut fork| {
                fork.advance(tree.token(node)).ok()?;
                Some(fork)
            }),
        };
        forks.push(fork);
    }
    let mask = |fork: Option<Box<dyn ConstraintState>>| fork.and_then(|fork| fork.mask().ok()).unwrap_or_default();
    forks.into_iter().map(mask).collect()
}

/// A mask of the target's vocabulary over the drafter's, whose entries are the target tokens `draft_to_target`.
pub fn narrowed(mask: &[bool], draft_to_target: &[u32]) -> Vec<bool> {
    draft_to_target.iter().map(|&token| mask.get(token as usize).copied().unwrap_or(false)).collect()
}

/// Bars in a row of logits what a mask forbids; an entry that the mask does not have is barred. False if nothing is left.
pub fn restrict(logits: &mut [f32], mask: &[bool]) -> bool {
    let allowed = |token: usize| mask.get(token).copied().unwrap_or(false);
    let barred = logits.iter_mut().enumerate().filter(|(token, _)| !allowed(*token));
    barred.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
    logits.iter().any(|logit| *logit > f32::NEG_INFINITY)
}
