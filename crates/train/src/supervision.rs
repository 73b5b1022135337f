//! Which tokens are learned besides the answers.

use spectrain_data::answers::shared_beginning;
use spectrain_data::store::FeatureRow;

/// Supervises all tokens of the conversations `among`, behind what all conversations of the store begin with: the
/// template's words tell nothing new. Returns whether the store holds the target's normaliser at all these tokens; if
/// not, nothing is changed.
#[must_use]
pub fn supervise_prompts(rows: &mut [FeatureRow], among: &[usize]) -> bool {
    let shared = shared_beginning(rows.iter().map(|row| row.ids.as_slice()));
    // Token i is predicted at row i − 1.
    let known = |row: &FeatureRow| row.logsumexp[shared - 1..row.ids.len() - 1].iter().all(|l| !l.is_nan());
    let all = among.iter().all(|&i| rows[i].ids.len() <= shared || known(&rows[i]));
    for &i in among.iter().filter(|_| all) {
        rows[i].loss_mask.iter_mut().skip(shared).for_each(|m| *m = true);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A conversation with one token of answer, its normalisers known from row `known` on.
    fn row(ids: &[u32], known: usize) -> FeatureRow {
        let n = ids.len();
        FeatureRow {
            request: 0,
            ids: ids.to_vec(),
            loss_mask: (0..n).map(|i| i + 1 == n).collect(),
            taps: Vec::new(),
            last_hidden: Vec::new(),
            logsumexp: (0..n).map(|i| if i < known { f32::NAN } else { 1.0 }).collect(),
            temperature: 1.0,
            off_policy: false,
        }
    }

    #[test]
    fn all_but_the_shared_beginning_is_supervised() {
        let mut rows = [row(&[7, 8, 1, 2, 3], 1), row(&[7, 8, 1, 5, 6, 3], 1), row(&[7, 8, 4, 3], 1)];
        assert!(supervise_prompts(&mut rows, &[0, 2]));
        assert_eq!(rows[0].loss_mask, [false, false, true, true, true]);
        assert_eq!(rows[1].loss_mask, [false, false, false, false, false, true], "it is held out");
        assert_eq!(rows[2].loss_mask, [false, false, true, true]);
    }

    #[test]
    fn a_store_without_the_prompts_normalisers_is_left_alone() {
        let mut rows = [row(&[7, 8, 1, 2, 3], 2), row(&[7, 8, 4, 3], 1)];
        assert!(!supervise_prompts(&mut rows, &[0, 1]), "row 1 predicts token 2 and has no normaliser");
        assert_eq!(rows[1].loss_mask, [false, false, false, true]);
    }
}
