//! Rounds measured one by one, with every request busy: the costs that a prediction of the speed-up needs.

use super::{Batch, Listener, Room, RunError, SpeculativeDecoder, Times};
use crate::task::Task;
use spectrain_core::rules::RuleError;
use spectrain_draft::proposer::Proposer;
use std::ops::ControlFlow;
use std::time::Instant;

impl SpeculativeDecoder<'_> {
    /// Answers `tasks`, all at once, for `count` rounds and returns what the pass over the prompts took, and each
    /// round after it. No request may end within them.
    ///
    /// # Errors
    /// [`RuleError`] when a distribution is none.
    pub fn time_rounds(
        &self,
        tasks: Vec<Task>,
        proposer: &mut dyn Proposer,
        count: usize,
    ) -> Result<(Times, Vec<Times>), RuleError> {
        let slots = tasks.len();
        let (cache, _) = self.open(&tasks, slots, Room::default(), proposer);
        let mut batch = Batch::new(slots, cache, tasks);
        let mut listener = Listener { committed: &mut |_| ControlFlow::Continue(()), done: &mut drop, inspector: None };
        self.admit(&mut batch, proposer).map_err(|short| RunError::from(short).of_a_roomy_run())?;
        let mut measured = Vec::with_capacity(count + 1);
        for _ in 0..=count {
            let start = Instant::now();
            batch.times = Times::default();
            self.round(&mut batch, proposer, &mut listener).map_err(RunError::of_a_roomy_run)?;
            measured.push(Times { total: start.elapsed(), ..batch.times });
        }
        let prompt = measured.remove(0);
        Ok((prompt, measured))
    }
}
