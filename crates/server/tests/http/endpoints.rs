//! Each endpoint does what it says.

use engine::{Event, Request, derive_seed};
use serde_json::{Value, json};
use text::{ChatTemplate, RenderInput};

use super::support::{
    CHAT, COMPLETIONS, MODEL, Server, Setup, chat, completion, engine, tokenizer,
};

/// What the engine itself answers.
fn direct(request: Request) -> (String, Vec<u32>) {
    let mut engine = engine(&Setup::default());
    engine.submit(request).unwrap();
    let (mut events, mut text, mut tokens) = (Vec::new(), String::new(), Vec::new());
    while !engine.is_idle() {
        engine.step(&mut events).unwrap();
    }
    for event in events {
        match event {
            Event::Token(token) => {
                text.push_str(&token.text);
                tokens.push(token.token);
            }
            Event::Finished(finished) => text.push_str(&finished.text),
            _ => {}
        }
    }
    (text, tokens)
}

fn sampled(prompt: Vec<u32>, seed: u64) -> Request {
    let mut request = Request {
        prompt,
        max_tokens: Some(12),
        ignore_end: true,
        ..Request::default()
    };
    request.sampling.temperature = 1.0;
    request.sampling.seed = seed;
    request
}

#[test]
fn a_conversation_gets_the_engines_answer() {
    let server = Server::start(Setup::default());
    let answer = server.post(CHAT, &chat(&json!({"return_token_ids": true})));
    assert_eq!(answer.header("x-seed"), Some("7"));
    assert!(answer.header("x-request-id").is_some());
    let body = answer.ok();
    let tokenizer = tokenizer();
    let template = ChatTemplate::of(&tokenizer).unwrap().unwrap();
    let messages = [json!({"role": "user", "content": "Tell me."})];
    let rendered = template.render(&RenderInput::new(&messages)).unwrap();
    let prompt = tokenizer.encode_chat(&rendered);
    let (text, tokens) = direct(sampled(prompt.clone(), 7));
    let choice = &body["choices"][0];
    assert_eq!(choice["message"]["content"], text);
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["token_ids"], json!(tokens));
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["logprobs"], Value::Null);
    assert_eq!(body["prompt_token_ids"], json!(prompt));
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], MODEL);
    assert_eq!(body["system_fingerprint"], "fp_test");
    let expected = json!({
        "prompt_tokens": prompt.len(),
        "completion_tokens": 12,
        "total_tokens": prompt.len() + 12,
        "prompt_tokens_details": {"cached_tokens": 0},
    });
    assert_eq!(body["usage"], expected);
}

#[test]
fn four_answers_are_those_of_the_derived_seeds() {
    let server = Server::start(Setup::default());
    let with_ids = json!({"n": 4, "return_token_ids": true});
    let body = server.post(COMPLETIONS, &completion(&with_ids)).ok();
    let mut distinct = std::collections::HashSet::new();
    for index in 0..4u32 {
        let (text, tokens) = direct(sampled(vec![1, 2, 3, 4], derive_seed(7, index)));
        let choice = &body["choices"][index as usize];
        assert_eq!(choice["index"], index);
        assert_eq!(choice["text"], text);
        assert_eq!(choice["token_ids"], json!(tokens));
        distinct.insert(tokens);
    }
    assert_eq!(distinct.len(), 4);
    assert_eq!(body["usage"]["prompt_tokens"], 4);
    assert_eq!(body["usage"]["completion_tokens"], 48);
}

#[test]
fn several_prompts_are_answered_as_each_alone() {
    let server = Server::start(Setup::default());
    let prompts = json!({"prompt": [[1, 2, 3], [9, 8], [100, 101, 102, 103]], "n": 2});
    let together = server.post(COMPLETIONS, &completion(&prompts)).ok();
    assert_eq!(together["usage"]["prompt_tokens"], 9);
    for (at, prompt) in prompts["prompt"].as_array().unwrap().iter().enumerate() {
        let alone = json!({"prompt": prompt, "n": 2});
        let alone = server.post(COMPLETIONS, &completion(&alone)).ok();
        for i in 0..2 {
            assert_eq!(
                together["choices"][at * 2 + i]["text"],
                alone["choices"][i]["text"]
            );
        }
    }
    let texts = server
        .post(COMPLETIONS, &completion(&json!({"prompt": ["Hi", "Ho"]})))
        .ok();
    for (at, text) in ["Hi", "Ho"].into_iter().enumerate() {
        let alone = server
            .post(COMPLETIONS, &completion(&json!({"prompt": text})))
            .ok();
        assert_eq!(texts["choices"][at]["text"], alone["choices"][0]["text"]);
    }
}

#[test]
fn parameters_reach_the_sampler() {
    let server = Server::start(Setup::default());
    let forced = json!({"logit_bias": {"65": 1000}, "return_token_ids": true});
    let body = server.post(CHAT, &chat(&forced)).ok();
    assert_eq!(body["choices"][0]["token_ids"], json!(vec![65; 12]));
    let text = body["choices"][0]["message"]["content"]
        .as_str()
        .unwrap()
        .to_owned();
    // The same text as a stop text ends it at once.
    let stopped = json!({"logit_bias": {"65": 1000}, "stop": &text[..1]});
    let body = server.post(CHAT, &chat(&stopped)).ok();
    assert_eq!(body["choices"][0]["message"]["content"], "");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert_eq!(body["usage"]["completion_tokens"], 1);
    let ids = |more: Value| {
        let mut more = more;
        more["return_token_ids"] = json!(true);
        let body = server.post(COMPLETIONS, &completion(&more)).ok();
        body["choices"][0]["token_ids"].clone()
    };
    let plain = ids(json!({}));
    assert_eq!(ids(json!({"top_k": 1})), ids(json!({"temperature": 0})));
    assert_eq!(ids(json!({"min_p": 1})), ids(json!({"temperature": 0})));
    assert_eq!(ids(json!({"top_p": 1e-9})), ids(json!({"temperature": 0})));
    assert_ne!(ids(json!({"seed": 8})), plain);
    assert_ne!(ids(json!({"repetition_penalty": 50})), plain);
    assert_eq!(ids(json!({"seed": -1})), ids(json!({"seed": u64::MAX})));
    assert_eq!(
        ids(json!({"top_k": 0, "top_p": 1, "min_p": 0, "n": 1, "best_of": 1})),
        plain
    );
}

#[test]
fn log_probs_are_told() {
    let server = Server::start(Setup::default());
    let more = json!({"logprobs": true, "top_logprobs": 3, "return_token_ids": true});
    let body = server.post(CHAT, &chat(&more)).ok();
    let choice = &body["choices"][0];
    let content = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 12);
    let tokenizer = tokenizer();
    for (entry, id) in content.iter().zip(choice["token_ids"].as_array().unwrap()) {
        let bytes = tokenizer.token_bytes(id.as_u64().unwrap() as u32);
        assert_eq!(entry["bytes"], json!(bytes));
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        let of = |value: &Value| value["logprob"].as_f64().unwrap();
        assert!(of(&top[0]) >= of(&top[1]) && of(&top[1]) >= of(&top[2]));
        assert!(of(entry) <= of(&top[0]) && of(&top[0]) <= 0.0);
    }
    let body = server.post(CHAT, &chat(&json!({"logprobs": true}))).ok();
    let entry = &body["choices"][0]["logprobs"]["content"][0];
    assert_eq!(entry["top_logprobs"], json!([]));
}

#[test]
fn echo_scores_every_position_cached_or_not() {
    let server = Server::start(Setup::default());
    let prompt: Vec<u32> = (0..200).map(|i| (i * 7) % 250).collect();
    let score = |max_tokens: usize| {
        let more = json!({
            "prompt": prompt, "echo": true, "logprobs": 2, "max_tokens": max_tokens, "temperature": 0,
        });
        let body = server.post(COMPLETIONS, &completion(&more)).ok();
        assert_eq!(body["usage"]["completion_tokens"], max_tokens);
        body["choices"][0].clone()
    };
    let (cold, warm, only) = (score(3), score(3), score(0));
    assert_eq!(cold, warm);
    let log_probs = &cold["logprobs"];
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(log_probs[name].as_array().unwrap().len(), 203, "{name}");
        let whole = only["logprobs"][name].as_array().unwrap();
        assert_eq!(
            whole[..],
            log_probs[name].as_array().unwrap()[..200],
            "{name}"
        );
    }
    assert_eq!(log_probs["token_logprobs"][0], Value::Null);
    assert_eq!(log_probs["top_logprobs"][0], Value::Null);
    assert!(log_probs["token_logprobs"][1].as_f64().unwrap() < 0.0);
    // What is scored is what would be generated: the prompt's log-probabilities are those of an answer.
    let begin = json!({"prompt": prompt[..150], "temperature": 0, "logprobs": 0, "max_tokens": 1});
    let begin = server.post(COMPLETIONS, &completion(&begin)).ok();
    let next = begin["choices"][0]["logprobs"]["tokens"][0]
        .as_str()
        .unwrap()
        .to_owned();
    let at = log_probs["top_logprobs"][150].as_object().unwrap();
    let told = begin["choices"][0]["logprobs"]["token_logprobs"][0]
        .as_f64()
        .unwrap();
    assert_eq!(at.get(&next).and_then(Value::as_f64), Some(told));
    let text = cold["text"].as_str().unwrap();
    let offsets = log_probs["text_offset"].as_array().unwrap();
    let last = offsets.last().unwrap().as_u64().unwrap() as usize;
    assert!(last <= text.chars().count());
    assert!(text.starts_with(only["text"].as_str().unwrap()));
}

#[test]
fn a_repeated_prompt_is_found_in_the_cache() {
    let server = Server::start(Setup::default());
    let prompt: Vec<u32> = (0..300).map(|i| (i * 7) % 250).collect();
    let more =
        json!({"prompt": prompt, "logits_hash": true, "return_token_ids": true, "logprobs": 2});
    let mut plain = more.clone();
    plain["logits_hash"] = json!(false);
    let cold = server.post(COMPLETIONS, &completion(&plain)).ok();
    let warm = server.post(COMPLETIONS, &completion(&plain)).ok();
    assert_eq!(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let cached = warm["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap();
    assert!((1..300).contains(&cached), "{cached}");
    assert_eq!(server.figure("prefix_hit_tokens"), cached as f64);
    assert_eq!(cold["choices"], warm["choices"]);
    let mut without = plain.clone();
    without["cache_prompt"] = json!(false);
    let without = server.post(COMPLETIONS, &completion(&without)).ok();
    assert_eq!(
        without["usage"]["prompt_tokens_details"]["cached_tokens"],
        0
    );
    let hashed = server.post(COMPLETIONS, &completion(&more)).ok();
    assert_eq!(
        hashed["choices"][0]["logits_hash"].as_str().unwrap().len(),
        64
    );
}

#[test]
fn models_are_listed() {
    let server = Server::start(Setup::default());
    let list = server.get("/v1/models").ok();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], MODEL);
    assert_eq!(server.get("/v1/models/tiny").ok(), list["data"][0]);
    assert_eq!(
        server.get("/v1/models/other").error(404).1.as_deref(),
        Some("model")
    );
    let other = server.post(CHAT, &chat(&json!({"model": "gpt-4"})));
    assert_eq!(other.error(404).1.as_deref(), Some("model"));
}

#[test]
fn tokens_and_texts_go_both_ways() {
    let server = Server::start(Setup::default());
    let tokenizer = tokenizer();
    let text = "Hello, wörld \u{1F600}!";
    let body = json!({"prompt": text, "add_special_tokens": false, "return_token_strs": true});
    let answer = server.post("/tokenize", &body).ok();
    let options = text::EncodeOptions {
        add_special: false,
        parse_special: true,
    };
    assert_eq!(answer["tokens"], json!(tokenizer.encode(text, options)));
    assert_eq!(answer["count"], answer["tokens"].as_array().unwrap().len());
    assert_eq!(answer["max_model_len"], 512);
    assert_eq!(answer["token_strs"][0], "H");
    let back = server
        .post("/detokenize", &json!({"tokens": answer["tokens"]}))
        .ok();
    assert_eq!(back["prompt"], text);
    let chat = chat(&json!({"return_token_ids": true}));
    let body = json!({"messages": chat["messages"]});
    let tokens = server.post("/tokenize", &body).ok();
    assert_eq!(
        tokens["tokens"],
        server.post(CHAT, &chat).ok()["prompt_token_ids"]
    );
    let wrong = server.post("/detokenize", &json!({"tokens": [1, 280]}));
    assert_eq!(wrong.error(400).1.as_deref(), Some("tokens[1]"));
    for body in [json!({}), json!({"prompt": "", "messages": []})] {
        assert_eq!(
            server.post("/tokenize", &body).error(400).1.as_deref(),
            Some("prompt")
        );
    }
}

#[test]
fn the_server_tells_of_itself() {
    let server = Server::start(Setup::default());
    assert_eq!(server.get("/health").ok()["status"], "ok");
    assert_eq!(server.get("/ready").ok()["status"], "ok");
    server.post(CHAT, &chat(&json!({"n": 2}))).ok();
    server.wait_for("requests_running", |n| n == 0.0);
    assert_eq!(server.figure("requests_submitted"), 2.0);
    assert_eq!(server.figure("requests_reached_length"), 2.0);
    assert_eq!(server.figure("generated_tokens"), 24.0);
    assert_eq!(server.figure("time_to_first_token_seconds_count"), 1.0);
    assert_eq!(server.figure("inter_token_seconds_count"), 22.0);
    assert!(server.figure("pages_total") > 0.0);
    assert_eq!(server.figure("pages_held"), 0.0);
    for name in [
        "requests_waiting",
        "requests_failed",
        "requests_cancelled",
        "slow_clients",
    ] {
        assert_eq!(server.figure(name), 0.0, "{name}");
    }
    let text = String::from_utf8(server.get("/metrics").body).unwrap();
    let line = "plainchant_http_answers_total{path=\"/v1/chat/completions\",status=\"200\"} 1";
    assert!(text.contains(line), "{text}");
    assert!(text.ends_with("# EOF\n"));
    let description = server.get("/openapi.json").ok();
    let paths: Vec<&String> = description["paths"].as_object().unwrap().keys().collect();
    for path in [
        CHAT,
        COMPLETIONS,
        "/v1/models",
        "/tokenize",
        "/detokenize",
        "/metrics",
        "/health",
        "/ready",
    ] {
        assert!(
            paths.iter().any(|known| *known == path),
            "{path} in {paths:?}"
        );
    }
    let fields = &description["components"]["schemas"]["ChatRequest"]["properties"];
    assert!(fields["messages"].is_object() && fields["top_k"].is_object());
}

#[test]
fn a_full_queue_is_told() {
    let server = Server::start(Setup {
        sequences: 1,
        queue: 1,
        ..Setup::default()
    });
    let answer = server.post(CHAT, &chat(&json!({"n": 8})));
    let retry = answer.header("retry-after").map(str::to_owned);
    answer.error(429);
    assert!(retry.unwrap().parse::<u32>().unwrap() >= 1);
    // None of the eight is left behind.
    server.post(CHAT, &chat(&json!({}))).ok();
    assert_eq!(server.figure("requests_running"), 0.0);
    assert_eq!(server.figure("requests_waiting"), 0.0);
}
