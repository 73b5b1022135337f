//! The tiny target is a language model, not a loop; its figures are measured again by our own code on its own text.

use crate::support::values;
use burn::tensor::Device;
use spectrain_core::chat::ChatTemplate;
use spectrain_core::form::Form;
use spectrain_core::process::Processors;
use spectrain_core::tokenizer::Tokenizer;
use spectrain_data::prompts::{Prompt, read_prompts};
use spectrain_data::store::sha256;
use spectrain_kernels::rope::indices;
use spectrain_model::{Completion, Decoder, Llama, Request};
use std::collections::{HashMap, HashSet};
use std::f64::consts::LN_2;
use std::path::{Path, PathBuf};

fn root(part: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(part)
}

/// The tiny target with what turns text into its ids.
struct Tiny {
    model: Llama,
    tokenizer: Tokenizer,
    template: ChatTemplate,
}

impl Tiny {
    fn load() -> Self {
        let dir = root("checkpoints/tiny");
        let tokenizer = Tokenizer::load(&dir).unwrap();
        let template = ChatTemplate::load(&dir, &tokenizer).unwrap();
        Self { model: Llama::load(&dir, &Device::flex()).unwrap(), tokenizer, template }
    }

    fn prompt(&self, prompt: &Prompt) -> Vec<u32> {
        self.template.encode_prompt(&prompt.messages, &self.tokenizer).unwrap()
    }

    /// Answers to `prompts` of at most `limit` tokens, in their order.
    fn answers(&self, prompts: &[Prompt], temperature: f64, limit: usize) -> Vec<Vec<u32>> {
        let request = |(id, p): (usize, &Prompt)| Request {
            id: id as u64,
            prompt: self.prompt(p),
            max_new_tokens: limit,
            sampling: Processors::at(temperature),
            seed: 3,
            form: Form::default(),
        };
        let requests: Vec<Request> = prompts.iter().enumerate().map(request).collect();
        let capacity = requests.iter().map(|r| r.prompt.len()).max().unwrap() + limit;
        let stop = self.template.stop_ids();
        let mut done: HashMap<u64, Completion> = HashMap::new();
        let decoder = Decoder { target: &self.model, stop: &stop, batch: 32 };
        decoder.run(requests, capacity, |c| drop(done.insert(c.id, c)), |_| {}).unwrap();
        (0..prompts.len()).map(|i| done[&(i as u64)].ids.clone()).collect()
    }

    /// Log probabilities in nats, `vocabulary` a row, of what follows each of the last `answer` prefixes of `ids`.
    fn log_p(&self, ids: &[u32], answer: usize) -> Vec<f64> {
        let hidden = self.model.forward_full(&[ids], &[]).hidden;
        let first = ids.len() - answer - 1;
        let rows = hidden.select(0, indices(first..ids.len() - 1, self.model.device()));
        let logits = values(self.model.logits(rows));
        let vocabulary = self.model.config().vocab_size;
        let normal = |row: &[f32]| {
            let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let lse = max + row.iter().map(|&v| (f64::from(v) - max).exp()).sum::<f64>().ln();
            row.iter().map(|&v| f64::from(v) - lse).collect::<Vec<f64>>()
        };
        logits.chunks(vocabulary).flat_map(normal).collect()
    }
}

/// Prompt and answer ids of the held-out conversations, the end of the turn included.
fn held_out(tiny: &Tiny) -> Vec<(Vec<u32>, Vec<u32>)> {
    let text = std::fs::read_to_string(root("checkpoints/tiny/heldout.jsonl")).unwrap();
    let conversation = |line: &str| {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let messages: Vec<spectrain_core::chat::Message> = serde_json::from_value(row["messages"].clone()).unwrap();
        let (answer, asked) = messages.split_last().unwrap();
        let prompt = tiny.template.encode_prompt(asked, &tiny.tokenizer).unwrap();
        let ids = tiny.tokenizer.encode(&format!("{}<|im_end|>", answer.content)).unwrap();
        (prompt, ids)
    };
    text.lines().map(conversation).collect()
}

#[test]
fn it_is_small_and_no_evaluation_prompt_was_trained_on() {
    let dir = root("checkpoints/tiny");
    let bytes: u64 = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes <= 4 << 20, "{bytes} bytes");
    let tiny = Tiny::load();
    let text = std::fs::read_to_string(dir.join("prompts.sha256")).unwrap();
    let trained: HashSet<&str> = text.lines().collect();
    let hash = |p: &Prompt| sha256(tiny.template.render(&p.messages, true).unwrap().as_bytes());
    let known =
        read_prompts(&root("data/prompts.jsonl")).unwrap().iter().filter(|p| trained.contains(&*hash(p))).count();
    assert!(known > 500, "hashes are of rendered prompts: {known} of the training prompts are in the list");
    for prompt in read_prompts(&root("eval/heldout.jsonl")).unwrap() {
        assert!(!trained.contains(&*hash(&prompt)), "{} was trained on", prompt.id);
    }
}

#[test]
fn it_knows_more_than_word_frequencies() {
    let tiny = Tiny::load();
    let conversations = held_out(&tiny);
    let vocabulary = tiny.model.config().vocab_size;
    let (mut nats, mut counts, mut tokens) = (0.0, vec![0.0; vocabulary], 0.0);
    for (prompt, answer) in &conversations {
        let ids = [prompt.as_slice(), answer].concat();
        let log_p = tiny.log_p(&ids, answer.len());
        for (row, &id) in log_p.chunks(vocabulary).zip(answer) {
            nats -= row[id as usize];
            counts[id as usize] += 1.0;
            tokens += 1.0;
        }
    }
    // The entropy of the held-out text's own frequencies: no unigram model of it is better.
    let unigram: f64 = counts.iter().filter(|c| **c > 0.0).map(|c| -c / tokens * f64::log2(c / tokens)).sum();
    let bits = nats / tokens / LN_2;
    eprintln!("tiny: {tokens} held-out tokens, {bits:.3} bits/token, unigram entropy {unigram:.3}");
    assert!(tokens > 2000.0, "{tokens} tokens");
    assert!(bits + 1.5 <= unigram, "{bits} bits/token against a unigram entropy of {unigram}");
}

#[test]
fn it_neither_loops_nor_babbles() {
    let tiny = Tiny::load();
    let prompts = &read_prompts(&root("eval/heldout.jsonl")).unwrap()[..20];
    let greedy = tiny.answers(prompts, 0.0, 96);
    let grams: Vec<&[u32]> = greedy.iter().flat_map(|ids| ids.windows(4)).collect();
    let distinct = grams.iter().collect::<HashSet<_>>().len() as f64 / grams.len() as f64;
    let vocabulary = tiny.model.config().vocab_size;
    let (mut nats, mut tokens) = (0.0, 0);
    for (prompt, answer) in prompts.iter().zip(tiny.answers(prompts, 1.0, 96)) {
        let ids = [tiny.prompt(prompt), answer.clone()].concat();
        for row in tiny.log_p(&ids, answer.len()).chunks(vocabulary) {
            nats -= row.iter().map(|l| l.exp() * l).sum::<f64>();
            tokens += 1;
        }
    }
    let entropy = nats / f64::from(tokens) / LN_2;
    eprintln!("tiny: distinct-4 {distinct:.3} of {} greedy 4-grams, entropy {entropy:.3} bits/token", grams.len());
    assert!(grams.len() > 300, "{} 4-grams", grams.len());
    assert!(distinct >= 0.5, "distinct-4 is {distinct}");
    assert!((1.5..=5.0).contains(&entropy), "entropy at T = 1 is {entropy} bits/token");
}
