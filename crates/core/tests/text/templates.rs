//! Loss masks and refusals with templates of our own.

use std::fs;

use serde_json::{Value, json};
use spectrain_core::chat::{ChatError, ChatTemplate, Message};

use crate::small::{CHATML, directory, tokenizer, tokenizer_json};

const END: u32 = 1;

fn talk(contents: &[&str]) -> Vec<Message> {
    let roles = ["user", "assistant"].into_iter().cycle();
    roles.zip(contents).map(|(role, content)| Message::new(role, *content)).collect()
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, None, Some("<|im_end|>".into()), [END]).unwrap()
}

/// The texts of the supervised turns.
fn supervised(source: &str, messages: &[Message]) -> Vec<String> {
    let tokenizer = tokenizer();
    let encoded = template(source).encode_conversation(messages, &tokenizer).unwrap();
    let mut mask = vec![false; encoded.ids.len()];
    encoded.turns.iter().for_each(|turn| mask[turn.clone()].fill(true));
    assert_eq!(mask, encoded.loss_mask, "the mask is the union of the turns");
    encoded.turns.iter().map(|turn| tokenizer.decode(&encoded.ids[turn.clone()], false).unwrap()).collect()
}

#[test]
fn the_mask_is_the_answer_and_its_end() {
    assert_eq!(supervised(CHATML, &talk(&["hi", "yes"])), ["yes<|im_end|>"]);
    assert_eq!(supervised(CHATML, &talk(&["hi", "one", "more", "two", "bye"])), ["one<|im_end|>", "two<|im_end|>"]);
    assert_eq!(supervised(CHATML, &talk(&["hi", ""])), ["<|im_end|>"]);
    assert_eq!(supervised(CHATML, &talk(&["hi"])), [""; 0]);
    assert_eq!(supervised(CHATML, &[]), [""; 0]);
    assert_eq!(supervised(CHATML, &[Message::new("assistant", "first")]), ["first<|im_end|>"]);
}

#[test]
fn an_end_token_inside_the_answer_does_not_end_the_mask() {
    assert_eq!(supervised(CHATML, &talk(&["hi", "a<|im_end|>b"])), ["a<|im_end|>b<|im_end|>"]);
}

#[test]
fn an_answer_that_begins_with_a_break_keeps_the_prompts_ids() {
    let (tokenizer, template) = (tokenizer(), template(CHATML));
    let messages = talk(&["hi", "\nyes", "more", "\n\nno"]);
    let whole = tokenizer.encode(&template.render(&messages, false).unwrap()).unwrap();
    let encoded = template.encode_conversation(&messages, &tokenizer).unwrap();
    let prompt = template.encode_prompt(&messages[..1], &tokenizer).unwrap();
    assert!(!whole.starts_with(&prompt), "the two line breaks merge in the whole render, or this test shows nothing");
    assert!(encoded.ids.starts_with(&prompt));
    assert_eq!(encoded.turns[0].start, prompt.len());
    assert_eq!(supervised(CHATML, &messages), ["\nyes<|im_end|>", "\n\nno<|im_end|>"]);
}

#[test]
fn without_a_cut_the_ids_are_those_of_the_whole_render() {
    let (tokenizer, template) = (tokenizer(), template(CHATML));
    let messages = talk(&["a\n\nb", "c\n\n1", "\n\nd", "2 e"]);
    let whole = tokenizer.encode(&template.render(&messages, false).unwrap()).unwrap();
    assert_eq!(template.encode_conversation(&messages, &tokenizer).unwrap().ids, whole);
}

#[test]
fn a_template_that_rewrites_earlier_turns_is_refused() {
    // Earlier answers lose their text, as templates do that drop the reasoning of past turns.
    let source = "{% for m in messages %}{{ m.role + '\n' }}{% if m.role == 'user' or loop.last %}{{ m.content }}\
        {% endif %}{{ '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant\n' }}{% endif %}";
    let refused = template(source).encode_conversation(&talk(&["a", "b", "c", "d"]), &tokenizer()).unwrap_err();
    assert!(matches!(refused, ChatError::NotAPrefix { shorter: 2, longer: 3 }), "{refused}");
    assert_eq!(supervised(source, &talk(&["a", "b"])), ["b<|im_end|>"]);
}

#[test]
fn a_generation_prompt_that_is_not_in_the_render_is_refused() {
    let source = CHATML.replace("assistant\n' }}{% endif %}", "assistant\nthink' }}{% endif %}");
    let refused = template(&source).encode_conversation(&talk(&["a", "b"]), &tokenizer()).unwrap_err();
    assert!(matches!(refused, ChatError::NotAPrefix { shorter: 1, longer: 2 }), "{refused}");
}

#[test]
fn an_answer_without_an_end_is_refused() {
    let source = "{% for m in messages %}{{ m.role + '\n' + m.content + '\n' }}{% endfor %}\
        {% if add_generation_prompt %}{{ 'assistant\n' }}{% endif %}";
    let refused = template(source).encode_conversation(&talk(&["a", "b"]), &tokenizer()).unwrap_err();
    assert!(matches!(refused, ChatError::NoEndOfTurn { message: 1 }), "{refused}");
}

#[test]
fn the_templates_own_words_reach_the_reader() {
    let template =
        template("{% if messages[0].role != 'user' %}{{ raise_exception('start with the user') }}{% endif %}");
    let refused = template.render(&[Message::new("system", "x")], false).unwrap_err();
    assert!(matches!(refused, ChatError::Render { messages: 1, .. }));
    assert!(refused.to_string().contains("start with the user"), "{refused}");
    let broken = ChatTemplate::new("{% for m in %}", None, None, []).unwrap_err();
    assert!(matches!(broken, ChatError::Template(_)), "{broken}");
}

#[test]
fn special_tokens_are_what_the_configuration_says() {
    let template =
        ChatTemplate::new("{{ bos_token }}|{{ eos_token }}|{{ tools is none }}", Some("<s>".into()), None, []);
    assert_eq!(template.unwrap().render(&[], false).unwrap(), "<s>||True");
}

fn load(config: &Value, generation: &Value, file: Option<&str>) -> Result<ChatTemplate, ChatError> {
    let dir = directory(&tokenizer_json(), config, generation);
    if let Some(source) = file {
        fs::write(dir.path().join("chat_template.jinja"), source).unwrap();
    }
    ChatTemplate::load(dir.path(), &tokenizer())
}

#[test]
fn the_template_is_found_where_it_may_be() {
    let eos = json!({ "content": "<|im_end|>", "special": true });
    let text = |template: Result<ChatTemplate, ChatError>| template.unwrap().render(&[], false).unwrap();
    assert_eq!(text(load(&json!({ "chat_template": "one", "eos_token": eos }), &json!({}), None)), "one");
    let list =
        json!([{ "name": "tool_use", "template": "no" }, { "name": "default", "template": "two{{ eos_token }}" }]);
    assert_eq!(text(load(&json!({ "chat_template": list, "eos_token": eos }), &json!({}), None)), "two<|im_end|>");
    assert_eq!(text(load(&json!({ "chat_template": "one", "eos_token": eos }), &json!({}), Some("file"))), "file");
    let refused = load(&json!({ "eos_token": eos }), &json!({}), None).unwrap_err();
    assert!(matches!(refused, ChatError::NoTemplate { .. }), "{refused}");
}

#[test]
fn what_ends_an_answer_is_collected() {
    let with_eos = json!({ "chat_template": "", "eos_token": "<|im_end|>" });
    let without = json!({ "chat_template": "" });
    let stops = |config: &Value, generation: Value| load(config, &generation, None).map(|t| t.stop_ids());
    assert_eq!(stops(&with_eos, json!({})).unwrap(), [1]);
    assert_eq!(stops(&without, json!({ "eos_token_id": 5 })).unwrap(), [5]);
    assert_eq!(stops(&with_eos, json!({ "eos_token_id": [7, 5, 1] })).unwrap(), [1, 5, 7]);
    assert!(matches!(stops(&without, json!({ "eos_token_id": 4000 })), Err(ChatError::NoStop { .. })));
    assert!(matches!(stops(&without, json!({})), Err(ChatError::NoStop { .. })));
}
