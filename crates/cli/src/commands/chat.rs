//! `spectrain chat`: text in, streamed text out, accepted drafts in green: one look shows what a drafter does.

use super::eval::{open_checkpoint, recipe_of};
use crate::args::ChatArgs;
use crate::device;
use crate::exit::{Blame, Failure};
use crate::interrupt;
use crate::stage::{self, Setup};
use crate::style::Style;
use anyhow::anyhow;
use spectrain_core::chat::Message;
use spectrain_core::detokenizer::TextStream;
use spectrain_core::form::Form;
use spectrain_core::process::Processors;
use spectrain_core::rules::Rule;
use spectrain_core::stopping::Progress;
use spectrain_core::tokenizer::TokenizerError;
use spectrain_core::tree::TreeKind;
use spectrain_draft::{Plan, Proposer};
use spectrain_model::{Finish, Request};
use spectrain_verify::judge::{Judge, judge};
use spectrain_verify::plan::plan;
use spectrain_verify::{Committed, SpeculativeDecoder, Task, Transcript};
use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::time::Duration;

/// Runs the command.
pub fn run(args: ChatArgs) -> Result<(), Failure> {
    let mut chat = Chat::open(&args)?;
    interrupt::listen_in_chat();
    match &args.prompt {
        Some(prompt) if chat.answer(prompt)? => Ok(()),
        Some(_) => Err(anyhow!("stopped before the answer's end")).work(),
        None => chat.converse(),
    }
}

/// A conversation and what answers it.
struct Chat {
    setup: Setup,
    proposer: Box<dyn Proposer>,
    judge: &'static Judge,
    sampling: Processors,
    drafts: Plan,
    max_new_tokens: usize,
    seed: u64,
    form: Form,
    history: Vec<Message>,
}

impl Chat {
    /// Refuses what can be refused, then loads both models.
    fn open(args: &ChatArgs) -> Result<Self, Failure> {
        args.sampling.over(Processors::default())?;
        let device = device::parse(&args.device)?;
        let checkpoint = open_checkpoint(&args.checkpoint)?;
        let recipe = recipe_of(&args.checkpoint)?;
        let temperature = args.temperature.unwrap_or(recipe.verifier.temperature);
        let rule = args.rule.unwrap_or(recipe.verifier.rule).at(temperature);
        if rule == Rule::Greedy && temperature != 0.0 {
            return Err(anyhow!("the greedy rule is exact at temperature 0 only; use token or sampled-match above it"))
                .request();
        }
        let tree = args.tree.as_ref().unwrap_or(&recipe.eval.tree);
        let drafts = drafts(tree, rule, args.length.unwrap_or(recipe.eval.length))?;
        let judge = judge(rule).ok_or_else(|| anyhow!("rule {rule} is approximate")).request()?;
        let asked = args.target.as_deref().unwrap_or(&checkpoint.provenance.target);
        let target = stage::locate_target(asked, false)?;
        let mut form = Form::default();
        let setup = Setup::load(target.clone(), &device, |facts| {
            form = stage::form(&args.form, &target, facts.vocab)?;
            Ok(())
        })?;
        checkpoint.check_target(&setup.target_hash, setup.tokenizer.content_hash(), &target).request()?;
        Ok(Self {
            proposer: checkpoint.proposer(&setup.target).request()?,
            form,
            setup,
            judge,
            sampling: Processors { temperature, ..args.sampling.over(recipe.eval.processors())? },
            drafts,
            max_new_tokens: args.max_new_tokens,
            seed: args.seed.unwrap_or(recipe.seed),
            history: Vec::new(),
        })
    }

    /// Answers line by line.
    fn converse(&mut self) -> Result<(), Failure> {
        let input = std::io::stdin();
        loop {
            if input.is_terminal() {
                eprint!("> ");
            }
            let mut line = String::new();
            input.read_line(&mut line).work()?;
            let text = line.trim();
            if text.is_empty() || !self.answer(text)? {
                return Ok(());
            }
        }
    }

    /// Answers one turn of the user; false if it was stopped.
    fn answer(&mut self, text: &str) -> Result<bool, Failure> {
        self.history.push(Message::new("user", text));
        let request = self.request()?;
        let stop = self.setup.template.stop_ids();
        let decoder = SpeculativeDecoder { target: &self.setup.target, stop: &stop, batch: 1 };
        let reading = request.form.reading(request.ends(&stop));
        let task = Task::of(request, &self.drafts, self.judge, &spectrain_verify::Fixed);
        let (out, tokenizer) = (std::io::stdout(), &self.setup.tokenizer);
        let mut speaker = Speaker::new(Style::of(&out), out, TextStream::new(tokenizer, true));
        speaker.reading = reading;
        let (mut failed, mut stopped) = (None, false);
        let committed = |c: Committed| match speaker.say(&c) {
            Ok(()) if !interrupt::asked() => ControlFlow::Continue(()),
            said => {
                (failed, stopped) = (said.err(), true);
                ControlFlow::Break(())
            }
        };
        let mut ended: Option<Transcript> = None;
        let proposer = self.proposer.as_mut();
        let cost = interrupt::saving(|| decoder.run_watched(vec![task], proposer, committed, |t| ended = Some(t)));
        let cost = cost.work()?;
        failed.map_or(Ok(()), Err).work()?;
        speaker.end().work()?;
        let ended = ended.filter(|_| !stopped);
        let line = format!("{}{}", speaker.figures(cost.times.total), ended.as_ref().map_or(String::new(), note));
        eprintln!("{}", Style::of(&std::io::stderr()).dim(&line));
        let Some(transcript) = ended else {
            return Ok(false);
        };
        let text = match &speaker.reading {
            Some(reading) => reading.text(),
            None => tokenizer.decode(&transcript.ids, true).work()?,
        };
        self.history.push(Message::new("assistant", text));
        Ok(true)
    }

    /// The conversation so far as a request, its answer as long as the target's positions allow.
    fn request(&self) -> Result<Request, Failure> {
        let prompt = self.setup.template.encode_prompt(&self.history, &self.setup.tokenizer).request()?;
        let (limit, tokens) = (self.setup.target.config().max_positions, prompt.len());
        let room = limit.saturating_sub(tokens + self.drafts.drafted() + 1);
        if room == 0 {
            let text = format!("the conversation has {tokens} tokens, and the target takes {limit}, drafts included");
            return Err(anyhow!(text)).request();
        }
        Ok(Request {
            id: self.history.len() as u64 / 2,
            prompt,
            max_new_tokens: self.max_new_tokens.min(room),
            sampling: self.sampling.clone(),
            seed: self.seed,
            form: self.form.clone(),
        })
    }
}

/// What a round drafts, refused where the rule is not exact on it.
fn drafts(tree: &TreeKind, rule: Rule, length: usize) -> Result<Plan, Failure> {
    if matches!(tree, TreeKind::Sequoia(_)) {
        let text =
            "get their shape from acceptance measured on many prompts; chat takes chain, static, dynamic or sampled";
        return Err(anyhow!("{tree} trees {text}")).request();
    }
    plan(tree, rule, length, &[]).request()
}

/// What is to be told of an answer's end.
fn note(answer: &Transcript) -> String {
    match (&answer.failure, answer.finish) {
        (Some(failure), _) => format!(", ended early: {failure}"),
        (None, Finish::Length) => ", cut at its longest".to_owned(),
        (None, Finish::Masked) => ", ended early: what was asked for leaves no token that could follow".to_owned(),
        (None, Finish::Cancelled) => ", cancelled".to_owned(),
        (None, Finish::Deadline) => ", out of time".to_owned(),
        (None, Finish::Stop) => String::new(),
    }
}

/// Shows an answer while it grows, and counts.
struct Speaker<'a, W> {
    style: Style,
    out: W,
    text: TextStream<'a>,
    /// Reads the text instead where stop strings may cut it.
    reading: Option<Progress>,
    tokens: usize,
    calls: usize,
}

impl<'a, W: Write> Speaker<'a, W> {
    fn new(style: Style, out: W, text: TextStream<'a>) -> Self {
        Self { style, out, text, reading: None, tokens: 0, calls: 0 }
    }

    /// Shows what one target call added: drafted tokens in green. A character takes the colour of its last token.
    fn say(&mut self, committed: &Committed) -> anyhow::Result<()> {
        let (drafted, own) = committed.tokens.split_at(committed.accepted);
        let mut text = |ids: &[u32]| match &mut self.reading {
            Some(reading) => {
                reading.advance(ids);
                Ok(reading.release())
            }
            None => ids.iter().map(|&id| self.text.push(id)).collect::<Result<String, TokenizerError>>(),
        };
        let (drafted, own) = (text(drafted)?, text(own)?);
        write!(self.out, "{}{own}", self.style.green(&drafted))?;
        self.out.flush()?;
        self.tokens += committed.tokens.len();
        self.calls += 1;
        Ok(())
    }

    /// Shows what was held back, and ends the line.
    fn end(&mut self) -> anyhow::Result<()> {
        let rest = match &mut self.reading {
            Some(reading) => reading.finish(),
            None => self.text.finish()?,
        };
        Ok(writeln!(self.out, "{rest}")?)
    }

    /// The figures of the answer. As in an evaluation, the prompt's call and its token are in no ratio.
    fn figures(&self, time: Duration) -> String {
        let rate = self.tokens as f64 / time.as_secs_f64().max(1e-9);
        let ratio = match self.calls.saturating_sub(1) {
            0 => "no target call behind the prompt's".to_owned(),
            calls => {
                let per_call = (self.tokens - 1) as f64 / calls as f64;
                format!("{calls} target calls, {per_call:.2} tokens per target call")
            }
        };
        format!("{} tokens, {ratio}, {rate:.1} tokens/s", self.tokens)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use spectrain_core::tokenizer::Tokenizer;

    /// Bytes of "aé" as tokens 0, 1 and 2, and a special token.
    fn tokenizer() -> Tokenizer {
        let dir = tempfile::tempdir().unwrap();
        let json = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null,
            "added_tokens": [{"id": 3, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}],
            "post_processor": null,
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
            "model": {"type": "BPE", "vocab": {"a": 0, "Ã": 1, "©": 2, "<end>": 3}, "merges": []},
        });
        std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
        Tokenizer::load(dir.path()).unwrap()
    }

    fn said(coloured: bool, calls: &[(&[u32], usize)]) -> (String, String) {
        let tokenizer = tokenizer();
        let mut speaker = Speaker::new(Style { coloured }, Vec::new(), TextStream::new(&tokenizer, true));
        for &(tokens, accepted) in calls {
            speaker.say(&Committed { id: 0, tokens, accepted }).unwrap();
        }
        speaker.end().unwrap();
        let figures = speaker.figures(Duration::from_secs(2));
        (String::from_utf8(speaker.out).unwrap(), figures)
    }

    #[test]
    fn drafted_tokens_are_green_and_characters_whole() {
        let calls: &[(&[u32], usize)] = &[(&[0], 0), (&[0, 1, 2, 0], 3), (&[0, 1], 1), (&[2, 3], 2)];
        let (text, figures) = said(true, calls);
        assert_eq!(text, "a\x1b[32maé\x1b[0ma\x1b[32ma\x1b[0m\x1b[32mé\x1b[0m\n");
        assert_eq!(figures, "9 tokens, 3 target calls, 2.67 tokens per target call, 4.5 tokens/s");
        assert_eq!(said(false, calls).0, "aaéaaé\n");
    }

    #[test]
    fn an_answer_cut_inside_a_character_or_at_once() {
        assert_eq!(said(false, &[(&[0], 0), (&[1], 0)]).0, "a\u{FFFD}\n");
        assert_eq!(said(false, &[(&[3], 0)]).1, "1 tokens, no target call behind the prompt's, 0.5 tokens/s");
    }
}
