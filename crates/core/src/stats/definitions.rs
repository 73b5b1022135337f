//! Acceptance length as other projects define it, each under its own name.
//!
//! They all divide tokens by target calls over all rounds at once, and differ in what they do at the end of a text and
//! with the prompt's token. Ours (`tokens_per_target_call`) counts what stays after trimming at a stop token or at the
//! length cap, and leaves the prompt's call and its token out. Read from the projects' code:
//!
//! | column | counted a round | the prompt's token |
//! |---|---|---|
//! | `as_eagle` | accepted drafts + 1, whatever lies behind a stop or the cap | out |
//! | `as_vllm` | as EAGLE, over the rounds that had drafts | out |
//! | `as_sglang` | what stays after trimming | in, though its call is not |
//! | `as_deepspec` | drafts up to a stop among them without a further token, else accepted + 1; the cap is overshot | out |
//!
//! The code of EAGLE makes one more target call where the extra token is a stop, and that of DeepSpec one more where a
//! text reaches the cap exactly; calls that were not made here are in no column.

use serde::{Deserialize, Serialize};

use super::Round;

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// A stop token, which is the answer's last.
    Stop,
    /// The length cap.
    Length,
    /// The request's processors and constraint left no token that could follow.
    Masked,
    /// The request was taken back.
    Cancelled,
    /// Its time was over.
    Deadline,
}

/// One target call before and after trimming.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// What was kept.
    pub kept: Round,
    /// Draft tokens that the rule accepted, those behind the end of the text included.
    pub accepted: usize,
    /// Tokens up to and including the first stop token among the accepted drafts and the extra token, if there is one;
    /// it may lie behind the cap.
    pub stop: Option<usize>,
    /// Set if the text ended with this call.
    pub end: Option<Finish>,
}

impl Call {
    /// A call of the plain path: one token, no drafts.
    pub fn plain(end: Option<Finish>) -> Self {
        let stop = (end == Some(Finish::Stop)).then_some(1);
        Self { kept: Round { drafted: 0, accepted: 0, committed: 1 }, accepted: 0, stop, end }
    }

    /// Tokens that DeepSpec's evaluation commits.
    fn deepspec(&self) -> usize {
        self.stop.filter(|&tokens| tokens <= self.accepted).unwrap_or(self.accepted + 1)
    }

    /// The call as it had gone with drafts of at most `length` tokens from the same place, for rules that judge a
    /// token without regard to later ones.
    pub fn truncated(&self, length: usize) -> Round {
        let Round { drafted, accepted, committed } = self.kept;
        // A stop or the cap behind token `length + 1` is not reached.
        let committed = if accepted > length { length + 1 } else { committed };
        Round { drafted: drafted.min(length), accepted: accepted.min(length), committed }
    }
}

/// The columns; none where nothing was counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Definitions {
    /// EAGLE's papers and code.
    pub as_eagle: Option<f64>,
    /// vLLM's metric.
    pub as_vllm: Option<f64>,
    /// SGLang's `completion_tokens / spec_verify_ct`, also SpecForge's benchmark.
    pub as_sglang: Option<f64>,
    /// DeepSpec's evaluation.
    pub as_deepspec: Option<f64>,
}

impl Definitions {
    /// The columns over the `calls` of all answers. `answers` is their number, those that ended with the prompt's token
    /// included.
    pub fn of<'a>(calls: impl IntoIterator<Item = &'a Call> + Clone, answers: usize) -> Self {
        let rounds = calls.clone().into_iter().count();
        let sum = |tokens: &dyn Fn(&Call) -> usize| calls.clone().into_iter().map(tokens).sum::<usize>();
        let over = |tokens: usize, calls: usize| (calls > 0).then(|| tokens as f64 / calls as f64);
        let drafted = |call: &Call| call.kept.drafted > 0;
        let drafts = calls.clone().into_iter().filter(|call| drafted(call)).count();
        Self {
            as_eagle: over(sum(&|call| call.accepted + 1), rounds),
            as_vllm: over(sum(&|call| if drafted(call) { call.accepted + 1 } else { 0 }), drafts),
            as_sglang: over(sum(&|call| call.kept.committed) + answers, rounds),
            as_deepspec: over(sum(&Call::deepspec), rounds),
        }
    }
}
