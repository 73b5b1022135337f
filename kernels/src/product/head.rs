//! The output head: hidden states to logits, and gradients of logits back to hidden states.

use super::{Panels, Projection};
use crate::rope::indices;
use burn::tensor::Tensor;
use std::sync::{Arc, OnceLock};

/// A frozen output head with one row a token.
#[derive(Clone)]
pub struct Head {
    /// `[tokens, hidden]`
    rows: Tensor<2>,
    logits: Projection,
    /// The way back, laid out when training first asks for it.
    back: Arc<OnceLock<Projection>>,
}

impl Head {
    /// A head with `rows [tokens, hidden]`; a tied one shares them with the embedding.
    pub fn new(rows: Tensor<2>) -> Self {
        Self { logits: Projection::of_rows(rows.clone()), rows, back: Arc::default() }
    }

    /// The head of some tokens only.
    pub fn of_tokens(&self, tokens: &[u32]) -> Self {
        let rows = indices(tokens.iter().map(|&t| t as usize), &self.rows.device());
        Self::new(self.rows.clone().select(0, rows))
    }

    /// `[tokens, hidden]`.
    pub fn rows(&self) -> &Tensor<2> {
        &self.rows
    }

    /// Logits `[rows, tokens]` of head inputs `[rows, hidden]` without a tape.
    pub fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        self.logits.apply(hidden)
    }

    /// Gradient with respect to the head's inputs, `[rows, hidden]`, from that of the logits `[rows, tokens]`.
    pub fn pull_back(&self, gradient: Tensor<2>) -> Tensor<2> {
        self.back().apply(gradient)
    }

    fn back(&self) -> &Projection {
        self.back.get_or_init(|| Projection::new(self.rows.clone()))
    }

    /// The panels of both ways, where there are panels.
    pub(crate) fn panels(&self) -> Option<[&Panels; 2]> {
        Some([self.logits.panels()?, self.back().panels()?])
    }

    /// Bytes of the rows.
    pub fn bytes(&self) -> usize {
        self.logits.bytes()
    }

    /// Bytes of the copies that products read, beside the rows.
    pub fn copies(&self) -> usize {
        self.logits.copied() + self.back.get().map_or(0, Projection::copied)
    }
}
