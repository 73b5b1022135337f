//! Recipes that are refused as they are written: keys, types, words, overrides. Each message is one exact line.

use std::path::Path;

use spectrain_core::recipe::Recipe;

use crate::{parse_with, refused, set_refused};

#[test]
fn unknown_key_names_line_and_nearest_key() {
    refused(
        "[train]\nepochs = 2\nlearing_rate = 0.1\n",
        "r.toml:6: unknown key train.learing_rate; the nearest key of [train] is learning_rate",
    );
}

#[test]
fn unknown_keys_of_every_table() {
    for (line, key, table, nearest) in [
        ("[data]\nprompt = 'x'", "data.prompt", "[data]", "prompts"),
        ("[store]\nbatch = 3", "store.batch", "[store]", "batch_tokens"),
        ("[drafter]\nknid = 'eagle3'", "drafter.knid", "[drafter]", "kind"),
        ("[drafter]\nvocab = 10", "drafter.vocab", "[drafter]", "draft_vocab"),
        ("[verifier]\nrules = 'token'", "verifier.rules", "[verifier]", "rule"),
        ("[loss]\nunrol = 2", "loss.unrol", "[loss]", "unroll"),
        ("[eval]\ntemperature = 1.0", "eval.temperature", "[eval]", "temperatures"),
    ] {
        refused(line, &format!("r.toml:5: unknown key {key}; the nearest key of {table} is {nearest}"));
    }
}

#[test]
fn unknown_table_names_the_nearest() {
    refused("[traim]\nepochs = 2\n", "r.toml:4: unknown key traim; the nearest key of a recipe is train");
}

#[test]
fn unknown_key_in_an_inline_table() {
    let text = "name = 'x'\ntarget = { path = 'y', paht = 'z' }\n";
    let error = Recipe::parse(text, "r.toml", &[]).unwrap_err().to_string();
    assert_eq!(error, "r.toml:2: unknown key target.paht; the nearest key of [target] is path");
}

#[test]
fn unknown_override_names_itself() {
    set_refused("train.epoch=3", "unknown key train.epoch; the nearest key of [train] is epochs");
    set_refused("sed=3", "unknown key sed; the nearest key of a recipe is seed");
    set_refused("drafters.taps=[1]", "unknown key drafters; the nearest key of a recipe is drafter");
}

#[test]
fn wrong_types() {
    for (line, message) in [
        ("[train]\nepochs = \"six\"", "train.epochs is string \"six\"; it must be a whole number, 0 or more"),
        ("[train]\nepochs = -1", "train.epochs is integer -1; it must be a whole number, 0 or more"),
        ("[train]\nepochs = 1.5", "train.epochs is number 1.5; it must be a whole number, 0 or more"),
        ("[train]\nlearning_rate = true", "train.learning_rate is boolean true; it must be a number"),
        ("[train]\nbetas = [0.9]", "train.betas is a list of length 1; it must be a list of 2 numbers"),
        ("[train]\nbetas = 0.9", "train.betas is number 0.9; it must be a list of 2 numbers"),
        ("[data]\nprompts = 3", "data.prompts is integer 3; it must be a path, in quotes"),
        ("[drafter]\ntrain_head = 1", "drafter.train_head is integer 1; it must be true or false"),
        ("[drafter]\ntaps = 3", "drafter.taps is integer 3; it must be a list"),
        (
            "[drafter]\ntaps = [1, 'x']",
            "drafter.taps holds string \"x\"; each element must be a whole number, 0 or more",
        ),
        (
            "[drafter]\ndraft_vocab = 'all'",
            "drafter.draft_vocab is string \"all\"; it must be a number of tokens or \"full\"",
        ),
        ("[drafter]\ndraft_vocab = -5", "drafter.draft_vocab is integer -5; it must be a number of tokens or \"full\""),
        ("[drafter]\ndraft_vocab = [3]", "drafter.draft_vocab is a list; it must be a number of tokens or \"full\""),
    ] {
        refused(line, &format!("r.toml:5: {message}"));
    }
}

#[test]
fn wrong_words() {
    for (line, message) in [
        ("[drafter]\nkind = 'eagle4'", "drafter.kind is \"eagle4\"; it must be one of [\"eagle3\"]"),
        ("[drafter]\nkind = 3", "drafter.kind is integer 3; it must be a string"),
        (
            "[verifier]\nrule = 'tokn'",
            "verifier.rule is tokn; it must be one of \"token\", \"block\", \"greedy\", \"sampled-match\", \"specinfer\", \
             \"sequoia\", \"traversal\", \"typical\", \"threshold\"",
        ),
        (
            "[verifier]\nrule = 'typical'",
            "verifier.rule is \"typical\"; it must be token, block, greedy or sampled-match",
        ),
        (
            "[loss]\nkind = 'mse'",
            "loss.kind is mse; it must be one of \"lk\", \"lk-lambda\", \"tv\", \"kl\", \"ce\", \"reverse-kl\", \"jsd\", \
             \"e2e-tv\", \"exact-length\"",
        ),
    ] {
        refused(line, &format!("r.toml:5: {message}"));
    }
}

#[test]
fn wrong_types_at_the_top() {
    let parse = |text: &str| Recipe::parse(text, "r.toml", &[]).unwrap_err().to_string();
    assert_eq!(parse("name = 3"), "r.toml:1: name is integer 3; it must be a string");
    assert_eq!(parse("name = 'x'\nseed = -1"), "r.toml:2: seed is integer -1; it must be a whole number, 0 or more");
    assert_eq!(parse("name = 'x'\ntarget = 'y'"), "r.toml:2: target is of type string; it must be a table, [target]");
    assert_eq!(
        parse("name = 'x'\n[[target]]\npath = 'y'"),
        "r.toml:2: target is of type array; it must be a table, [target]"
    );
}

#[test]
fn what_is_missing() {
    let parse = |text: &str| Recipe::parse(text, "r.toml", &[]).unwrap_err().to_string();
    assert_eq!(parse(""), "r.toml: name is missing; it must be a name for the run");
    let target = "r.toml: target.path is missing; it must be a model directory or a known name such as \"smollm2-135m-instruct\"";
    assert_eq!(parse("name = 'x'"), target);
    assert_eq!(parse("name = 'x'\n[target]\npath = ''"), target);
}

#[test]
fn what_is_no_toml() {
    for (rest, place) in [
        ("[train\n", "r.toml:4: "),
        ("[train]\nepochs = \n", "r.toml:5: "),
        ("[loss]\nunroll = 1\nunroll = 2", "r.toml:6: "),
        ("[train]\nepochs = 99999999999999999999", "r.toml:5: "),
    ] {
        let error = parse_with(rest, &[]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{place}not valid TOML: ")), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn overrides_that_cannot_be_read() {
    set_refused("train.epochs", "it must be of the form table.key=value");
    set_refused("=3", "the key must be of the form table.key");
    set_refused("train.=3", "the key must be of the form table.key");
    set_refused("train={ epochs = 3 }", "the key must be of the form table.key");
    set_refused("a.b.c=3", "the key must be of the form table.key");
    set_refused("drafter.taps=[1, 2", "the value is neither a TOML value nor a bare word");
    set_refused("name.x=3", "name is no table");
}

#[test]
fn override_values_are_checked_like_the_file() {
    set_refused("train.epochs=six", "train.epochs is string \"six\"; it must be a whole number, 0 or more");
    set_refused("loss.unroll=0", "loss.unroll is 0; it must be at least 1");
    set_refused("verifier.rule=true", "verifier.rule is of type boolean; it must be a word, in quotes");
}

#[test]
fn a_file_that_cannot_be_read() {
    let error = Recipe::load(Path::new("no/such.toml"), &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read the recipe no/such.toml; give a TOML file such as recipes/quickstart.toml"
    );
    assert!(std::error::Error::source(&error).is_some());
}
