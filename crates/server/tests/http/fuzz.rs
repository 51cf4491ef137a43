//! Random damage to requests. Runs for `PLAINCHANT_FUZZ_SECONDS` (5 by default) from seed `PLAINCHANT_FUZZ_SEED`.

use std::env;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use server::read_request;

use super::support::{CHAT, COMPLETIONS, Server, Setup, chat, completion};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// A value at which servers tend to go wrong.
    fn telling(&mut self) -> Value {
        let edge = 1_u64 << self.below(64);
        match self.below(16) {
            0 => Value::Null,
            1 => json!(true),
            2 => json!(0),
            3 => json!(-1),
            4 => json!(edge),
            5 => json!(-(edge as f64)),
            6 => json!(1e308),
            7 => json!(5e-324),
            8 => json!(""),
            9 => json!("\u{0}\u{FFFF}\u{202E}"),
            10 => json!("x".repeat(self.below(3000))),
            11 => json!([]),
            12 => json!({}),
            13 => json!([[[[[]]]]]),
            14 => json!({"type": "text", "text": "x"}),
            _ => json!(self.next() as f64 / u64::MAX as f64),
        }
    }

    /// Puts telling values in places of a document.
    fn disturb(&mut self, value: &mut Value) {
        match value {
            Value::Object(map) if !map.is_empty() && self.below(4) > 0 => {
                let at = self.below(map.len());
                if let Some((_, value)) = map.iter_mut().nth(at) {
                    self.disturb(value);
                }
            }
            Value::Array(items) if !items.is_empty() && self.below(4) > 0 => {
                let at = self.below(items.len());
                self.disturb(&mut items[at]);
            }
            _ => *value = self.telling(),
        }
    }
}

/// A request with all fields.
fn whole(is_chat: bool) -> Value {
    let more = json!({
        "n": 2, "stop": ["a", "bc"], "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1,
        "repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1, "logit_bias": {"5": 1},
        "stream": true, "stream_options": {"include_usage": true}, "user": "u", "metadata": {"a": "b"},
        "return_token_ids": true, "logits_hash": true, "cache_prompt": true, "max_tokens": 3,
    });
    let mut body = if is_chat {
        chat(&more)
    } else {
        completion(&more)
    };
    if is_chat {
        body["messages"] = json!([
            {"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "x"}]},
        ]);
        body["logprobs"] = json!(true);
        body["top_logprobs"] = json!(2);
        body["response_format"] = json!({"type": "text"});
        body["tools"] = json!([]);
    } else {
        body["prompt"] = json!([[1, 2], [3]]);
        body["logprobs"] = json!(2);
        body["echo"] = json!(true);
    }
    body
}

fn mutate(random: &mut Random, base: &Value) -> Vec<u8> {
    let mut value = base.clone();
    for _ in 0..=random.below(3) {
        random.disturb(&mut value);
    }
    let mut bytes = value.to_string().into_bytes();
    if random.below(3) == 0 {
        for _ in 0..=random.below(4) {
            let len = bytes.len();
            match random.below(4) {
                0 if len > 0 => bytes[random.below(len)] ^= 1 << random.below(8),
                1 => bytes.truncate(random.below(len + 1)),
                2 if len > 0 => {
                    let start = random.below(len);
                    bytes.drain(start..(start + random.below(20)).min(len));
                }
                _ if len > 0 => {
                    let start = random.below(len);
                    let copied = bytes[start..(start + random.below(40)).min(len)].to_vec();
                    bytes.splice(start..start, copied);
                }
                _ => {}
            }
        }
    }
    bytes
}

fn variable(name: &str, default: u64) -> u64 {
    let value = env::var(name).ok();
    value
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

#[test]
fn damaged_requests_are_read_or_refused() {
    let seed = variable("PLAINCHANT_FUZZ_SEED", 1);
    let time = Duration::from_secs(variable("PLAINCHANT_FUZZ_SECONDS", 5));
    let mut random = Random(seed);
    let (start, mut read, mut refused) = (Instant::now(), 0_u64, 0_u64);
    let bases = [whole(false), whole(true)];
    while start.elapsed() < time || read == 0 || refused == 0 {
        for _ in 0..100 {
            let is_chat = random.below(2) == 1;
            let bytes = mutate(&mut random, &bases[usize::from(is_chat)]);
            match read_request(&bytes, is_chat) {
                Ok(()) => read += 1,
                Err((message, _)) => {
                    assert!(!message.is_empty() && message.len() < 20_000);
                    refused += 1;
                }
            }
        }
    }
    eprintln!("{read} read and {refused} refused from seed {seed}");
}

#[test]
fn damaged_requests_never_get_the_server_to_fail() {
    let seed = variable("PLAINCHANT_FUZZ_SEED", 1);
    let server = Server::start(Setup::default());
    let expected = server.post(CHAT, &chat(&json!({}))).ok()["choices"].clone();
    let mut random = Random(seed);
    let bases = [whole(false), whole(true)];
    let (mut answered, mut refused) = (0, 0);
    for _ in 0..400 {
        let is_chat = random.below(2) == 1;
        let bytes = mutate(&mut random, &bases[usize::from(is_chat)]);
        let path = if is_chat { CHAT } else { COMPLETIONS };
        let answer = server.post_bytes(path, &bytes);
        let shown = String::from_utf8_lossy(&bytes);
        if answer.status == 200 {
            answered += 1;
        } else {
            assert!(
                (400..500).contains(&answer.status),
                "{} for {shown}",
                answer.status
            );
            answer.error(answer.status);
            refused += 1;
        }
    }
    assert!(
        answered > 0 && refused > 0,
        "{answered} answered, {refused} refused"
    );
    assert_eq!(
        server.post(CHAT, &chat(&json!({}))).ok()["choices"],
        expected
    );
    assert_eq!(server.figure("requests_failed"), 0.0);
    assert_eq!(server.figure("pages_held"), 0.0);
}
