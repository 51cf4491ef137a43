//! Keys, origins and rates.

use serde_json::json;
use server::{ApiKeys, Options};

use super::support::{Answer, CHAT, Server, Setup, chat, completion, message};

const KEYS: &str = "ann 0123456789abcdef\nbob fedcba9876543210\n";

fn with_keys(more: Options) -> Server {
    Server::start(Setup {
        options: Options {
            keys: ApiKeys::parse(KEYS).unwrap(),
            ..more
        },
        ..Setup::default()
    })
}

fn ask(server: &Server, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    use std::io::Write;
    let mut stream = server.connect();
    let bytes = message(method, path, headers, body.as_bytes());
    stream.write_all(&bytes).unwrap();
    Answer::read(stream)
}

const ANN: &str = "authorization: Bearer 0123456789abcdef\r\n";
const BOB: &str = "authorization: Bearer fedcba9876543210\r\n";

#[test]
fn only_known_keys_are_served() {
    let server = with_keys(Options::default());
    let body = chat(&json!({})).to_string();
    let wrong = "authorization: Bearer 0123456789abcdeF\r\n";
    for headers in ["", wrong, "authorization: Basic abc\r\n"] {
        for path in [CHAT, "/v1/completions", "/tokenize", "/detokenize"] {
            let answer = ask(&server, "POST", path, headers, &body);
            assert_eq!(answer.header("www-authenticate"), Some("bearer"));
            answer.error(401);
        }
        for path in ["/v1/models", "/metrics"] {
            ask(&server, "GET", path, headers, "").error(401);
        }
    }
    for path in ["/health", "/ready", "/openapi.json"] {
        ask(&server, "GET", path, "", "").ok();
    }
    ask(&server, "POST", CHAT, ANN, &body).ok();
    ask(&server, "GET", "/v1/models", BOB, "").ok();
}

#[test]
fn tenants_do_not_share_prefixes() {
    let server = with_keys(Options::default());
    let prompt: Vec<u32> = (0..300).map(|i| (i * 7) % 250).collect();
    let body = completion(&json!({"prompt": prompt})).to_string();
    let cached = |headers| {
        let body = ask(&server, "POST", "/v1/completions", headers, &body).ok();
        body["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(cached(ANN), 0);
    assert!(cached(ANN) > 0);
    assert_eq!(cached(BOB), 0);
}

#[test]
fn each_tenant_has_its_rate() {
    let server = with_keys(Options {
        requests_per_minute: Some(3),
        ..Options::default()
    });
    for _ in 0..3 {
        ask(&server, "GET", "/v1/models", ANN, "").ok();
    }
    let refused = ask(&server, "GET", "/v1/models", ANN, "");
    assert!(
        refused
            .header("retry-after")
            .unwrap()
            .parse::<u64>()
            .unwrap()
            > 0
    );
    refused.error(429);
    ask(&server, "GET", "/v1/models", BOB, "").ok();
}

#[test]
fn origins_are_refused_unless_named() {
    let origin = "origin: https://example.org\r\n";
    let allowed = "access-control-allow-origin";
    let server = Server::start(Setup::default());
    assert_eq!(
        ask(&server, "GET", "/health", origin, "").header(allowed),
        None
    );
    let server = with_keys(Options {
        cors_origins: vec!["https://example.org".to_owned()],
        ..Options::default()
    });
    let answer = ask(&server, "GET", "/health", origin, "");
    assert_eq!(answer.header(allowed), Some("https://example.org"));
    let other = ask(
        &server,
        "GET",
        "/health",
        "origin: https://example.com\r\n",
        "",
    );
    assert_eq!(other.header(allowed), None);
    let asked = format!("{origin}access-control-request-method: POST\r\n");
    let preflight = ask(&server, "OPTIONS", CHAT, &asked, "");
    assert_eq!(preflight.status, 200);
    assert_eq!(preflight.header(allowed), Some("https://example.org"));
}
