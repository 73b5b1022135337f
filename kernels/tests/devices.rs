//! Every operation gives on every device what it gives on the CPU backend, gradients included: the references run
//! where there is no fused form.
#![cfg(any(feature = "cuda", feature = "wgpu"))]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use burn::tensor::{Device, DeviceType, Tensor, TensorData, Tolerance};
use spectrain_kernels::cached_attention::{CachedPlan, Heads, LayerCache, Runs, Segment, cached_attention};
use spectrain_kernels::draft_loss::{Accepted, DraftLoss, Problem, StepRows, draft_loss, log_denominator};
use spectrain_kernels::is_fused;
use spectrain_kernels::product::Head;
use spectrain_kernels::rms_norm::rms_norm;
use spectrain_kernels::rope::RopeTable;
use spectrain_kernels::swiglu::swiglu;
use spectrain_kernels::unroll_attention::{UnrollPlan, UnrollSegment, unroll_attention};

const HEADS: Heads = Heads { query: 6, key: 2, dim: 16 };

/// Devices that are not the CPU backend. A build for them on a machine without any tests nothing, so that fails.
fn devices() -> Vec<Device> {
    let mut devices: Vec<Device> = Vec::new();
    #[cfg(feature = "wgpu")]
    devices.extend(Device::enumerate(DeviceType::Wgpu).into_vec());
    #[cfg(feature = "cuda")]
    devices.extend(Device::enumerate(DeviceType::Cuda).into_vec());
    assert!(!devices.is_empty(), "no device found");
    devices
}

/// Numbers of either sign around 1, the same on every device.
fn noise<const D: usize>(shape: [usize; D], seed: u32, device: &Device) -> Tensor<D> {
    let n = shape.iter().product::<usize>() as u32;
    let hash = |i: u32| (i + seed.wrapping_mul(7919)).wrapping_mul(2_654_435_761).wrapping_mul(40_503) >> 8;
    let values: Vec<f32> = (0..n).map(|i| (hash(i) % 4001) as f32 / 1000.0 - 2.0).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Runs `work` on the CPU backend and everywhere else; the results must agree.
fn everywhere(work: impl Fn(&Device) -> Vec<TensorData>) {
    let expected = work(&Device::flex());
    for device in devices() {
        assert!(!is_fused(&device));
        for (found, expected) in work(&device).iter().zip(&expected) {
            found.assert_approx_eq::<f32>(expected, Tolerance::rel_abs(2e-4, 2e-5));
        }
    }
}

/// Value and gradients of `function` at `inputs`.
fn with_gradients<const N: usize>(
    inputs: [Tensor<2>; N],
    function: impl Fn(&[Tensor<2>; N]) -> Tensor<2>,
) -> Vec<TensorData> {
    let inputs = inputs.map(Tensor::require_grad);
    let out = function(&inputs);
    let weight = noise(out.dims(), 99, &out.device());
    let gradients = (out.clone() * weight).sum().backward();
    let mut data = vec![out.into_data()];
    data.extend(inputs.iter().map(|input| input.grad(&gradients).unwrap().into_data()));
    data
}

#[test]
fn row_operations() {
    everywhere(|device| with_gradients([noise([5, 24], 1, &device.clone().autodiff())], |[x]| swiglu(x.clone())));
    everywhere(|device| {
        let device = device.clone().autodiff();
        with_gradients([noise([5, 24], 2, &device), noise([1, 24], 3, &device)], |[x, gamma]| {
            rms_norm(x.clone(), gamma.clone().squeeze_dim(0), 1e-5)
        })
    });
}

#[test]
fn cached_attention_of_chains_and_trees() {
    let rope = Arc::new(RopeTable::new(64, HEADS.dim, 10_000.0));
    let parents = vec![None, Some(0), Some(0), Some(2)];
    let mut scattered = Runs::default();
    [20..23, 30..31, 34..36, 18..19].into_iter().for_each(|rows| scattered.push(rows));
    let paged = Segment { entries: scattered, cached: 3, rows: 4, parents: Some(parents.clone()) };
    let segments = vec![Segment::chain(12, 0, 5), Segment::tree(0, 7, 4, parents), Segment::chain(24, 3, 1), paged];
    let positions = vec![0, 1, 2, 3, 4, 7, 8, 8, 9, 3, 3, 4, 4, 5];
    let plan = Arc::new(CachedPlan { segments, positions });
    everywhere(|device| {
        let cache = LayerCache {
            keys: noise([36, HEADS.key_width()], 1, device),
            values: noise([36, HEADS.key_width()], 2, device),
        };
        let qkv = noise([plan.rows(), HEADS.joint_width()], 3, device);
        let (out, cache) = cached_attention(qkv, cache, HEADS, &rope, &plan);
        [out, cache.keys, cache.values].map(Tensor::into_data).into()
    });
}

#[test]
fn unrolled_attention() {
    let rope = Arc::new(RopeTable::new(64, HEADS.dim, 10_000.0));
    let segment = |keys, first_query, queries| UnrollSegment { keys, first_query, queries };
    let plan = Arc::new(UnrollPlan { segments: vec![segment(9, 2, 6), segment(4, 0, 4)] });
    for step in [0, 2] {
        everywhere(|device| {
            let device = device.clone().autodiff();
            let q = noise([plan.queries(), HEADS.query_width()], 1, &device);
            let kv = noise([plan.keys() + step * plan.queries(), 2 * HEADS.key_width()], 2, &device);
            with_gradients([q, kv], |[q, kv]| unroll_attention(q.clone(), kv.clone(), step, HEADS, &rope, &plan))
        });
    }
}

#[test]
fn losses_and_their_gradients() {
    for loss in [DraftLoss::Kl, DraftLoss::Lk, DraftLoss::JensenShannon, DraftLoss::ExactLength] {
        everywhere(|device| {
            let teacher = noise([5, 16], 1, device);
            let students = vec![noise([4, 16], 2, device), noise([4, 16], 3, device)];
            let head = Head::new(noise([40, 16], 4, device));
            let lse = log_denominator(head.logits(teacher.clone())) + 0.3;
            let pairs = vec![vec![(0, 0), (1, 1), (3, 4)], vec![(0, 1), (1, 2), (2, 3)]];
            let labels = vec![Some(3), None, Some(39), Some(0), Some(7)];
            let problem = Problem {
                weights: vec![1.0, 0.7],
                accepted: Accepted::TargetOnly,
                ..Problem::new(head, pairs, labels, loss)
            };
            let steps = draft_loss(students, teacher, lse.clone(), problem).steps;
            let sums = |s: &StepRows| TensorData::from([s.loss() as f32, s.accepted() as f32]);
            let found = steps.iter().flat_map(|s| [s.gradient.clone().into_data(), sums(s)]);
            found.chain([lse.into_data()]).collect()
        });
    }
}
