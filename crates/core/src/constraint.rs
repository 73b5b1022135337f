//! What may follow where in an answer: the interface of grammars.
//!
//! The committed state is advanced by committed tokens only; what is drafted is followed on forks, one a node of the
//! tree, so that a rejected suffix leaves nothing behind that would have to be undone.

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

    /// The tokens that may follow, one entry per token of the target's vocabulary; where none may, the answer ends.
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
