//! Clients that break HTTP, dawdle or come in crowds.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use server::Options;

use super::support::{Answer, CHAT, COMPLETIONS, Server, Setup, chat, completion, message};

fn impatient() -> Server {
    Server::start(Setup {
        options: Options {
            read_timeout: Duration::from_millis(300),
            body_bytes_max: 10_000,
            connections_max: 20,
            ..Options::default()
        },
        ..Setup::default()
    })
}

/// Sends bytes and reads until the server closes.
fn raw(server: &Server, bytes: &[u8]) -> Vec<u8> {
    let mut stream = server.connect();
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut answer);
    answer
}

fn status(answer: &[u8]) -> u16 {
    Answer::parse(answer).status
}

#[test]
fn what_is_no_http_is_refused() {
    let server = impatient();
    let long = format!(
        "GET /health HTTP/1.1\r\nx: {}\r\n\r\n",
        "y".repeat(1_000_000)
    );
    let many = format!("GET /health HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(200));
    for bytes in [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        b"GET\r\n\r\n".to_vec(),
        b"GET /health\r\n\r\n".to_vec(),
        b"GET /health HTTP/9.9\r\n\r\n".to_vec(),
        b"GET /health HTTP/1.1\r\nno colon\r\n\r\n".to_vec(),
        b"GET /health HTTP/1.1\r\nx : y\r\n\r\n".to_vec(),
        b"POST /tokenize HTTP/1.1\r\ncontent-length: -1\r\n\r\n".to_vec(),
        b"POST /tokenize HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\n".to_vec(),
        b"POST /tokenize HTTP/1.1\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}".to_vec(),
        b"POST /tokenize HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\n".to_vec(),
        b"\r\n\r\n\r\n\x00\x00".to_vec(),
        long.into_bytes(),
        many.into_bytes(),
    ] {
        let answer = raw(&server, &bytes);
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        // A server that closes before it has read all resets the connection, and its answer may be lost.
        let is_cut = bytes.len() > 10_000 && answer.is_empty();
        assert!(
            is_cut || (400..500).contains(&status(&answer)),
            "{shown:?} {:?}",
            String::from_utf8_lossy(&answer)
        );
    }
    server.get("/health").ok();
}

#[test]
fn other_paths_methods_and_types_are_refused() {
    let server = impatient();
    server.get("/").error(404);
    server.get("/v1/embeddings").error(404);
    server.get(CHAT).error(405);
    server.post("/health", &json!({})).error(405);
    let body = chat(&json!({})).to_string();
    for (kind, extra) in [
        ("text/plain", ""),
        ("application/json", "content-encoding: gzip\r\n"),
    ] {
        let bytes = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-type: {kind}\r\n{extra}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        Answer::parse(&raw(&server, bytes.as_bytes())).error(415);
    }
    let bytes = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    Answer::parse(&raw(&server, bytes.as_bytes())).error(415);
}

#[test]
fn large_bodies_are_refused() {
    let server = impatient();
    let body = vec![b' '; 2_000_000];
    let mut stream = server.connect();
    // It may stop reading before all is sent.
    let _ = stream.write_all(&message("POST", CHAT, "", &body));
    Answer::read(stream).error(413);
    let chunk = format!("2710\r\n{}\r\n", " ".repeat(10_000));
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let mut stream = server.connect();
    let _ = stream.write_all(format!("{head}{chunk}{chunk}").as_bytes());
    Answer::read(stream).error(413);
}

#[test]
fn bodies_without_end_are_cut() {
    let server = impatient();
    let body = chat(&json!({})).to_string();
    let whole = message("POST", CHAT, "", body.as_bytes());
    Answer::parse(&raw(&server, &whole[..whole.len() - 1])).error(408);
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let chunked = format!("{head}{:x}\r\n{body}\r\n", body.len());
    Answer::parse(&raw(&server, chunked.as_bytes())).error(408);
    let broken = format!("{head}zz\r\n{body}\r\n0\r\n\r\n");
    Answer::parse(&raw(&server, broken.as_bytes())).error(400);
    // One byte at a time helps nobody.
    let mut stream = server.connect();
    for byte in whole {
        if stream.write_all(&[byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(
        answer.is_empty() || status(&answer) == 408,
        "{:?}",
        String::from_utf8_lossy(&answer)
    );
}

#[test]
fn silent_connections_are_closed() {
    let server = impatient();
    let mut silent = server.connect();
    let mut half = server.connect();
    half.write_all(b"GET /health HTTP/1.1\r\nhos").unwrap();
    let mut idle = server.connect();
    idle.write_all(b"GET /health HTTP/1.1\r\nhost: t\r\n\r\n")
        .unwrap();
    let mut closed = server.connect();
    closed.shutdown(Shutdown::Write).unwrap();
    let mut bytes = Vec::new();
    for stream in [&mut silent, &mut half, &mut closed] {
        bytes.clear();
        stream.read_to_end(&mut bytes).unwrap();
    }
    bytes.clear();
    idle.read_to_end(&mut bytes).unwrap();
    assert_eq!(status(&bytes), 200);
    server.wait_for("http_connections", |n| n == 1.0);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = impatient();
    let mut all = Vec::new();
    for tokens in [[1, 2], [3, 4], [5, 6]] {
        let body = json!({"tokens": tokens}).to_string();
        let text = String::from_utf8(message("POST", "/detokenize", "", body.as_bytes())).unwrap();
        all.extend_from_slice(text.replace("connection: close\r\n", "").as_bytes());
    }
    let answer = String::from_utf8(raw(&server, &all)).unwrap();
    let expected = [[1, 2], [3, 4], [5, 6]].map(|tokens| {
        let body = server.post("/detokenize", &json!({"tokens": tokens})).ok();
        body.to_string()
    });
    let mut rest = answer.as_str();
    for body in expected {
        let at = rest
            .find(&body)
            .unwrap_or_else(|| panic!("{body} not in order in {answer}"));
        rest = &rest[at + body.len()..];
    }
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 3);
}

#[test]
fn smuggled_requests_are_never_answered() {
    let server = impatient();
    let inner = "GET /v1/models HTTP/1.1\r\nhost: t\r\n\r\n";
    let heads = [
        format!(
            "content-length: {}\r\ntransfer-encoding: chunked\r\n",
            5 + inner.len()
        ),
        format!(
            "transfer-encoding: chunked\r\ncontent-length: {}\r\n",
            5 + inner.len()
        ),
        format!(
            "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\ncontent-length: {}\r\n",
            5 + inner.len()
        ),
        "transfer-encoding: chunked, identity\r\n".to_owned(),
        "transfer-encoding: xchunked\r\n".to_owned(),
        "transfer-encoding : chunked\r\n".to_owned(),
    ];
    for head in heads {
        let bytes = format!(
            "POST /tokenize HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n{head}\r\n0\r\n\r\n{inner}"
        );
        let answer = raw(&server, bytes.as_bytes());
        let text = String::from_utf8_lossy(&answer);
        assert_eq!(text.matches("HTTP/1.1").count(), 1, "{head:?}: {text}");
        assert!((400..500).contains(&status(&answer)), "{head:?}: {text}");
        assert!(!text.contains("plainchant"), "{head:?}: {text}");
    }
}

#[test]
fn a_crowd_is_turned_away_and_neighbours_do_not_feel_it() {
    let server = impatient();
    let body = completion(&json!({"max_tokens": 60}));
    let alone: Value = server.post(COMPLETIONS, &body).ok()["choices"].clone();
    server.gate.hold();
    let client = server.send("POST", COMPLETIONS, body.to_string().as_bytes());
    server.gate.wait();
    let crowd: Vec<TcpStream> = (0..300).map(|_| server.connect()).collect();
    let mut refused = 0;
    for stream in crowd {
        let mut stream = stream;
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        if !bytes.is_empty() && status(&bytes) == 429 {
            Answer::parse(&bytes).error(429);
            refused += 1;
        }
    }
    assert!(refused > 0);
    server.gate.release();
    assert_eq!(Answer::read(client).ok()["choices"], alone);
    assert!(server.figure("http_connections_refused") >= f64::from(refused));
    server.wait_for("http_connections", |n| n == 1.0);
}
