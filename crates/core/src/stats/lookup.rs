//! Drafting by copying: the text's last tokens are looked up earlier in the text, and what followed is proposed.
//!
//! This is prompt lookup (a bounded n-gram) and suffix matching (no bound) in one: both ask for the earlier place whose
//! left context agrees longest with the end of the text. It costs no model, its proposals are deterministic (q is
//! one-hot), and it is a baseline that a trained drafter has to beat.

/// Which matches count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// Fewest tokens that must agree; at least 1.
    pub min_match: usize,
    /// Agreement beyond this many tokens is not preferred: `usize::MAX` for suffix matching.
    pub max_match: usize,
}

impl Lookup {
    /// The `length` tokens that follow the best match in `context`, or none without a match.
    ///
    /// The longest agreement wins, the latest place among equals. A copy that reaches the end of the text goes on with
    /// what it has copied, so that a repeating text is continued at any length. Time is linear in the text.
    pub fn propose(&self, context: &[u32], length: usize) -> Vec<u32> {
        let Some(distance) = self.best_distance(context) else {
            return Vec::new();
        };
        let start = context.len() - distance;
        (0..length).map(|i| context[start + i % distance]).collect()
    }

    /// How many tokens before the end of the text the best match ends.
    fn best_distance(&self, context: &[u32]) -> Option<usize> {
        let agreement = suffix_agreement(context);
        let mut best: Option<(usize, usize)> = None;
        for (distance, &agreed) in agreement.iter().enumerate().skip(1) {
            let agreed = agreed.min(self.max_match);
            if agreed >= self.min_match.max(1) && best.is_none_or(|(longest, _)| agreed > longest) {
                best = Some((agreed, distance));
            }
        }
        best.map(|(_, distance)| distance)
    }
}

/// `[n]`: entry `d` is how many tokens agree, going backwards, between the text's end and the place `d` tokens earlier
/// (the Z-function of the reversed text; entry 0 is the whole text).
fn suffix_agreement(text: &[u32]) -> Vec<usize> {
    let n = text.len();
    let back = |i: usize| text[n - 1 - i];
    let mut z = vec![0; n];
    if n > 0 {
        z[0] = n;
    }
    let (mut left, mut right) = (0, 0);
    for i in 1..n {
        let mut agreed = if i < right { z[i - left].min(right - i) } else { 0 };
        while i + agreed < n && back(agreed) == back(i + agreed) {
            agreed += 1;
        }
        if i + agreed > right {
            (left, right) = (i, i + agreed);
        }
        z[i] = agreed;
    }
    z
}
