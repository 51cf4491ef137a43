//! `run`: answers a prompt.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use engine::{
    Engine, EngineError, EngineOptions, Event, FinishReason, Finished, Request, TokenEvent,
};
use kernels::CONTRACT_VERSION;
use kernels::isa::Isa;
use serde::Serialize;
use text::Tokenizer;

use super::prompt::{self, Encoded};
use crate::cli::RunArgs;
use crate::interrupt;
use crate::{report, session};

/// Answers a prompt.
///
/// # Errors
/// When an argument is out of range, the model can't be had or run, or standard output not written to.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    // Ranges that don't depend on the model; ids are checked against its vocabulary later.
    args.sampling.to_sampling().validate(usize::MAX)?;
    let isa = Isa::from_env()?;
    let text = prompt::gather(args.prompt.as_deref(), args.raw)?;
    let path = session::fetch(&args.model.model)?;

    let start = Instant::now();
    let file = weights::gguf::Gguf::open(path)?;
    let trained = model::arch::read(&file)?.context;
    let context = session::context(args.limits.ctx.asked(), trained)?;
    let tokenizer = session::tokenizer(&file)?;
    let encode_start = Instant::now();
    let encoded = prompt::encode(&tokenizer, &text, args.system.as_deref(), args.raw)?;
    let encode = encode_start.elapsed();
    if encoded.tokens.len() >= context {
        let prompt = encoded.tokens.len();
        return Err(EngineError::PromptTooLong { prompt, context }.into());
    }
    let pool = session::pool(args.threads.count())?;
    let threads = pool.threads();
    let model = session::load(&file, &pool)?;
    let options = EngineOptions {
        kv_type: args.kv.kv_type(),
        context,
        sequences: 1,
        prefill_chunk: args.prefill_chunk.within(context),
        ..EngineOptions::default()
    };
    let mut engine = Engine::new(model, Arc::clone(&tokenizer), isa, pool, options)?;
    let load = start.elapsed() - encode;

    let is_chat = encoded.is_chat;
    let mut answer = Answer::new(!args.json);
    generate(&mut engine, request(args, encoded), &mut answer)?;
    let facts = Facts {
        isa,
        threads,
        options,
        is_chat,
        load,
        encode,
    };
    report_answer(args, &answer, &facts, &tokenizer)?;
    Ok(
        match (answer.finished.map(|f| f.reason), interrupt::exit_status()) {
            (Some(FinishReason::Cancelled), Some(status)) => ExitCode::from(status),
            _ => ExitCode::SUCCESS,
        },
    )
}

fn request(args: &RunArgs, encoded: Encoded) -> Request {
    Request {
        prompt: encoded.tokens,
        sampling: args.sampling.to_sampling(),
        max_tokens: args.limits.max_tokens.map(|n| n as usize),
        stop: args.limits.stop.clone(),
        ignore_end: args.limits.ignore_eos,
        log_probs: args.logprobs.map(|n| n as usize),
        logits_hash: args.logits_hash,
        ..Request::default()
    }
}

/// What came of a request.
struct Answer {
    /// Text is printed as it comes.
    streams: bool,
    text: String,
    tokens: Vec<TokenEvent>,
    finished: Option<Finished>,
    /// Time in steps until the first token, and after it.
    prefill: Duration,
    decode: Duration,
}

impl Answer {
    fn new(streams: bool) -> Self {
        let (prefill, decode) = (Duration::ZERO, Duration::ZERO);
        Self {
            streams,
            text: String::new(),
            tokens: Vec::new(),
            finished: None,
            prefill,
            decode,
        }
    }

    fn take(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Token(token) => {
                self.add(&token.text)?;
                self.tokens.push(token);
            }
            Event::Finished(finished) => {
                self.add(&finished.text)?;
                self.finished = Some(finished);
            }
            Event::Started(_) | Event::Prompt(_) => {}
        }
        Ok(())
    }

    fn add(&mut self, text: &str) -> Result<()> {
        self.text.push_str(text);
        if self.streams {
            report::print(text)
        } else {
            Ok(())
        }
    }
}

/// Runs the request to its end. Ctrl-C ends it early.
fn generate(engine: &mut Engine, request: Request, answer: &mut Answer) -> Result<()> {
    let mut events = Vec::new();
    let id = engine.submit(request)?;
    interrupt::set_graceful(true);
    while !engine.is_idle() {
        let start = Instant::now();
        if interrupt::requested() {
            events.extend(engine.cancel(id)?);
        } else {
            engine.step(&mut events)?;
        }
        let time = if answer.tokens.is_empty() {
            &mut answer.prefill
        } else {
            &mut answer.decode
        };
        *time += start.elapsed();
        for event in events.drain(..) {
            answer.take(event)?;
        }
    }
    interrupt::set_graceful(false);
    if answer.streams && !answer.text.ends_with('\n') {
        report::print("\n")?;
    }
    Ok(())
}

/// What a report says beside the answer.
struct Facts {
    isa: Isa,
    threads: usize,
    options: EngineOptions,
    is_chat: bool,
    load: Duration,
    encode: Duration,
}

#[derive(Serialize)]
struct Report<'a> {
    text: &'a str,
    token_ids: Vec<u32>,
    prompt_tokens: usize,
    finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    logits_hash: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<LogProbs>>,
    model: &'a str,
    chat_template: bool,
    isa: &'static str,
    threads: usize,
    kv: &'static str,
    ctx: usize,
    prefill_chunk: usize,
    temperature: f64,
    seed: u64,
    contract_version: u32,
    load_ms: f64,
    encode_ms: f64,
    prefill_ms: f64,
    ttft_ms: f64,
    decode_ms: f64,
    tpot_ms: Option<f64>,
    prefill_tokens_per_second: Option<f64>,
    decode_tokens_per_second: Option<f64>,
    peak_rss_bytes: Option<u64>,
}

/// A token with its log-probability and the most probable ones.
#[derive(Serialize)]
struct LogProbs {
    #[serde(flatten)]
    chosen: LogProb,
    top: Vec<LogProb>,
}

#[derive(Serialize)]
struct LogProb {
    token_id: u32,
    token: String,
    logprob: f64,
}

fn report_answer(
    args: &RunArgs,
    answer: &Answer,
    facts: &Facts,
    tokenizer: &Tokenizer,
) -> Result<()> {
    let Some(finished) = &answer.finished else {
        return Ok(());
    };
    let logprobs = args.logprobs.map(|_| log_probs(&answer.tokens, tokenizer));
    let hash = finished.logits_hash.as_deref();
    if !args.json {
        for entry in logprobs.iter().flatten() {
            report::note(&log_probs_line(entry));
        }
        if let Some(hash) = hash {
            report::note(&format!("logits_hash: {hash}"));
        }
        return Ok(());
    }
    let sampling = args.sampling.to_sampling();
    // The first token comes of the prefill.
    let decoded = answer.tokens.len().saturating_sub(1);
    let report = Report {
        text: &answer.text,
        token_ids: answer.tokens.iter().map(|event| event.token).collect(),
        prompt_tokens: finished.prompt_tokens,
        finish_reason: finished.reason.name(),
        logits_hash: hash,
        logprobs,
        model: &args.model.model,
        chat_template: facts.is_chat,
        isa: facts.isa.name(),
        threads: facts.threads,
        kv: facts.options.kv_type.name(),
        ctx: facts.options.context,
        prefill_chunk: facts.options.prefill_chunk,
        temperature: sampling.temperature,
        seed: sampling.seed,
        contract_version: CONTRACT_VERSION,
        load_ms: report::milliseconds(facts.load),
        encode_ms: report::milliseconds(facts.encode),
        prefill_ms: report::milliseconds(answer.prefill),
        ttft_ms: report::milliseconds(facts.encode + answer.prefill),
        decode_ms: report::milliseconds(answer.decode),
        tpot_ms: (decoded > 0).then(|| report::milliseconds(answer.decode.div_f64(decoded as f64))),
        prefill_tokens_per_second: report::per_second(finished.prompt_tokens, answer.prefill),
        decode_tokens_per_second: report::per_second(decoded, answer.decode),
        peak_rss_bytes: report::peak_rss_bytes(),
    };
    report::print_json(&report, true)
}

fn log_probs(tokens: &[TokenEvent], tokenizer: &Tokenizer) -> Vec<LogProbs> {
    let entry = |p: &engine::sampling::TokenLogProb| LogProb {
        token_id: p.token,
        token: String::from_utf8_lossy(tokenizer.token_bytes(p.token)).into_owned(),
        logprob: p.log_prob,
    };
    let with = tokens.iter().filter_map(|event| event.log_probs.as_ref());
    with.map(|p| LogProbs {
        chosen: entry(&p.chosen),
        top: p.top.iter().map(entry).collect(),
    })
    .collect()
}

/// For people: the token, then the most probable ones.
fn log_probs_line(entry: &LogProbs) -> String {
    let show = |p: &LogProb| format!("{} {:?} {:.4}", p.token_id, p.token, p.logprob);
    let mut line = show(&entry.chosen);
    if !entry.top.is_empty() {
        let top: Vec<String> = entry.top.iter().map(show).collect();
        line.push_str(&format!("  | {}", top.join(", ")));
    }
    line
}
