//! The `plainchant` command: runs open-weight language models on the CPU.

use std::process::ExitCode;

mod bounds;
mod cli;
mod commands;
mod flags;
mod interrupt;
mod progress;
mod report;
mod session;

fn main() -> ExitCode {
    let cli = cli::parse();
    commands::run(cli.command).unwrap_or_else(|error| report::failure(&error))
}
