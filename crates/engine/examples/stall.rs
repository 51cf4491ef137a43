//! How much a long prompt slows down running answers, and they it; and what scheduling costs.
//!
//! `cargo run --release -p plainchant-engine --example stall -- MODEL.gguf [STREAMS] [PROMPT_TOKENS]`
//!
//! Prints the median and the 99th percentile of the time between tokens of the answers without and beside
//! the prompt, the prompt's time to first token alone and beside them, and the share of a step's time that
//! is not the model's.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use engine::{Engine, EngineOptions, Event, Request, RequestId};
use kernels::isa::Isa;
use kernels::pool::Pool;
use model::Model;
use text::Tokenizer;
use weights::gguf::Gguf;
use weights::load::LoadOptions;

/// Tokens of each running answer's prompt.
const SHORT_PROMPT: usize = 64;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, numbers @ ..] = args.as_slice() else {
        panic!("usage: stall MODEL.gguf [STREAMS] [PROMPT_TOKENS]");
    };
    let number =
        |at: usize, default: usize| numbers.get(at).map_or(default, |n| n.parse().unwrap());
    let (streams, prompt_tokens) = (number(0, 8), number(1, 4096));
    let file = Gguf::open(Path::new(file)).unwrap();
    let pool = Pool::new(kernels::topology::default_threads());
    let model = Arc::new(Model::load(&file, &pool, LoadOptions::default()).unwrap());
    let tokenizer = Arc::new(Tokenizer::from_gguf(&file).unwrap());
    let options = EngineOptions {
        context: prompt_tokens + 64,
        sequences: streams + 1,
        ..EngineOptions::default()
    };
    let vocabulary = model.architecture.vocabulary;
    let mut engine = Engine::new(model, tokenizer, Isa::best(), pool, options).unwrap();
    let mut next = 1u64;
    let mut prompt = |len: usize| -> Vec<u32> {
        let mut token = || {
            next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((next >> 33) % vocabulary as u64) as u32
        };
        (0..len).map(|_| token()).collect()
    };
    let request = |prompt: Vec<u32>, max_tokens: Option<usize>| Request {
        prompt,
        max_tokens,
        ignore_end: true,
        cache_prompt: false,
        ..Request::default()
    };

    let alone = time_to_first(
        &mut engine,
        request(prompt(prompt_tokens), Some(1)),
        &mut Vec::new(),
    );
    let ids: Vec<RequestId> = (0..streams)
        .map(|_| engine.submit(request(prompt(SHORT_PROMPT), None)).unwrap())
        .collect();
    let mut events = Vec::new();
    while engine.stats().decoding < streams {
        engine.step(&mut events).unwrap();
    }
    let mut plain = Vec::new();
    let before = engine.stats();
    for _ in 0..200 {
        let start = Instant::now();
        engine.step(&mut events).unwrap();
        plain.push(start.elapsed().as_secs_f64() * 1e3);
        events.clear();
    }
    let after = engine.stats();
    let outside = after.scheduling_ms - before.scheduling_ms;
    let share = outside / (outside + after.busy_ms - before.busy_ms);
    let mut beside = Vec::new();
    let together = time_to_first(
        &mut engine,
        request(prompt(prompt_tokens), Some(1)),
        &mut beside,
    );
    for id in ids {
        engine.cancel(id).unwrap();
    }
    let (median, p99) = (quantile(&mut plain, 0.5), quantile(&mut beside, 0.99));
    println!(
        "between tokens, {streams} answers: median {median:.2} ms, p99 {:.2} ms",
        quantile(&mut plain, 0.99)
    );
    println!(
        "beside a prompt of {prompt_tokens}: median {:.2} ms, p99 {p99:.2} ms, {:.2} × the median without",
        quantile(&mut beside, 0.5),
        p99 / median
    );
    println!(
        "first token of the prompt: alone {alone:.0} ms, beside {together:.0} ms, {:.2} ×",
        together / alone
    );
    println!("outside the model: {:.2} % of a step", share * 100.0);
}

/// The time to the first token of `request`, in milliseconds; `steps` gets that of each step.
fn time_to_first(engine: &mut Engine, request: Request, steps: &mut Vec<f64>) -> f64 {
    let begin = Instant::now();
    let id = engine.submit(request).unwrap();
    let mut events = Vec::new();
    loop {
        let start = Instant::now();
        engine.step(&mut events).unwrap();
        steps.push(start.elapsed().as_secs_f64() * 1e3);
        let is_first = |event: &Event| matches!(event, Event::Token(token) if token.request == id);
        if events.drain(..).any(|event| is_first(&event)) {
            return begin.elapsed().as_secs_f64() * 1e3;
        }
    }
}

fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * q).round() as usize]
}
