//! Flags of `perplexity`.

use std::path::PathBuf;

use clap::Args;

use super::shared::{KvArg, ModelArg, PrefillChunkArg, ThreadsArg, whole};

/// Flags of `perplexity`.
#[derive(Debug, Args)]
#[command(after_help = PERPLEXITY_NOTES)]
pub(crate) struct PerplexityArgs {
    /// The text file, in UTF-8; one line break at its end is left out
    #[arg(required_unless_present = "token_ids")]
    pub(crate) file: Option<PathBuf>,
    /// Score these token ids, a JSON array of numbers, instead of a text
    #[arg(long, value_name = "FILE.json", conflicts_with = "file")]
    pub(crate) token_ids: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) model: ModelArg,
    /// Tokens of a window, 4 to what the model was trained for
    #[arg(
        long,
        value_name = "TOKENS",
        default_value_t = 512,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<4, { u32::MAX }>)]
    pub(crate) ctx: u32,
    /// Windows at most; 0 for the whole text
    #[arg(
        long,
        value_name = "N",
        default_value_t = 20,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<0, { u32::MAX }>)]
    pub(crate) chunks: u32,
    #[command(flatten)]
    pub(crate) threads: ThreadsArg,
    #[command(flatten)]
    pub(crate) kv: KvArg,
    #[command(flatten)]
    pub(crate) prefill_chunk: PrefillChunkArg,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

const PERPLEXITY_NOTES: &str = "\
The text is cut into windows that don't overlap, each run on its own; the second half of each is \
scored. These are the windows and positions of llama.cpp's llama-perplexity, so that figures compare.";
