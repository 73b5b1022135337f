//! Closed-form gradients against central differences on random rows, ties excluded.

use proptest::prelude::*;
use spectrain_core::loss::*;

const STEP: f64 = 1e-5;
const TIE: f64 = 1e-3;
const TOLERANCE: f64 = 2e-7;

/// A random row, whose draft logits can be moved.
#[derive(Clone, Debug)]
struct Case {
    target: Vec<f64>,
    draft: Vec<f64>,
    vocabulary: Option<Vec<usize>>,
    temperature: Temperature,
}

impl Case {
    fn row(&self, draft: &[f64]) -> Row {
        Row::new(&self.target, draft, self.vocabulary.as_deref(), self.temperature).unwrap()
    }

    fn base(&self) -> Row {
        self.row(&self.draft)
    }

    /// `f` differentiated by the draft logits.
    fn differences(&self, f: impl Fn(&Row) -> f64) -> Vec<f64> {
        (0..self.draft.len())
            .map(|j| {
                let at = |by: f64| {
                    let mut draft = self.draft.clone();
                    draft[j] += by;
                    f(&self.row(&draft))
                };
                (at(STEP) - at(-STEP)) / (2.0 * STEP)
            })
            .collect()
    }

    /// Whether the overlap, or the order of the draft's tokens, has a kink nearby.
    fn has_tie(&self) -> bool {
        let row = self.base();
        let q = row.log_q();
        let between = row.log_p().iter().zip(q).any(|(a, b)| (a - b).abs() < TIE);
        let within = (0..q.len()).any(|i| (0..i).any(|j| (q[i] - q[j]).abs() < TIE));
        between || within
    }
}

fn case() -> impl Strategy<Value = Case> {
    let sizes = 3usize..10;
    let parts = sizes.prop_flat_map(|size| {
        (
            prop::collection::vec(-3.0..3.0, size),
            prop::collection::vec(-3.0..3.0, size),
            prop::collection::vec(any::<bool>(), size),
            0.5..2.0,
            any::<bool>(),
        )
    });
    let built = parts.prop_map(|(target, mut draft, keep, t, both): (Vec<f64>, Vec<f64>, Vec<bool>, f64, bool)| {
        let ids: Vec<usize> = (0..keep.len()).filter(|&i| keep[i]).collect();
        let vocabulary = (ids.len() >= 2).then_some(ids);
        draft.truncate(vocabulary.as_ref().map_or(draft.len(), Vec::len));
        let temperature = if both { Temperature::Both(t) } else { Temperature::Draft(t) };
        Case { target, draft, vocabulary, temperature }
    });
    built.prop_filter("ties have no gradient", |case| !case.has_tie())
}

fn chain() -> impl Strategy<Value = Vec<(Case, Option<usize>)>> {
    let step = (case(), any::<prop::sample::Index>(), prop::bool::weighted(0.1));
    prop::collection::vec(step, 1..5).prop_map(|steps| {
        let size = steps.iter().map(|(case, ..)| case.draft.len()).min().unwrap();
        let token = |index: prop::sample::Index, outside: bool| (!outside).then(|| index.index(size));
        steps.into_iter().map(|(case, index, outside)| (case, token(index, outside))).collect()
    })
}

fn agree(found: &[f64], expected: &[f64]) -> Result<(), TestCaseError> {
    prop_assert_eq!(found.len(), expected.len());
    for (f, e) in found.iter().zip(expected) {
        prop_assert!((f - e).abs() < TOLERANCE, "closed form {:?}, differences {:?}", found, expected);
    }
    Ok(())
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn smooth_losses(case in case()) {
        for loss in [Loss::CrossEntropy, Loss::Kl, Loss::ReverseKl, Loss::JensenShannon] {
            let numeric = case.differences(|row| loss.evaluate(row).unwrap().value);
            agree(&loss.evaluate(&case.base()).unwrap().logits, &numeric)?;
        }
        let token = case.draft.len() - 1;
        let numeric = case.differences(|row| token_cross_entropy(row, token).unwrap().value);
        agree(&token_cross_entropy(&case.base(), token).unwrap().logits, &numeric)?;
    }

    #[test]
    fn overlap_losses(case in case()) {
        let base = case.base();
        let lk = lk_alpha(&base).unwrap().logits;
        agree(&lk, &case.differences(|row| lk_alpha(row).unwrap().value))?;
        agree(&total_variation(&base).logits, &case.differences(|row| total_variation(row).value))?;
        // The mixing weight is a constant of the gradient.
        let lambda = mixing_weight(3.0, base.overlap().alpha());
        let mixed = Loss::LkLambda { eta: 3.0 }.evaluate(&base).unwrap();
        agree(&mixed.logits, &case.differences(|row| lk_lambda(row, lambda).unwrap().value))?;
        // Gradients sum to zero, and 1/alpha never makes them large.
        prop_assert!(lk.iter().sum::<f64>().abs() < 1e-12);
        let bound = 2.0 / base.temperature();
        prop_assert!(lk.iter().map(|g| g.abs()).sum::<f64>() <= bound + 1e-12);
    }

    #[test]
    fn coverage_surrogate(case in case(), k in 1usize..4) {
        let base = case.base();
        let k = k.min(case.draft.len());
        let top = top_tokens(&base, k).unwrap();
        let soft = |row: &Row| -> Vec<f64> {
            let total: f64 = top.iter().map(|&c| row.log_q()[c].exp()).sum();
            top.iter().map(|&c| row.log_q()[c].exp() / total).collect()
        };
        let stopped = soft(&base);
        let numeric = case.differences(|row| {
            let now = soft(row);
            let covered: f64 = (0..k).map(|i| row.log_p()[top[i]].exp() * (1.0 + now[i] - stopped[i])).sum();
            -covered.ln()
        });
        let found = coverage(&base, k).unwrap();
        agree(&found.logits, &numeric)?;
        prop_assert!((found.value + log_coverage(&base, k).unwrap()).abs() < 1e-12);
    }

    #[test]
    fn dspark_compound(case in case(), logit in -4.0f64..4.0, inside in any::<bool>()) {
        let (token, weights) = (inside.then_some(0), DsparkWeights::default());
        let found = dspark(&case.base(), token, logit, weights).unwrap();
        // The confidence label is a constant of the gradient: only the other two terms move with the draft logits.
        let numeric = case.differences(|row| {
            let terms = dspark(row, token, logit, weights).unwrap().terms;
            0.1 * terms.cross_entropy + 0.9 * terms.l1
        });
        agree(&found.logits, &numeric)?;
        let at = |by: f64| dspark(&case.base(), token, logit + by, weights).unwrap().value;
        agree(&[found.confidence_logit], &[(at(STEP) - at(-STEP)) / (2.0 * STEP)])?;
    }

    #[test]
    fn chains(chain in chain()) {
        let rows = |moved: usize, row: &Row| -> Vec<Row> {
            let replace = |(i, (case, _)): (usize, &(Case, Option<usize>))| if i == moved { row.clone() } else { case.base() };
            chain.iter().enumerate().map(replace).collect()
        };
        let steps = |rows: Vec<Row>| -> Vec<ChainStep> {
            rows.into_iter().zip(&chain).map(|(row, (_, token))| ChainStep { row, token: *token }).collect()
        };
        let base = rows(0, &chain[0].0.base());
        let product = end_to_end_tv(&base).unwrap();
        let exact = exact_length(&steps(base.clone())).unwrap();
        let length = length_of_target_sample(&steps(base));
        prop_assert!((exact.value - (1.0 - length / chain.len() as f64)).abs() < 1e-12);
        for (i, (case, _)) in chain.iter().enumerate() {
            agree(&product.logits[i], &case.differences(|row| end_to_end_tv(&rows(i, row)).unwrap().value))?;
            agree(&exact.logits[i], &case.differences(|row| exact_length(&steps(rows(i, row))).unwrap().value))?;
        }
    }
}
