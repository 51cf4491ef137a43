//! `bench-serve`: how a server behaves under load.

mod answer;
mod arrivals;
mod client;
mod interference;
mod load;
mod prompts;
mod reuse;
mod sse;
mod stats;
mod stream;
mod summary;

use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use self::answer::{Failure, FailureKind};
use self::client::{Client, Extras};
use self::load::Load;
use self::prompts::Prompts;
use self::summary::Summed;
use crate::cli::{Arrivals, BenchServeArgs, Endpoint};
use crate::report::Usage;
use crate::{progress, report};

/// What is measured.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(tag = "mode", rename_all = "snake_case")]
enum Mode {
    Closed {
        concurrency: u32,
        requests: u32,
    },
    Open {
        rate: f64,
        arrivals: Arrivals,
        requests: u32,
    },
    LongPrompt {
        long_prompt_tokens: u32,
        concurrency: u32,
    },
    PrefixReuse,
}

impl Mode {
    fn of(args: &BenchServeArgs) -> Self {
        let (concurrency, requests) = (args.concurrency, args.requests);
        match (args.long_prompt_tokens, args.rate) {
            (Some(long_prompt_tokens), _) => Self::LongPrompt {
                long_prompt_tokens,
                concurrency,
            },
            (None, _) if args.prefix_reuse => Self::PrefixReuse,
            (None, Some(rate)) => Self::Open {
                rate,
                arrivals: args.arrivals,
                requests,
            },
            (None, None) => Self::Closed {
                concurrency,
                requests,
            },
        }
    }
}

/// What was asked for, and of whom.
#[derive(Debug, Serialize)]
struct Setting<'a> {
    url: &'a str,
    model: &'a str,
    endpoint: Endpoint,
    #[serde(flatten)]
    mode: Mode,
    prompt_tokens_asked: u32,
    shared_prefix_tokens: u32,
    output_tokens_asked: u32,
    seed: u64,
    /// Whether the server takes `ignore_eos`, so that answers have the length asked for.
    ignore_eos: bool,
    /// Whether it takes `stream_options`, so that streams end with counts.
    include_usage: bool,
    /// Whether it counted a prompt to be exactly as long as asked for.
    prompt_is_exact: bool,
}

/// One JSON object.
#[derive(Debug, Serialize)]
struct Report<'a, T> {
    #[serde(flatten)]
    setting: Setting<'a>,
    #[serde(flatten)]
    measured: &'a T,
}

/// Measures a server.
///
/// # Errors
/// When there is no server, it refuses the requests, or none is answered.
pub(crate) fn run(args: &BenchServeArgs) -> Result<()> {
    check(args)?;
    let mode = Mode::of(args);
    let mut client = Client::new(args)?;
    let mut prompts = Prompts::new(args.seed, args.tokenizer.as_deref())?;
    client.extras = probe(&mut client, &prompts)?;
    prompts
        .calibrate(&client, args.prompt_tokens as usize)
        .context("the server can't be asked how long a prompt is")?;
    tell(args, &client, &prompts);
    let count = match mode {
        Mode::Closed { requests, .. } | Mode::Open { requests, .. } => requests,
        Mode::LongPrompt { .. } | Mode::PrefixReuse => args.repeat,
    };
    let bar = progress::steps("", count as usize);
    let load = Load {
        args,
        client: &client,
        prompts: &prompts,
        bar: &bar,
    };
    let setting = setting(args, mode, &client, &prompts);
    match mode {
        Mode::Closed { .. } => {
            let started = Instant::now();
            let samples = load.closed()?;
            finish(
                args,
                setting,
                Summed::new(args, samples, started.elapsed()),
                &bar,
            )
        }
        Mode::Open {
            rate,
            arrivals,
            requests,
        } => {
            let due = arrivals::due(arrivals, rate, requests as usize, args.seed);
            let started = Instant::now();
            let samples = load.open(&due)?;
            finish(
                args,
                setting,
                Summed::new(args, samples, started.elapsed()),
                &bar,
            )
        }
        Mode::LongPrompt {
            long_prompt_tokens, ..
        } => {
            let measured = interference::measure(&load, long_prompt_tokens as usize)?;
            print(args, setting, &measured, &measured.text(), &bar)
        }
        Mode::PrefixReuse => {
            let measured = reuse::measure(&load)?;
            print(args, setting, &measured, &measured.text(), &bar)
        }
    }
}

/// What clap can't check.
fn check(args: &BenchServeArgs) -> Result<()> {
    let (prompt, shared) = (args.prompt_tokens, args.shared_prefix_tokens);
    let wrong = |problem: String| Err(Usage(problem).into());
    if shared > prompt {
        return wrong(format!(
            "--shared-prefix-tokens is {shared}: it must be at most the {prompt} of --prompt-tokens"
        ));
    }
    if args.prefix_reuse && (shared == 0 || shared == prompt) {
        return wrong(format!(
            "--shared-prefix-tokens is {shared}: with --prefix-reuse it must be above 0 and below the {prompt} of \
             --prompt-tokens"
        ));
    }
    for name in [
        "model",
        "prompt",
        "messages",
        "stream",
        "stream_options",
        "max_tokens",
    ] {
        if args
            .body
            .as_ref()
            .is_some_and(|body| body.contains_key(name))
        {
            return wrong(format!(
                "--body has the field {name:?}, which this command sets itself"
            ));
        }
    }
    Ok(())
}

/// Finds out which fields the server takes, and that it answers at all. It warms the server up, too.
fn probe(client: &mut Client, prompts: &Prompts) -> Result<Extras> {
    let prompt = prompts.prompt(16, (0, 0), u32::MAX - 100);
    let mut refusal = None;
    for (ignore_eos, include_usage) in [(true, true), (false, true), (true, false), (false, false)]
    {
        client.extras = Extras {
            ignore_eos,
            include_usage,
        };
        let sample = client.stream(&prompt, 2, Instant::now(), &mut |_, _| true);
        match sample.failure {
            None => return Ok(client.extras),
            Some(failure) if is_refusal(&failure) => refusal = Some(failure),
            Some(failure) => {
                return Err(anyhow::Error::new(failure).context("a first request failed"));
            }
        }
    }
    match refusal {
        Some(failure) => {
            Err(anyhow::Error::new(failure).context("the server refuses a first request"))
        }
        None => bail!("the server takes no request"),
    }
}

/// Whether a server that doesn't know a field may answer so.
fn is_refusal(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::Status(400 | 422))
}

/// What the figures must be read with.
fn tell(args: &BenchServeArgs, client: &Client, prompts: &Prompts) {
    if !client.extras.ignore_eos {
        report::note(
            "note: the server doesn't take ignore_eos: answers may be shorter than --output-tokens",
        );
    }
    if !client.extras.include_usage {
        report::note(
            "note: the server doesn't take stream_options: tokens are counted by what is asked and what comes",
        );
    }
    if !prompts.is_exact {
        let tokens = args.prompt_tokens;
        report::note(&format!(
            "note: prompts may not have exactly {tokens} tokens; --tokenizer MODEL helps where the server's model is at hand"
        ));
    }
}

fn setting<'a>(
    args: &'a BenchServeArgs,
    mode: Mode,
    client: &'a Client,
    prompts: &Prompts,
) -> Setting<'a> {
    Setting {
        url: &args.url,
        model: &client.model,
        endpoint: args.endpoint,
        mode,
        prompt_tokens_asked: args.prompt_tokens,
        shared_prefix_tokens: args.shared_prefix_tokens,
        output_tokens_asked: args.output_tokens,
        seed: args.seed,
        ignore_eos: client.extras.ignore_eos,
        include_usage: client.extras.include_usage,
        prompt_is_exact: prompts.is_exact,
    }
}

/// Prints a run of many requests.
fn finish(
    args: &BenchServeArgs,
    setting: Setting<'_>,
    summed: Summed,
    bar: &indicatif::ProgressBar,
) -> Result<()> {
    let failure = summed
        .samples
        .iter()
        .find_map(|sample| sample.failure.clone());
    let is_lost = summed.succeeded == 0;
    print(args, setting, &summed, &summed.text(), bar)?;
    match failure {
        Some(failure) if is_lost => {
            Err(anyhow::Error::new(failure).context("no request was answered"))
        }
        Some(failure) => {
            let failed = report::counted(summed.failed, "request");
            report::note(&format!("note: {failed} failed, the first with: {failure}"));
            Ok(())
        }
        None => Ok(()),
    }
}

fn print<T: Serialize>(
    args: &BenchServeArgs,
    setting: Setting<'_>,
    measured: &T,
    text: &str,
    bar: &indicatif::ProgressBar,
) -> Result<()> {
    bar.finish_and_clear();
    match args.json {
        true => report::print_json(&Report { setting, measured }, true),
        false => report::print(text),
    }
}
