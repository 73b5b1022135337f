//! Gradients with the tape of one unroll step at a time (gradient checkpointing, Chen et al., 2016).
//!
//! The tape of an unroll keeps every intermediate value of every step until the backward pass. Here only what enters a
//! step is kept, its hidden states and the keys and values before it; steps are then run again on a tape of their own,
//! the last one first, each with the gradient that the later ones left for what it gave them. That costs one forward
//! pass more. Burn's own strategy recomputes single element-wise operations and knows no blocks.

use super::unroll::Unroll;
use super::{Eagle3, Eagle3Drafter, head_surrogate};
use crate::batch::TrainBatch;
use crate::objective::{Evaluated, Objective, StepLoss};
use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::Tensor;

/// What entered the steps, plain.
struct Entered {
    /// Hidden states, by step.
    hidden: Vec<Tensor<2>>,
    /// Head inputs that the steps gave, `[queries, hidden]`.
    inputs: Vec<Tensor<2>>,
    /// Keys and values of all steps but the last; none where there is one step.
    kv: Option<Tensor<2>>,
}

/// A value back on a tape, as the source of what follows.
fn leaf(value: Tensor<2>) -> Tensor<2> {
    value.autodiff().require_grad()
}

impl Eagle3Drafter {
    /// The gradient of `share` times [`Self::loss`], and each step's sums.
    pub fn recomputed_gradients(
        &self,
        weights: &Eagle3,
        batch: &TrainBatch,
        objective: &Objective,
        share: f32,
    ) -> (GradientsParams, Vec<StepLoss>) {
        let Entered { mut hidden, inputs, kv: all } = self.entered(weights, batch);
        let run = Unroll { drafter: self, layer: weights.learned(&self.config), batch };
        let Evaluated { steps: found, head } =
            objective.evaluate(inputs, batch, self.heads(weights), self.labels(batch));
        let mut sum = GradientsAccumulator::new();
        if head.is_some() {
            let grads = (head_surrogate(weights, head) * share).backward();
            sum.accumulate(weights, GradientsParams::from_grads(grads, weights));
        }
        let mut sums = vec![StepLoss::default(); hidden.len()];
        // Gradients of what the step at hand gave to later ones: hidden states, and keys and values up to it.
        let (mut of_hidden, mut of_kv): (Option<Tensor<2>>, Option<Tensor<2>>) = (None, None);
        while let Some(entered) = hidden.pop() {
            let k = hidden.len();
            let before = batch.plan.keys() + k.saturating_sub(1) * batch.plan.queries();
            let kv = all.clone().filter(|_| k > 0).map(|all| leaf(all.narrow(0, 0, before)));
            let entered = leaf(entered);
            let given = run.step(k, entered.clone(), kv.clone());
            let input = run.layer.head_input(given.hidden.clone());
            let (gradient, of_step) = &found[k];
            sums[k] = of_step.clone();
            let mut surrogate = (input * (gradient.clone() * share)).sum();
            for (value, gradient) in [(given.hidden, of_hidden.take()), (given.kv, of_kv.take())] {
                surrogate =
                    if let Some(gradient) = gradient { surrogate + (value * gradient).sum() } else { surrogate };
            }
            let mut grads = surrogate.backward();
            of_hidden = entered.grad_remove(&mut grads);
            of_kv = kv.and_then(|kv| kv.grad_remove(&mut grads));
            sum.accumulate(weights, GradientsParams::from_grads(grads, weights));
        }
        if let Some(gradient) = of_hidden {
            let grads = (run.fused() * gradient).sum().backward();
            sum.accumulate(weights, GradientsParams::from_grads(grads, weights));
        }
        (sum.grads(), sums)
    }

    /// The unroll without a tape.
    fn entered(&self, weights: &Eagle3, batch: &TrainBatch) -> Entered {
        let run = Unroll { drafter: self, layer: weights.valid().learned(&self.config), batch };
        let steps = batch.tokens.len();
        let (mut hidden, mut inputs, mut kv) = (vec![run.fused()], Vec::new(), None);
        for k in 0..steps {
            let stepped = run.step(k, hidden[k].clone(), kv.clone());
            inputs.push(run.layer.head_input(stepped.hidden.clone()));
            if k + 1 < steps {
                hidden.push(stepped.hidden);
                kv = Some(stepped.kv);
            }
        }
        Entered { hidden, inputs, kv }
    }
}
