//! Flags of `run`.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::sampling::SamplingArgs;
use super::shared::{ContextArg, KvArg, ModelArg, PrefillChunkArg, ThreadsArg, whole};

/// Flags of `run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_NOTES)]
pub(crate) struct RunArgs {
    /// The prompt. Without it, standard input is the prompt; with it, text piped to standard input
    /// follows it after a blank line.
    pub(crate) prompt: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelArg,
    /// Continue the prompt as it is, without the model's chat template. Control tokens in it are read.
    #[arg(long)]
    pub(crate) raw: bool,
    /// The system message; the model must have a chat template.
    #[arg(
        long,
        value_name = "TEXT",
        conflicts_with = "raw",
        allow_hyphen_values = true
    )]
    pub(crate) system: Option<String>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// The log-probability of each token and of the N most probable ones, 0 to 1000: in the JSON, or
    /// else on standard error after the answer
    #[arg(
        long,
        value_name = "N",
        help_heading = "Output",
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<0, 1000>)]
    pub(crate) logprobs: Option<u32>,
    /// A BLAKE3 hash over the logits of all positions: in the JSON, or else on standard error
    #[arg(long, help_heading = "Output")]
    pub(crate) logits_hash: bool,
    /// Print one JSON object at the end instead of the text as it comes
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) threads: ThreadsArg,
    #[command(flatten)]
    pub(crate) kv: KvArg,
    #[command(flatten)]
    pub(crate) prefill_chunk: PrefillChunkArg,
}

const RUN_NOTES: &str = "\
With the chat template, one line break at the end of standard input is dropped; --raw keeps it. \
Ctrl-C ends the generation and keeps what came so far; a second Ctrl-C ends the program at once.";

/// Where an answer ends.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Tokens to generate at most, 1 or more [default: until the context is full]
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true)]
    #[arg(value_parser = whole::<1, { u32::MAX }>)]
    pub(crate) max_tokens: Option<u32>,
    /// Ends the answer where this text would begin (repeatable)
    #[arg(
        long,
        value_name = "TEXT",
        value_parser = NonEmptyStringValueParser::new(),
        allow_hyphen_values = true
    )]
    pub(crate) stop: Vec<String>,
    /// Go on when the model ends its answer
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    #[command(flatten)]
    pub(crate) ctx: ContextArg,
}
