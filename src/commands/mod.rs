//! The commands.

mod bench;
mod bench_bounds;
mod bench_kernels;
mod bench_profile;
mod bench_serve;
mod bench_share;
mod inspect;
mod models;
mod perplexity;
mod prompt;
mod pull;
mod run;
mod serve;
mod tokenize;

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::Command;
use crate::interrupt;

/// Runs a command.
///
/// # Errors
/// Whatever the command could not do.
pub(crate) fn run(command: Command) -> Result<ExitCode> {
    interrupt::install()?;
    match command {
        Command::Run(args) => run::run(&args),
        Command::Serve(args) => done(serve::run(&args)),
        Command::Pull(args) => done(pull::run(&args)),
        Command::Models(args) => done(models::run(&args)),
        Command::Inspect(args) => done(inspect::run(&args)),
        Command::Tokenize(args) => done(tokenize::run(&args)),
        Command::Bench(args) if args.kernels => done(bench_kernels::run(&args)),
        Command::Bench(args) if args.bounds && !args.model_given => done(bench_bounds::run(&args)),
        Command::Bench(args) => done(bench::run(&args)),
        Command::BenchServe(args) => done(bench_serve::run(&args)),
        Command::Perplexity(args) => done(perplexity::run(&args)),
    }
}

fn done(result: Result<()>) -> Result<ExitCode> {
    result.map(|()| ExitCode::SUCCESS)
}
