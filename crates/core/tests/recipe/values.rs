//! Values that are refused: out of range, at odds with each other, or unfit for the target.

use spectrain_core::recipe::TargetFacts;

use crate::{SMOLLM2, refused, set, set_refused};

/// Overrides that parse but do not fit the target → the message.
#[track_caller]
fn unfit(sets: &[&str], facts: TargetFacts, message: &str) {
    assert_eq!(set(sets).unwrap().check(&facts).unwrap_err().to_string(), message);
}

#[test]
fn counts_of_0() {
    for key in [
        "data.answer_tokens",
        "data.max_new_tokens",
        "data.max_prompt_tokens",
        "data.batch",
        "store.batch_tokens",
        "loss.unroll",
        "train.epochs",
        "train.accumulate",
        "train.devices",
        "train.log_every",
        "eval.limit",
        "eval.max_new_tokens",
        "eval.length",
        "eval.batch",
    ] {
        set_refused(&format!("{key}=0"), &format!("{key} is 0; it must be at least 1"));
    }
}

#[test]
fn values_out_of_range() {
    for (one, message) in [
        ("data.greedy_share=1.5", "data.greedy_share is 1.5; it must be from 0 to 1"),
        ("data.greedy_share=nan", "data.greedy_share is NaN; it must be from 0 to 1"),
        ("data.temperature=0", "data.temperature is 0.0; it must be a number above 0"),
        ("loss.temperature=inf", "loss.temperature is inf; it must be a number above 0"),
        ("loss.step_decay=1.1", "loss.step_decay is 1.1; it must be above 0 and at most 1"),
        ("loss.feature_weight=-1", "loss.feature_weight is -1.0; it must be 0 or more"),
        ("train.learning_rate=-1e-4", "train.learning_rate is -0.0001; it must be a number above 0"),
        ("train.eps=0", "train.eps is 0.0; it must be a number above 0"),
        ("train.clip_norm=0", "train.clip_norm is 0.0; it must be a number above 0"),
        ("train.warmup_ratio=1", "train.warmup_ratio is 1.0; it must be at least 0 and below 1"),
        ("train.validation_share=1", "train.validation_share is 1.0; it must be at least 0 and below 1"),
        ("train.decay_share=1.5", "train.decay_share is 1.5; it must be from 0 to 1"),
        ("train.feature_noise=-1", "train.feature_noise is -1.0; it must be 0 or more"),
        ("train.ema=1", "train.ema is 1.0; it must be at least 0 and below 1"),
        ("train.anchor=-1", "train.anchor is -1.0; it must be 0 or more"),
        ("train.spike=1", "train.spike is 1.0; it must be above 1, or 0 for no guard"),
        ("train.spike=nan", "train.spike is NaN; it must be above 1, or 0 for no guard"),
        ("train.betas=[0.9, 1.0]", "train.betas is [0.9, 1.0]; it must be two numbers, at least 0 and below 1"),
        ("train.weight_decay=-0.1", "train.weight_decay is -0.1; it must be 0 or more"),
        (
            "train.devices=2",
            "train.devices is 2; it must be at most train.accumulate, 1: a device without a batch would idle",
        ),
        ("train.max_seq=5", "train.max_seq is 5; it must be at least 6, loss.unroll + 2"),
        ("train.batch_tokens=512", "train.batch_tokens is 512; it must be at least train.max_seq, 1024"),
        ("verifier.temperature=-1", "verifier.temperature is -1.0; it must be 0 or more"),
        ("eval.temperatures=[]", "eval.temperatures is []; it must be one temperature or more"),
        ("eval.temperatures=[-1]", "eval.temperatures is [-1.0]; it must be numbers of 0 or more"),
        ("eval.top_p=0", "eval.top_p is 0.0; it must be above 0, at most 1"),
        ("eval.min_p=2", "eval.min_p is 2.0; it must be 0 to 1"),
        ("eval.repetition_penalty=-1", "eval.repetition_penalty is -1.0; it must be above 0"),
        ("eval.presence_penalty=inf", "eval.presence_penalty is inf; it must be finite"),
        ("eval.temperatures=[1, 1]", "eval.temperatures is [1.0, 1.0]; it must be distinct"),
    ] {
        set_refused(one, message);
    }
}

#[test]
fn losses_that_do_not_fit_their_processors_rows_or_target() {
    for (sets, part) in [
        (&["loss.top_p=0"][..], "loss.top_p is 0.0; it must be above 0 and at most 1"),
        (&["loss.min_p=1.5"], "loss.min_p is 1.5; it must be from 0 to 1"),
        (&["loss.top_k=-1"], "loss.top_k is"),
        (&["loss.kind=kl", "loss.top_p=0.9"], "infinite where the kept sets differ"),
        (&["loss.kind=lk-lambda", "loss.policies=[{ top_k = 5 }]"], "infinite where the kept sets differ"),
        (&["verifier.rule=sampled-match", "loss.min_p=0.1"], "infinite where the kept sets differ"),
        (&["loss.kind=exact-length", "loss.top_k=5"], "the text was sampled without them"),
        (&["loss.kind=exact-length", "loss.policies=[{}]"], "the text was sampled without them"),
        (&["loss.policies=[{}]", "loss.temperature=0.5"], "write them into each policy"),
        (&["loss.policies=[{ temperature = 0 }]"], "of greedy decoding a loss has no gradient"),
        (&["loss.policies=[{ top_p = 1.5 }]"], "loss.policies holds a policy whose top_p = 1.5"),
        (&["loss.policies=[{ topp = 0.9 }]"], "topp"),
        (&["loss.target=ids", "loss.temperature=0.5"], "a token has none"),
        (&["loss.target=ids", "loss.kind=reverse-kl"], "infinite on one token"),
        (&["loss.rows=round-start", "drafter.train_head=true"], "before rows are weighed"),
        (&["loss.rows=starts"], "loss.rows is"),
    ] {
        let message = set(sets).unwrap_err().to_string();
        assert!(message.contains(part), "{sets:?}: {message}");
    }
    for sets in [
        &["loss.kind=kl", "loss.temperature=0.5"][..],
        &["loss.kind=tv", "loss.top_k=5", "loss.rows=round-start"],
        &["loss.target=ids", "loss.kind=ce", "drafter.train_head=true"],
    ] {
        set(sets).unwrap();
    }
}

#[test]
fn a_decay_that_leaves_no_room_for_the_warm_up() {
    refused(
        "[train]\nschedule = 'wsd'\nwarmup_ratio = 0.5\ndecay_share = 0.75\n",
        "r.toml:7: train.decay_share is 0.75; it must be at most 1 - train.warmup_ratio, 0.5, under train.schedule = \"wsd\"",
    );
    assert!(set(&["train.warmup_ratio=0.5", "train.decay_share=0.75"]).is_ok(), "it is not read under cosine");
    let unknown = set(&["train.schedule=cosin"]).unwrap_err().to_string();
    assert!(unknown.contains("train.schedule is") && unknown.contains("\"constant\""), "{unknown}");
}

#[test]
fn patience_without_a_validation() {
    refused(
        "[train]\npatience = 2\nvalidation_share = 0\n",
        "r.toml:5: train.patience is 2; it must be 0 where train.validation_share is 0: there is nothing to measure",
    );
}

#[test]
fn names_that_are_no_directory() {
    let right = "it must be a plain directory name of letters, digits, '-', '_' and '.'";
    for name in ["", "..", ".hidden", "a/b", "a b", "é"] {
        let error = set(&[&format!("name='{name}'")]).unwrap_err().to_string();
        assert_eq!(error, format!("--set name='{name}': name is {name:?}; {right}"));
    }
}

#[test]
fn step_weights_that_do_not_fit_the_unroll() {
    refused(
        "[loss]\nunroll = 3\nstep_weights = [1.0, 0.5]\n",
        "r.toml:6: loss.step_weights is [1.0, 0.5]; it must be one weight for each of the 3 unroll steps (loss.unroll)",
    );
    let right = "it must be weights of 0 or more, not all 0";
    set_refused("loss.step_weights=[0, 0, 0, 0]", &format!("loss.step_weights is [0.0, 0.0, 0.0, 0.0]; {right}"));
    set_refused("loss.step_weights=[1, -1, 0, 0]", &format!("loss.step_weights is [1.0, -1.0, 0.0, 0.0]; {right}"));
}

#[test]
fn a_greedy_rule_at_a_temperature() {
    refused(
        "[verifier]\nrule = 'greedy'\n",
        "r.toml:4: verifier.temperature is 1.0; it must be 0 under verifier.rule = \"greedy\"",
    );
    refused(
        "[verifier]\nrule = 'greedy'\ntemperature = 0\n",
        "r.toml: eval.temperatures is [0.0, 1.0]; it must be [0.0] under verifier.rule = \"greedy\"",
    );
}

#[test]
fn trees_that_are_none_or_that_the_rule_is_not_exact_on() {
    let right = "trees are chain, static:2,2,1, dynamic:32, sampled:2,2,1, sequoia:32 and sequoia:best";
    set_refused("eval.tree=bush", &format!("eval.tree cannot be read: unknown tree `bush`; {right}"));
    refused(
        "[eval]\ntree = 'dynamic:32'\n",
        "r.toml:5: eval.tree is \"dynamic:32\": rule token on dynamic:32 trees is not exact: it judges chains; take \
         sampled-match, or sequoia or traversal on sampled trees",
    );
    assert!(set(&["eval.tree=dynamic:32", "eval.temperatures=[0]"]).is_ok(), "at 0 the rule is greedy");
    refused(
        "[verifier]\nrule = 'sampled-match'\n[eval]\ntree = 'sequoia:best'\n",
        "r.toml:7: eval.tree is \"sequoia:best\"; it must be of a given size, as sequoia:32; eval --tree sequoia:best \
         chooses one",
    );
}

#[test]
fn taps_repeated_or_none() {
    refused(
        "[drafter]\ntaps = [2, 5, 2]\n",
        "r.toml:5: drafter.taps is [2, 5, 2]; 2 is repeated, but ids must be distinct",
    );
    set_refused("drafter.taps=[]", "drafter.taps is []; it must be one id or more");
}

#[test]
fn taps_out_of_range() {
    unfit(
        &["drafter.taps=[2, 15, 31]"],
        SMOLLM2,
        "--set drafter.taps=[2, 15, 31]: drafter.taps is [2, 15, 31]; 31 is out of range, ids must be from 0 to 30 for a target of 30 layers",
    );
}

#[test]
fn a_small_target_without_taps() {
    unfit(
        &[],
        TargetFacts { layers: 7, ..SMOLLM2 },
        "r.toml: drafter.taps is not set, and there is a default for targets of 8 layers or more only; it must be distinct ids from 0 to 7",
    );
}

#[test]
fn a_draft_vocabulary_larger_than_the_target_s() {
    let small = TargetFacts { vocab: 97, ..SMOLLM2 };
    unfit(
        &["drafter.draft_vocab=98"],
        small,
        "--set drafter.draft_vocab=98: drafter.draft_vocab is 98; it must be \"full\" or at most the target's vocabulary, 97",
    );
    unfit(
        &[],
        small,
        "r.toml: drafter.draft_vocab is 8192; it must be \"full\" or at most the target's vocabulary, 97",
    );
    assert_eq!(set(&["drafter.draft_vocab=97"]).unwrap().check(&small), Ok(()));
}

#[test]
fn a_recipe_changed_in_code_is_checked_again() {
    let mut recipe = set(&[]).unwrap();
    recipe.loss.unroll = 0;
    let error = recipe.check(&SMOLLM2).unwrap_err();
    assert_eq!((error.key.as_str(), error.message.as_str()), ("loss.unroll", "is 0; it must be at least 1"));
}
