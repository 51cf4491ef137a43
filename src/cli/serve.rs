//! Flags of `serve`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use engine::{QUEUE_MAX, SEQUENCES_MAX};

use super::shared::{ContextArg, KvArg, ModelArg, THREADS_MAX, whole};

/// Flags of `serve`.
#[derive(Debug, Args)]
#[command(after_help = SERVE_NOTES)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    /// The model's name in requests [default: that of --model, or of its file]
    #[arg(long, value_name = "NAME")]
    pub(crate) model_id: Option<String>,
    /// The address to listen at; 0.0.0.0 or :: lets other machines connect
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) host: IpAddr,
    /// The port to listen at, 0 to 65535; 0 takes a free one
    #[arg(long, short, value_name = "PORT", default_value_t = 8080)]
    pub(crate) port: u16,
    #[command(flatten)]
    pub(crate) ctx: ContextArg,
    /// Requests that run at the same time, 1 to 64
    #[arg(
        long,
        value_name = "N",
        default_value_t = 16,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<1, { SEQUENCES_MAX as u32 }>)]
    pub(crate) sequences: u32,
    /// Prompt tokens to run in one step at most, 1 to 8192, beside one token for each running answer: less
    /// lets running answers flow more evenly, more reads prompts faster
    #[arg(
        long,
        value_name = "TOKENS",
        default_value_t = 512,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<1, { engine::PREFILL_CHUNK_MAX as u32 }>)]
    pub(crate) step_tokens: u32,
    /// Requests that may wait for their turn; more get status 429
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1024,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<1, { QUEUE_MAX as u32 }>)]
    pub(crate) queue: u32,
    /// Memory for keys and values, running and cached, in MiB [default: room for all sequences, but at most
    /// half of what is free]
    #[arg(long, value_name = "MIB", allow_negative_numbers = true)]
    #[arg(value_parser = whole::<1, { 1 << 30 }>)]
    pub(crate) state_mib: Option<u32>,
    /// Memory for keys and values of requests that had to make room, in MiB; without it they are computed again
    #[arg(
        long,
        value_name = "MIB",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<0, { 1 << 30 }>)]
    pub(crate) swap_mib: u32,
    /// Threads to compute with, 1 to 1024 [default: the physical cores this process may use; where those are
    /// more than two, one less, which is left to connections]
    #[arg(long, short, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = whole::<1, THREADS_MAX>)]
    threads: Option<u32>,
    #[command(flatten)]
    pub(crate) kv: KvArg,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
    #[command(flatten)]
    pub(crate) limits: ServeLimitArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

impl ServeArgs {
    /// The threads to compute with.
    pub(crate) fn thread_count(&self) -> usize {
        let cores = kernels::topology::default_threads();
        let default = if cores > 2 { cores - 1 } else { cores };
        self.threads.map_or(default, |n| n as usize)
    }
}

/// Who may use the server.
#[derive(Debug, Args)]
#[command(next_help_heading = "Access")]
pub(crate) struct AccessArgs {
    /// A file of API keys: on each line a name, a space and a key of 16 characters or more. Requests need one of
    /// them then, except for /health, /ready and /openapi.json
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// An origin whose web pages may use the server, as https://example.org, or * for all (repeatable)
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) cors_origin: Vec<String>,
}

/// What clients may ask for.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct ServeLimitArgs {
    /// Bytes that a request's body may have
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20, allow_negative_numbers = true)]
    #[arg(value_parser = whole::<1, { 1 << 30 }>)]
    pub(crate) max_request_bytes: u32,
    /// Connections at the same time
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1024,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<1, 1_000_000>)]
    pub(crate) max_connections: u32,
    /// Requests a minute for each name in the file of keys, or for all together [default: no limit]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = whole::<1, 1_000_000_000>)]
    pub(crate) rate_limit: Option<u32>,
    /// Seconds for a request's head to come, and again for its body; connections may idle as long
    #[arg(
        long,
        value_name = "S",
        default_value_t = 30,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<1, 86_400>)]
    read_timeout: u32,
    /// Seconds that a client may read nothing of its answer
    #[arg(
        long,
        value_name = "S",
        default_value_t = 30,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<1, 86_400>)]
    write_timeout: u32,
    /// Seconds that running requests have to end after Ctrl-C or a signal that asks for an end
    #[arg(
        long,
        value_name = "S",
        default_value_t = 30,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<0, 86_400>)]
    drain_seconds: u32,
}

impl ServeLimitArgs {
    /// As times: reading, writing, draining.
    pub(crate) fn times(&self) -> [Duration; 3] {
        [self.read_timeout, self.write_timeout, self.drain_seconds]
            .map(|seconds| Duration::from_secs(seconds.into()))
    }
}

/// The form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The log.
#[derive(Debug, Args)]
#[command(next_help_heading = "Log")]
pub(crate) struct LogArgs {
    /// The form of the log on standard error, text or json
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "text",
        hide_possible_values = true
    )]
    pub(crate) log_format: LogFormat,
    /// The least that is logged: error, warn, info or debug; each request is one line of info
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = ["error", "warn", "info", "debug"])]
    #[arg(hide_possible_values = true)]
    pub(crate) log_level: String,
    /// Log the text of prompts, too
    #[arg(long)]
    pub(crate) log_prompts: bool,
}

const SERVE_NOTES: &str = "\
Endpoints: /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /detokenize, /health, /ready, /metrics; \
/openapi.json describes them. Requests that name a field that is not described there are refused.

Answers depend on the request and its seed only, not on what else runs. When the server is asked to end it takes no \
new requests, gives those that run --drain-seconds, and cancels the rest; a second signal ends it at once.";
