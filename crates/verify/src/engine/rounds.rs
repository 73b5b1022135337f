//! Rounds measured one by one, with every request busy: the costs that a prediction of the speed-up needs.

use super::{Batch, Listener, Room, SpeculativeDecoder, Times};
use spectrain_core::rules::RuleError;
use spectrain_draft::proposer::Proposer;
use spectrain_model::Request;
use std::ops::ControlFlow;
use std::time::Instant;

impl SpeculativeDecoder<'_> {
    /// Answers `requests`, all at once, for `count` rounds and returns what the pass over the prompts took, and each
    /// round after it. No request may end within them.
    ///
    /// # Errors
    /// [`RuleError`] when a distribution is none.
    pub fn time_rounds(
        &self,
        requests: Vec<Request>,
        proposer: &mut dyn Proposer,
        count: usize,
    ) -> Result<(Times, Vec<Times>), RuleError> {
        let longest = requests.iter().map(|r| r.prompt.len() + r.max_new_tokens).max().unwrap_or(0);
        let slots = requests.len();
        let mut batch = Batch::new(slots, self.open(slots, longest, Room::default(), proposer));
        let mut waiting = requests.into();
        self.admit(&mut batch, &mut waiting, proposer);
        let mut listener = Listener { committed: &mut |_| ControlFlow::Continue(()), done: &mut drop };
        let mut measured = Vec::with_capacity(count + 1);
        for _ in 0..=count {
            let start = Instant::now();
            batch.times = Times::default();
            // A listener that never breaks never ends a round early.
            let _ = self.round(&mut batch, proposer, &mut listener)?;
            measured.push(Times { total: start.elapsed(), ..batch.times });
        }
        let prompt = measured.remove(0);
        Ok((prompt, measured))
    }
}
