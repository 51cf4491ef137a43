//! A server in this process, and a client that can send anything.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine::{Engine, EngineOptions};
use kernels::isa::Isa;
use kernels::pages::KvType;
use kernels::pool::Pool;
use model::Model;
use serde_json::{Value, json};
use server::{Options, ServeError, Served, Shutdown};
use text::{ChatTemplate, Tokenizer};
use weights::gguf::Gguf;
use weights::load::LoadOptions;

pub(crate) const MODEL: &str = "tiny";
pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const COMPLETIONS: &str = "/v1/completions";
/// So long a test waits for what must happen, on a machine that may be very slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Lets the engine's thread go on, or holds it, before each step.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    is_held: bool,
    allowed: usize,
    /// The thread waits.
    waits: bool,
}

impl Gate {
    fn pass(&self) {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap();
        while state.is_held && state.allowed == 0 {
            state.waits = true;
            changed.notify_all();
            state = changed.wait(state).unwrap();
        }
        state.waits = false;
        state.allowed = state.allowed.saturating_sub(1);
    }

    pub(crate) fn hold(&self) {
        self.0.0.lock().unwrap().is_held = true;
    }

    pub(crate) fn release(&self) {
        self.0.0.lock().unwrap().is_held = false;
        self.0.1.notify_all();
    }

    /// Waits until the thread stands before a step.
    pub(crate) fn wait(&self) {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap();
        while !state.waits {
            let (next, timeout) = changed.wait_timeout(state, PATIENCE).unwrap();
            assert!(
                !timeout.timed_out(),
                "the engine's thread never came to a step"
            );
            state = next;
        }
    }

    /// Lets so many steps pass, and waits until the thread stands before the next.
    pub(crate) fn steps(&self, count: usize) {
        for _ in 0..count {
            self.pass_one();
            self.wait();
        }
    }

    /// Lets one step pass.
    pub(crate) fn pass_one(&self) {
        self.wait();
        let mut state = self.0.0.lock().unwrap();
        state.allowed = 1;
        state.waits = false;
        drop(state);
        self.0.1.notify_all();
    }
}

pub(crate) struct Setup {
    pub(crate) sequences: usize,
    pub(crate) step_tokens: usize,
    pub(crate) queue: usize,
    pub(crate) options: Options,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            sequences: 4,
            step_tokens: 64,
            queue: 64,
            options: Options::default(),
        }
    }
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) shutdown: Shutdown,
    pub(crate) gate: Gate,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

pub(crate) fn tokenizer() -> Arc<Tokenizer> {
    Arc::new(Tokenizer::from_gguf(&fixture()).unwrap())
}

fn fixture() -> Gguf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    Gguf::open(root.join("../../tests/fixtures/tiny/llama-tied.gguf")).unwrap()
}

pub(crate) fn engine(setup: &Setup) -> Engine {
    let (file, pool) = (fixture(), Pool::new(1));
    let model = Arc::new(Model::load(&file, &pool, LoadOptions::default()).unwrap());
    let options = EngineOptions {
        kv_type: KvType::F32,
        context: 512,
        sequences: setup.sequences,
        prefill_chunk: setup.step_tokens,
        queue: setup.queue,
        ..EngineOptions::default()
    };
    Engine::new(model, tokenizer(), Isa::best(), pool, options).unwrap()
}

impl Server {
    pub(crate) fn start(setup: Setup) -> Self {
        let engine = engine(&setup);
        let tokenizer = tokenizer();
        let served = Served {
            id: MODEL.to_owned(),
            created_s: 1,
            system_fingerprint: "fp_test".to_owned(),
            template: ChatTemplate::of(&tokenizer).unwrap(),
            tokenizer,
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, gate) = (Shutdown::default(), Gate::default());
        let mut options = setup.options;
        let hook = gate.clone();
        options.before_step = Some(Arc::new(move || hook.pass()));
        let asked = shutdown.clone();
        let thread =
            std::thread::spawn(move || server::serve(engine, served, options, listener, &asked));
        Self {
            address,
            shutdown,
            gate,
            thread: Some(thread),
        }
    }

    /// Asks for the end and waits for it.
    pub(crate) fn end(&mut self) {
        self.shutdown.request();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends a request on a connection of its own.
    pub(crate) fn send(&self, method: &str, path: &str, body: &[u8]) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(&message(method, path, "", body)).unwrap();
        stream
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        Answer::read(self.send("GET", path, b""))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_bytes(path, body.to_string().as_bytes())
    }

    pub(crate) fn post_bytes(&self, path: &str, body: &[u8]) -> Answer {
        Answer::read(self.send("POST", path, body))
    }

    /// A figure of `/metrics`.
    pub(crate) fn figure(&self, name: &str) -> f64 {
        let text = String::from_utf8(self.get("/metrics").body).unwrap();
        let line = text.lines().find_map(|line| {
            let rest = line.strip_prefix("plainchant_")?.strip_prefix(name)?;
            rest.trim_start_matches("_total").strip_prefix(' ')
        });
        line.unwrap_or_else(|| panic!("no {name} in {text}"))
            .parse()
            .unwrap()
    }

    /// Waits until a figure has a value.
    pub(crate) fn wait_for(&self, name: &str, wanted: impl Fn(f64) -> bool) {
        let start = Instant::now();
        while !wanted(self.figure(name)) {
            assert!(
                start.elapsed() < PATIENCE,
                "{name} is {}",
                self.figure(name)
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.gate.release();
        if std::thread::panicking() {
            self.shutdown.request();
        } else {
            self.end();
        }
    }
}

/// A request with a correct head.
pub(crate) fn message(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\
         content-type: application/json\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Reads until the connection closes.
    pub(crate) fn read(mut stream: TcpStream) -> Self {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        Self::parse(&bytes)
    }

    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no head in {:?}", String::from_utf8_lossy(bytes)));
        let head = String::from_utf8(bytes[..end].to_vec())
            .unwrap()
            .to_lowercase();
        let mut body = bytes[end + 4..].to_vec();
        if head.contains("transfer-encoding: chunked") {
            body = unchunk(&body);
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head, body }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(crate) fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {text:?}"))
    }

    /// The answer of a request that succeeded.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// The error's field, after its form was checked.
    pub(crate) fn error(&self, status: u16) -> (String, Option<String>) {
        let body = self.json();
        assert_eq!(self.status, status, "{body}");
        let error = body["error"].as_object().unwrap();
        let keys: Vec<&str> = error.keys().map(String::as_str).collect();
        assert_eq!(keys, ["message", "type", "param", "code"]);
        let message = error["message"].as_str().unwrap();
        assert!(!message.is_empty());
        assert!(error["type"].is_string());
        (
            message.to_owned(),
            error["param"].as_str().map(str::to_owned),
        )
    }

    /// The data of its events.
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        assert_eq!(self.header("content-type"), Some("text/event-stream"));
        let text = std::str::from_utf8(&self.body).unwrap();
        let lines = text.lines().filter_map(|line| line.strip_prefix("data: "));
        lines
            .map(|data| match data {
                "[DONE]" => json!("[DONE]"),
                data => serde_json::from_str(data).unwrap(),
            })
            .collect()
    }
}

fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(at) = bytes.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..at]).unwrap(), 16).unwrap();
        if size == 0 {
            break;
        }
        all.extend_from_slice(&bytes[at + 2..at + 2 + size]);
        bytes = &bytes[at + 4 + size..];
    }
    all
}

/// A conversation with some more fields.
pub(crate) fn chat(more: &Value) -> Value {
    let mut body = json!({
        "model": MODEL,
        "messages": [{"role": "user", "content": "Tell me."}],
        "seed": 7,
        "max_tokens": 12,
        "ignore_eos": true,
    });
    merge(&mut body, more);
    body
}

/// A prompt with some more fields.
pub(crate) fn completion(more: &Value) -> Value {
    let mut body = json!({
        "model": MODEL,
        "prompt": [1, 2, 3, 4],
        "seed": 7,
        "max_tokens": 12,
        "ignore_eos": true,
    });
    merge(&mut body, more);
    body
}

fn merge(body: &mut Value, more: &Value) {
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
}
