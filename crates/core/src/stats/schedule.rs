//! How many drafts of each request in a batch to verify (DSpark, Algorithm 1).
//!
//! Admitting a draft token adds its survival to the expected tokens of the step and one token to the batch, which
//! slows the step. Candidates are admitted in falling survival while the product grows. The search stops at the first
//! candidate that does not pay, even where a later one would: looking further would let the confidence of a later
//! position, which depends on the tokens drafted before it, decide whether those are verified, and the output would
//! no longer follow the target (the paper's appendix A).

/// The result of scheduling a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Drafts to verify, by request.
    pub lengths: Vec<usize>,
    /// Expected committed tokens per second at these lengths.
    pub tokens_per_second: f64,
}

/// Expected tokens per second after admitting 0, 1, 2, … candidates in falling survival, all of them.
///
/// `confidence[r][j]` is the calibrated conditional acceptance of draft `j` of request `r`; `steps_per_second` maps
/// the tokens in a target call (one per request and one per admitted draft) to the measured rate of such calls.
pub fn throughput_curve(confidence: &[Vec<f64>], steps_per_second: impl Fn(usize) -> f64) -> Vec<f64> {
    let requests = confidence.len();
    let mut expected = requests as f64;
    let mut curve = vec![expected * steps_per_second(requests)];
    for (admitted, (survival, _)) in candidates(confidence).into_iter().enumerate() {
        expected += survival;
        curve.push(expected * steps_per_second(requests + admitted + 1));
    }
    curve
}

/// Lengths by Algorithm 1: candidates are admitted while [`throughput_curve`] grows.
pub fn schedule(confidence: &[Vec<f64>], steps_per_second: impl Fn(usize) -> f64) -> Schedule {
    let curve = throughput_curve(confidence, steps_per_second);
    let admitted = curve.windows(2).take_while(|pair| pair[1] > pair[0]).count();
    let mut lengths = vec![0; confidence.len()];
    for (_, request) in candidates(confidence).into_iter().take(admitted) {
        lengths[request] += 1;
    }
    Schedule { lengths, tokens_per_second: curve[admitted] }
}

/// (survival, request) of every draft, falling; equals keep request order, and a request's drafts keep theirs.
fn candidates(confidence: &[Vec<f64>]) -> Vec<(f64, usize)> {
    let mut all: Vec<(f64, usize)> = confidence
        .iter()
        .enumerate()
        .flat_map(|(request, rates)| {
            super::length::survival(rates).into_iter().map(move |survival| (survival, request))
        })
        .collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    all
}
