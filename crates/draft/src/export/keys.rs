//! Tensor names: ours, and the formats', which differ in what they call the decoder layer.

use super::tensor::{D2T, T2D};
use crate::eagle3::Eagle3Config;
use crate::eagle3::names::{EMBEDDING, HEAD, shapes};

/// What a format calls the decoder layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// `midlayer.`, as in EAGLE-3's own code, and here.
    Midlayer,
    /// `layers.0.`, as a model of one layer.
    First,
}

/// The layer's prefix in our names.
const OURS: &str = "midlayer.";

impl Layer {
    /// A format's name for ours.
    pub fn theirs(self, ours: &str) -> String {
        match (self, ours.strip_prefix(OURS)) {
            (Self::First, Some(part)) => format!("layers.0.{part}"),
            _ => ours.to_owned(),
        }
    }

    /// The table of a drafter of these sizes, ours and theirs, the vocabulary's tensors included.
    pub fn table(self, config: &Eagle3Config) -> Vec<(String, String)> {
        let shared = [HEAD, EMBEDDING, D2T, T2D].map(str::to_owned);
        let ours = shapes(config).into_iter().map(|(name, _)| name).chain(shared);
        ours.map(|ours| (ours.clone(), self.theirs(&ours))).collect()
    }
}

/// The names of `found` that are no tensor of theirs, and those of theirs that are neither found nor `optional` (our
/// names).
pub fn compare(table: &[(String, String)], found: &[String], optional: &[&str]) -> (Vec<String>, Vec<String>) {
    let known = |name: &&String| table.iter().any(|(_, theirs)| theirs == *name);
    let needed = |(ours, theirs): &&(String, String)| !found.contains(theirs) && !optional.contains(&ours.as_str());
    let missing = table.iter().filter(needed).map(|(_, theirs)| theirs.clone()).collect();
    (missing, found.iter().filter(|name| !known(name)).cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Eagle3Config {
        Eagle3Config {
            hidden_size: 8,
            intermediate_size: 12,
            num_attention_heads: 2,
            num_key_value_heads: 1,
            head_dim: 4,
            vocab_size: 20,
            draft_vocab_size: 10,
            max_position_embeddings: 32,
            rope_theta: 1e4,
            rms_norm_eps: 1e-5,
            taps: vec![0, 1, 2],
            norm_before_residual: false,
        }
    }

    #[test]
    fn names_are_one_to_one() {
        let names = |layer: Layer| {
            let table = layer.table(&config());
            let theirs: std::collections::BTreeMap<_, _> = table.iter().map(|(ours, theirs)| (theirs, ours)).collect();
            assert_eq!(theirs.len(), table.len(), "two of ours share a name");
            table.iter().for_each(|(ours, name)| assert_eq!(theirs[name], ours));
            table.into_iter().map(|(_, theirs)| theirs).collect::<Vec<_>>()
        };
        let (mid, first) = (names(Layer::Midlayer), names(Layer::First));
        assert!(mid.iter().any(|n| n == "midlayer.self_attn.q_proj.weight") && mid.iter().any(|n| n == "fc.weight"));
        assert!(
            first.iter().any(|n| n == "layers.0.self_attn.q_proj.weight") && first.iter().any(|n| n == "norm.weight")
        );
        assert!(!first.iter().any(|n| n.starts_with(OURS)));
        assert_eq!((mid.len(), first.len()), (16, 16));
    }

    #[test]
    fn unknown_and_missing_names_are_listed() {
        let table = Layer::First.table(&config());
        let mut found: Vec<String> = table.iter().map(|(_, theirs)| theirs.clone()).collect();
        assert_eq!(compare(&table, &found, &[]), (vec![], vec![]));
        found.retain(|name| name != "norm.weight" && name != T2D);
        found.push("midlayer.hidden_norm.weight".to_owned());
        let missing = |optional: &[&str]| compare(&table, &found, optional).0;
        assert_eq!(missing(&[]), ["norm.weight", T2D]);
        assert_eq!(missing(&[T2D]), ["norm.weight"]);
        assert_eq!(compare(&table, &found, &[]).1, ["midlayer.hidden_norm.weight"]);
    }
}
