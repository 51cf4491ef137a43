//! What can't be honoured is refused with the name of the field.

use serde_json::{Value, json};

use super::support::{CHAT, COMPLETIONS, Server, Setup, chat, completion};

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn wrong_fields_are_named() {
    let server = Server::start(Setup::default());
    let text = |value: &str| json!([{"role": "user", "content": value}]);
    let image = json!([{"role": "user", "content": [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]}]);
    let cases: Vec<(&str, Value, &str)> = vec![
        (CHAT, json!({"messages": []}), "messages"),
        (CHAT, json!({"messages": "hello"}), "messages"),
        (CHAT, json!({"messages": null}), "messages"),
        (
            CHAT,
            json!({"messages": [{"role": "wizard", "content": "x"}]}),
            "messages[0].role",
        ),
        (
            CHAT,
            json!({"messages": [{"role": "tool", "content": "x"}]}),
            "messages[0].role",
        ),
        (
            CHAT,
            json!({"messages": [{"role": "user"}]}),
            "messages[0].content",
        ),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": null}]}),
            "messages[0].content",
        ),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": 5}]}),
            "messages[0].content",
        ),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": "x", "name": "Ann"}]}),
            "messages[0].name",
        ),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": "x", "mood": 1}]}),
            "messages[0].mood",
        ),
        (
            CHAT,
            json!({"messages": image}),
            "messages[0].content[1].type",
        ),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
            "messages[0].content[0].text",
        ),
        (CHAT, json!({"n": 0}), "n"),
        (CHAT, json!({"n": 129}), "n"),
        (CHAT, json!({"n": -1}), "n"),
        (CHAT, json!({"n": 1.5}), "n"),
        (CHAT, json!({"n": "2"}), "n"),
        (CHAT, json!({"temperature": -0.1}), "temperature"),
        (CHAT, json!({"temperature": 101}), "temperature"),
        (CHAT, json!({"temperature": 1e300}), "temperature"),
        (CHAT, json!({"temperature": "hot"}), "temperature"),
        (CHAT, json!({"top_p": 0}), "top_p"),
        (CHAT, json!({"top_p": 1.1}), "top_p"),
        (CHAT, json!({"min_p": 2}), "min_p"),
        (CHAT, json!({"top_k": -1}), "top_k"),
        (CHAT, json!({"repetition_penalty": 0}), "repetition_penalty"),
        (
            CHAT,
            json!({"frequency_penalty": 1000}),
            "frequency_penalty",
        ),
        (CHAT, json!({"presence_penalty": -1000}), "presence_penalty"),
        (CHAT, json!({"max_tokens": 0}), "max_tokens"),
        (CHAT, json!({"max_tokens": -5}), "max_tokens"),
        (CHAT, json!({"max_tokens": 1e20}), "max_tokens"),
        (
            CHAT,
            json!({"max_tokens": 5, "max_completion_tokens": 6}),
            "max_tokens",
        ),
        (CHAT, json!({"stop": ["a", ""]}), "stop[1]"),
        (CHAT, json!({"stop": [1]}), "stop[0]"),
        (CHAT, json!({"stop": vec!["x"; 17]}), "stop"),
        (CHAT, json!({"stop": "x".repeat(1025)}), "stop[0]"),
        (CHAT, json!({"logit_bias": {"x": 1}}), "logit_bias"),
        (CHAT, json!({"logit_bias": {"280": 1}}), "logit_bias"),
        (CHAT, json!({"logit_bias": {"1": 1e9}}), "logit_bias"),
        (CHAT, json!({"logit_bias": {"1": "a"}}), "logit_bias.1"),
        (CHAT, json!({"logit_bias": [1]}), "logit_bias"),
        (CHAT, json!({"top_logprobs": 2}), "top_logprobs"),
        (
            CHAT,
            json!({"logprobs": true, "top_logprobs": 21}),
            "top_logprobs",
        ),
        (CHAT, json!({"logprobs": 2}), "logprobs"),
        (CHAT, json!({"seed": 1.5}), "seed"),
        (CHAT, json!({"seed": 1e30}), "seed"),
        (CHAT, json!({"stream": "yes"}), "stream"),
        (
            CHAT,
            json!({"stream": true, "stream_options": {"x": 1}}),
            "stream_options.x",
        ),
        (CHAT, json!({"tools": [{"type": "function"}]}), "tools[0]"),
        (CHAT, json!({"tool_choice": "required"}), "tool_choice"),
        (
            CHAT,
            json!({"response_format": {"type": "json_object"}}),
            "response_format.type",
        ),
        (
            CHAT,
            json!({"modalities": ["text", "audio"]}),
            "modalities[1]",
        ),
        (CHAT, json!({"store": true}), "store"),
        (CHAT, json!({"service_tier": "flex"}), "service_tier"),
        (
            CHAT,
            json!({"reasoning_effort": "high"}),
            "reasoning_effort",
        ),
        (CHAT, json!({"made_up": 1}), "made_up"),
        (CHAT, json!({"Temperature": 1}), "Temperature"),
        (CHAT, json!({"metadata": {"a": 1}}), "metadata.a"),
        (
            CHAT,
            json!({"messages": text(&"long ".repeat(600))}),
            "messages",
        ),
        (CHAT, json!({"echo": true}), "echo"),
        (COMPLETIONS, json!({"prompt": []}), "prompt"),
        (COMPLETIONS, json!({"prompt": [[]]}), "prompt"),
        (COMPLETIONS, json!({"prompt": [[1], []]}), "prompt[1]"),
        (COMPLETIONS, json!({"prompt": [1, "a"]}), "prompt"),
        (COMPLETIONS, json!({"prompt": [1, -2]}), "prompt[1]"),
        (COMPLETIONS, json!({"prompt": [[1], [280]]}), "prompt[1]"),
        (COMPLETIONS, json!({"prompt": {"a": 1}}), "prompt"),
        (COMPLETIONS, json!({"prompt": vec![1; 512]}), "prompt"),
        (COMPLETIONS, json!({"prompt": ["a", "b"], "n": 65}), "n"),
        (COMPLETIONS, json!({"suffix": "end"}), "suffix"),
        (COMPLETIONS, json!({"best_of": 3}), "best_of"),
        (COMPLETIONS, json!({"logprobs": 21}), "logprobs"),
        (COMPLETIONS, json!({"logprobs": true}), "logprobs"),
        (COMPLETIONS, json!({"max_tokens": 0}), "max_tokens"),
        (COMPLETIONS, json!({"messages": []}), "messages"),
    ];
    for (path, more, param) in cases {
        let body = if path == CHAT {
            chat(&more)
        } else {
            completion(&more)
        };
        let (message, named) = server.post(path, &body).error(400);
        assert_eq!(named.as_deref(), Some(param), "{more}: {message}");
        let field = param.split(['.', '[']).next().unwrap();
        let says =
            message.contains(field) || message.contains("prompt") || message.contains("stop");
        assert!(says, "{more}: {message}");
    }
}

#[test]
fn a_prompt_that_does_not_fit_is_told_with_both_numbers() {
    let server = Server::start(Setup::default());
    let body = completion(&json!({"prompt": vec![1; 600]}));
    let answer = server.post(COMPLETIONS, &body);
    let (message, _) = answer.error(400);
    assert!(
        message.contains("600") && message.contains("512"),
        "{message}"
    );
    assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
}

#[test]
fn values_that_change_nothing_are_taken() {
    let server = Server::start(Setup::default());
    let plain = server.post(CHAT, &chat(&json!({}))).ok()["choices"].clone();
    let more = json!({
        "n": null, "stop": null, "stream": false, "stream_options": null, "logprobs": false, "top_logprobs": null,
        "temperature": 1, "top_p": 1.0, "frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {},
        "store": false, "service_tier": "auto", "modalities": ["text"], "response_format": {"type": "text"},
        "tools": [], "tool_choice": "none", "parallel_tool_calls": true, "audio": null, "prediction": null,
        "reasoning_effort": null, "functions": null, "user": "u", "metadata": {"a": "b"},
        "max_completion_tokens": 12, "cache_prompt": true, "return_token_ids": false,
    });
    assert_eq!(server.post(CHAT, &chat(&more)).ok()["choices"], plain);
    // An answer can be sent back as it came.
    let mut messages = chat(&json!({}))["messages"].as_array().unwrap().clone();
    messages.push(plain[0]["message"].clone());
    messages.push(json!({"role": "user", "content": [{"type": "text", "text": "More."}]}));
    server
        .post(CHAT, &chat(&json!({"messages": messages})))
        .ok();
    // Developers are systems.
    let of = |role: &str| {
        let messages =
            json!([{"role": role, "content": "Be brief."}, {"role": "user", "content": "Hi."}]);
        server
            .post(CHAT, &chat(&json!({"messages": messages})))
            .ok()["choices"]
            .clone()
    };
    assert_eq!(of("developer"), of("system"));
}

#[test]
fn what_is_no_json_is_refused() {
    let server = Server::start(Setup::default());
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let good = chat(&json!({})).to_string();
    let bodies: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"{".to_vec(),
        b"nonsense".to_vec(),
        b"[]".to_vec(),
        b"null".to_vec(),
        b"{\"model\": \"tiny\", \"messages\": [".to_vec(),
        good.replace("\"seed\":7", "\"temperature\":NaN")
            .into_bytes(),
        good.replace("\"seed\":7", "\"temperature\":Infinity")
            .into_bytes(),
        good.replace("\"seed\":7", "\"temperature\":1e999")
            .into_bytes(),
        good.replace("\"seed\":7", "\"temperature\":1e999999999999")
            .into_bytes(),
        good.replace("\"seed\":7", "\"seed\":7,\"seed\":8")
            .into_bytes(),
        format!("{good}{good}").into_bytes(),
        good.replace("Tell me.", "\\ud800").into_bytes(),
        [b"{\"model\": \"".as_slice(), &[0xff, 0xfe], b"\"}"].concat(),
        [
            &good.as_bytes()[..good.len() / 2],
            &[0xc3, 0x28],
            &good.as_bytes()[good.len() / 2..],
        ]
        .concat(),
        format!("{{\"messages\": {deep}}}").into_bytes(),
        format!("{{\"x\": {deep}}}").into_bytes(),
        vec![b' '; 100_000],
    ];
    for body in &bodies {
        for path in [CHAT, COMPLETIONS, "/tokenize", "/detokenize"] {
            server.post_bytes(path, body).error(400);
        }
    }
    server.post(CHAT, &chat(&json!({}))).ok();
}
