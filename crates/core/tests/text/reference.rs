//! SmolLM2's tokenizer and template against llama.cpp's ids and Jinja2's renders (`fixtures/tokenizer/make.py`).

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use spectrain_core::chat::{ChatTemplate, Message};
use spectrain_core::tokenizer::Tokenizer;

#[derive(Deserialize)]
struct Row {
    text: String,
    ids: Vec<u32>,
}

#[derive(Deserialize)]
struct Conversation {
    messages: Vec<Message>,
    add_generation_prompt: bool,
    text: String,
    ids: Vec<u32>,
}

/// The fetched model: `SPECTRAIN_SMOLLM2`, or `checkpoints/smollm2-135m-instruct` of the workspace. Where continuous
/// integration runs (`CI` is set), it must be there.
fn smollm2() -> Option<PathBuf> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../checkpoints/smollm2-135m-instruct");
    let dir = std::env::var_os("SPECTRAIN_SMOLLM2").map_or(default, PathBuf::from);
    if dir.join("tokenizer.json").exists() {
        return Some(dir);
    }
    assert!(std::env::var_os("CI").is_none(), "{} holds no model: run `spectrain fetch` first", dir.display());
    eprintln!("skipped: {} holds no model", dir.display());
    None
}

fn fixture<T: for<'a> Deserialize<'a>>(name: &str) -> Vec<T> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tokenizer").join(name);
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn ids_are_those_of_llama_cpp() {
    let Some(dir) = smollm2() else { return };
    let tokenizer = Tokenizer::load(&dir).unwrap();
    tokenizer.fits(49_152).unwrap();
    assert_eq!(tokenizer.vocab_size(), 49_152);
    let rows: Vec<Row> = fixture("strings.json");
    assert!(rows.len() >= 220);
    for Row { text, ids } in &rows {
        assert_eq!(tokenizer.encode(text).unwrap(), *ids, "{text:?}");
    }
    // Some bytes are in no token of this vocabulary and vanish; plain text must come back.
    for text in
        rows.iter().map(|row| &row.text).filter(|text| text.bytes().all(|b| matches!(b, b'\t'..=b'\r' | b' '..=b'~')))
    {
        assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap(), false).unwrap(), *text);
    }
}

#[test]
fn line_breaks_before_a_digit_stay_one_token() {
    let Some(dir) = smollm2() else { return };
    let tokenizer = Tokenizer::load(&dir).unwrap();
    let tokens = |tokenizer: &Tokenizer, text: &str| -> Vec<String> {
        tokenizer.encode(text).unwrap().into_iter().map(|id| tokenizer.id_to_token(id).unwrap()).collect()
    };
    assert_eq!(tokens(&tokenizer, "\n\n1"), ["ĊĊ", "1"]);
    assert_eq!(tokens(&tokenizer, "in 1969"), ["in", "Ġ", "1", "9", "6", "9"]);
    // The trap: the same vocabulary without the digit split.
    let mut json: Value = serde_json::from_slice(&fs::read(dir.join("tokenizer.json")).unwrap()).unwrap();
    json["pre_tokenizer"] = json["pre_tokenizer"]["pretokenizers"][1].clone();
    let trap = tempfile::tempdir().unwrap();
    fs::write(trap.path().join("tokenizer.json"), json.to_string()).unwrap();
    assert_eq!(tokens(&Tokenizer::load(trap.path()).unwrap(), "\n\n1"), ["Ċ", "Ċ", "1"]);
}

#[test]
fn renders_and_ids_of_conversations() {
    let Some(dir) = smollm2() else { return };
    let tokenizer = Tokenizer::load(&dir).unwrap();
    let template = ChatTemplate::load(&dir, &tokenizer).unwrap();
    assert_eq!(template.stop_ids(), [2]);
    let rows: Vec<Conversation> = fixture("conversations.json");
    assert!(rows.len() >= 50);
    for row in &rows {
        assert_eq!(template.render(&row.messages, row.add_generation_prompt).unwrap(), row.text);
        assert_eq!(tokenizer.encode(&row.text).unwrap(), row.ids, "{:?}", row.text);
        if row.add_generation_prompt {
            assert_eq!(template.encode_prompt(&row.messages, &tokenizer).unwrap(), row.ids);
        }
    }
}

#[test]
fn masks_of_conversations() {
    let Some(dir) = smollm2() else { return };
    let tokenizer = Tokenizer::load(&dir).unwrap();
    let template = ChatTemplate::load(&dir, &tokenizer).unwrap();
    let rows: Vec<Conversation> = fixture("conversations.json");
    let mut turns_seen = 0;
    for Conversation { messages, ids, .. } in rows.iter().filter(|row| !row.add_generation_prompt) {
        let encoded = template.encode_conversation(messages, &tokenizer).unwrap();
        let answers: Vec<usize> = (0..messages.len()).filter(|&m| messages[m].role == "assistant").collect();
        assert_eq!(encoded.turns.len(), answers.len());
        for (turn, &message) in encoded.turns.iter().zip(&answers) {
            let text = tokenizer.decode(&encoded.ids[turn.clone()], false).unwrap();
            assert_eq!(text, format!("{}<|im_end|>", messages[message].content));
            assert_eq!(tokenizer.decode(&encoded.ids[turn.end..=turn.end], false).unwrap(), "\n");
            // An earlier answer that begins with a line break was cut there; a prompt that repeats it is not.
            if !answers.iter().any(|&m| m < message && messages[m].content.starts_with('\n')) {
                let prompt = template.encode_prompt(&messages[..message], &tokenizer).unwrap();
                assert_eq!(encoded.ids[..turn.start], prompt, "the prompt at run time");
            }
            turns_seen += 1;
        }
        let masked: usize = encoded.turns.iter().map(ExactSizeIterator::len).sum();
        assert_eq!(encoded.loss_mask.iter().filter(|&&m| m).count(), masked);
        if !answers.iter().any(|&m| messages[m].content.starts_with('\n')) {
            assert_eq!(encoded.ids, *ids);
        }
    }
    assert!(turns_seen >= 40, "{turns_seen}");
}
