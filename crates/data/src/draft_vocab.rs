//! The reduced vocabulary of a drafter: which target tokens it can propose.
//!
//! A drafter's head over the whole vocabulary costs more than the rest of it, and a few thousand tokens cover most of
//! what the target writes. Tokens are counted where the loss supervises them, because only those are ever proposed.

use thiserror::Error;

/// Why a draft vocabulary could not be made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DraftVocabError {
    /// A drafter must propose something.
    #[error("a draft vocabulary of 0 tokens")]
    Empty,
    /// More draft tokens than the target has.
    #[error("a draft vocabulary of {size} tokens is larger than the target's, {target_vocab}")]
    TooLarge {
        /// Size asked for.
        size: usize,
        /// Target's size.
        target_vocab: usize,
    },
    /// A token that the target does not have.
    #[error("token {id} is outside the target's vocabulary of {target_vocab}")]
    OutOfRange {
        /// The token.
        id: i64,
        /// Target's size.
        target_vocab: usize,
    },
    /// An imported table must be strictly ascending, or head rows and masks disagree about their order.
    #[error("d2t is not strictly ascending at draft token {index}")]
    NotAscending {
        /// First draft token at fault.
        index: usize,
    },
    /// Tokens and mask of a row differ in length.
    #[error("row {row}: {ids} tokens but {mask} mask entries")]
    MaskLength {
        /// Row number.
        row: usize,
        /// Its tokens.
        ids: usize,
        /// Its mask entries.
        mask: usize,
    },
}

/// The draft tokens in ascending order of their target ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftVocab {
    /// Target id of each draft token, strictly ascending, `[draft vocabulary]`.
    pub d2t: Vec<u32>,
    /// Size of the target's vocabulary.
    pub target_vocab: usize,
}

/// Occurrences of each target token where the mask is set, `[target_vocab]`.
///
/// # Errors
/// [`DraftVocabError::OutOfRange`] for a foreign token, [`DraftVocabError::MaskLength`] for a ragged row.
pub fn count_tokens<'a>(
    rows: impl IntoIterator<Item = (&'a [u32], &'a [bool])>,
    target_vocab: usize,
) -> Result<Vec<u64>, DraftVocabError> {
    let mut counts = vec![0; target_vocab];
    for (row, (ids, mask)) in rows.into_iter().enumerate() {
        if ids.len() != mask.len() {
            return Err(DraftVocabError::MaskLength { row, ids: ids.len(), mask: mask.len() });
        }
        for (&id, _) in ids.iter().zip(mask).filter(|&(_, &supervised)| supervised) {
            let id64 = i64::from(id);
            *counts.get_mut(id as usize).ok_or(DraftVocabError::OutOfRange { id: id64, target_vocab })? += 1;
        }
    }
    Ok(counts)
}

impl DraftVocab {
    /// The `size` most frequent tokens of `counts` (`[target_vocab]`). Ties go to the lower id, so tokens that never
    /// occur fill the rest from the lowest id up.
    ///
    /// # Errors
    /// [`DraftVocabError::Empty`], [`DraftVocabError::TooLarge`].
    pub fn from_counts(counts: &[u64], size: usize) -> Result<Self, DraftVocabError> {
        let target_vocab = counts.len();
        check_size(size, target_vocab)?;
        let mut ids: Vec<usize> = (0..target_vocab).collect();
        ids.sort_by_key(|&id| std::cmp::Reverse(counts[id])); // stable: ties stay in order of id
        let mut d2t: Vec<u32> = ids[..size].iter().map(|&id| id as u32).collect();
        d2t.sort_unstable();
        Ok(Self { d2t, target_vocab })
    }

    /// The `size` most frequent supervised tokens of `rows` (ids and loss mask, equally long).
    ///
    /// # Errors
    /// Those of [`count_tokens`] and [`DraftVocab::from_counts`].
    pub fn from_rows<'a>(
        rows: impl IntoIterator<Item = (&'a [u32], &'a [bool])>,
        target_vocab: usize,
        size: usize,
    ) -> Result<Self, DraftVocabError> {
        check_size(size, target_vocab)?;
        Self::from_counts(&count_tokens(rows, target_vocab)?, size)
    }

    /// Every token of the target.
    ///
    /// # Errors
    /// [`DraftVocabError::Empty`] for a target without tokens.
    pub fn full(target_vocab: usize) -> Result<Self, DraftVocabError> {
        check_size(target_vocab, target_vocab)?;
        Ok(Self { d2t: (0..target_vocab as u32).collect(), target_vocab })
    }

    /// Reads the exported form, in which draft token `i` stands for target token `i + offsets[i]`.
    ///
    /// # Errors
    /// [`DraftVocabError::Empty`], [`DraftVocabError::TooLarge`], [`DraftVocabError::OutOfRange`],
    /// [`DraftVocabError::NotAscending`].
    pub fn from_offsets(offsets: &[i64], target_vocab: usize) -> Result<Self, DraftVocabError> {
        check_size(offsets.len(), target_vocab)?;
        let mut d2t: Vec<u32> = Vec::with_capacity(offsets.len());
        for (index, &offset) in offsets.iter().enumerate() {
            let id = offset.saturating_add(index as i64);
            let token = match u32::try_from(id) {
                Ok(token) if (token as usize) < target_vocab => token,
                _ => return Err(DraftVocabError::OutOfRange { id, target_vocab }),
            };
            if d2t.last().is_some_and(|&last| token <= last) {
                return Err(DraftVocabError::NotAscending { index });
            }
            d2t.push(token);
        }
        Ok(Self { d2t, target_vocab })
    }

    /// The exported form, `d2t[i] - i`, `[draft vocabulary]`.
    pub fn offsets(&self) -> Vec<i64> {
        self.d2t.iter().zip(0i64..).map(|(&id, i)| i64::from(id) - i).collect()
    }

    /// Draft token of each target token, `None` where the drafter cannot propose it, `[target_vocab]`.
    pub fn t2d(&self) -> Vec<Option<u32>> {
        let mut t2d = vec![None; self.target_vocab];
        for (&id, draft) in self.d2t.iter().zip(0u32..) {
            t2d[id as usize] = Some(draft);
        }
        t2d
    }

    /// Share of the tokens counted in `counts` (`[target_vocab]`) that the drafter can propose; 0 if nothing was counted.
    pub fn coverage(&self, counts: &[u64]) -> f64 {
        let total: u64 = counts.iter().sum();
        let covered: u64 = self.d2t.iter().filter_map(|&id| counts.get(id as usize)).sum();
        if total == 0 { 0.0 } else { covered as f64 / total as f64 }
    }
}

fn check_size(size: usize, target_vocab: usize) -> Result<(), DraftVocabError> {
    match size {
        0 => Err(DraftVocabError::Empty),
        _ if size > target_vocab => Err(DraftVocabError::TooLarge { size, target_vocab }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn most_frequent_then_lowest_ids() {
        let counts = [0, 5, 0, 7, 5, 0, 5, 1];
        // 3 (7), then 1, 4, 6 tie at 5: the lower ids win.
        assert_eq!(DraftVocab::from_counts(&counts, 3).unwrap().d2t, [1, 3, 4]);
        // Five distinct tokens; the sixth is the lowest unused id.
        assert_eq!(DraftVocab::from_counts(&counts, 6).unwrap().d2t, [0, 1, 3, 4, 6, 7]);
        assert_eq!(DraftVocab::from_counts(&counts, 8).unwrap(), DraftVocab::full(8).unwrap());
    }

    #[test]
    fn only_supervised_tokens_count() {
        let ids: &[u32] = &[2, 2, 2, 5, 4, 4];
        let mask: &[bool] = &[false, false, true, true, true, true];
        let counts = count_tokens([(ids, mask)], 6).unwrap();
        assert_eq!(counts, [0, 0, 1, 0, 2, 1]);
        let vocab = DraftVocab::from_rows([(ids, mask)], 6, 2).unwrap();
        assert_eq!(vocab.d2t, [2, 4]);
        assert_eq!(vocab.coverage(&counts), 0.75);
        assert_eq!(DraftVocab::full(6).unwrap().coverage(&counts), 1.0);
        assert_eq!(vocab.coverage(&[0; 6]), 0.0);
    }

    #[test]
    fn maps_are_inverse() {
        let vocab = DraftVocab::from_counts(&[1, 0, 0, 9, 9, 0, 2], 4).unwrap();
        assert_eq!(vocab.d2t, [0, 3, 4, 6]);
        assert_eq!(vocab.offsets(), [0, 2, 2, 3]);
        assert_eq!(DraftVocab::from_offsets(&vocab.offsets(), 7).unwrap(), vocab);
        let t2d = vocab.t2d();
        assert_eq!(t2d, [Some(0), None, None, Some(1), Some(2), None, Some(3)]);
    }

    #[test]
    fn refusals() {
        let too_large = DraftVocabError::TooLarge { size: 4, target_vocab: 3 };
        assert_eq!(DraftVocab::from_counts(&[1, 2, 3], 4), Err(too_large));
        assert_eq!(DraftVocab::from_counts(&[1, 2, 3], 0), Err(DraftVocabError::Empty));
        assert_eq!(DraftVocab::full(0), Err(DraftVocabError::Empty));
        let foreign = |id| DraftVocabError::OutOfRange { id, target_vocab: 3 };
        assert_eq!(count_tokens([(&[1u32, 3][..], &[true, true][..])], 3), Err(foreign(3)));
        assert_eq!(DraftVocab::from_offsets(&[0, 2], 3), Err(foreign(3)));
        assert_eq!(DraftVocab::from_offsets(&[-1], 3), Err(foreign(-1)));
        assert_eq!(DraftVocab::from_offsets(&[1, 0], 3), Err(DraftVocabError::NotAscending { index: 1 }));
        let ragged = count_tokens([(&[1u32, 2][..], &[true][..])], 3);
        assert!(matches!(ragged, Err(DraftVocabError::MaskLength { row: 0, ids: 2, mask: 1 })));
    }
}
