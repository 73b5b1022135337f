//! The arithmetic of the layer, the same in training and at run time: they differ in what their matrices are.

use super::{Eagle3, Eagle3Config};
use burn::module::Param;
use burn::tensor::Tensor;
use spectrain_kernels::product::{Learned, Projection};
use spectrain_kernels::rms_norm::rms_norm;
use spectrain_kernels::swiglu::swiglu;

/// What rows are multiplied by.
pub trait Matrix {
    /// `x [rows, inputs]` times the matrix `[inputs, outputs]`.
    fn apply(&self, x: Tensor<2>) -> Tensor<2>;
}

impl Matrix for Learned {
    fn apply(&self, x: Tensor<2>) -> Tensor<2> {
        Self::apply(self, x)
    }
}

impl Matrix for Projection {
    fn apply(&self, x: Tensor<2>) -> Tensor<2> {
        Self::apply(self, x)
    }
}

/// The weights of [`Eagle3`] as the layer uses them.
pub struct Layer<M> {
    fc: M,
    input_layernorm: Tensor<1>,
    hidden_norm: Tensor<1>,
    /// Queries.
    pub q: M,
    /// Keys and values.
    pub kv: M,
    o: M,
    post_attention_layernorm: Tensor<1>,
    gate_up: M,
    down: M,
    norm: Tensor<1>,
    eps: f64,
    norm_before_residual: bool,
}

impl Eagle3 {
    /// The layer on the tape.
    pub fn learned(&self, config: &Eagle3Config) -> Layer<Learned> {
        self.layer(config, |matrix| Learned::new(matrix.val()))
    }

    /// The layer at rest, laid out for products.
    pub fn frozen(&self, config: &Eagle3Config) -> Layer<Projection> {
        self.layer(config, |matrix| Projection::new(matrix.val()))
    }

    fn layer<M>(&self, config: &Eagle3Config, matrix: fn(&Param<Tensor<2>>) -> M) -> Layer<M> {
        Layer {
            fc: matrix(&self.fc),
            input_layernorm: self.input_layernorm.val(),
            hidden_norm: self.hidden_norm.val(),
            q: matrix(&self.q),
            kv: matrix(&self.kv),
            o: matrix(&self.o),
            post_attention_layernorm: self.post_attention_layernorm.val(),
            gate_up: matrix(&self.gate_up),
            down: matrix(&self.down),
            norm: self.norm.val(),
            eps: config.rms_norm_eps,
            norm_before_residual: config.norm_before_residual,
        }
    }
}

impl<M: Matrix> Layer<M> {
    /// Step-0 hidden states `[rows, hidden]` of the target's taps `[rows, taps · hidden]`.
    pub fn fuse(&self, taps: Tensor<2>) -> Tensor<2> {
        self.fc.apply(taps)
    }

    /// The layer's input `[rows, 2 · hidden]` from token embeddings and hidden states `[rows, hidden]`.
    pub fn join(&self, embedded: Tensor<2>, hidden: Tensor<2>) -> Tensor<2> {
        let embedded = rms_norm(embedded, self.input_layernorm.clone(), self.eps);
        Tensor::cat(vec![embedded, rms_norm(hidden, self.hidden_norm.clone(), self.eps)], 1)
    }

    /// The rest of the layer: `hidden` is what entered it, `attended [rows, query width]` what attention gave.
    /// Returns the un-normed hidden state that the next step reads.
    pub fn finish(&self, hidden: Tensor<2>, attended: Tensor<2>) -> Tensor<2> {
        let normed = |x: Tensor<2>, weight: &Tensor<1>| rms_norm(x, weight.clone(), self.eps);
        let residual = if self.norm_before_residual { normed(hidden, &self.hidden_norm) } else { hidden };
        let x = residual + self.o.apply(attended);
        let gated = swiglu(self.gate_up.apply(normed(x.clone(), &self.post_attention_layernorm)));
        x + self.down.apply(gated)
    }

    /// The head's input.
    pub fn head_input(&self, hidden: Tensor<2>) -> Tensor<2> {
        rms_norm(hidden, self.norm.clone(), self.eps)
    }
}
