//! Flags of `bench-serve`.

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Map, Value};

use super::shared::whole;

/// Requests under way at once, at most.
pub(crate) const CONCURRENCY_MAX: u32 = 1024;
const REQUESTS_MAX: u32 = 100_000;
/// Tokens of a prompt or an answer, at most.
const TOKENS_MAX: u32 = 1_000_000;

/// Where requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Endpoint {
    /// /v1/completions.
    Completions,
    /// /v1/chat/completions.
    Chat,
}

/// How requests of an open loop arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Arrivals {
    /// With equal gaps.
    Fixed,
    /// With exponentially distributed gaps.
    Poisson,
}

/// Flags of `bench-serve`.
#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub(crate) struct BenchServeArgs {
    /// Address of the server, with or without /v1; http only
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub(crate) url: String,
    /// The model, as the server calls it [default: the first it lists]
    #[arg(long, short, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Key that the server asks for
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
    /// completions or chat
    #[arg(
        long,
        value_name = "ENDPOINT",
        default_value = "completions",
        hide_possible_values = true
    )]
    pub(crate) endpoint: Endpoint,
    /// Requests under way at a time, 1 to 1024
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<1, CONCURRENCY_MAX>)]
    pub(crate) concurrency: u32,
    /// Requests in all, 1 to 100000
    #[arg(
        long,
        value_name = "N",
        default_value_t = 32,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<1, REQUESTS_MAX>)]
    pub(crate) requests: u32,
    /// Send so many requests a second instead, whatever became of those before
    #[arg(
        long,
        value_name = "R",
        conflicts_with = "concurrency",
        allow_negative_numbers = true
    )]
    #[arg(value_parser = above_zero)]
    pub(crate) rate: Option<f64>,
    /// How the requests of --rate arrive: poisson or fixed
    #[arg(
        long,
        value_name = "ARRIVALS",
        default_value = "poisson",
        requires = "rate",
        hide_possible_values = true
    )]
    pub(crate) arrivals: Arrivals,
    /// Seed of arrivals and prompts
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Tokens of each prompt, 1 to 1000000; all prompts differ
    #[arg(
        long,
        value_name = "TOKENS",
        default_value_t = 256,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<1, TOKENS_MAX>)]
    pub(crate) prompt_tokens: u32,
    /// Tokens at the start of each prompt that are the same in all
    #[arg(
        long,
        value_name = "TOKENS",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<0, TOKENS_MAX>)]
    pub(crate) shared_prefix_tokens: u32,
    /// Tokens of each answer, 1 to 1000000; fewer where the model ends and the server has no ignore_eos
    #[arg(
        long,
        value_name = "TOKENS",
        default_value_t = 64,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<1, TOKENS_MAX>)]
    pub(crate) output_tokens: u32,
    /// Make prompts of words that are one token each to this model, a name or path as `run` takes
    #[arg(long, value_name = "MODEL")]
    pub(crate) tokenizer: Option<String>,
    /// Further fields of each request, a JSON object
    #[arg(long, value_name = "JSON", value_parser = parse_object)]
    pub(crate) body: Option<Map<String, Value>>,
    /// Good requests have their first text after so many milliseconds at most
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = above_zero)]
    pub(crate) slo_ttft_ms: Option<f64>,
    /// Good requests have so many milliseconds a further token at most
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = above_zero)]
    pub(crate) slo_tpot_ms: Option<f64>,
    /// Seconds that a request may take, 1 to 86400
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 600,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<1, 86_400>)]
    timeout_s: u32,
    /// Measure instead what a prompt of so many tokens does to --concurrency running streams, and they to it
    #[arg(long, value_name = "TOKENS", conflicts_with_all = ["rate", "requests", "prefix_reuse"])]
    #[arg(allow_negative_numbers = true, value_parser = whole::<1, TOKENS_MAX>)]
    pub(crate) long_prompt_tokens: Option<u32>,
    /// Measure instead the first text of a prompt, and of a second that shares --shared-prefix-tokens with it
    #[arg(long, conflicts_with_all = ["rate", "requests", "concurrency"], requires = "shared_prefix_tokens")]
    pub(crate) prefix_reuse: bool,
    /// Repeats of --long-prompt-tokens and --prefix-reuse, 1 to 1000
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<1, 1000>)]
    pub(crate) repeat: u32,
    /// Print one JSON object with every sample
    #[arg(long)]
    pub(crate) json: bool,
}

impl BenchServeArgs {
    /// How long a request may take.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_s.into())
    }
}

const NOTES: &str = "\
Works against any OpenAI-compatible server. TTFT is the time from when a request is due to its first text; TPOT the time \
from the first to the last text by the tokens after the first; inter-token times lie between pieces of text, of \
which some servers put several tokens in one. Prompt tokens are as the server counts them; where it does, prompts are \
made longer or shorter until they have the number asked for.";

fn above_zero(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (1e-6..=1e6).contains(&number) => Ok(number),
        _ => Err("it must be a number from 0.000001 to 1000000".to_owned()),
    }
}

fn parse_object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text)
        .map_err(|error| format!("it must be a JSON object, as {{\"top_k\":1}}: {error}"))
}
