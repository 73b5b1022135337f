//! What keeps a drafter from committing all that its rounds could, one cause after the other.

use super::offline::{Answers, Candidate, answer, score};
use super::setup::Setup;
use crate::exit::{Blame, Failure};
use anyhow::anyhow;
use spectrain_core::evaluation::Evaluation;
use spectrain_core::rules::Rule;
use spectrain_core::stats::bootstrap::ratio_of_sums;
use spectrain_core::waterfall::Waterfall;
use spectrain_verify::offline::{Chains, Questions, Scored};

/// One chart for the longest draft of each temperature among `evaluations`. The imagined drafters are led along
/// `answers`, which the target writes for the purpose.
pub fn waterfalls(
    setup: &Setup,
    candidate: &Candidate,
    answers: &Answers,
    evaluations: &[Evaluation],
) -> Result<Vec<Waterfall>, Failure> {
    let curves = evaluations.chunk_by(|a, b| a.temperature == b.temperature);
    let longest = curves.filter_map(|curve| curve.iter().max_by_key(|e| e.length));
    longest.map(|e| waterfall(setup, candidate, answers, e)).collect()
}

fn waterfall(
    setup: &Setup,
    candidate: &Candidate,
    answers: &Answers,
    measured: &Evaluation,
) -> Result<Waterfall, Failure> {
    let Evaluation { temperature, rule, length, .. } = *measured;
    let written = answer(setup, answers, temperature)?;
    let Answers::Fresh { batch_tokens, .. } = answers else {
        return Err(anyhow!("a store has no waterfall")).request();
    };
    let along = |chains: Chains| -> Result<Vec<Scored>, Failure> {
        let candidates = std::slice::from_ref(candidate);
        let found = score(setup, candidates, &written, *batch_tokens, temperature, (chains, length))?;
        Ok(found.into_iter().flatten().collect())
    };
    let tokens = |scored: &[Scored]| -> Result<f64, Failure> {
        Ok(ratio_of_sums(&Questions::of(scored, length).work()?.all_rounds))
    };
    let drafted = along(Chains::of(rule, temperature).request()?)?;
    // Where tokens are matched with the target's draw, the drafter could have been asked for draws of its own.
    let own = match rule {
        Rule::SampledMatch => along(Chains::Sampled(temperature))?,
        _ => drafted.clone(),
    };
    let perfect: Vec<Scored> = own.iter().map(Scored::perfect).collect();
    let best: Vec<Scored> = own.iter().map(Scored::best_of_vocabulary).collect();
    let led: Vec<Scored> = own.iter().map(Scored::always_led).collect();
    let imagined = [tokens(&perfect)?, tokens(&best)?, tokens(&led)?, tokens(&own)?, tokens(&drafted)?];
    let found = measured.overall.acceptance.tokens_per_target_call;
    Ok(Waterfall::new((temperature, rule, length), imagined, found))
}
