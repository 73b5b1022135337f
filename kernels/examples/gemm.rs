//! Prints the rate of the matrix products that a training step and a capture pass are made of.
use burn::tensor::{Device, Distribution, Tensor};
use std::time::Instant;

fn main() {
    let device = Device::flex();
    let random = |a: usize, b: usize| Tensor::<2>::random([a, b], Distribution::Uniform(-1.0, 1.0), &device);
    let shapes = [
        (2048, 576, 960),
        (2048, 576, 3072),
        (2048, 1536, 576),
        (512, 576, 8192),
        (512, 8192, 576),
        (576, 2048, 3072),
        (64, 576, 3072),
        (8, 576, 3072),
        (48, 576, 49152),
    ];
    for (m, k, n) in shapes {
        let (a, b) = (random(m, k), random(k, n));
        let forms = [
            ("a·b", a.clone(), b.clone()),
            ("a·(bᵀ)ᵀ", a.clone(), (b.clone().transpose() * 1.0).transpose()),
            ("(aᵀ)ᵀ·b", (a.clone().transpose() * 1.0).transpose(), b.clone()),
        ];
        for (name, a, b) in forms {
            let mut best = f64::INFINITY;
            for _ in 0..5 {
                let start = Instant::now();
                let c = a.clone().matmul(b.clone());
                std::hint::black_box(c);
                best = best.min(start.elapsed().as_secs_f64());
            }
            println!(
                "{m:5} {k:5} {n:5}  {name:10} {:7.1} GFLOP/s  {:7.2} ms",
                2e-9 * (m * k * n) as f64 / best,
                best * 1e3
            );
        }
    }
}
