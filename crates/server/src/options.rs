//! How a server is set up.

use std::sync::Arc;
use std::time::Duration;

use text::{ChatTemplate, Tokenizer};

use crate::auth::ApiKeys;

/// The model as clients see it.
#[derive(Debug)]
pub struct Served {
    /// Its name in requests and answers.
    pub id: String,
    /// When it was made, in seconds since 1970.
    pub created_s: u64,
    /// Names everything that its logits depend on.
    pub system_fingerprint: String,
    /// Its tokenizer, the one that the engine has.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat template, where it has one.
    pub template: Option<ChatTemplate>,
}

/// Limits and behaviour of the server.
#[derive(Clone)]
pub struct Options {
    /// Who may use it; everybody where there are none.
    pub keys: ApiKeys,
    /// Origins of web pages that may use it, as `https://example.org`, or `*` for all.
    pub cors_origins: Vec<String>,
    /// Bytes that the body of a request may have.
    pub body_bytes_max: usize,
    /// Connections at the same time.
    pub connections_max: usize,
    /// Requests a minute for each key, or for all without keys.
    pub requests_per_minute: Option<u32>,
    /// Time for a request's head to come, and again for its body; also the time that a connection may idle.
    pub read_timeout: Duration,
    /// Time that a client may take without reading anything of its answer.
    pub write_timeout: Duration,
    /// Time that requests have to end when the server is asked to.
    pub drain: Duration,
    /// Events of a request that wait for its client; a client that falls behind further loses the request.
    pub events_max: usize,
    /// Time between comments that keep an event stream alive.
    pub keep_alive: Duration,
    /// Logs the text of prompts.
    pub log_prompts: bool,
    /// Called by the engine's thread before each step: lets tests hold it.
    pub before_step: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            keys: ApiKeys::default(),
            cors_origins: Vec::new(),
            body_bytes_max: 4 << 20,
            connections_max: 1024,
            requests_per_minute: None,
            read_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            drain: Duration::from_secs(30),
            events_max: 1024,
            keep_alive: Duration::from_secs(15),
            log_prompts: false,
            before_step: None,
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("keys", &self.keys)
            .field("cors_origins", &self.cors_origins)
            .field("body_bytes_max", &self.body_bytes_max)
            .field("connections_max", &self.connections_max)
            .field("requests_per_minute", &self.requests_per_minute)
            .field("read_timeout", &self.read_timeout)
            .field("write_timeout", &self.write_timeout)
            .field("drain", &self.drain)
            .field("events_max", &self.events_max)
            .finish_non_exhaustive()
    }
}
