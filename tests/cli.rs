//! The `plainchant` command as its users meet it: exit status, standard output, standard error.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

#[path = "cli/bench_serve.rs"]
mod bench_serve;
#[path = "cli/commands.rs"]
mod commands;
#[path = "cli/errors.rs"]
mod errors;
#[path = "cli/invariance.rs"]
mod invariance;
#[path = "cli/pull.rs"]
mod pull;
#[path = "cli/real_model.rs"]
mod real_model;
#[path = "cli/run.rs"]
mod run;
#[path = "cli/support.rs"]
mod support;
