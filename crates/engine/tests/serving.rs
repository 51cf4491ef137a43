//! Many requests at once on tiny models: text, tokens and logits are what each request has alone.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use engine::sampling::Sampling;
use engine::{
    Engine, EngineError, EngineOptions, Event, FinishReason, Finished, Preemption, Request,
    RequestId, TenantId, derive_seed,
};
use kernels::isa::Isa;
use kernels::pages::KvType;
use kernels::pool::Pool;
use model::{Memory, Model};
use text::Tokenizer;
use weights::gguf::Gguf;
use weights::load::LoadOptions;

const CONTEXT: usize = 256;

struct Tiny {
    model: Arc<Model>,
    tokenizer: Arc<Tokenizer>,
}

impl Tiny {
    fn load(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tiny");
        let file = Gguf::open(path.join(format!("{name}.gguf"))).unwrap();
        let model = Model::load(&file, &Pool::new(1), LoadOptions::default()).unwrap();
        Self {
            model: Arc::new(model),
            tokenizer: Arc::new(Tokenizer::from_gguf(&file).unwrap()),
        }
    }

    fn engine(&self, options: EngineOptions) -> Engine {
        let (model, tokenizer) = (Arc::clone(&self.model), Arc::clone(&self.tokenizer));
        Engine::new(model, tokenizer, Isa::best(), Pool::new(1), options).unwrap()
    }

    /// Bytes for `positions` of one sequence.
    fn bytes(&self, positions: usize) -> u64 {
        Memory::bytes_per_sequence(&self.model.architecture, KvType::F16, positions) as u64
    }

    /// What `request` gives alone, in steps of their own.
    fn alone(&self, request: &Request) -> Answer {
        let mut engine = self.engine(EngineOptions {
            prefill_chunk: 50,
            ..options()
        });
        let mut run = Run::default();
        let id = engine.submit(request.clone()).unwrap();
        run.finish(&mut engine);
        run.answers.remove(&id).unwrap()
    }
}

fn options() -> EngineOptions {
    EngineOptions {
        context: CONTEXT,
        ..EngineOptions::default()
    }
}

/// What came of a request.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    text: String,
    tokens: Vec<u32>,
    prompt_log_probs: Vec<f64>,
    end: Option<Finished>,
}

impl Answer {
    /// What must not depend on anything but the request.
    fn meaning(&self) -> (&str, &[u32], &[f64], Option<&str>, FinishReason) {
        let end = self.end.as_ref().unwrap();
        let hash = end.logits_hash.as_deref();
        (
            &self.text,
            &self.tokens,
            &self.prompt_log_probs,
            hash,
            end.reason,
        )
    }

    fn end(&self) -> &Finished {
        self.end.as_ref().unwrap()
    }
}

/// Events, by request.
#[derive(Default)]
struct Run {
    answers: BTreeMap<RequestId, Answer>,
}

impl Run {
    fn take(&mut self, event: Event) {
        let answer = self.answers.entry(event.request()).or_default();
        assert_eq!(answer.end, None, "nothing comes after the end");
        match event {
            Event::Started(_) => {}
            Event::Prompt(prompt) => {
                let chosen = prompt.log_probs.into_iter().flatten();
                answer.prompt_log_probs = chosen.map(|p| p.chosen.log_prob).collect();
            }
            Event::Token(token) => {
                answer.text.push_str(&token.text);
                answer.tokens.push(token.token);
            }
            Event::Finished(end) => {
                answer.text.push_str(&end.text);
                answer.end = Some(end);
            }
        }
    }

    fn step(&mut self, engine: &mut Engine) {
        let mut events = Vec::new();
        engine.step(&mut events).unwrap();
        events.into_iter().for_each(|event| self.take(event));
    }

    fn finish(&mut self, engine: &mut Engine) {
        for _ in 0..100_000 {
            if engine.is_idle() {
                assert_eq!(engine.stats().pages_held, 0, "all pages came back");
                assert_eq!(engine.stats().swapped_bytes, 0);
                return;
            }
            self.step(engine);
        }
        unreachable!("requests end");
    }

    fn cancel(&mut self, engine: &mut Engine, id: RequestId) {
        let event = engine.cancel(id).unwrap().unwrap();
        self.take(event);
        assert_eq!(self.answers[&id].end().reason, FinishReason::Cancelled);
        assert_eq!(engine.cancel(id).unwrap(), None);
    }
}

/// A generator of small numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % end as u64) as usize
    }
}

/// Requests of many kinds, some of which begin alike.
fn requests(count: usize, seed: u64) -> Vec<Request> {
    let mut random = Random(seed);
    let one = |i: usize| {
        let (len, alike) = (1 + random.below(100), random.below(120));
        let token = |at: usize| match at < alike {
            true => (at as u32 * 7 + 3) % 250,
            false => random.below(250) as u32,
        };
        let prompt = (0..len).map(token).collect();
        let temperature = if i.is_multiple_of(2) { 0.0 } else { 0.9 };
        Request {
            prompt,
            sampling: Sampling {
                temperature,
                seed: i as u64,
                repetition_penalty: 1.1,
                ..Sampling::default()
            },
            max_tokens: Some(1 + random.below(140)),
            ignore_end: !i.is_multiple_of(3),
            logits_hash: i % 4 == 1,
            prompt_log_probs: (i % 5 == 2).then_some(1),
            tenant: TenantId(i as u64 % 3 / 2),
            priority: i32::from(i % 7 == 6),
            cache_prompt: i % 8 != 7,
            ..Request::default()
        }
    };
    (0..count).map(one).collect()
}

/// Requests that come and go, a third of them cancelled, against each alone.
fn compare(tiny: &Tiny, options: EngineOptions, seed: u64) -> engine::EngineStats {
    compare_requests(tiny, options, seed, requests(14, seed))
}

fn compare_requests(
    tiny: &Tiny,
    options: EngineOptions,
    seed: u64,
    requests: Vec<Request>,
) -> engine::EngineStats {
    let mut random = Random(seed + 1);
    let mut engine = tiny.engine(options);
    let (mut run, mut ids) = (Run::default(), Vec::new());
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|_| random.below(1000));
    for &which in &order {
        ids.push((which, engine.submit(requests[which].clone()).unwrap()));
        for _ in 0..random.below(6) {
            run.step(&mut engine);
        }
        let (_, some) = ids[random.below(ids.len())];
        let lives = run
            .answers
            .get(&some)
            .is_none_or(|answer| answer.end.is_none());
        if lives && random.below(3) == 0 {
            run.cancel(&mut engine, some);
        }
    }
    run.finish(&mut engine);
    let mut compared = 0;
    for (which, id) in ids {
        let answer = &run.answers[&id];
        let alone = tiny.alone(&requests[which]);
        if answer.end().reason == FinishReason::Cancelled {
            assert!(alone.tokens.starts_with(&answer.tokens));
        } else {
            assert_eq!(
                answer.meaning(),
                alone.meaning(),
                "request {which} of seed {seed}"
            );
            compared += 1;
        }
    }
    assert!(compared > 5, "too many were cancelled");
    engine.stats()
}

#[test]
fn among_any_neighbours_with_any_step_budget_and_order_of_arrival() {
    for name in ["llama-tied", "qwen2", "gemma3"] {
        let tiny = Tiny::load(name);
        let mut hits = 0;
        for (seed, prefill_chunk) in [(1, 1), (2, 7), (3, 64), (4, 500)] {
            let options = EngineOptions {
                sequences: 1 + seed as usize,
                prefill_chunk,
                ..options()
            };
            hits += compare(&tiny, options, seed).prefix_hit_tokens;
        }
        assert!(hits > 0);
    }
}

#[test]
fn preempted_by_swap_by_recomputation_or_not() {
    for name in ["llama-untied", "gemma3"] {
        let tiny = Tiny::load(name);
        for preemption in [Preemption::Swap, Preemption::Recompute, Preemption::Auto] {
            let options = EngineOptions {
                sequences: 6,
                prefill_chunk: 40,
                state_bytes: Some(tiny.bytes(256)),
                swap_bytes: tiny.bytes(4000),
                preemption,
                ..options()
            };
            // Short prompts and long answers: they begin together, and do not fit as they grow.
            let of = |seed| {
                let mut requests = requests(14, seed);
                for request in &mut requests {
                    request.prompt.truncate(30);
                    (request.max_tokens, request.ignore_end) = (Some(150), true);
                }
                compare_requests(&tiny, options, seed, requests)
            };
            let (swaps, recomputes) =
                (10..14).map(of).fold((0, 0), |(swaps, recomputes), stats| {
                    (swaps + stats.swaps, recomputes + stats.recomputes)
                });
            match preemption {
                Preemption::Swap => assert!(swaps > 0 && recomputes == 0, "{swaps}, {recomputes}"),
                Preemption::Recompute => {
                    assert!(swaps == 0 && recomputes > 0, "{swaps}, {recomputes}")
                }
                Preemption::Auto => assert!(swaps + recomputes > 0),
            }
        }
    }
}

#[test]
fn a_cached_prefix_changes_nothing() {
    let tiny = Tiny::load("llama-tied");
    for i in 0..6 {
        let prompt: Vec<u32> = (0..150).map(|at| (at * 3 + i) % 250).collect();
        let request = Request {
            prompt,
            max_tokens: Some(20),
            logits_hash: i == 1,
            prompt_log_probs: (i == 2).then_some(0),
            cache_prompt: i != 3,
            ..Request::default()
        };
        let mut engine = tiny.engine(options());
        let mut run = Run::default();
        let mut ids = Vec::new();
        for _ in 0..2 {
            ids.push(engine.submit(request.clone()).unwrap());
            run.finish(&mut engine);
        }
        let other_tenant = Request {
            tenant: TenantId(9),
            ..request.clone()
        };
        ids.push(engine.submit(other_tenant).unwrap());
        run.finish(&mut engine);
        let answers: Vec<&Answer> = ids.iter().map(|id| &run.answers[id]).collect();
        assert_eq!(answers[0].meaning(), answers[1].meaning());
        assert_eq!(answers[0].meaning(), answers[2].meaning());
        // Rows of all positions are wanted of 1 and 2, and 3 shares nothing.
        let cached: Vec<usize> = answers
            .iter()
            .map(|answer| answer.end().cached_tokens)
            .collect();
        let is_used = !(1..=3).contains(&i);
        assert_eq!(
            (cached[0], cached[1] >= 128, cached[2]),
            (0, is_used, 0),
            "{i}: {cached:?}"
        );
    }
}

#[test]
fn several_answers_to_a_prompt_are_those_of_the_derived_seeds() {
    let tiny = Tiny::load("qwen2-tied");
    let request = |index: u32| Request {
        prompt: (0..140).collect(),
        max_tokens: Some(12),
        ignore_end: true,
        sampling: Sampling {
            temperature: 1.0,
            seed: derive_seed(77, index),
            ..Sampling::default()
        },
        ..Request::default()
    };
    let mut engine = tiny.engine(EngineOptions {
        sequences: 4,
        prefill_chunk: 32,
        ..options()
    });
    let mut run = Run::default();
    let ids: Vec<_> = (0..4).map(|i| engine.submit(request(i)).unwrap()).collect();
    run.finish(&mut engine);
    for (id, index) in ids.iter().zip(0..) {
        assert_eq!(
            run.answers[id].meaning(),
            tiny.alone(&request(index)).meaning()
        );
    }
    // The prompt was read once; the others read what is beyond its last whole page.
    assert_eq!(engine.stats().computed_tokens, 140 + 3 * (140 - 128));
    let mut texts: Vec<&str> = ids.iter().map(|id| run.answers[id].text.as_str()).collect();
    texts.dedup();
    assert!(texts.len() > 1, "other seeds, other texts");
}

#[test]
fn a_prompt_can_be_scored_without_an_answer() {
    let tiny = Tiny::load("llama-tied");
    let request = Request {
        prompt: (5..105).collect(),
        max_tokens: Some(0),
        prompt_log_probs: Some(3),
        ..Request::default()
    };
    let mut engine = tiny.engine(options());
    let mut run = Run::default();
    let id = engine.submit(request).unwrap();
    run.finish(&mut engine);
    let answer = &run.answers[&id];
    assert_eq!(
        (answer.tokens.len(), answer.prompt_log_probs.len()),
        (0, 99)
    );
    assert_eq!(answer.end().reason, FinishReason::Length);
}

/// Cancelled in every state, with neighbours in every other.
#[test]
fn an_abort_in_any_state_spares_the_neighbours() {
    let tiny = Tiny::load("llama-tied");
    let request = |i: u32, len: u32| Request {
        prompt: (0..len).map(|at| (at * 5 + i * 11) % 250).collect(),
        max_tokens: Some(180),
        ignore_end: true,
        ..Request::default()
    };
    let mut preempted = 0;
    for preemption in [Preemption::Swap, Preemption::Recompute] {
        // One after as many steps as bring it into each state.
        for steps in [0, 1, 3, 8, 20, 60, 120, 200] {
            for victim in 0..5 {
                let mut engine = tiny.engine(EngineOptions {
                    sequences: 4,
                    prefill_chunk: 16,
                    state_bytes: Some(tiny.bytes(256)),
                    swap_bytes: tiny.bytes(1000),
                    preemption,
                    ..options()
                });
                let mut run = Run::default();
                let requests: Vec<Request> =
                    (0..5).map(|i| request(i, 20 + 10 * (i % 3))).collect();
                let submit = |r: &Request| engine.submit(r.clone()).unwrap();
                let ids: Vec<RequestId> = requests.iter().map(submit).collect();
                (0..steps).for_each(|_| run.step(&mut engine));
                let ended = run
                    .answers
                    .get(&ids[victim])
                    .is_some_and(|a| a.end.is_some());
                preempted += engine.stats().preempted;
                if !ended {
                    run.cancel(&mut engine, ids[victim]);
                }
                run.finish(&mut engine);
                for (i, id) in ids.iter().enumerate().filter(|(i, _)| *i != victim) {
                    // The victim changes from round to round: so all are compared with each alone.
                    assert_eq!(run.answers[id].tokens.len(), 180, "{i}");
                    if steps == 20 {
                        assert_eq!(
                            run.answers[id].meaning(),
                            tiny.alone(&requests[i]).meaning()
                        );
                    }
                }
            }
        }
    }
    assert!(
        preempted > 0,
        "someone was cancelled, or a neighbour, while it had made room"
    );
}

#[test]
fn what_never_fits_and_what_is_too_many_is_refused_with_the_numbers() {
    let tiny = Tiny::load("llama-tied");
    let request = |len: usize, max_tokens| Request {
        prompt: vec![1; len],
        max_tokens,
        ..Request::default()
    };
    let mut engine = tiny.engine(EngineOptions {
        state_bytes: Some(tiny.bytes(128)),
        queue: 3,
        ..options()
    });
    let refused = engine.submit(request(100, Some(100))).unwrap_err();
    assert!(
        matches!(refused, EngineError::NeverFits { positions: 199, .. }),
        "{refused:?}"
    );
    let told = refused.to_string();
    assert!(
        told.contains("199 tokens") && told.contains("pages"),
        "{told}"
    );
    assert!(
        engine.submit(request(10, None)).is_err(),
        "as many as the context holds"
    );
    // As much as just fits.
    assert!(engine.submit(request(100, Some(29))).is_ok());
    for _ in 0..2 {
        engine.submit(request(5, Some(2))).unwrap();
    }
    let full = engine.submit(request(5, Some(2))).unwrap_err();
    let is_told = matches!(
        full,
        EngineError::QueueFull {
            waiting: 3,
            limit: 3,
            retry_after_s: 1..
        }
    );
    assert!(is_told, "{full:?}");
    assert_eq!((engine.stats().submitted, engine.stats().rejected), (3, 3));
    let mut run = Run::default();
    run.finish(&mut engine);
    assert_eq!(run.answers.len(), 3);
}

#[test]
fn higher_priorities_begin_first() {
    let tiny = Tiny::load("llama-tied");
    let mut engine = tiny.engine(options());
    let submit = |engine: &mut Engine, priority| {
        let request = Request {
            prompt: vec![7; 10],
            max_tokens: Some(3),
            priority,
            ..Request::default()
        };
        engine.submit(request).unwrap()
    };
    let ids = [0, -1, 5, 5, 2].map(|priority| submit(&mut engine, priority));
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events).unwrap();
    }
    let started = events.iter().filter_map(|event| match event {
        Event::Started(started) => Some(started.request),
        _ => None,
    });
    assert_eq!(
        started.collect::<Vec<_>>(),
        [2, 3, 4, 0, 1].map(|i: usize| ids[i])
    );
}
