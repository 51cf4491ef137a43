//! `perplexity`: how well a model predicts a text.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use engine::perplexity::{Score, Windows, score};
use kernels::CONTRACT_VERSION;
use model::{Decoder, Memory, MemoryOptions, Ops};
use serde::Serialize;
use text::{EncodeOptions, Tokenizer};

use super::prompt::{self, utf8};
use crate::cli::{PerplexityArgs, WINDOW_MIN};
use crate::report::Usage;
use crate::{progress, report, session};

/// The tokens of a window where none are asked for; less where the model was trained for less.
const DEFAULT_WINDOW: usize = 512;

#[derive(Serialize)]
struct Report<'a> {
    perplexity: f64,
    /// None of one token.
    perplexity_standard_error: Option<f64>,
    /// Per token, in nats.
    mean_negative_log_likelihood: f64,
    tokens_scored: usize,
    windows: usize,
    ctx: usize,
    text_tokens: usize,
    file: &'a Path,
    model: &'a str,
    isa: &'static str,
    threads: usize,
    kv: &'static str,
    prefill_chunk: usize,
    contract_version: u32,
    elapsed_ms: f64,
    tokens_per_second: Option<f64>,
    peak_rss_bytes: Option<u64>,
}

/// Scores a text.
///
/// # Errors
/// When the text or model can't be read, the text is too short, or the model fails.
pub(crate) fn run(args: &PerplexityArgs) -> Result<()> {
    let isa = session::isa()?;
    let source = Source::read(args)?;
    let file = session::open(&args.model.model)?;
    let trained = model::arch::read(&file)?.context;
    let window = window(args.ctx, trained)?;
    let tokenizer = session::tokenizer(&file)?;
    let tokens = source.tokens(&tokenizer);
    if tokens.len() < WINDOW_MIN as usize {
        bail!(
            "the text has {}: it must have {WINDOW_MIN} or more, those of the smallest window",
            report::counted(tokens.len(), "token")
        );
    }
    let limit = (args.chunks > 0).then_some(args.chunks as usize);
    let windows = Windows {
        window,
        limit,
        bos: tokenizer.bos().filter(|_| tokenizer.adds_bos()),
        chunk: args.prefill_chunk.within(window),
    };
    let pool = session::pool(args.threads.count())?;
    let threads = pool.threads();
    let model = session::load(&file, &pool)?;
    let kv_type = args.kv.kv_type();
    let mut memory = Memory::new(
        &model.architecture,
        MemoryOptions {
            kv_type,
            context: window,
            sequences: 1,
            state_bytes: None,
            swap_bytes: 0,
        },
    )?;
    let mut decoder = Decoder::new(model, Ops::new(isa, pool), windows.chunk, window)?;

    let count = (tokens.len() / window).min(limit.unwrap_or(usize::MAX));
    let bar = progress::steps("windows", count);
    let start = Instant::now();
    let result = score(
        &mut decoder,
        &mut memory,
        &tokens,
        windows,
        &mut |score: &Score| {
            bar.set_position(score.windows as u64);
            bar.set_message(format!("windows, perplexity {:.4}", score.perplexity));
        },
    );
    let elapsed = start.elapsed();
    bar.finish_and_clear();
    let result = result?;
    let report = Report {
        perplexity: result.perplexity,
        perplexity_standard_error: (result.tokens > 1).then_some(result.standard_error),
        mean_negative_log_likelihood: result.mean_nll,
        tokens_scored: result.tokens,
        windows: result.windows,
        ctx: window,
        text_tokens: tokens.len(),
        file: source.path(),
        model: &args.model.model,
        isa: isa.name(),
        threads,
        kv: kv_type.name(),
        prefill_chunk: windows.chunk,
        contract_version: CONTRACT_VERSION,
        elapsed_ms: report::milliseconds(elapsed),
        tokens_per_second: report::per_second(result.windows * window, elapsed),
        peak_rss_bytes: report::peak_rss_bytes(),
    };
    if args.json {
        return report::print_json(&report, true);
    }
    report::print(&for_people(&report))
}

/// The tokens of a window: what was asked for, or the default.
fn window(asked: Option<u32>, trained: usize) -> Result<usize> {
    let least = WINDOW_MIN as usize;
    if trained < least {
        bail!(
            "the model was trained for {}, fewer than the {least} of the smallest window",
            report::counted(trained, "position")
        );
    }
    let asked = asked.map(|asked| asked as usize);
    session::positions(asked, (least, DEFAULT_WINDOW), trained)
}

fn for_people(report: &Report<'_>) -> String {
    let error = report.perplexity_standard_error;
    let error = error.map_or(String::new(), |error| format!(" ± {error:.4}"));
    format!(
        "perplexity {:.4}{error}\nmean negative log-likelihood {:.6} nats per token\n\
         {} scored in {} of {}\n",
        report.perplexity,
        report.mean_negative_log_likelihood,
        report::counted(report.tokens_scored, "token"),
        report::counted(report.windows, "window"),
        report.ctx,
    )
}

/// What is scored.
enum Source<'a> {
    Text(&'a Path, String),
    Tokens(&'a Path, Vec<u32>),
}

impl<'a> Source<'a> {
    /// The tokens or text asked for.
    fn read(args: &'a PerplexityArgs) -> Result<Self> {
        let stdin = Path::new(prompt::STDIN);
        let read = |path: &Path| {
            if path == stdin {
                return prompt::read_stdin();
            }
            let bytes = fs::read(path).with_context(|| format!("can't read {}", path.display()))?;
            utf8(bytes, &path.display().to_string())
        };
        match (&args.token_ids, &args.file) {
            (Some(path), _) => {
                let ids = serde_json::from_str(&read(path)?);
                let ids = ids
                    .with_context(|| format!("{} is no JSON array of token ids", path.display()))?;
                Ok(Self::Tokens(path, ids))
            }
            (None, None) if io::stdin().is_terminal() => {
                let message =
                    "there is no text to score: give a file or standard input (see --help)";
                Err(Usage(message.to_owned()).into())
            }
            (None, file) => {
                let path = file.as_deref().unwrap_or(stdin);
                let mut text = read(path)?;
                if text.ends_with('\n') {
                    text.pop();
                }
                Ok(Self::Text(path, text))
            }
        }
    }

    fn path(&self) -> &'a Path {
        match self {
            Self::Text(path, _) | Self::Tokens(path, _) => path,
        }
    }

    fn tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        match self {
            Self::Tokens(_, ids) => ids.clone(),
            Self::Text(path, text) => {
                if let Some(lost) = tokenizer.lost_character(text) {
                    report::note(&format!(
                        "note: {}: the vocabulary can't write {:?} (byte {}); left out",
                        path.display(),
                        lost.character,
                        lost.offset
                    ));
                }
                tokenizer.encode(
                    text,
                    EncodeOptions {
                        add_special: true,
                        parse_special: false,
                    },
                )
            }
        }
    }
}
