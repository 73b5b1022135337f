//! Processors, targets known by some tokens, a head of the drafter's own, and what a row says of the round behind it.

use super::*;
use crate::draft_loss::{Policies, TargetForm};
use spectrain_core::loss::{Gradient, LossError, Policy};
use std::sync::Arc;

/// Losses that bear truncation, with their f64 forms.
const BEARING: [(DraftLoss, Loss); 3] = [
    (DraftLoss::Lk, Loss::LkAlpha),
    (DraftLoss::TotalVariation, Loss::TotalVariation),
    (DraftLoss::JensenShannon, Loss::JensenShannon),
];

fn policies() -> Vec<Policy> {
    let none = Policy::default();
    vec![
        none,
        Policy::at(0.7),
        Policy { top_k: 3, ..none },
        Policy { temperature: 1.4, top_p: 0.8, ..none },
        Policy { temperature: 0.6, top_k: 40, top_p: 0.95, min_p: 0.02 },
    ]
}

/// A case under policies, each target row under another. With `half` the draft vocabulary is every second token of the
/// target's; else they are one.
struct Under {
    case: Case,
    list: Vec<Policy>,
    /// The target's head, `[vocabulary, WIDTH]`, and the ids of the draft tokens.
    whole: Head,
    ids: Vec<usize>,
}

impl Under {
    fn new(words: usize, loss: DraftLoss, list: Vec<Policy>, half: bool) -> Self {
        let mut case = Case::new(words, loss);
        let outside = noise(words * WIDTH, 2, 1.2);
        let rows = case.head.chunks_exact(WIDTH).zip(outside.chunks_exact(WIDTH));
        let both: Vec<f32> = rows.flat_map(|(a, b)| [a, b].concat()).collect();
        let (whole, ids): (Head, Vec<usize>) = match half {
            true => (Head::new(tensor(&both, 2 * words)), (0..words).map(|w| 2 * w).collect()),
            false => (case.problem.head.clone(), (0..words).collect()),
        };
        let given = || Arc::new(ids.iter().map(|&id| id as u32).collect::<Vec<u32>>());
        let of = (0..TARGETS).map(|target| target % list.len()).collect();
        let given = half.then(|| (whole.clone(), given()));
        case.problem.policies = Some(Policies { list: list.clone(), of, whole: given });
        Self { case, list, whole, ids }
    }

    fn of_row(&self, loss: Loss, query: usize, step: usize, target: usize) -> (Result<Gradient, LossError>, f64) {
        let policy = &self.list[target % self.list.len()];
        let p = self.case.logits(&self.whole, &self.case.teacher, target);
        let q = self.case.logits(&self.case.problem.head, &self.case.students[step], query);
        let row = Row::under(policy, &p, &q, Some(&self.ids)).unwrap();
        (loss.evaluate_under(policy, &p, &q, Some(&self.ids)), row.overlap().alpha())
    }

    fn expected(&self, loss: Loss) -> Expected {
        let mut all =
            Expected { gradient: vec![0.0; STEPS * QUERIES * WIDTH], loss: [0.0; STEPS], overlap: [0.0; STEPS] };
        for (k, pairs) in self.case.problem.pairs.iter().enumerate() {
            for &(query, target) in pairs {
                let (found, alpha) = self.of_row(loss, query, k, target);
                all.overlap[k] += alpha;
                // A target without mass on the draft vocabulary has a metric and no gradient.
                let Ok(found) = found else { continue };
                all.loss[k] += found.value;
                all.put(k, query, &self.case.pulled(&found.logits), f64::from(self.case.problem.weights[k]));
            }
        }
        all
    }
}

fn close(found: f64, expected: f64, bound: f64) -> bool {
    (found - expected).abs() <= bound * expected.abs().max(1e-3)
}

#[test]
fn losses_under_processors_equal_their_f64_forms() {
    for (words, half) in [(7, false), (7, true), (1000, true), (49_152, false)] {
        for (loss, form) in BEARING {
            let under = Under::new(words, loss, policies(), half);
            let expected = under.expected(form);
            let found = under.case.fused();
            for (k, step) in found.iter().enumerate() {
                assert!(close(step.accepted(), expected.overlap[k], 1e-6), "{loss:?} of {words}, step {k}: overlap");
                let (value, right) = (step.loss(), expected.loss[k]);
                assert!(close(value, right, 1e-6), "{loss:?} of {words}, step {k}: {value} for {right}");
            }
            let off = relative(&gradient(&found), &expected.gradient);
            assert!(off < 1e-6, "{loss:?} of {words} words, half {half}: gradient off by {off}");
        }
    }
}

#[test]
fn tempered_losses_of_every_kind_equal_their_f64_forms() {
    for (words, half) in [(7, true), (1000, false)] {
        for (loss, form) in ROW_LOSSES {
            let under = Under::new(words, loss, vec![Policy::at(0.7), Policy::at(1.9)], half);
            let expected = under.expected(form);
            let off = relative(&gradient(&under.case.fused()), &expected.gradient);
            assert!(off < 1e-6, "{loss:?} of {words} words, half {half}: gradient off by {off}");
        }
    }
}

#[test]
fn plain_operations_say_the_same_under_processors_and_of_known_tokens() {
    let known = || {
        let row = |i: usize| vec![((i * 5 % 70) as u32, 0.5_f32.ln()), ((i * 11 + 1) as u32 % 70, 0.25_f32.ln())];
        TargetForm::Known((0..TARGETS).map(|i| if i == 2 { Vec::new() } else { row(i) }).collect())
    };
    for (loss, _) in BEARING {
        let of_known = || {
            let case = Case::new(70, loss);
            Case { problem: Problem { target: known(), passage: true, ..case.problem }, ..case }
        };
        let with_own = || {
            let case = Under::new(70, loss, policies(), true).case;
            let own = Some(Head::new(tensor(&noise(70 * WIDTH, 77, 1.5), 70)));
            Case { problem: Problem { own, passage: true, ..case.problem }, ..case }
        };
        for (what, case) in [("known", &of_known as &dyn Fn() -> Case), ("under processors", &with_own)] {
            let [plain, metrics, head] = case().plain();
            let found = case().found();
            let off = relative(&gradient(&found.steps), &plain);
            // The plain form of this one takes the difference of two numbers near ln 2 where the kept sets hardly meet.
            let bound = if loss == DraftLoss::JensenShannon { 4e-6 } else { 2e-6 };
            assert!(off < bound, "{loss:?}, {what}: gradient off by {off}");
            let fused: Vec<f64> =
                found.steps.iter().flat_map(|s| s.metrics.as_flattened()).map(|&m| m.into()).collect();
            fused.iter().zip(&metrics).enumerate().for_each(|(i, (a, b))| {
                assert!((a - b).abs() < 1e-5 * b.abs().max(1.0), "{loss:?}, {what}: metric {i} is {a} for {b}");
            });
            if let Some(of_head) = found.head {
                let off = relative(&host(of_head), &head);
                assert!(off < bound, "{loss:?}, {what}: gradient of the head off by {off}");
            }
        }
    }
}

#[test]
fn a_head_of_its_own_gets_the_gradient_of_its_rows() {
    for (words, loss, form) in [(7, DraftLoss::Lk, Loss::LkAlpha), (1000, DraftLoss::Kl, Loss::Kl)] {
        let case = || {
            let case = Case::new(words, loss);
            let own = Some(Head::new(tensor(&noise(words * WIDTH, 77, 1.5), words)));
            Case { problem: Problem { own, ..case.problem }, ..case }
        };
        let (whole, own) = (case(), Head::new(tensor(&noise(words * WIDTH, 77, 1.5), words)));
        let mut expected = vec![0.0; words * WIDTH];
        let mut inputs = vec![0.0; STEPS * QUERIES * WIDTH];
        for (k, pairs) in whole.problem.pairs.iter().enumerate() {
            for &(query, target) in pairs {
                let ids: Vec<usize> = (0..words).collect();
                let (p, q) = (whole.target(target), whole.logits(&own, &whole.students[k], query));
                let row = Row::new(&p, &q, Some(&ids), Temperature::Both(1.0)).unwrap();
                let weight = f64::from(whole.problem.weights[k]);
                let logits = form.evaluate(&row).unwrap().logits;
                let x = &whole.students[k][query * WIDTH..(query + 1) * WIDTH];
                let at = (k * QUERIES + query) * WIDTH;
                let own = noise(words * WIDTH, 77, 1.5);
                for (w, g) in logits.iter().enumerate() {
                    for i in 0..WIDTH {
                        expected[w * WIDTH + i] += weight * g * f64::from(x[i]);
                        inputs[at + i] += weight * g * f64::from(own[w * WIDTH + i]);
                    }
                }
            }
        }
        let found = case().found();
        let off = relative(&host(found.head.unwrap()), &expected);
        assert!(off < 1e-6, "{loss:?} of {words} words: the head's gradient is off by {off}");
        let off = relative(&gradient(&found.steps), &inputs);
        assert!(off < 1e-6, "{loss:?} of {words} words: gradient off by {off}");
    }
}

#[test]
fn known_tokens_equal_their_f64_form_and_ids_are_cross_entropy() {
    for words in VOCABULARIES {
        let case = || Case::new(words, DraftLoss::Lk);
        let labels = case().problem.labels;
        let ids = TargetForm::Known(labels.iter().map(|x| x.iter().map(|&x| (x, 0.0)).collect()).collect());
        let given = case();
        let given = Case { problem: Problem { target: ids, ..given.problem }, ..given };
        let mut expected = vec![0.0; STEPS * QUERIES * WIDTH];
        let mut value = 0.0;
        for (k, pairs) in given.problem.pairs.iter().enumerate() {
            for &(query, target) in pairs {
                let Some(token) = labels[target] else { continue };
                let draft = given.logits(&given.problem.head, &given.students[k], query);
                let row = Row::of_known(&[(token as usize, 0.0)], &draft).unwrap();
                let found = spectrain_core::loss::token_cross_entropy(&row, token as usize).unwrap();
                value += found.value;
                let at = (k * QUERIES + query) * WIDTH;
                let pulled = given.pulled(&found.logits);
                let weight = f64::from(given.problem.weights[k]);
                expected[at..at + WIDTH].iter_mut().zip(pulled).for_each(|(e, g)| *e = g * weight);
            }
        }
        let found = given.fused();
        let off = relative(&gradient(&found), &expected);
        assert!(off < 1e-6, "{words} words: gradient off by {off}");
        let sum: f64 = found.iter().map(StepRows::loss).sum();
        assert!(close(sum, value, 1e-6), "{words} words: {sum} for {value}");
    }
}

/// The chance that the verifier goes on behind a row: the ratio of the text's token, or whether it is the drafter's pick.
#[test]
fn passage_is_the_acceptance_of_the_text_s_token() {
    for accepted in [Accepted::Overlap, Accepted::TargetOnly] {
        let case = || {
            let case = Case::new(7, DraftLoss::Kl);
            Case { problem: Problem { passage: true, accepted, ..case.problem }, ..case }
        };
        let given = case();
        let found = case().fused();
        for (k, pairs) in given.problem.pairs.iter().enumerate() {
            for &(query, target) in pairs {
                let row = given.row(query, k, target);
                let top = spectrain_core::loss::top_tokens(&row, 1).unwrap()[0];
                let expected = given.problem.labels[target].map_or(0.0, |x| match accepted {
                    Accepted::Overlap => (row.log_q()[x as usize] - row.log_p()[x as usize]).min(0.0).exp(),
                    Accepted::TargetOnly => f64::from(u8::from(top == x as usize)),
                });
                let passed = f64::from(found[k].metrics[query][2]);
                assert!((passed - expected).abs() < 1e-6, "{accepted:?}: {passed} for {expected}");
            }
        }
    }
}
