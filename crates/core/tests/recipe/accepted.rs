//! Recipes that are right.

use std::path::{Path, PathBuf};

use spectrain_core::loss::{Row, Temperature};
use spectrain_core::process::Processors;
use spectrain_core::recipe::{DraftVocab, Drafter, Eagle3, LossKind, Recipe, Reward};
use spectrain_core::rules::Rule;

use crate::{SMOLLM2, parse_with, set};

fn eagle3(recipe: &Recipe) -> &Eagle3 {
    let Drafter::Eagle3(drafter) = &recipe.drafter;
    drafter
}

const RESOLVED: &str = r#"name = "run"
seed = 0

[target]
path = "tiny"

[data]
prompts = "data/prompts.jsonl"
answer_tokens = 100000
max_new_tokens = 192
max_prompt_tokens = 512
batch = 64
temperature = 1.0
greedy_share = 0.5
# answers is not set

[store]
batch_tokens = 4096
# dir is not set

[drafter]
kind = "eagle3"
draft_vocab = 8192
norm_before_residual = false
train_head = false
train_embeddings = false
# taps is not set

[verifier]
rule = "token"
temperature = 1.0

[loss]
eta = 3.0
temperature = 1.0
top_k = 0
top_p = 1.0
min_p = 0.0
policies = []
target = "distribution"
rows = "all"
unroll = 4
step_decay = 0.8
weighting = "fixed"
feature_weight = 0.0
# kind is not set
# step_weights is not set

[train]
anchor = 0.0
epochs = 6
batch_tokens = 2048
accumulate = 1
devices = 1
recompute = false
max_seq = 1024
prompts = false
optimizer = "adamw"
dropout = 0.0
feature_noise = 0.0
ema = 0.0
spike = 0.0
learning_rate = 0.0005
warmup_ratio = 0.04
schedule = "cosine"
decay_share = 0.2
betas = [0.9, 0.95]
eps = 0.00000001
weight_decay = 0.0
clip_norm = 0.5
validation_share = 0.05
patience = 0
checkpoint_every = 200
log_every = 10
# start is not set

[eval]
prompts = "eval/heldout.jsonl"
limit = 24
max_new_tokens = 96
length = 5
curve = []
temperatures = [0.0, 1.0]
top_p = 1.0
top_k = 0
min_p = 0.0
repetition_penalty = 1.0
frequency_penalty = 0.0
presence_penalty = 0.0
min_length = 0
tree = "chain"
batch = 8
"#;

#[test]
fn the_smallest_recipe_shows_every_default() {
    let recipe = set(&[]).unwrap();
    assert_eq!(recipe.to_toml(), RESOLVED);
    assert_eq!(recipe.check(&SMOLLM2), Ok(()));
}

#[test]
fn processors_of_the_loss_read_back_and_are_named() {
    let sets = ["loss.kind=lk", "loss.policies=[{ temperature = 0.6, top_p = 0.9 }, {}, { top_k = 40, min_p = 0.1 }]"];
    let recipe = set(&sets).unwrap();
    assert_eq!(Recipe::parse(&recipe.to_toml(), "other.toml", &[]).unwrap(), recipe);
    assert_eq!(recipe.loss.processors().len(), 3);
    assert_eq!(recipe.loss.label(&recipe.verifier), "lk at 3 policies");
    assert!(set(&[]).unwrap().loss.processors().is_empty());
    let one = set(&["loss.temperature=0.5", "loss.top_k=7"]).unwrap();
    assert_eq!(one.loss.processors().len(), 1);
    assert_eq!(one.loss.label(&one.verifier), "lk at temperature 0.5, top-k 7");
}

#[test]
fn the_resolved_recipe_reads_back_as_itself() {
    let sets = [
        "seed=9223372036854775807",
        "data.answers=runs/a b/answers.parquet",
        "store.dir=\"features\"",
        "drafter.taps=[1, 5, 9]",
        "drafter.draft_vocab=full",
        "verifier.rule=sampled-match",
        "loss.kind=kl",
        "loss.step_weights=[1, 0.5, 0.25, 0]",
        "loss.rows=round-start",
        "drafter.train_head=false",
        "train.eps=1.25e-9",
        "train.learning_rate=0.1",
        "eval.temperatures=[0.7]",
    ];
    for sets in [&sets[..], &[]] {
        let recipe = set(sets).unwrap();
        assert_eq!(Recipe::parse(&recipe.to_toml(), "other.toml", &[]).unwrap(), recipe);
    }
    assert_ne!(set(&[]).unwrap(), set(&["seed=1"]).unwrap());
}

#[test]
fn overrides_replace_what_the_file_says() {
    let recipe = parse_with("[train]\nepochs = 2\nlog_every = 5\n", &["train.epochs=9"]).unwrap();
    assert_eq!((recipe.train.epochs, recipe.train.log_every), (9, 5));
}

#[test]
fn a_later_override_wins() {
    assert_eq!(set(&["train.epochs=9", "train.epochs=3"]).unwrap().train.epochs, 3);
}

#[test]
fn overrides_read_bare_words_and_paths_as_strings() {
    let recipe = set(&["data.prompts=../my data/p=1.jsonl", "target.path=hf-dir", "name = b"]).unwrap();
    assert_eq!(recipe.data.prompts, Path::new("../my data/p=1.jsonl"));
    assert_eq!((recipe.target.path.as_str(), recipe.name.as_str()), ("hf-dir", "b"));
}

#[test]
fn an_override_that_looks_like_a_date_is_a_name() {
    assert_eq!(set(&["name=2026-08-22"]).unwrap().name, "2026-08-22");
}

#[test]
fn overrides_can_complete_a_recipe() {
    let recipe = Recipe::parse("", "r.toml", &["name=x".into(), "target.path=y".into()]).unwrap();
    assert_eq!(recipe.target.path, "y");
}

#[test]
fn whole_numbers_do_for_fractions() {
    let recipe = set(&["eval.top_p=0.9", "eval.top_k=40", "eval.frequency_penalty=-0.5", "eval.min_length=8"]).unwrap();
    let expected =
        Processors { top_p: 0.9, top_k: 40, frequency_penalty: -0.5, min_length: 8, ..Processors::default() };
    assert_eq!(recipe.eval.processors(), expected);
    let recipe = set(&["data.greedy_share=1", "eval.temperatures=[0, 1]"]).unwrap();
    assert_eq!((recipe.data.greedy_share, recipe.eval.temperatures), (1.0, vec![0.0, 1.0]));
}

#[test]
fn inline_tables_and_dotted_keys_are_tables() {
    let text = "name = 'x'\ntarget.path = 'y'\ntrain = { epochs = 2 }\n";
    assert_eq!(Recipe::parse(text, "r.toml", &[]).unwrap().train.epochs, 2);
}

#[test]
fn a_full_draft_vocabulary_has_two_spellings() {
    for spelling in ["0", "full", "\"full\""] {
        let recipe = set(&[&format!("drafter.draft_vocab={spelling}")]).unwrap();
        assert_eq!(eagle3(&recipe).draft_vocab, DraftVocab::Full);
        assert_eq!(eagle3(&recipe).draft_vocab.size(97), 97);
    }
    assert_eq!(eagle3(&set(&[]).unwrap()).draft_vocab.size(97), 8192);
}

#[test]
fn default_taps_follow_the_target() {
    let recipe = set(&[]).unwrap();
    let drafter = eagle3(&recipe);
    assert_eq!(drafter.taps_for(30), Some(vec![2, 15, 27]));
    assert_eq!(drafter.taps_for(8), Some(vec![2, 4, 5]));
    assert_eq!(drafter.taps_for(7), None);
    assert_eq!(eagle3(&recipe.resolved(&SMOLLM2)).taps, Some(vec![2, 15, 27]));
}

#[test]
fn taps_reach_the_last_hidden() {
    let recipe = set(&["drafter.taps=[0, 30]"]).unwrap();
    assert_eq!(recipe.check(&SMOLLM2), Ok(()));
}

#[test]
fn step_weights_decay_unless_they_are_explicit() {
    let weights = set(&["loss.step_decay=0.5", "loss.unroll=3"]).unwrap().loss.weights();
    assert_eq!(weights, [1.0, 0.5, 0.25]);
    let weights = set(&["loss.unroll=2", "loss.step_weights=[3, 1]"]).unwrap().loss.weights();
    assert_eq!(weights, [3.0, 1.0]);
}

#[test]
fn kinds_are_named_as_in_recipes() {
    for rule in [Rule::Token, Rule::Block, Rule::Greedy, Rule::SampledMatch] {
        assert_eq!(rule.to_string().parse::<Rule>().unwrap(), rule);
    }
    assert_eq!(Rule::SampledMatch.to_string(), "sampled-match");
    assert_eq!(LossKind::Lk.to_string(), "lk");
}

#[test]
fn every_rule_is_greedy_at_temperature_0() {
    assert_eq!(Rule::Token.at(0.0), Rule::Greedy);
    assert_eq!(Rule::SampledMatch.at(0.6), Rule::SampledMatch);
}

#[test]
fn a_greedy_verifier_is_a_whole_recipe() {
    let sets = ["verifier.rule=greedy", "verifier.temperature=0", "eval.temperatures=[0]"];
    assert_eq!(set(&sets).unwrap().verifier.rule, Rule::Greedy);
}

#[test]
fn every_recipe_of_the_project_parses() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../recipes");
    let recipes: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!recipes.is_empty());
    for path in recipes {
        let recipe = Recipe::load(&path, &[]).unwrap();
        assert_eq!(path.file_stem().unwrap().to_str(), Some(recipe.name.as_str()));
        assert_eq!(Recipe::parse(&recipe.to_toml(), "resolved", &[]).unwrap(), recipe);
    }
}

#[test]
fn the_reference_recipe_fits_its_target() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes/smollm2-eagle3.toml");
    let recipe = Recipe::load(&path, &[]).unwrap();
    assert_eq!(recipe.check(&SMOLLM2), Ok(()));
    assert_eq!(eagle3(&recipe).taps_for(30), Eagle3::default().taps_for(30));
}

#[test]
fn the_label_of_a_loss_names_all_of_it() {
    let label = |sets: &[&str]| {
        let recipe = set(sets).unwrap();
        recipe.loss.label(&recipe.verifier)
    };
    assert_eq!(label(&[]), "lk at temperature 1");
    let chosen = "kl at temperature 1 (the verifier's own would be lk), and 2 times the distance of hidden states";
    assert_eq!(label(&["loss.kind=\"kl\"", "loss.feature_weight=2"]), chosen);
}

/// `mode_order_flip`: the better of two drafters depends on the verifier, and so do the loss and the figure.
#[test]
fn the_declared_verifier_decides_what_is_rewarded() {
    let row = |q: [f64; 3]| {
        let logs = |x: [f64; 3]| x.map(f64::ln);
        Row::new(&logs([0.4, 0.35, 0.25]), &logs(q), None, Temperature::Both(1.0)).unwrap()
    };
    let (a, b) = (row([0.34, 0.41, 0.25]), row([0.6, 0.2, 0.2]));
    for (rule, temperature, picks_a, loss) in [
        (Rule::Token, 1.0, true, LossKind::Lk),
        (Rule::Block, 0.6, true, LossKind::Lk),
        (Rule::Token, 0.0, false, LossKind::Ce),
        (Rule::SampledMatch, 1.0, false, LossKind::Ce),
        (Rule::Greedy, 0.0, false, LossKind::Ce),
    ] {
        let reward = Reward::of(rule, temperature);
        assert_eq!(reward.evaluate(&a).unwrap() > reward.evaluate(&b).unwrap(), picks_a, "{rule} at {temperature}");
        let sets = [format!("verifier.rule={rule}"), format!("verifier.temperature={temperature}")];
        let sets: Vec<&str> = sets.iter().map(String::as_str).chain(["eval.temperatures=[0]"]).collect();
        let recipe = set(&sets).unwrap();
        assert_eq!(recipe.loss.kind_for(&recipe.verifier), loss);
        assert_eq!(recipe.resolved(&SMOLLM2).loss.kind, Some(loss));
    }
}
