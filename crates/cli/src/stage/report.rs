//! `report.html` and `curve.svg` of a run.

use super::evaluate::Curves;
use super::setup::{RunDir, Setup};
use crate::exit::{Blame, Failure};
use anyhow::Context;
use spectrain_core::evaluation::Evaluation;
use spectrain_core::recipe::{Drafter, Recipe};
use spectrain_core::reconciliation::Reconciliation;
use spectrain_report::{Report, curve_svg, read_training};

/// Writes the report of a run that was measured, and its curve of acceptance length as a picture of its own.
pub fn write(
    setup: &Setup,
    recipe: &Recipe,
    run: &RunDir,
    curves: Curves,
    found: &Reconciliation,
) -> Result<(), Failure> {
    let path = run.join("metrics.jsonl");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string()).work()?;
    let training = read_training(&text).with_context(|| path.display().to_string()).work()?;
    let Drafter::Eagle3(drafter) = &recipe.drafter;
    let (loss, train) = (&recipe.loss, &recipe.train);
    let fact = |name: &str, value: String| (name.to_owned(), value);
    let facts = vec![
        fact("target", setup.dir.display().to_string()),
        fact(
            "drafter",
            format!("eagle3, draft vocabulary {}", drafter.draft_vocab.size(setup.target.config().vocab_size)),
        ),
        fact("loss", format!("{}; {} unroll steps", loss.label(&recipe.verifier), loss.unroll)),
        fact("training", {
            let prompts = if train.prompts { " and their prompts" } else { "" };
            format!("{} epochs over {} answer tokens{prompts}", train.epochs, recipe.data.answer_tokens)
        }),
        fact("training and run time", found.to_string()),
        fact("spectrain", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    let Curves { evaluations, trees, transcripts, .. } = curves;
    let facts = facts.into_iter().chain(trees.iter().map(beside)).collect();
    if let Some(curve) = curve_svg(&evaluations) {
        run.write("curve.svg", &curve)?;
    }
    let report =
        Report { title: recipe.name.clone(), facts, evaluations, training, transcripts, waterfalls: Vec::new() };
    run.write("report.html", &report.html())
}

/// A tree and the chain of as many nodes, in words.
fn beside(tree: &Evaluation) -> (String, String) {
    let told = |e: &Evaluation| {
        format!("{:.2} tokens per target call, {:.2}x", e.overall.acceptance.tokens_per_target_call, e.speedup)
    };
    let chain =
        tree.chain.as_deref().map_or(String::new(), |chain| format!("; a chain of as many nodes {}", told(chain)));
    (format!("{} trees, T = {}", tree.tree, tree.temperature), format!("{} under {}{chain}", told(tree), tree.rule))
}
