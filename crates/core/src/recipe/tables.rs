//! The tables of a recipe: each key with its meaning, its type and its default on one line.

use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::kinds::{DraftVocab, LossKind, Optimizer, RowWeighting, ScheduleShape, StepWeighting, TargetUse};
use super::reward::Reward;
use crate::loss::Policy;
use crate::process::Processors;
use crate::rules::Rule;
use crate::tree::TreeKind;

/// A table whose keys all have defaults.
pub(super) trait Table: Default + DeserializeOwned {
    /// Its keys, in order.
    const KEYS: &'static [&'static str];
}

/// Declares a table: the struct, its defaults and the list of its keys from one place.
macro_rules! table {
    ($(#[$doc:meta])* $name:ident { $($(#[$key_doc:meta])* $key:ident: $type:ty = $default:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name { $($(#[$key_doc])* pub $key: $type,)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }

        impl Table for $name {
            const KEYS: &'static [&'static str] = &[$(stringify!($key)),*];
        }
    };
}

table! {
    /// `[target]`: the frozen model that the drafter is trained for.
    Target {
        /// A model directory, or a name that `fetch` takes (`smollm2-135m-instruct`, `hf:ORG/NAME@REVISION`), which
        /// stands for a directory in `checkpoints` and is fetched by `fit` if absent. Required.
        path: String = String::new(),
    }
}

table! {
    /// `[data]`: the target's answers.
    Data {
        /// Prompts, one JSON object a line.
        prompts: PathBuf = "data/prompts.jsonl".into(),
        /// An existing file of the target's answers; if set, none are generated.
        answers: Option<PathBuf> = None,
        /// Answer tokens wanted; the prompts are cycled through until they are reached.
        answer_tokens: usize = 100_000,
        /// Longest answer, in tokens.
        max_new_tokens: usize = 192,
        /// Longest prompt with its template, in tokens; longer ones are left out.
        max_prompt_tokens: usize = 512,
        /// Conversations answered at once.
        batch: usize = 64,
        /// Sampling temperature of the answers that are not greedy.
        temperature: f64 = 1.0,
        /// Part of the answers that is written greedily, in 0..=1; the rest is sampled at `temperature`.
        greedy_share: f64 = 0.5,
    }
}

table! {
    /// `[store]`: the target's features on disk.
    Store {
        /// Directory of the feature store; if not set, `store` in the run directory.
        dir: Option<PathBuf> = None,
        /// Tokens of one capture pass of the target.
        batch_tokens: usize = 4096,
    }
}

/// `[drafter]`: the kind of drafter with its own keys.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Drafter {
    /// `kind = "eagle3"`, the default.
    Eagle3(Eagle3),
}

impl Drafter {
    /// The kinds, as recipes name them.
    pub(super) const KINDS: &'static [&'static str] = &["eagle3"];
}

table! {
    /// EAGLE-3: fused taps of the target and one decoder layer, run on its own output from the second step on.
    Eagle3 {
        /// The target's hidden states that are fused: id i < n is what enters layer i, id n is the last hidden before
        /// the final norm, for n layers. If not set, [2, n/2, n−3] for n ≥ 8.
        taps: Option<Vec<usize>> = None,
        /// Draft vocabulary: the most frequent tokens of the supervised answers, or `"full"` (or 0) for all.
        draft_vocab: DraftVocab = DraftVocab::Top(8192),
        /// Whether the residual stream carries the normed features instead of the raw ones.
        norm_before_residual: bool = false,
        /// Whether the head, which starts as the target's rows, is trained.
        train_head: bool = false,
        /// Whether the embeddings, which start as the target's, are trained.
        train_embeddings: bool = false,
    }
}

impl Eagle3 {
    /// The taps for a target of `layers` layers: those set, else the default [2, n/2, n−3], which exists for n ≥ 8.
    pub fn taps_for(&self, layers: usize) -> Option<Vec<usize>> {
        self.taps.clone().or_else(|| (layers >= 8).then(|| vec![2, layers / 2, layers - 3]))
    }
}

table! {
    /// `[verifier]`: the rule that the drafter will serve under.
    Verifier {
        /// `"token"`, `"block"`, `"greedy"` or `"sampled-match"`.
        rule: Rule = Rule::Token,
        /// Sampling temperature in service; 0 is greedy decoding.
        temperature: f64 = 1.0,
    }
}

table! {
    /// `[loss]`: what is minimised.
    Loss {
        /// `"lk"`, `"lk-lambda"`, `"tv"`, `"kl"`, `"ce"`, `"reverse-kl"`, `"jsd"`, or, for whole chains of unroll steps,
        /// `"e2e-tv"` and `"exact-length"`. If not set, what the declared verifier rewards: `"lk"` for rules that sample
        /// the draft, `"ce"` for greedy decoding and `"sampled-match"`.
        kind: Option<LossKind> = None,
        /// How fast `"lk-lambda"` leaves KL as acceptance rises.
        eta: f64 = 3.0,
        /// Temperature of the target's and the drafter's distribution in the loss. Other than 1, and with the three keys
        /// below, the target's whole head is read at every row.
        temperature: f64 = 1.0,
        /// In the loss, target and drafter each keep this many of their most probable tokens, as a server's processors
        /// would leave them; 0 keeps all. With this and the next two: `"lk"`, `"tv"`, `"jsd"` and `"e2e-tv"` only.
        top_k: usize = 0,
        /// The fewest most probable tokens whose mass reaches this, in 0..=1; 1 keeps all.
        top_p: f64 = 1.0,
        /// Tokens of at least this fraction of the largest probability, in 0..=1; 0 keeps all.
        min_p: f64 = 0.0,
        /// A serving mix, as `[{ temperature = 0.6, top_p = 0.9 }, {}]` with the four keys above: every conversation of a
        /// batch is under one of them, drawn anew each time, and acceptance is logged for each.
        policies: Vec<Policy> = Vec::new(),
        /// `"distribution"`, or `"ids"`: the text's token, as if the target were certain of it.
        target: TargetUse = TargetUse::Distribution,
        /// `"all"`, or `"round-start"`: rows weigh by the probability that a round of the verifier starts there, as the
        /// drafter is at the time, so that easy text, of which one round commits much, counts less.
        rows: RowWeighting = RowWeighting::All,
        /// Unroll steps: drafted tokens that one row of training imitates.
        unroll: usize = 4,
        /// Weight of unroll step k is `step_decay`^k, k from 0.
        step_decay: f64 = 0.8,
        /// `"fixed"`, `"accepted"` (by the chance that the verifier gets so far) or `"d-pace"`: how steps are weighed
        /// beside `step_decay`, by what the drafter can do at the time. Kinds for whole chains do it themselves.
        weighting: StepWeighting = StepWeighting::Fixed,
        /// Weight of the distance between the drafter's and the target's hidden state before the head (smooth L1, mean
        /// over its dimensions), added to the loss: more to learn from each token where the data are few.
        feature_weight: f64 = 0.0,
        /// Weights of the unroll steps, one each; if set, `step_decay` is not read.
        step_weights: Option<Vec<f64>> = None,
    }
}

impl Loss {
    /// The weight of each unroll step, `unroll` of them, not normalised.
    pub fn weights(&self) -> Vec<f64> {
        let decayed = || {
            (0..self.unroll).scan(1.0, |next, _| {
                let weight = *next;
                *next *= self.step_decay;
                Some(weight)
            })
        };
        self.step_weights.clone().unwrap_or_else(|| decayed().collect())
    }

    /// What is minimised: the kind that is set, else what the verifier rewards.
    pub fn kind_for(&self, verifier: &Verifier) -> LossKind {
        self.kind.unwrap_or_else(|| Reward::of(verifier.rule, verifier.temperature).loss())
    }

    /// The processors that both distributions go through: several to choose from, one, or none.
    pub fn processors(&self) -> Vec<Policy> {
        match self.policies.is_empty() {
            true if self.policy().is_none() => Vec::new(),
            true => vec![self.policy()],
            false => self.policies.clone(),
        }
    }

    /// The processors that stand beside `kind`, where `policies` names none.
    pub(super) fn policy(&self) -> Policy {
        let Self { temperature, top_k, top_p, min_p, .. } = *self;
        Policy { temperature, top_k, top_p, min_p }
    }

    /// What is minimised for `verifier`, in words: the label of checkpoints, exports and reports.
    pub fn label(&self, verifier: &Verifier) -> String {
        let (kind, rewarded) = (self.kind_for(verifier), Reward::of(verifier.rule, verifier.temperature).loss());
        let chosen =
            if kind == rewarded { String::new() } else { format!(" (the verifier's own would be {rewarded})") };
        let under = match self.policies.len() {
            0 => self.policy().to_string(),
            several => format!("{several} policies"),
        };
        let mut of_distributions = format!("{kind} at {under}{chosen}");
        if self.target == TargetUse::Ids {
            of_distributions.push_str(", on the text's tokens alone");
        }
        if self.rows == RowWeighting::RoundStart {
            of_distributions.push_str(", rows by round starts");
        }
        match self.feature_weight > 0.0 {
            true => format!("{of_distributions}, and {} times the distance of hidden states", self.feature_weight),
            false => of_distributions,
        }
    }
}

table! {
    /// `[train]`: the optimiser under a linear warm-up and a schedule.
    Train {
        /// A checkpoint of the same target and drafter whose weights are trained further; if not set, fresh weights.
        start: Option<PathBuf> = None,
        /// Pull back to the weights of `start` (L2-SP, Li et al., 2018): half of this times the squared distance is added
        /// to the loss; 0 for none. For the weights that `fit --replay` starts from as well.
        anchor: f64 = 0.0,
        /// Passes over the training conversations.
        epochs: usize = 6,
        /// Token rows of one batch; there is no padding.
        batch_tokens: usize = 2048,
        /// Batches of one optimiser step: larger steps in the same memory. Every batch weighs by its supervised tokens.
        accumulate: usize = 1,
        /// GPUs that share the batches of a step, from that of `--device cuda:N` on; a step is the same for any number.
        devices: usize = 1,
        /// Whether the unroll's steps are run again in the backward pass instead of kept: less memory for a forward pass
        /// more.
        recompute: bool = false,
        /// Longest training row, in tokens; what is longer is cut at its end.
        max_seq: usize = 1024,
        /// Whether the prompts' own tokens are learned as well, what all prompts begin with excepted: more text where
        /// answers are few. Validation reads answers only.
        prompts: bool = false,
        /// `"adamw"`, or `"muon"` for the matrices with AdamW for the norms.
        optimizer: Optimizer = Optimizer::AdamW,
        /// Part of the layer's inputs that a step leaves out, in 0..1, against learning few answers by heart.
        dropout: f64 = 0.0,
        /// Amplitude a of uniform noise on the fused taps, ±a·512/T in a conversation of T tokens, in units of each
        /// dimension's typical size; EAGLE has 0.1.
        feature_noise: f64 = 0.0,
        /// Decay of an average of the weights over the steps, in 0..1, which is validated and kept in place of the last
        /// step's weights; it starts lower and rises to this. 0 for none.
        ema: f64 = 0.0,
        /// A step whose loss is above `spike` times the median of the last 64 is not taken, and told with its requests;
        /// 0 takes every step. A loss that is no number ends the run in any case.
        spike: f64 = 0.0,
        /// Learning rate after the warm-up.
        learning_rate: f64 = 5e-4,
        /// Part of all steps that warms up, in 0..1.
        warmup_ratio: f64 = 0.04,
        /// The learning rate after the warm-up: `"cosine"` or `"linear"` down to 0, `"wsd"` (constant, then linear
        /// down to 0 over the last `decay_share`), or `"constant"`.
        schedule: ScheduleShape = ScheduleShape::Cosine,
        /// Part of all steps that decays at the end under `schedule = "wsd"`, in 0..=1; not read otherwise.
        decay_share: f64 = 0.2,
        /// AdamW's decay of the first and second moment.
        betas: [f64; 2] = [0.9, 0.95],
        /// AdamW's addend to the denominator.
        eps: f64 = 1e-8,
        /// AdamW's decoupled weight decay.
        weight_decay: f64 = 0.0,
        /// Largest global L2 norm of the gradient; larger ones are scaled down to it.
        clip_norm: f64 = 0.5,
        /// Part of the conversations held back for validation, in 0..1.
        validation_share: f64 = 0.05,
        /// Validations (one an epoch) in a row without a longer expected length that end the run; 0 for none. `best` is
        /// the checkpoint with the longest in any case, as far as conversations are held back.
        patience: usize = 0,
        /// Steps between checkpoints, from which `--resume` goes on; 0 writes one at the end only.
        checkpoint_every: usize = 200,
        /// Steps between lines of metrics.
        log_every: usize = 10,
    }
}

table! {
    /// `[eval]`: the drafter against its target in the exact verifier, on prompts it was not trained on.
    Eval {
        /// Held-out prompts, one JSON object a line.
        prompts: PathBuf = "eval/heldout.jsonl".into(),
        /// Prompts taken, from the start of the file.
        limit: usize = 24,
        /// Longest answer, in tokens.
        max_new_tokens: usize = 96,
        /// Drafted tokens a round (a chain of this length, the bonus token not counted).
        length: usize = 5,
        /// Further lengths, measured in the same way for the curve of acceptance length against length.
        curve: Vec<usize> = Vec::new(),
        /// Temperatures, one evaluation each: 0 under the greedy rule, others under `verifier.rule`.
        temperatures: Vec<f64> = vec![0.0, 1.0],
        /// Keep only the fewest most probable tokens whose mass reaches this; 1 is off. Target and drafter alike, as all
        /// processors here, in this order: penalties, minimum length, temperature, top-k, top-p, min-p.
        top_p: f64 = 1.0,
        /// Keep only so many most probable tokens; 0 is off.
        top_k: usize = 0,
        /// Keep only tokens of this share of the largest probability or more; 0 is off.
        min_p: f64 = 0.0,
        /// Divides positive logits of tokens in prompt or answer, and multiplies negative ones; 1 is off.
        repetition_penalty: f64 = 1.0,
        /// Taken off a logit for every time that its token stands in the answer; 0 is off.
        frequency_penalty: f64 = 0.0,
        /// Taken off the logits of tokens that stand in the answer; 0 is off.
        presence_penalty: f64 = 0.0,
        /// Answer tokens before an end token is allowed; 0 is off.
        min_length: usize = 0,
        /// What `spectrain eval` drafts a round: `"chain"`, or a tree: `"static:2,2,1"` (so many of the most likely tokens
        /// under every node of a depth), `"dynamic:32"` (EAGLE-2's, of so many nodes with the root), `"sampled:2,2,1"`
        /// (as static, drawn), `"sequoia:32"` (the best shape for the acceptance measured by sibling rank). A dynamic or
        /// Sequoia tree is `length` tokens deep. `fit` measures chains.
        tree: TreeKind = TreeKind::Chain,
        /// Requests at once.
        batch: usize = 8,
    }
}

impl Eval {
    /// The processors that are measured under; the temperature is each curve's.
    pub fn processors(&self) -> Processors {
        Processors {
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            min_length: self.min_length,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            ..Processors::default()
        }
    }
}
