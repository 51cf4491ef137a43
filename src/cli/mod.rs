//! The flags of every command, a file each. Doc comments there are the help texts.

mod bench;
mod bench_serve;
mod models;
mod perplexity;
mod run;
mod sampling;
mod serve;
mod shared;
#[cfg(test)]
mod tests;
mod tokenize;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub(crate) use bench::BenchArgs;
pub(crate) use bench_serve::{Arrivals, BenchServeArgs, CONCURRENCY_MAX, Endpoint};
pub(crate) use models::{InspectArgs, ModelsArgs, PullArgs};
pub(crate) use perplexity::{PerplexityArgs, WINDOW_MIN};
pub(crate) use run::RunArgs;
pub(crate) use serve::{LogArgs, LogFormat, ServeArgs};
pub(crate) use shared::DEFAULT_CONTEXT;
pub(crate) use tokenize::TokenizeArgs;

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
    let mut command = Cli::command();
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    if let (Command::Bench(args), Some((_, matches))) = (&mut cli.command, matches.subcommand()) {
        let given = |flag: &str| matches.value_source(flag) == Some(ValueSource::CommandLine);
        args.model_given = given("model");
        if let Some(flag) = bench::OF_ROWS.into_iter().find(|flag| given(flag))
            && args.bounds
            && !args.model_given
        {
            let flag = flag.replace('_', "-");
            let message = format!(
                "--{flag} is of rows, which --bounds measures with --model only: add --model, or leave out --{flag}"
            );
            return Err(command.error(ErrorKind::ArgumentConflict, message));
        }
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

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer a prompt; the answer goes to standard output as it is generated.
    Run(Box<RunArgs>),
    /// Answer requests over HTTP, many at once, as the OpenAI API does.
    Serve(Box<ServeArgs>),
    /// Fetch a model into the cache, or check the one there, and print the path of its file.
    Pull(PullArgs),
    /// List the models known by name, and the files in the cache.
    Models(ModelsArgs),
    /// Show what a model file holds and the memory it needs.
    Inspect(InspectArgs),
    /// Show the tokens of a text.
    Tokenize(TokenizeArgs),
    /// Measure speed in tokens per second, or that of single kernels.
    Bench(BenchArgs),
    /// Measure the speed of a server under load: ours, or any other with OpenAI's interface.
    BenchServe(Box<BenchServeArgs>),
    /// Measure how well a model predicts a text.
    Perplexity(PerplexityArgs),
}
