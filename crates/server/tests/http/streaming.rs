//! Streams say the same as whole answers.

use serde_json::{Value, json};

use super::support::{CHAT, COMPLETIONS, Server, Setup, chat, completion};

/// The request and its stream.
fn both(server: &Server, path: &str, body: &Value) -> (Value, Vec<Value>) {
    let whole = server.post(path, body).ok();
    let mut body = body.clone();
    body["stream"] = json!(true);
    let events = server.post(path, &body).events();
    assert_eq!(events.last(), Some(&json!("[DONE]")));
    (whole, events[..events.len() - 1].to_vec())
}

fn of_choice(events: &[Value], index: usize) -> impl Iterator<Item = &Value> {
    let choices = events.iter().filter_map(|event| event["choices"].get(0));
    choices.filter(move |choice| choice["index"] == index)
}

#[test]
fn a_stream_of_a_conversation_says_the_same() {
    let server = Server::start(Setup::default());
    let more = json!({
        "n": 3, "logprobs": true, "top_logprobs": 2, "return_token_ids": true, "logits_hash": true,
    });
    let (whole, events) = both(&server, CHAT, &chat(&more));
    for index in 0..3 {
        let expected = &whole["choices"][index];
        let (mut text, mut log_probs, mut ids) = (String::new(), Vec::new(), Vec::new());
        let parts: Vec<&Value> = of_choice(&events, index).collect();
        assert_eq!(parts[0]["delta"]["role"], "assistant");
        for part in &parts {
            text.push_str(part["delta"]["content"].as_str().unwrap_or(""));
            log_probs.extend(
                part["logprobs"]["content"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default(),
            );
            ids.extend(part["token_ids"].as_array().cloned().unwrap_or_default());
        }
        assert_eq!(expected["message"]["content"], text);
        assert_eq!(expected["logprobs"]["content"], json!(log_probs));
        assert_eq!(expected["token_ids"], json!(ids));
        let last = parts.last().unwrap();
        assert_eq!(last["finish_reason"], "length");
        assert_eq!(last["logits_hash"], expected["logits_hash"]);
        let ends = parts.iter().filter(|part| !part["finish_reason"].is_null());
        assert_eq!(ends.count(), 1);
    }
    assert_eq!(events[0]["prompt_token_ids"], whole["prompt_token_ids"]);
    for event in &events {
        assert_eq!(event["object"], "chat.completion.chunk");
        assert_eq!(event["id"], events[0]["id"]);
        assert_eq!(event["system_fingerprint"], "fp_test");
        assert_eq!(event.get("usage"), None);
    }
}

#[test]
fn a_stream_of_a_completion_says_the_same() {
    let server = Server::start(Setup::default());
    let more = json!({
        "prompt": [[5, 6, 7], [8, 9]], "n": 2, "logprobs": 2, "echo": true, "return_token_ids": true,
    });
    let (whole, events) = both(&server, COMPLETIONS, &completion(&more));
    for index in 0..4 {
        let expected = &whole["choices"][index];
        let mut text = String::new();
        let mut joined =
            json!({"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []});
        for part in of_choice(&events, index) {
            text.push_str(part["text"].as_str().unwrap());
            for (name, all) in joined.as_object_mut().unwrap() {
                let new = part["logprobs"][name].as_array().unwrap().clone();
                all.as_array_mut().unwrap().extend(new);
            }
        }
        assert_eq!(expected["text"], text);
        assert_eq!(expected["logprobs"], joined);
        let first = of_choice(&events, index).next().unwrap();
        assert_eq!(first["prompt_token_ids"], expected["prompt_token_ids"]);
    }
}

#[test]
fn usage_comes_last_and_only_if_asked_for() {
    let server = Server::start(Setup::default());
    for (path, body) in [
        (CHAT, chat(&json!({}))),
        (COMPLETIONS, completion(&json!({}))),
    ] {
        let whole = server.post(path, &body).ok();
        let mut body = body.clone();
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let events = server.post(path, &body).events();
        let (last, others) = events[..events.len() - 1].split_last().unwrap();
        assert_eq!(last["choices"], json!([]));
        for name in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(last["usage"][name], whole["usage"][name]);
        }
        assert!(others.iter().all(|event| event["usage"] == Value::Null));
        assert!(others.iter().all(|event| event.get("usage").is_some()));
        body["stream_options"] = json!({"include_usage": false});
        let events = server.post(path, &body).events();
        assert!(events.iter().all(|event| event.get("usage").is_none()));
        body["stream"] = json!(false);
        let param = server.post(path, &body).error(400).1;
        assert_eq!(param.as_deref(), Some("stream_options"));
    }
}

#[test]
fn characters_come_whole() {
    let server = Server::start(Setup::default());
    // The four bytes of an emoji, one token each, forced in turn by a stop at none: any text must be whole.
    let (whole, events) = both(
        &server,
        COMPLETIONS,
        &completion(&json!({"max_tokens": 200})),
    );
    let text: String = of_choice(&events, 0)
        .map(|part| part["text"].as_str().unwrap())
        .collect();
    assert_eq!(whole["choices"][0]["text"], text);
}
