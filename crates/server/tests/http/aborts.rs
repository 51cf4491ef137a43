//! Requests end when their clients go, in every state, and leave their neighbours alone.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use server::Options;

use super::support::{Answer, CHAT, COMPLETIONS, Server, Setup, chat, completion, message};

/// A long answer to a long prompt, which nobody else has.
fn long(first: u32, stream: bool) -> Value {
    let prompt: Vec<u32> = (0..100).map(|i| (first + i * 3) % 250).collect();
    completion(&json!({"prompt": prompt, "max_tokens": 400, "stream": stream}))
}

fn send(server: &Server, body: &Value) -> TcpStream {
    server.send("POST", COMPLETIONS, body.to_string().as_bytes())
}

/// What the neighbour says alone.
fn alone(body: &Value) -> Value {
    let server = Server::start(Setup::default());
    server.post(COMPLETIONS, body).ok()["choices"].clone()
}

/// In which state a request is left.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Left {
    Queued,
    Prefilling,
    Decoding,
}

/// A client leaves in that state; within one step its request is gone, and the neighbour's answer is the one that
/// it has alone.
fn leave(left: Left, stream: bool, and_pipelined: bool) {
    let server = Server::start(Setup {
        sequences: if left == Left::Queued { 1 } else { 4 },
        step_tokens: 16,
        ..Setup::default()
    });
    let neighbour = completion(&json!({"max_tokens": 60}));
    server.gate.hold();
    let mut kept = send(&server, &neighbour);
    // The engine takes the neighbour first.
    server.gate.steps(2);
    let mut goes = message(
        "POST",
        COMPLETIONS,
        "",
        long(7, stream).to_string().as_bytes(),
    );
    if and_pipelined {
        goes.extend_from_slice(b"GET /health HTTP/1.1\r\nhost: test\r\n\r\n");
    }
    let mut client = server.connect();
    client.write_all(&goes).unwrap();
    // Both connections, and the one that asks.
    server.wait_for("http_connections", |n| n == 3.0);
    let states = [
        "requests_waiting",
        "requests_prefilling",
        "requests_decoding",
    ];
    let wanted = match left {
        Left::Queued => [1.0, 0.0, 1.0],
        Left::Prefilling => [0.0, 1.0, 1.0],
        Left::Decoding => [0.0, 0.0, 2.0],
    };
    let mut steps = 0;
    while states.map(|name| server.figure(name)) != wanted {
        server.gate.steps(1);
        steps += 1;
        assert!(steps < 40, "{:?}", states.map(|name| server.figure(name)));
    }
    if left == Left::Decoding {
        server.gate.steps(3);
    }
    drop(client);
    server.wait_for("http_connections", |n| n == 2.0);
    assert_eq!(
        server.figure("requests_cancelled"),
        0.0,
        "the engine stands still"
    );
    server.gate.steps(1);
    assert_eq!(
        server.figure("requests_cancelled"),
        1.0,
        "{left:?}: within one step"
    );
    assert_eq!(server.figure("requests_waiting"), 0.0);
    assert_eq!(server.figure("requests_running"), 1.0);
    server.gate.release();
    let mut bytes = Vec::new();
    kept.read_to_end(&mut bytes).unwrap();
    assert_eq!(
        Answer::parse(&bytes).ok()["choices"],
        alone(&neighbour),
        "{left:?}"
    );
    assert_eq!(server.figure("pages_held"), 0.0);
    assert_eq!(server.figure("disconnects"), 1.0);
}

#[test]
fn a_client_leaves_the_queue() {
    leave(Left::Queued, false, false);
    leave(Left::Queued, true, false);
}

#[test]
fn a_client_leaves_while_its_prompt_runs() {
    leave(Left::Prefilling, false, false);
    leave(Left::Prefilling, true, false);
}

#[test]
fn a_client_leaves_while_its_answer_comes() {
    leave(Left::Decoding, false, false);
    leave(Left::Decoding, true, false);
}

#[test]
fn a_client_leaves_with_another_request_behind() {
    leave(Left::Queued, false, true);
    leave(Left::Prefilling, false, true);
    leave(Left::Decoding, true, true);
}

/// Far more text than sockets hold.
fn flood() -> Value {
    chat(&json!({
        "n": 100, "max_tokens": 400, "stream": true, "logprobs": true, "top_logprobs": 20,
    }))
}

#[test]
fn a_slow_reader_loses_its_request_and_nobody_waits_for_it() {
    let server = Server::start(Setup {
        sequences: 16,
        options: Options {
            events_max: 200,
            write_timeout: Duration::from_secs(3600),
            ..Options::default()
        },
        queue: 200,
        ..Setup::default()
    });
    let slow = server.send("POST", CHAT, flood().to_string().as_bytes());
    let neighbour = completion(&json!({"max_tokens": 60}));
    assert_eq!(
        server.post(COMPLETIONS, &neighbour).ok()["choices"],
        alone(&neighbour)
    );
    server.wait_for("slow_clients", |n| n > 0.0);
    server.wait_for("requests_running", |n| n == 0.0);
    server.wait_for("requests_waiting", |n| n == 0.0);
    assert!(server.figure("requests_cancelled") > 0.0);
    // What was sent before is followed by the reason.
    let events = Answer::read(slow).events();
    let error = &events.last().unwrap()["error"];
    assert_eq!(error["code"], "slow_client");
}

#[test]
fn a_reader_that_stops_is_cut_off() {
    let server = Server::start(Setup {
        sequences: 16,
        options: Options {
            events_max: 1_000_000,
            write_timeout: Duration::from_millis(300),
            ..Options::default()
        },
        queue: 200,
        ..Setup::default()
    });
    let slow = server.send("POST", CHAT, flood().to_string().as_bytes());
    server.wait_for("disconnects", |n| n == 1.0);
    server.wait_for("requests_running", |n| n == 0.0);
    server.wait_for("requests_waiting", |n| n == 0.0);
    drop(slow);
}

#[test]
fn a_client_leaves_while_it_reads_slowly() {
    let server = Server::start(Setup {
        sequences: 16,
        options: Options {
            events_max: 1_000_000,
            ..Options::default()
        },
        queue: 200,
        ..Setup::default()
    });
    let slow = server.send("POST", CHAT, flood().to_string().as_bytes());
    // More than sockets hold: its writer is blocked.
    server.wait_for("generated_tokens", |n| n > 10_000.0);
    server.gate.hold();
    server.gate.wait();
    drop(slow);
    server.wait_for("http_connections", |n| n == 1.0);
    assert_eq!(
        server.figure("requests_cancelled"),
        0.0,
        "the engine stands still"
    );
    // One pass, and nothing is left to do.
    server.gate.pass_one();
    server.wait_for("requests_cancelled", |n| n > 0.0);
    assert_eq!(server.figure("requests_running"), 0.0);
    assert_eq!(server.figure("requests_waiting"), 0.0);
    assert_eq!(server.figure("pages_held"), 0.0);
}

#[test]
fn running_requests_end_before_the_server_does() {
    let mut server = Server::start(Setup::default());
    let body = completion(&json!({"max_tokens": 60}));
    server.gate.hold();
    let client = send(&server, &body);
    server.gate.wait();
    let idle = server.connect();
    server.shutdown.request();
    // New ones are refused as soon as nobody listens.
    while TcpStream::connect(server.address).is_ok() {
        std::thread::sleep(Duration::from_millis(2));
    }
    server.gate.release();
    assert_eq!(Answer::read(client).ok()["choices"], alone(&body));
    drop(idle);
    server.end();
}

#[test]
fn what_does_not_end_in_time_is_cancelled_and_told_so() {
    let mut server = Server::start(Setup {
        sequences: 1,
        options: Options {
            drain: Duration::from_millis(50),
            ..Options::default()
        },
        ..Setup::default()
    });
    server.gate.hold();
    let streamed = send(&server, &long(1, true));
    server.gate.steps(3);
    let queued = send(&server, &long(2, false));
    // Both have been accepted; the third is the one that asks.
    server.wait_for("http_connections", |n| n >= 3.0);
    server.gate.steps(1);
    server.shutdown.request();
    std::thread::sleep(Duration::from_millis(200));
    server.gate.release();
    let (message, _) = Answer::read(queued).error(503);
    assert!(message.contains("shutting down"), "{message}");
    let events = Answer::read(streamed).events();
    assert_eq!(events.last().unwrap()["error"]["code"], "cancelled");
    server.end();
}
