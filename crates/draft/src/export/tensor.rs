//! Tensors of an exported file: floats and the vocabulary's two maps.

use safetensors::{Dtype, View};
use spectrain_data::draft_vocab::DraftVocab;
use spectrain_data::weights::F32Tensor;
use std::borrow::Cow;

/// Offsets of the draft vocabulary: draft token `i` is the target's `i + d2t[i]`, `[draft vocabulary]`.
pub const D2T: &str = "d2t";
/// Whether the drafter can propose a token of the target, `[vocabulary]`.
pub const T2D: &str = "t2d";

/// A tensor to be written.
pub enum Tensor<'a> {
    /// Weights.
    Floats(&'a F32Tensor<'a>),
    /// [`D2T`].
    Offsets(Vec<i64>, [usize; 1]),
    /// [`T2D`].
    Flags(Vec<u8>, [usize; 1]),
}

impl Tensor<'_> {
    /// The two maps of a vocabulary.
    pub fn maps(vocab: &DraftVocab) -> [(String, Self); 2] {
        let offsets = Self::Offsets(vocab.offsets(), [vocab.d2t.len()]);
        let flags = vocab.t2d().iter().map(|d| u8::from(d.is_some())).collect();
        [(D2T.to_owned(), offsets), (T2D.to_owned(), Self::Flags(flags, [vocab.target_vocab]))]
    }
}

impl View for Tensor<'_> {
    fn dtype(&self) -> Dtype {
        match self {
            Self::Floats(tensor) => tensor.dtype(),
            Self::Offsets(..) => Dtype::I64,
            Self::Flags(..) => Dtype::BOOL,
        }
    }

    fn shape(&self) -> &[usize] {
        match self {
            Self::Floats(tensor) => tensor.shape(),
            Self::Offsets(_, shape) | Self::Flags(_, shape) => shape,
        }
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Floats(tensor) => tensor.data(),
            Self::Offsets(values, _) => Cow::Owned(values.iter().flat_map(|v| v.to_le_bytes()).collect()),
            Self::Flags(values, _) => Cow::Borrowed(values),
        }
    }

    fn data_len(&self) -> usize {
        match self {
            Self::Floats(tensor) => tensor.data_len(),
            Self::Offsets(values, _) => values.len() * size_of::<i64>(),
            Self::Flags(values, _) => values.len(),
        }
    }
}
