//! A real drafter whose drafts are bent so that rejections fall where the test wants them.

use super::{Bench, Case, DEPTH, END, Fault, Logs, VOCABULARY, log};
use burn::tensor::Tensor;
use spectrain_core::process::RowError;
use spectrain_draft::Eagle3Proposer;
use spectrain_draft::proposer::{Draft, DrafterMemory, Observed, Plan, Proposer, Wanted};
use spectrain_kernels::rope::indices;

pub struct Steered<'a> {
    inner: Eagle3Proposer,
    bench: &'a Bench,
    case: &'a Case,
    fault: Fault,
    logs: &'a Logs,
    /// The request that drafted last in each slot; none before its first draft.
    drafted: Vec<Option<u64>>,
}

impl<'a> Steered<'a> {
    pub fn new(bench: &'a Bench, case: &'a Case, fault: Fault, logs: &'a Logs) -> Self {
        Self { inner: bench.eagle(), bench, case, fault, logs, drafted: Vec::new() }
    }

    /// The plain text's token behind `step` drafted ones, and another one.
    fn truth(&self, w: &Wanted, step: usize) -> (u32, u32) {
        let at = w.prefix.answer.len() + step;
        let truth = self.bench.plain[&w.prefix.request.id].get(at).copied().unwrap_or(0);
        let wrong = if at.is_multiple_of(4) && truth != END { END } else { (truth + 6) % VOCABULARY as u32 };
        (truth, wrong)
    }

    /// A draft whose first rejection is at `first`. Trees have three nodes a depth: a wrong sibling, what is meant, and
    /// behind the sibling what would follow.
    fn bent(&self, w: &Wanted, first: usize) -> Draft {
        let meant = |step: usize| {
            let (truth, wrong) = self.truth(w, step);
            if step == first { wrong } else { truth }
        };
        if matches!(w.plan, Plan::Chain { .. }) {
            return Draft { tokens: (0..w.length).map(meant).collect(), ..Draft::default() };
        }
        let (mut tokens, mut parents, mut parent) = (Vec::new(), Vec::new(), None);
        for step in 0..DEPTH {
            let sibling = tokens.len();
            tokens.extend([(self.truth(w, step).0 + 7) % VOCABULARY as u32, meant(step), meant(step + 1)]);
            parents.extend([parent, parent, Some(sibling)]);
            parent = Some(sibling + 1);
        }
        Draft { tokens, parents: Some(parents), ..Draft::default() }
    }

    /// Tells the drafter of rejected tokens as if they stood in the text, with the features of `slot`'s row `row`.
    fn keep_rejected(&mut self, slot: usize, row: usize, features: &[Tensor<2>]) {
        let Some(id) = self.drafted[slot] else { return };
        let mut next = log(self.logs, id, |log| log.newly_rejected());
        // A path of them, so that trees stay within the drafter's positions, too.
        next.truncate(DEPTH);
        if !next.is_empty() {
            let repeated = vec![row; next.len()];
            let rows = features.iter().map(|f| f.clone().select(0, indices(repeated.clone(), &f.device()))).collect();
            self.inner.observe(&[Observed { slot, next }], rows);
        }
    }
}

impl Proposer for Steered<'_> {
    fn taps(&self) -> &[usize] {
        self.inner.taps()
    }

    fn draft_to_target(&self) -> &[u32] {
        self.inner.draft_to_target()
    }

    /// Room for what wrong drafters keep.
    fn open(&mut self, slots: usize, capacity: usize) {
        self.drafted = vec![None; slots];
        self.inner.open(slots, capacity * 8);
    }

    fn clear(&mut self, slot: usize) {
        self.drafted[slot] = None;
        self.inner.clear(slot);
    }

    fn observe(&mut self, observed: &[Observed], features: Vec<Tensor<2>>) {
        let (mut first, mut source) = (0, Vec::new());
        for o in observed {
            let stale = self.fault == Fault::DrafterFeatures && self.drafted[o.slot].is_some();
            source.extend((0..o.next.len()).map(|row| if stale { first } else { first + row }));
            if self.fault == Fault::DrafterRows {
                self.keep_rejected(o.slot, first, &features);
            }
            first += o.next.len();
        }
        let rows = features.into_iter().map(|f| f.clone().select(0, indices(source.clone(), &f.device()))).collect();
        // With a path through a wrong parent too, there is a row for each token.
        self.inner.observe(observed, rows);
    }

    fn draft(&mut self, wanted: &[Wanted]) -> Result<Vec<Draft>, RowError> {
        let mut drafts = self.inner.draft(wanted)?;
        for (w, draft) in wanted.iter().zip(&mut drafts) {
            let id = w.prefix.request.id;
            self.drafted[w.slot] = Some(id);
            let rounds = log(self.logs, id, |log| {
                log.drafts.insert(w.prefix.answer.len(), draft.clone());
                log.seen.len()
            });
            if self.case.steered {
                *draft = self.bent(w, (rounds + id as usize) % (DEPTH + 1));
            }
        }
        Ok(drafts)
    }

    fn memory(&self, plan: &Plan) -> DrafterMemory {
        self.inner.memory(plan)
    }

    fn committed(&self, slot: usize) -> usize {
        self.inner.committed(slot)
    }
}
