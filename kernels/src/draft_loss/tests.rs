//! Every loss against its f64 form in `spectrain_core::loss`, head and way back included.
#![allow(clippy::unwrap_used)]

use super::row::{Factor, Statistics, Target, log_denominator};
use super::{Accepted, DraftLoss, Found, METRICS, Problem, StepRows, Weighting, draft_loss, reference};
use crate::product::Head;
use burn::tensor::{Device, Tensor, TensorData};
use spectrain_core::loss::{ChainStep, Loss, Row, Temperature, end_to_end_tv, exact_length};

mod forms;

const STEPS: usize = 3;
const QUERIES: usize = 9;
const TARGETS: usize = 11;
const WIDTH: usize = 24;
const ROW_LOSSES: [(DraftLoss, Loss); 7] = [
    (DraftLoss::Kl, Loss::Kl),
    (DraftLoss::CrossEntropy, Loss::CrossEntropy),
    (DraftLoss::ReverseKl, Loss::ReverseKl),
    (DraftLoss::JensenShannon, Loss::JensenShannon),
    (DraftLoss::TotalVariation, Loss::TotalVariation),
    (DraftLoss::Lk, Loss::LkAlpha),
    (DraftLoss::LkLambda { eta: 2.0 }, Loss::LkLambda { eta: 2.0 }),
];

fn noise(n: usize, seed: u64, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|_| (next() + next() + next()) * scale).collect()
}

/// A batch over a draft vocabulary of `words` tokens and as many outside it.
struct Case {
    words: usize,
    head: Vec<f32>,
    outside: Head,
    teacher: Vec<f32>,
    students: Vec<Vec<f32>>,
    problem: Problem,
}

impl Case {
    fn new(words: usize, loss: DraftLoss) -> Self {
        let head = noise(words * WIDTH, 1, 1.5);
        // A gap at query 4, no label at query 6, a chain that ends early at the last.
        let supervised = |q: usize, k: usize| q != 6 && (q, k) != (4, 1) && q + k < TARGETS - 1;
        let pairs = |k: usize| (0..QUERIES).filter(|&q| supervised(q, k)).map(|q| (q, q + k)).collect();
        let problem = Problem {
            weights: if loss.is_chain() { vec![0.5; STEPS] } else { vec![0.5, 0.3, 0.2] },
            ..Problem::new(
                Head::new(tensor(&head, words)),
                (0..STEPS).map(pairs).collect(),
                (0..TARGETS).map(|i| (i % 5 != 3).then_some((i * 7 % words) as u32)).collect(),
                loss,
            )
        };
        Self {
            words,
            head,
            outside: Head::new(tensor(&noise(words * WIDTH, 2, 1.2), words)),
            teacher: noise(TARGETS * WIDTH, 3, 2.0),
            students: (0..STEPS).map(|k| noise(QUERIES * WIDTH, 10 + k as u64, 2.0)).collect(),
            problem,
        }
    }

    /// Logits in f32, as every form of the loss gets them.
    fn logits(&self, head: &Head, hidden: &[f32], row: usize) -> Vec<f64> {
        host(head.logits(tensor(&hidden[row * WIDTH..(row + 1) * WIDTH], 1)))
    }

    /// All target logits of a row, the draft vocabulary first.
    fn target(&self, row: usize) -> Vec<f64> {
        let inside = self.logits(&self.problem.head, &self.teacher, row);
        [inside, self.logits(&self.outside, &self.teacher, row)].concat()
    }

    fn row(&self, query: usize, step: usize, target: usize) -> Row {
        let vocabulary: Vec<usize> = (0..self.words).collect();
        let draft = self.logits(&self.problem.head, &self.students[step], query);
        Row::new(&self.target(target), &draft, Some(&vocabulary), Temperature::Both(1.0)).unwrap()
    }

    /// `gradient` of one row's logits, back at its head input.
    fn pulled(&self, gradient: &[f64]) -> Vec<f64> {
        let mut sum = vec![0.0; WIDTH];
        for (g, w) in gradient.iter().zip(self.head.chunks_exact(WIDTH)) {
            sum.iter_mut().zip(w).for_each(|(s, w)| *s += g * f64::from(*w));
        }
        sum
    }

    fn inputs(&self) -> (Vec<Tensor<2>>, Tensor<2>, Tensor<1>) {
        let lse = |i| spectrain_core::loss::log_space::log_sum_exp(self.target(i)) as f32;
        let lse: Vec<f32> = (0..TARGETS).map(lse).collect();
        let students = self.students.iter().map(|s| tensor(s, QUERIES)).collect();
        (students, tensor(&self.teacher, TARGETS), Tensor::from_floats(lse.as_slice(), &Device::flex()))
    }

    fn fused(self) -> Vec<StepRows> {
        self.found().steps
    }

    fn found(self) -> Found {
        let (students, teacher, lse) = self.inputs();
        draft_loss(students, teacher, lse, self.problem)
    }

    /// The same in plain operations: gradient, metrics, and the gradient of the own head.
    fn plain(&self) -> [Vec<f64>; 3] {
        let (students, teacher, lse) = self.inputs();
        reference::evaluate(Tensor::cat(students, 0), teacher, lse, QUERIES, &self.problem).map(host)
    }
}

fn tensor(values: &[f32], rows: usize) -> Tensor<2> {
    Tensor::from_data(TensorData::new(values.to_vec(), [rows, values.len() / rows]), &Device::flex())
}

fn host(tensor: Tensor<2>) -> Vec<f64> {
    tensor.into_data().try_to_vec::<f32>().unwrap().into_iter().map(f64::from).collect()
}

/// ‖a − b‖ / ‖b‖.
fn relative(a: &[f64], b: &[f64]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())
}

/// Gradient `[STEPS · QUERIES, WIDTH]`, and each step's value and overlap.
struct Expected {
    gradient: Vec<f64>,
    loss: [f64; STEPS],
    overlap: [f64; STEPS],
}

impl Expected {
    fn of_rows(case: &Case, reference: Loss) -> Self {
        let mut all = Self { gradient: vec![0.0; STEPS * QUERIES * WIDTH], loss: [0.0; STEPS], overlap: [0.0; STEPS] };
        for (k, pairs) in case.problem.pairs.iter().enumerate() {
            for &(query, target) in pairs {
                let row = case.row(query, k, target);
                let found = reference.evaluate(&row).unwrap();
                all.loss[k] += found.value;
                all.overlap[k] += row.overlap().alpha();
                all.put(k, query, &case.pulled(&found.logits), f64::from(case.problem.weights[k]));
            }
        }
        all
    }

    fn of_chains(case: &Case) -> Self {
        let mut all = Self { gradient: vec![0.0; STEPS * QUERIES * WIDTH], loss: [0.0; STEPS], overlap: [0.0; STEPS] };
        for query in 0..QUERIES {
            let target = |k: usize| case.problem.pairs[k].iter().find(|p| p.0 == query).map(|p| p.1);
            let link = |k: usize| {
                let target = target(k)?;
                let token = case.problem.labels[target].map(|x| x as usize);
                Some(ChainStep { row: case.row(query, k, target), token })
            };
            let chain: Vec<ChainStep> = (0..STEPS).map_while(link).collect();
            if chain.is_empty() {
                continue;
            }
            let rows: Vec<Row> = chain.iter().map(|step| step.row.clone()).collect();
            let found = match case.problem.loss {
                DraftLoss::ExactLength => exact_length(&chain).unwrap(),
                _ => end_to_end_tv(&rows).unwrap(),
            };
            // A chain that ends early counts as what it is of a whole one.
            let share = chain.len() as f64 / STEPS as f64;
            all.loss[0] += found.value * share;
            for (k, gradient) in found.logits.iter().enumerate() {
                all.put(k, query, &case.pulled(gradient), share * f64::from(case.problem.weights[k]));
            }
        }
        all
    }

    fn put(&mut self, step: usize, query: usize, gradient: &[f64], weight: f64) {
        let at = (step * QUERIES + query) * WIDTH;
        self.gradient[at..at + WIDTH].iter_mut().zip(gradient).for_each(|(a, g)| *a = g * weight);
    }
}

fn gradient(steps: &[StepRows]) -> Vec<f64> {
    steps.iter().flat_map(|s| host(s.gradient.clone())).collect()
}

/// Vocabularies below, at and beside a panel's width, and a whole model's.
const VOCABULARIES: [usize; 4] = [7, 48, 1000, 49_152];

#[test]
fn losses_of_rows_equal_their_f64_forms() {
    for words in VOCABULARIES {
        for (loss, form) in ROW_LOSSES {
            let case = Case::new(words, loss);
            let expected = Expected::of_rows(&case, form);
            let found = case.fused();
            for (k, step) in found.iter().enumerate() {
                let off = (step.loss() / expected.loss[k] - 1.0).abs();
                assert!(off < 1e-6, "{loss:?} of {words} words, step {k}: value off by {off}");
                let off = (step.accepted() / expected.overlap[k] - 1.0).abs();
                assert!(off < 1e-6, "{loss:?} of {words} words, step {k}: overlap off by {off}");
            }
            let off = relative(&gradient(&found), &expected.gradient);
            assert!(off < 1e-6, "{loss:?} of {words} words: gradient off by {off}");
        }
    }
}

#[test]
fn losses_of_chains_equal_their_f64_forms() {
    for words in VOCABULARIES {
        for loss in [DraftLoss::EndToEndTv, DraftLoss::ExactLength] {
            let case = Case::new(words, loss);
            let expected = Expected::of_chains(&case);
            let found = case.fused();
            let value: f64 = found.iter().map(StepRows::loss).sum();
            let off = (value / expected.loss[0] - 1.0).abs();
            assert!(off < 1e-6, "{loss:?} of {words} words: value {value}, off by {off}");
            let off = relative(&gradient(&found), &expected.gradient);
            assert!(off < 1e-6, "{loss:?} of {words} words: gradient off by {off}");
        }
    }
}

#[test]
fn the_plain_form_is_the_same() {
    let all = ROW_LOSSES.map(|(loss, _)| loss).into_iter().chain([DraftLoss::EndToEndTv, DraftLoss::ExactLength]);
    for loss in all {
        let case = Case::new(70, loss);
        let [plain, metrics, _] = case.plain();
        let found = case.fused();
        let off = relative(&gradient(&found), &plain);
        assert!(off < 2e-6, "{loss:?}: gradient off by {off}");
        let value: f64 = metrics.chunks_exact(METRICS).map(|m| m[0]).sum();
        let fused: f64 = found.iter().map(StepRows::loss).sum();
        assert!((fused / value - 1.0).abs() < 2e-6, "{loss:?}: {fused} against {value}");
    }
}

/// The gradients of a chain's rows under a weighting are those of the same rows alone, times weights from their f64
/// overlaps and shares.
#[test]
fn weights_within_a_chain_follow_its_overlaps_and_shares() {
    for weighting in [Weighting::Accepted, Weighting::DPace] {
        let case = |weighting| {
            let case = Case::new(70, DraftLoss::Kl);
            Case { problem: Problem { weighting, ..case.problem }, ..case }
        };
        let alone = case(Weighting::Fixed);
        let mut expected = Expected::of_rows(&alone, Loss::Kl).gradient;
        for query in 0..QUERIES {
            let steps: Vec<(usize, usize)> =
                (0..STEPS).filter_map(|k| Some((k, alone.problem.pairs[k].iter().find(|p| p.0 == query)?.1))).collect();
            let row = |&(k, target): &(usize, usize)| alone.row(query, k, target);
            let share =
                |s: &(usize, usize)| alone.problem.labels[s.1].map_or(0.0, |x| row(s).log_q()[x as usize].exp());
            let product = |count: usize, of: &dyn Fn(&(usize, usize)) -> f64| steps[..count].iter().map(of).product();
            for (i, (k, _)) in steps.iter().enumerate() {
                let weight: f64 = match weighting {
                    Weighting::DPace => (i..steps.len()).map(|m| product(m + 1, &|s| 0.5 + 0.5 * share(s))).sum(),
                    _ => product(i, &|s| row(s).overlap().alpha()),
                };
                let at = (k * QUERIES + query) * WIDTH;
                expected[at..at + WIDTH].iter_mut().for_each(|g| *g *= weight);
            }
        }
        let found = gradient(&case(weighting).fused());
        assert!(relative(&found, &expected) < 1e-6, "{weighting:?}");
        let [plain, ..] = case(weighting).plain();
        assert!(relative(&plain, &expected) < 2e-6, "{weighting:?} in plain operations");
    }
}

#[test]
fn acceptance_of_likeliest_tokens_is_the_target_mass_on_them() {
    let case = || {
        let case = Case::new(70, DraftLoss::CrossEntropy);
        let problem = Problem { accepted: Accepted::TargetOnly, ..case.problem };
        Case { problem, ..case }
    };
    let [_, metrics, _] = case().plain();
    for (k, (step, pairs)) in case().fused().iter().zip(&case().problem.pairs).enumerate() {
        let covered = |&(query, target): &(usize, usize)| {
            let row = case().row(query, k, target);
            spectrain_core::loss::log_coverage(&row, 1).unwrap().exp()
        };
        let expected: f64 = pairs.iter().map(covered).sum();
        let plain: f64 =
            metrics[k * QUERIES * METRICS..(k + 1) * QUERIES * METRICS].chunks_exact(METRICS).map(|m| m[1]).sum();
        assert!((step.accepted() / expected - 1.0).abs() < 1e-6, "step {k}: {} for {expected}", step.accepted());
        assert!((plain / expected - 1.0).abs() < 1e-5, "step {k}: {plain} for {expected} in plain operations");
    }
}

/// What a product never gives: tokens that the target rules out, and a target that is certain.
#[test]
fn certain_and_masked_targets_keep_values_and_gradients_finite() {
    let certain = |i: usize| if i == 3 { 0.0 } else { f32::NEG_INFINITY };
    let masked = |i: usize| if i.is_multiple_of(3) { f32::NEG_INFINITY } else { (i % 7) as f32 * 0.3 };
    let targets: [Vec<f32>; 2] = [(0..50).map(certain).collect(), (0..50).map(masked).collect()];
    let draft = noise(50, 5, 3.0);
    let wide = |x: &[f32]| x.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
    for target in targets {
        let mut scratch = Vec::new();
        let row = Row::new(&wide(&target), &wide(&draft), None, Temperature::Both(1.0)).unwrap();
        let lse = log_denominator(&target, &mut scratch);
        let mut mass = vec![0.0; 50];
        let read = Target::new(&target, lse, &mut mass, &mut scratch);
        for (loss, form) in ROW_LOSSES.into_iter().filter(|(loss, _)| *loss != DraftLoss::ReverseKl) {
            let expected = form.evaluate(&row).unwrap();
            let mut z = draft.clone();
            let statistics = Statistics::new(&z, &read, &mut scratch);
            let value = statistics.gradient(loss, &mut z, &read, None, Factor::ALONE, &mut scratch);
            assert!((f64::from(value) / expected.value - 1.0).abs() < 1e-6, "{loss:?}: {value} for {}", expected.value);
            let off = relative(&wide(&z), &expected.logits);
            assert!(off < 1e-6, "{loss:?}: gradient off by {off}");
        }
    }
}

#[test]
fn a_cold_start_still_has_a_gradient() {
    let n = 131_072;
    let mut target = vec![-200.0_f32; n];
    target[7] = 0.0;
    let (mut z, mut scratch) = (vec![0.0; n], Vec::new());
    let mut mass = vec![0.0; n];
    let read = Target::new(&target, 0.0, &mut mass, &mut scratch);
    let statistics = Statistics::new(&z, &read, &mut scratch);
    let value = statistics.gradient(DraftLoss::Lk, &mut z, &read, None, Factor::ALONE, &mut scratch);
    assert!((value - (n as f32).ln()).abs() < 1e-4, "loss {value}");
    assert!((z[7] + 1.0 - 1.0 / n as f32).abs() < 1e-4, "gradient {}", z[7]);
}

/// Three masses of e^-2000 are no number in f32, their logarithm is.
#[test]
fn an_overlap_below_every_float_has_a_logarithm() {
    let (target, mut z) = ([-2000.0_f32, 0.0, -2000.0], [0.0_f32, -2000.0, -2000.0]);
    let (mut mass, mut scratch) = ([0.0; 3], Vec::new());
    let read = Target::new(&target, 0.0, &mut mass, &mut scratch);
    let statistics = Statistics::new(&z, &read, &mut scratch);
    let value = statistics.gradient(DraftLoss::Lk, &mut z, &read, None, Factor::ALONE, &mut scratch);
    assert!((value - (2000.0 - 3.0_f32.ln())).abs() < 1e-3, "loss {value}");
}

#[test]
fn rows_without_a_label_have_no_gradient_and_touch_no_other() {
    let case = Case::new(70, DraftLoss::Lk);
    let mut other = Case::new(70, DraftLoss::Lk);
    other.students.iter_mut().for_each(|s| s[6 * WIDTH..7 * WIDTH].fill(f32::NAN));
    let (a, b) = (gradient(&case.fused()), gradient(&other.fused()));
    assert_eq!(a, b);
    assert!(a[6 * WIDTH..7 * WIDTH].iter().all(|g| *g == 0.0));
}
