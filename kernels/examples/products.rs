//! Prints the rate of the products that decoding, training and capture are made of: by panels, and Burn's own.
use burn::tensor::{Device, Distribution, Tensor};
use spectrain_kernels::product::{Learned, Projection};
use std::time::Instant;

/// Best seconds of several calls.
fn best(mut call: impl FnMut() -> Tensor<2>) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..9 {
        let start = Instant::now();
        std::hint::black_box(call());
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

fn main() {
    let device = Device::flex();
    let random = |a: usize, b: usize| Tensor::<2>::random([a, b], Distribution::Uniform(-1.0, 1.0), &device);
    println!("milliseconds and GFLOP/s of rows × inputs × outputs");
    for (k, n) in [(576, 960), (576, 3072), (1536, 576), (576, 8192), (576, 49152)] {
        // So many copies that no cache holds them all, as in a model.
        let copies: Vec<Tensor<2>> = (0..((64 << 20) / (k * n * 4)).max(1)).map(|_| random(k, n)).collect();
        let frozen: Vec<Projection> = copies.iter().cloned().map(Projection::new).collect();
        for m in [1, 2, 4, 6, 8, 16, 24, 48, 64, 512, 2048] {
            let x = random(m, k);
            let mut turn = (0..).map(|i: usize| i % copies.len());
            let mut next = || turn.next().expect("endless");
            let rate = |seconds: f64| 2e-9 * (m * k * n) as f64 / seconds;
            let panels = best(|| frozen[next()].apply(x.clone()));
            let laid_out = best(|| Learned::new(copies[next()].clone()).apply(x.clone()));
            let burns = best(|| x.clone().matmul(copies[next()].clone()));
            println!(
                "{m:5} × {k:4} × {n:5}  frozen {:8.3} ms {:5.0}   learned {:8.3} ms {:5.0}   Burn {:8.3} ms {:5.0}",
                panels * 1e3,
                rate(panels),
                laid_out * 1e3,
                rate(laid_out),
                burns * 1e3,
                rate(burns),
            );
        }
    }
}
