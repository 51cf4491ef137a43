//! Flags of `bench`.

use std::time::Duration;

use clap::{ArgAction, Args};
use engine::PREFILL_CHUNK_MAX;
use kernels::formats::Format;
use kernels::isa::Isa;

use super::shared::{KvArg, ModelArg, PrefillChunkArg, THREADS_MAX, whole};

/// Sequences that `bench` can run together.
const BATCH_MAX: u32 = model::SPANS_MAX as u32;

/// Flags of `bench`.
#[derive(Debug, Args)]
#[command(after_help = BENCH_NOTES)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    /// Prompt tokens of the prefill rows; 0 for none
    #[arg(
        long,
        value_name = "TOKENS,…",
        value_delimiter = ',',
        default_value = "64,512",
        allow_hyphen_values = true,
        value_parser = whole::<0, { u32::MAX }>
    )]
    pub(crate) prefill: Vec<u32>,
    /// Tokens per sequence that a decode row generates in each repeat; 0 for none
    #[arg(
        long,
        value_name = "TOKENS",
        default_value_t = 64,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<0, { u32::MAX }>)]
    pub(crate) decode: u32,
    /// Positions already remembered when a decode row begins
    #[arg(
        long,
        value_name = "POSITIONS,…",
        value_delimiter = ',',
        default_value = "0",
        allow_hyphen_values = true,
        value_parser = whole::<0, { u32::MAX }>
    )]
    pub(crate) depth: Vec<u32>,
    /// Sequences that run together, 1 to 64
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1")]
    #[arg(allow_hyphen_values = true, value_parser = whole::<1, BATCH_MAX>)]
    pub(crate) batch: Vec<u32>,
    /// Threads to compute with, 1 to 1024 [default: the physical cores this process may use]
    #[arg(long, short, value_name = "N,…", value_delimiter = ',')]
    #[arg(allow_hyphen_values = true, value_parser = whole::<1, THREADS_MAX>)]
    threads: Vec<u32>,
    /// Samples of each row, after one run to warm up
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<1, 1000>)]
    pub(crate) repeat: u32,
    #[command(flatten)]
    pub(crate) kv: KvArg,
    #[command(flatten)]
    pub(crate) prefill_chunk: PrefillChunkArg,
    /// Say below each row where its time went, by operation
    #[arg(long)]
    pub(crate) profile: bool,
    /// Print each row as a JSON object on a line of its own
    #[arg(long)]
    pub(crate) json: bool,
    /// Measure the matrix product of each block format with each instruction set of this CPU instead;
    /// needs no model
    #[arg(long, action = ArgAction::SetTrue)]
    pub(crate) kernels: bool,
    /// Measure what this machine can do at most, and keep it, so that later rows say which share of it they use;
    /// with --model, measure the rows instead, and before and after each sample the bound it is held against
    #[arg(long, conflicts_with = "kernels")]
    pub(crate) bounds: bool,
    /// Milliseconds of each sample of a bound, 1 to 10000
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 100,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<1, 10_000>)]
    pub(crate) bounds_ms: u32,
    /// Sizes of the buffers that --bounds reads, in MiB, 1 to 1048576, beside one of 1 MiB for each thread
    #[arg(
        long,
        value_name = "MIB,…",
        value_delimiter = ',',
        default_value = "64,128,256,1024,4096",
        allow_hyphen_values = true,
        value_parser = whole::<1, { 1 << 20 }>
    )]
    pub(crate) bounds_mib: Vec<u32>,
    /// Whether --model was given.
    #[arg(skip)]
    pub(crate) model_given: bool,
    /// Rows and columns of the matrix of --kernels; columns in multiples of 256
    #[arg(long, value_name = "ROWSxCOLS", default_value = "2048x4096", value_parser = parse_size)]
    pub(crate) kernel_size: (usize, usize),
    /// Tokens that --kernels multiplies at once, 1 to 8192
    #[arg(
        long,
        value_name = "TOKENS,…",
        value_delimiter = ',',
        default_value = "1,64",
        allow_hyphen_values = true,
        value_parser = whole::<1, { PREFILL_CHUNK_MAX as u32 }>
    )]
    pub(crate) kernel_tokens: Vec<u32>,
    /// Block formats of --kernels, as q4_0,q4_k [default: all]
    #[arg(long, value_name = "FORMAT,…", value_delimiter = ',', value_parser = parse_format)]
    pub(crate) kernel_formats: Vec<Format>,
    /// Instruction sets of --kernels, as avx2,avx512 [default: all that this CPU has]
    #[arg(long, value_name = "ISA,…", value_delimiter = ',', value_parser = parse_isa)]
    pub(crate) kernel_isas: Vec<Isa>,
}

impl BenchArgs {
    /// The numbers of threads asked for, or the default.
    pub(crate) fn thread_counts(&self) -> Vec<usize> {
        if self.threads.is_empty() {
            return vec![kernels::topology::default_threads()];
        }
        self.threads.iter().map(|&n| n as usize).collect()
    }

    /// Whether they were asked for.
    pub(crate) fn threads_given(&self) -> bool {
        !self.threads.is_empty()
    }

    /// How long a sample of a bound takes.
    pub(crate) fn bounds_budget(&self) -> Duration {
        Duration::from_millis(self.bounds_ms.into())
    }
}

const BENCH_NOTES: &str = "\
A prefill row runs a prompt per sequence, from nothing to the logits of its last token. A decode row \
runs one token per sequence and step and reads the logits of each. Rates count the tokens of all \
sequences.

Shares are of what --bounds measured with as many threads: of the bandwidth of memory, by the weights that a step \
reads and in decode the keys and values; and of the multiply-adds of the instruction set, by those of matrix products.";

/// `ROWSxCOLS`.
pub(super) fn parse_size(text: &str) -> Result<(usize, usize), String> {
    let numbers = text
        .split_once('x')
        .and_then(|(r, c)| Some((r.parse().ok()?, c.parse().ok()?)));
    let (rows, cols): (usize, usize) = numbers.ok_or("expected ROWSxCOLS, as in 2048x4096")?;
    let fits = (1..=65_536).contains(&rows) && (256..=65_536).contains(&cols);
    if !fits || !cols.is_multiple_of(256) {
        return Err("rows are 1 to 65536; columns a multiple of 256 from 256 to 65536".into());
    }
    Ok((rows, cols))
}

/// A block format by its name.
fn parse_format(text: &str) -> Result<Format, String> {
    let named = |format: &Format| format.name().eq_ignore_ascii_case(text);
    Format::ALL.into_iter().find(named).ok_or_else(|| {
        let names = Format::ALL.map(Format::name).join(", ");
        format!("there is no such format; use {names}")
    })
}

/// An instruction set that this CPU has.
fn parse_isa(text: &str) -> Result<Isa, String> {
    let supported = Isa::supported();
    let named = |isa: &&Isa| isa.name().eq_ignore_ascii_case(text);
    supported.iter().find(named).copied().ok_or_else(|| {
        let names: Vec<_> = supported.iter().map(|isa| isa.name()).collect();
        format!(
            "this CPU has no such instruction set; use {}",
            names.join(", ")
        )
    })
}
