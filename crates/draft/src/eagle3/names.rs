//! The weights under the names that EAGLE-3 checkpoints use, `[output, input]` as everywhere outside Burn.

use super::{Eagle3, Eagle3Config};
use crate::numbered::numbered;
use burn::module::Param;
use burn::tensor::{Device, Tensor, TensorData};
use spectrain_data::weights::{F32Tensor, WeightError, WeightFile};

/// Name and height of the matrices that one joint projection holds side by side.
type Parts = Vec<(&'static str, usize)>;

/// Joint projections in the order of the fields: width of their input and their parts.
fn matrices(c: &Eagle3Config) -> [(usize, Parts); 6] {
    let (h, heads, i) = (c.hidden_size, c.heads(), c.intermediate_size);
    let (qw, kw) = (heads.query_width(), heads.key_width());
    [
        (c.taps.len() * h, vec![("fc", h)]),
        (2 * h, vec![("midlayer.self_attn.q_proj", qw)]),
        (2 * h, vec![("midlayer.self_attn.k_proj", kw), ("midlayer.self_attn.v_proj", kw)]),
        (qw, vec![("midlayer.self_attn.o_proj", h)]),
        (h, vec![("midlayer.mlp.gate_proj", i), ("midlayer.mlp.up_proj", i)]),
        (i, vec![("midlayer.mlp.down_proj", h)]),
    ]
}

/// Norms in the order of the fields.
const NORMS: [&str; 4] =
    ["midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm", "norm"];

/// The output head of a drafter that does not share its target's, `[draft vocabulary, hidden]`.
pub const HEAD: &str = "lm_head.weight";
/// The embedding of a drafter that does not share its target's, `[vocabulary, hidden]`.
pub const EMBEDDING: &str = "embed_tokens.weight";

/// Names and shapes of all trained weights.
pub fn shapes(config: &Eagle3Config) -> Vec<(String, Vec<usize>)> {
    let matrices = matrices(config).into_iter().flat_map(|(input, parts)| {
        parts.into_iter().map(move |(name, height)| (format!("{name}.weight"), vec![height, input]))
    });
    matrices.chain(NORMS.map(|name| (format!("{name}.weight"), vec![config.hidden_size]))).collect()
}

impl Eagle3 {
    fn matrix_fields(&self) -> [&Param<Tensor<2>>; 6] {
        [&self.fc, &self.q, &self.kv, &self.o, &self.gate_up, &self.down]
    }

    fn norm_fields(&self) -> [&Param<Tensor<1>>; 4] {
        [&self.input_layernorm, &self.hidden_norm, &self.post_attention_layernorm, &self.norm]
    }

    /// All weights for a file.
    pub fn to_named(&self, config: &Eagle3Config) -> Vec<(String, F32Tensor<'static>)> {
        let mut named = Vec::new();
        for ((input, parts), field) in matrices(config).into_iter().zip(self.matrix_fields()) {
            let rows = field.val().without_autodiff().transpose();
            let mut start = 0;
            for (name, height) in parts {
                let values: Vec<f32> =
                    rows.clone().narrow(0, start, height).into_data().try_to_vec().expect("f32 weights");
                named.push((format!("{name}.weight"), F32Tensor::new(&[height, input], values)));
                start += height;
            }
        }
        for (name, field) in NORMS.into_iter().zip(self.norm_fields()) {
            let values: Vec<f32> = field.val().without_autodiff().into_data().try_to_vec().expect("f32 weights");
            named.push((format!("{name}.weight"), F32Tensor::new(&[config.hidden_size], values)));
        }
        if let Some(head) = &self.head {
            let head = head.val().without_autodiff();
            let (shape, values) = (head.dims(), head.into_data().try_to_vec().expect("f32 weights"));
            named.push((HEAD.to_owned(), F32Tensor::new(&shape, values)));
        }
        named
    }

    /// Reads all weights from a file, and the head where the file has one.
    ///
    /// # Errors
    /// The first tensor that is missing or has another shape, named.
    pub fn from_file(file: &WeightFile, config: &Eagle3Config, device: &Device) -> Result<Self, WeightError> {
        let mut loaded = Vec::new();
        for (input, parts) in matrices(config) {
            let mut values = Vec::new();
            for (name, height) in &parts {
                values.extend(file.tensor_f32(&format!("{name}.weight"), &[*height, input])?);
            }
            let rows =
                Tensor::<2>::from_data(TensorData::new(values, [parts.iter().map(|p| p.1).sum(), input]), device);
            loaded.push(Param::from_data(rows.transpose().into_data(), device));
        }
        let mut norms = Vec::new();
        for name in NORMS {
            let values = file.tensor_f32(&format!("{name}.weight"), &[config.hidden_size])?;
            norms.push(Param::from_data(TensorData::new(values, [config.hidden_size]), device));
        }
        let (mut matrix, mut norm) = (loaded.into_iter(), norms.into_iter());
        let mut m = || matrix.next().expect("one matrix a field");
        let mut n = || norm.next().expect("one norm a field");
        let (fc, q, kv, o, gate_up, down) = (m(), m(), m(), m(), m(), m());
        let (input_layernorm, hidden_norm, post_attention_layernorm, norm) = (n(), n(), n(), n());
        let shape = [config.draft_vocab_size, config.hidden_size];
        let head = file.has(HEAD).then(|| file.tensor_f32(HEAD, &shape)).transpose()?;
        let head = head.map(|values| Param::from_data(TensorData::new(values, shape), device));
        let read =
            Self { fc, input_layernorm, hidden_norm, q, kv, o, post_attention_layernorm, gate_up, down, norm, head };
        Ok(numbered(read))
    }
}
