//! Several devices in one process, each with a share of every step's batches.
//!
//! A step is the same for any number of devices: its batches weigh by their supervised tokens in all of it, the shares'
//! gradients are added in the order of the devices, whichever was done first, and the one update is made where the run's
//! weights are. Every step hands these out anew, so that no device can drift, and a checkpoint knows nothing of devices.
//!
//! Burn's `all_reduce` (0.22.1) does not fit. It panics outside CUDA and remote devices, so that no test without GPUs
//! could run it; NCCL chooses the order of the sum; the sum comes to every device, which is of use only with moments on
//! each; and a failure goes to the log while the caller goes on. Burn's gradient sync during `backward` sums batch by
//! batch and waits for every device, so that one without a batch would block the rest. Tensors are moved instead, which
//! between CUDA devices is NCCL's send and receive.
//!
//! **Unmeasured**: it was run with several replicas on the CPU, and never on two GPUs.

use crate::gradients::{Share, StepGradients, Worker};
use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::Device;
use spectrain_data::store::FeatureRow;
use spectrain_draft::{Eagle3, Eagle3Drafter, StepLoss};
use spectrain_kernels::product::Head;
use std::fmt;
use std::{panic, thread};

/// What the drafter shares with its target, on a further device.
#[derive(Clone)]
pub struct Replica {
    drafter: Eagle3Drafter,
}

impl Replica {
    /// A copy of `drafter` on the plain `device`.
    pub fn new(drafter: &Eagle3Drafter, device: &Device) -> Self {
        let moved = |head: &Head| Head::new(head.rows().clone().to_device(device));
        let drafter = Eagle3Drafter {
            embedding: drafter.embedding.clone().to_device(device),
            head: moved(&drafter.head),
            target_head: moved(&drafter.target_head),
            whole_head: moved(&drafter.whole_head),
            ..drafter.clone()
        };
        Self { drafter }
    }

    fn device(&self) -> Device {
        self.drafter.embedding.device()
    }
}

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Replica on {:?}", self.device())
    }
}

/// The batches of a step dealt out to `devices`, one after the other; those of a short step leave the last without any.
pub(crate) fn dealt<'a>(batches: &'a [Vec<&'a FeatureRow>], devices: usize) -> Vec<Share<'a>> {
    let of_device = |device: usize| batches.iter().enumerate().skip(device).step_by(devices);
    (0..devices).map(|device| of_device(device).map(|(i, rows)| (i, rows.as_slice())).collect()).collect()
}

/// The gradients of all shares, the first by `own` with the run's `weights`, the others by the `replicas` with copies of
/// them; in the order of the shares.
pub(crate) fn on_each(own: Worker, weights: &Eagle3, shares: &[Share], replicas: &[Replica]) -> Vec<StepGradients> {
    let Some((first, rest)) = shares.split_first() else { return Vec::new() };
    thread::scope(|scope| {
        // All are started before the first is waited for.
        let mut others = Vec::new();
        for (replica, share) in replicas.iter().zip(rest) {
            let worker = Worker { drafter: &replica.drafter, ..own };
            let copy = weights.clone().fork(&replica.device());
            others.push(scope.spawn(move || worker.gradients(&copy, share)));
        }
        let mut found = vec![own.gradients(weights, first)];
        found.extend(others.into_iter().map(|other| other.join().unwrap_or_else(|e| panic::resume_unwind(e))));
        found
    })
}

/// The gradient of a step of `tokens` supervised tokens from those of its shares, on the `device` of the run's weights.
pub(crate) fn joined(weights: &Eagle3, parts: Vec<StepGradients>, tokens: usize, device: &Device) -> StepGradients {
    let unroll = parts.first().map_or(0, |part| part.sums.len());
    let mut sums = vec![StepLoss::default(); unroll];
    for part in &parts {
        sums.iter_mut().zip(&part.sums).for_each(|(a, b)| a.add(b));
    }
    let odd = parts.iter().filter_map(|part| part.odd).min();
    let grads = summed(weights, parts.into_iter().map(|part| part.grads), device);
    StepGradients { grads, sums, tokens, odd }
}

/// The sum of gradients of `module` on `device`, in the order of `parts`; one that had no batch is empty.
pub fn summed<M: Module>(
    module: &M,
    parts: impl IntoIterator<Item = GradientsParams>,
    device: &Device,
) -> GradientsParams {
    let mut sum = GradientsAccumulator::new();
    for part in parts {
        sum.accumulate(module, part.to_device(device, module));
    }
    sum.grads()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::module::Param;
    use burn::tensor::Tensor;

    #[derive(Module, Debug)]
    struct Two {
        matrix: Param<Tensor<2>>,
        vector: Param<Tensor<1>>,
    }

    #[test]
    fn gradients_are_added_in_the_order_of_the_devices() {
        let device = Device::flex();
        let zeros = || Param::from_tensor(Tensor::zeros([1, 2], &device));
        let module = Two { matrix: zeros(), vector: Param::from_data([0.0], &device) };
        let part = |matrix: f32, vector: Option<f32>| {
            let mut part = GradientsParams::new();
            part.register(module.matrix.id, Tensor::<2>::from_data([[matrix, 2.0]], &device));
            if let Some(vector) = vector {
                part.register(module.vector.id, Tensor::<1>::from_data([vector], &device));
            }
            part
        };
        let sum = |parts: Vec<GradientsParams>| {
            let sum = summed(&module, parts, &device);
            let matrix = sum.get::<2>(module.matrix.id).map(|t| t.into_data().try_to_vec::<f32>().expect("f32 values"));
            let vector = sum.get::<1>(module.vector.id).map(|t| t.into_data().try_to_vec::<f32>().expect("f32 values"));
            (matrix.unwrap_or_default(), vector.unwrap_or_default())
        };
        // 1 is lost beside 1e8 unless it comes last.
        let parts = |order: [f32; 3]| order.map(|value| part(value, None)).into();
        assert_eq!(sum(parts([1.0, 1e8, -1e8])), (vec![0.0, 6.0], vec![]));
        assert_eq!(sum(parts([-1e8, 1e8, 1.0])), (vec![1.0, 6.0], vec![]));
        // One that had no batch, and one without a gradient for a parameter.
        let parts = vec![part(1.0, None), GradientsParams::new(), part(2.5, Some(4.0)), part(3.0, Some(0.5))];
        assert_eq!(sum(parts), (vec![6.5, 6.0], vec![4.5]));
        assert!(summed(&module, [GradientsParams::new()], &device).is_empty());
    }

    #[test]
    fn batches_are_dealt_out_in_turn() {
        let batches = vec![Vec::new(); 5];
        let places = |devices: usize| -> Vec<Vec<usize>> {
            dealt(&batches, devices).iter().map(|share| share.iter().map(|(i, _)| *i).collect()).collect()
        };
        assert_eq!(places(1), [[0, 1, 2, 3, 4]]);
        assert_eq!(places(2), [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!(places(6), [vec![0], vec![1], vec![2], vec![3], vec![4], vec![]]);
    }
}
