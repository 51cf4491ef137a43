//! `bench-serve` against a server that gives canned answers.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Outcome, list, run};

/// What a request asks.
struct Asked {
    path: String,
    head: String,
    body: Value,
}

/// A server on loopback; it ends with the tests.
struct Server {
    url: String,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl Server {
    /// Answers each request with what `answer` gives, and closes the connection.
    fn new(answer: impl Fn(&Asked) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (bodies, answer) = (Arc::clone(&asked), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (bodies, answer) = (Arc::clone(&bodies), Arc::clone(&answer));
                std::thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    let request = read(&mut stream);
                    bodies.lock().unwrap().push(request.body.clone());
                    send(
                        &mut stream,
                        &answer(&request),
                        request.body["max_tokens"] == PACED,
                    );
                });
            }
        });
        Self { url, asked }
    }

    /// Runs the command against it.
    fn bench(&self, args: &[&str]) -> Outcome {
        run(&[&["bench-serve", "--url", &self.url], args].concat())
    }

    /// The bodies that had this field.
    fn bodies_with(&self, field: &str) -> Vec<Value> {
        let asked = self.asked.lock().unwrap();
        asked
            .iter()
            .filter(|body| body.get(field).is_some())
            .cloned()
            .collect()
    }
}

/// Answers of so many tokens come event by event, as a model would write them.
const PACED: u32 = 4000;

/// Sends an answer; a client that has gone ends it.
fn send(stream: &mut TcpStream, answer: &str, is_paced: bool) {
    if !is_paced {
        let _ = stream.write_all(answer.as_bytes());
        return;
    }
    for event in answer.split_inclusive("\r\n\r\n") {
        if stream.write_all(event.as_bytes()).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn read(stream: &mut TcpStream) -> Asked {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "a request ended early");
        bytes.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let head = head.to_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.parse().unwrap());
        if body.len() == length {
            return Asked {
                path: head.split(' ').nth(1).unwrap().to_owned(),
                body: serde_json::from_str(body).unwrap_or_default(),
                head,
            };
        }
    }
}

fn response(status: &str, content_type: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

fn stream_of(events: &str) -> String {
    response("200 OK", "text/event-stream", events)
}

fn error(status: &str, message: &str) -> String {
    let body = json!({"error": {"message": message, "type": "invalid_request_error"}});
    response(status, "application/json", &body.to_string())
}

/// Tokens of a prompt: its words, and one at the beginning.
fn prompt_tokens(body: &Value) -> usize {
    let prompt = body
        .get("prompt")
        .or_else(|| body.pointer("/messages/0/content"));
    prompt.unwrap().as_str().unwrap().split(' ').count() + 1
}

/// As a whole server answers: a piece of text for each token but the last two, which come in one.
fn answer(asked: &Asked) -> String {
    if asked.path == "/v1/models" {
        let models = json!({"data": [{"id": "first"}, {"id": "second"}]});
        return response("200 OK", "application/json", &models.to_string());
    }
    let tokens = asked.body["max_tokens"].as_u64().unwrap();
    let usage = json!({"prompt_tokens": prompt_tokens(&asked.body), "completion_tokens": tokens,
        "prompt_tokens_details": {"cached_tokens": 3}});
    if asked.body["stream"] == false {
        let whole = json!({"choices": [{"text": "x"}], "usage": usage});
        return response("200 OK", "application/json", &whole.to_string());
    }
    let is_chat = asked.path == "/v1/chat/completions";
    let piece = |text: &str, reason: Option<&str>| {
        let choice = match is_chat {
            true => json!({"delta": {"content": text}, "finish_reason": reason}),
            false => json!({"text": text, "finish_reason": reason}),
        };
        format!(
            "data: {}\r\n\r\n",
            json!({"choices": [choice], "usage": null})
        )
    };
    let mut events = String::from(": welcome\n\n");
    events += &piece("", None);
    for _ in 1..tokens {
        events += &piece("é ", None);
    }
    events += &piece("", Some("length"));
    if asked.body.get("stream_options").is_some() {
        events += &format!("data: {}\n\n", json!({"choices": [], "usage": usage}));
    }
    stream_of(&(events + "data: [DONE]\n\n"))
}

const SMALL: &[&str] = &[
    "--requests",
    "6",
    "--concurrency",
    "2",
    "--prompt-tokens",
    "20",
    "--output-tokens",
    "5",
];

fn with<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [SMALL, args].concat()
}

#[test]
fn requests_are_counted_as_the_server_counts_them() {
    for endpoint in ["completions", "chat"] {
        let server = Server::new(answer);
        let report = server
            .bench(&with(&[
                "--endpoint",
                endpoint,
                "--shared-prefix-tokens",
                "10",
                "--json",
            ]))
            .json();
        assert_eq!(report["model"], "first");
        assert_eq!(
            (&report["succeeded"], &report["failed"]),
            (&json!(6), &json!(0))
        );
        assert_eq!(report["prompt_is_exact"], true);
        assert_eq!(report["prompt_tokens_total"], 6 * 20);
        assert_eq!(report["output_tokens_total"], 6 * 5);
        assert_eq!(report["cached_tokens_total"], 6 * 3);
        let samples = report["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 6);
        for (index, sample) in samples.iter().enumerate() {
            assert_eq!(sample["index"], index);
            assert_eq!(sample["counted_by"], "usage");
            assert_eq!(list::<f64>(&sample["chunks_ms"]).len(), 4);
        }
        // 4 pieces have 3 gaps.
        assert_eq!(report["inter_token_ms"]["count"], 6 * 3);
    }
}

#[test]
fn prompts_differ_and_share_what_they_should() {
    let server = Server::new(answer);
    server
        .bench(&with(&[
            "--shared-prefix-tokens",
            "10",
            "--model",
            "mine",
            "--json",
        ]))
        .json();
    let bodies = server.bodies_with("stream_options");
    let mut prompts: Vec<&str> = bodies
        .iter()
        .filter(|b| b["max_tokens"] == 5)
        .map(|b| b["prompt"].as_str().unwrap())
        .collect();
    assert_eq!(prompts.len(), 6);
    assert!(
        bodies
            .iter()
            .all(|body| body["model"] == "mine" && body["ignore_eos"] == true)
    );
    let first: Vec<&str> = prompts[0].split(' ').take(9).collect();
    for prompt in &prompts {
        assert_eq!(prompt.split(' ').take(9).collect::<Vec<_>>(), first);
    }
    prompts.sort_unstable();
    prompts.dedup();
    assert_eq!(prompts.len(), 6);
}

#[test]
fn a_server_without_extras_is_measured_by_what_comes() {
    let server = Server::new(|asked| {
        let unknown = ["ignore_eos", "stream_options"]
            .into_iter()
            .find(|f| asked.body.get(*f).is_some());
        match unknown {
            Some(field) => error("400 Bad Request", &format!("unknown field {field}")),
            None => answer(asked),
        }
    });
    let outcome = server.bench(&with(&["--json"]));
    assert!(
        outcome.stderr.contains("doesn't take ignore_eos"),
        "{outcome:?}"
    );
    assert!(
        outcome.stderr.contains("doesn't take stream_options"),
        "{outcome:?}"
    );
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(report["output_tokens_total"], 6 * 5);
    assert_eq!(report["samples"][0]["counted_by"], "length");
    assert_eq!(report["prompt_tokens_total"], Value::Null);
}

#[test]
fn an_open_loop_sends_all_requests() {
    let server = Server::new(answer);
    for arrivals in ["fixed", "poisson"] {
        let args = [
            "--requests",
            "5",
            "--rate",
            "500",
            "--arrivals",
            arrivals,
            "--output-tokens",
            "3",
            "--json",
        ];
        let report = server.bench(&args).json();
        assert_eq!(
            (&report["mode"], &report["succeeded"]),
            (&json!("open"), &json!(5))
        );
        let due: Vec<f64> = report["samples"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s["due_ms"].as_f64().unwrap())
            .collect();
        assert!(due.is_sorted());
        if arrivals == "fixed" {
            assert_eq!(due, [0.0, 2.0, 4.0, 6.0, 8.0]);
        }
    }
}

#[test]
fn failures_are_told_by_kind() {
    let cut = stream_of("").replace("Content-Length: 0", "Content-Length: 500");
    let piece = "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n\n";
    for (kind, broken) in [
        ("cut", format!("{cut}{piece}")),
        ("cut", stream_of(piece)),
        ("malformed", stream_of("data: {\"choices\":\n\n")),
        ("malformed", stream_of("data: {\"choice\":[]}\n\n")),
        ("malformed", response("200 OK", "application/json", "{}")),
        ("malformed", "HTTP/9 what\r\n\r\n".to_owned()),
        (
            "server",
            stream_of("data: {\"error\":{\"message\":\"out of pages\"}}\n\n"),
        ),
        (
            "server",
            stream_of("error: {\"message\":\"out of pages\"}\n\n"),
        ),
        ("http_429", error("429 Too Many Requests", "later")),
        ("http_500", error("500 Internal Server Error", "sorry")),
    ] {
        // The odd ones of the run itself fail.
        let count = Mutex::new(0);
        let server = Server::new(move |asked| {
            if asked.body["max_tokens"] != 5 {
                return answer(asked);
            }
            let mut count = count.lock().unwrap();
            *count += 1;
            match *count % 2 {
                1 => broken.clone(),
                _ => answer(asked),
            }
        });
        let outcome = server.bench(&with(&["--json"]));
        assert_eq!(outcome.code, Some(0), "{kind} {outcome:?}");
        assert!(outcome.stderr.contains("3 requests failed"), "{outcome:?}");
        let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(report["errors"], json!({kind: 3}), "{outcome:?}");
        assert_eq!(report["output_tokens_total"], 3 * 5);
    }
}

#[test]
fn a_run_without_an_answer_fails() {
    let server = Server::new(|asked| match asked.body["max_tokens"] == 5 {
        true => error("503 Service Unavailable", "no room"),
        false => answer(asked),
    });
    let outcome = server.bench(SMALL);
    assert_eq!(outcome.code, Some(1));
    assert!(
        outcome.stdout.contains("errors         http_503: 6"),
        "{outcome:?}"
    );
    assert!(
        outcome.stderr.contains("no request was answered"),
        "{outcome:?}"
    );
}

#[test]
fn what_is_wrong_with_the_server_is_told() {
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    run(&["bench-serve", "--url", &format!("http://{closed}")])
        .failure(1, &["/v1/models", "is the server running"]);
    let not_found = Server::new(|_| response("404 Not Found", "text/plain", "nothing here"));
    not_found
        .bench(&["--model", "m"])
        .failure(1, &["404", "nothing here", "OpenAI-compatible"]);
    let locked = Server::new(
        |asked| match asked.head.contains("authorization: bearer sesame") {
            true => answer(asked),
            false => error("401 Unauthorized", "no key"),
        },
    );
    locked
        .bench(SMALL)
        .failure(1, &["401", "--api-key", "no key"]);
    locked.bench(&with(&["--api-key", "sesame"])).success();
    let silent = Server::new(|asked| {
        if asked.path != "/v1/models" {
            std::thread::sleep(Duration::from_secs(3));
        }
        answer(asked)
    });
    silent
        .bench(&["--timeout-s", "1"])
        .failure(1, &["no whole answer within 1s"]);
    let refusing = Server::new(|asked| match asked.path.as_str() {
        "/v1/models" => answer(asked),
        _ => error("400 Bad Request", "temperature is odd"),
    });
    refusing
        .bench(SMALL)
        .failure(1, &["refuses", "temperature is odd"]);
    let large = Server::new(|asked| match asked.body["stream"] == false {
        true => {
            let usage = json!({"choices": [], "usage": {"prompt_tokens": 1000}});
            response("200 OK", "application/json", &usage.to_string())
        }
        false => answer(asked),
    });
    large
        .bench(SMALL)
        .failure(1, &["a prompt of 20 tokens can't be made"]);
}

#[test]
fn a_prefix_is_measured_in_pairs() {
    let server = Server::new(answer);
    let args = [
        "--prefix-reuse",
        "--prompt-tokens",
        "40",
        "--shared-prefix-tokens",
        "30",
        "--repeat",
        "2",
        "--json",
    ];
    let report = server.bench(&args).json();
    assert_eq!(
        (&report["mode"], &report["cached_tokens"]),
        (&json!("prefix_reuse"), &json!(3))
    );
    let pairs = report["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 2);
    assert_eq!(pairs[1]["second"]["prompt_tokens"], 40);
    let bodies = server.bodies_with("stream_options");
    let prompts: Vec<Vec<&str>> = bodies[bodies.len() - 4..]
        .iter()
        .map(|body| body["prompt"].as_str().unwrap().split(' ').collect())
        .collect();
    assert_eq!(prompts[0][..29], prompts[1][..29]);
    assert_ne!(prompts[0][29..], prompts[1][29..]);
    assert_ne!(prompts[0][..29], prompts[2][..29]);
}

#[test]
fn a_long_prompt_runs_alone_and_among_streams() {
    let server = Server::new(|asked| {
        if asked.body["max_tokens"] == 1 {
            std::thread::sleep(Duration::from_millis(50));
        }
        answer(asked)
    });
    let output_tokens = PACED.to_string();
    let report = server
        .bench(&[
            "--long-prompt-tokens",
            "100",
            "--concurrency",
            "2",
            "--prompt-tokens",
            "20",
            "--output-tokens",
            &output_tokens,
            "--repeat",
            "2",
            "--json",
        ])
        .json();
    assert_eq!(report["mode"], "long_prompt");
    assert_eq!(report["streams_ended"], 0);
    let repeats = report["repeats"].as_array().unwrap();
    assert_eq!(repeats.len(), 2);
    for repeat in repeats {
        assert_eq!(repeat["prompt_tokens"], 100);
        let samples = repeat["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 2);
        for sample in samples {
            let pieces = list::<f64>(&sample["chunks_ms"]).len();
            // All before the long prompt is sent, and not to the end.
            assert!((33..PACED as usize - 1).contains(&pieces), "{pieces}");
        }
    }
    // The long prompts are not those of the streams, nor each other's.
    let bodies = server.bodies_with("stream_options");
    let lengths = bodies.iter().map(prompt_tokens);
    assert_eq!(lengths.filter(|&tokens| tokens == 100).count(), 4);
    let mut prompts: Vec<String> = bodies
        .iter()
        .map(|body| body["prompt"].to_string())
        .collect();
    prompts.sort_unstable();
    prompts.dedup();
    assert_eq!(prompts.len(), bodies.len());
}

#[test]
fn streams_too_short_for_a_long_prompt_are_an_error() {
    let server = Server::new(answer);
    let args = [
        "--long-prompt-tokens",
        "100",
        "--concurrency",
        "2",
        "--output-tokens",
        "5",
    ];
    server.bench(&args).failure(
        1,
        &[
            "a stream ended before the long prompt was sent",
            "--output-tokens",
        ],
    );
}

#[test]
fn wrong_flags_end_with_2() {
    for (args, part) in [
        (
            &["--prompt-tokens", "5", "--shared-prefix-tokens", "6"][..],
            "at most the 5",
        ),
        (
            &["--prefix-reuse", "--shared-prefix-tokens", "256"],
            "below the 256",
        ),
        (&["--body", "{\"prompt\":1}"], "\"prompt\""),
        (&["--body", "[1]"], "JSON object"),
        (&["--url", "https://127.0.0.1:1"], "https is not supported"),
        (&["--url", "127.0.0.1:1"], "http://127.0.0.1:8080"),
        (&["--rate", "0"], "--rate"),
        (&["--rate", "1", "--concurrency", "2"], "--concurrency"),
        (&["--arrivals", "fixed"], "--rate"),
        (&["--prefix-reuse"], "--shared-prefix-tokens"),
        (&["--concurrency", "1025"], "1 to 1024"),
        (&["--slo-ttft-ms", "NaN"], "--slo-ttft-ms"),
    ] {
        run(&[&["bench-serve"], args].concat()).failure(2, &[part]);
    }
}
