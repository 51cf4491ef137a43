//! A seeded world of clients around the real loop, scheduler and books, and what must hold in it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use state::TenantId;
use text::Tokenizer;
use weights::gguf::Gguf;

use super::fake::{Fake, FakeOptions, Layer, POISON, Reference, VOCABULARY, mix};
use crate::core::{Core, CoreOptions};
use crate::engine::Preemption;
use crate::error::EngineError;
use crate::request::{Event, FinishReason, Finished, Request, RequestId};
use crate::runner::Runner;
use crate::sampling::{History, Sampler, Sampling, log_probs};
use crate::scheduler::{Limits, PATIENCE_STEPS};

/// Steps within which everyone who has begun goes on, even where memory is short.
const SHORT_PATIENCE_STEPS: u64 = 20_000;

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0, 0x5EED)
    }

    /// Below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// Once in so many times.
    pub(super) fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

/// How a world is made.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) fake: FakeOptions,
    pub(super) prefill_chunk: usize,
    pub(super) queue: usize,
    pub(super) preemption: Preemption,
    pub(super) tenants: usize,
    pub(super) priorities: usize,
    pub(super) prompt_most: usize,
    pub(super) answer_most: usize,
    /// A request arrives once in so many steps; several may.
    pub(super) arrives_in: usize,
    /// A request is cancelled once in so many steps; 0 is never.
    pub(super) cancelled_in: usize,
    /// A request is poisoned, and a step fails, once in so many; 0 is never.
    pub(super) fails_in: usize,
}

impl Config {
    pub(super) fn random(random: &mut Random) -> Self {
        let blocks = 1 + random.below(5);
        let context = 64 * blocks + random.below(64) + 2;
        let sequences = 1 + random.below(8);
        let layers = random.pick(&[
            vec![Layer::Full],
            vec![Layer::Full, Layer::Full],
            vec![Layer::Full, Layer::Window(70)],
            vec![Layer::Window(1), Layer::Window(100)],
            vec![Layer::Full, Layer::Recurrent],
        ]);
        let room = random.pick(&[1, 1, 2, sequences]);
        Self {
            fake: FakeOptions {
                layers,
                sequences,
                context,
                pages: blocks * room + random.below(4),
                swap_bytes: random.pick(&[0, 4096, 1 << 20]),
            },
            prefill_chunk: random.pick(&[1, 5, 16, 64, 100, 1000]),
            queue: random.pick(&[2, 10, 100]),
            preemption: random.pick(&[Preemption::Auto, Preemption::Swap, Preemption::Recompute]),
            tenants: 1 + random.below(4),
            priorities: 1 + random.below(3),
            prompt_most: random.pick(&[10, 80, context]),
            answer_most: random.pick(&[3, 40, 200]),
            arrives_in: random.pick(&[1, 3, 10, 30]),
            cancelled_in: random.pick(&[0, 5, 20, 100]),
            fails_in: random.pick(&[0, 0, 10, 50]),
        }
    }
}

/// What must come of a request.
#[derive(Clone, Debug)]
struct Expected {
    prompt_len: usize,
    tokens: Vec<u32>,
    reason: FinishReason,
    hash: Option<String>,
    prompt_log_probs: Option<Vec<f64>>,
    is_poisoned: bool,
    // What has come so far.
    has_started: bool,
    cached: usize,
    has_prompt: bool,
    seen: usize,
    /// The step it last went on in, and how far it was.
    progress: (u64, usize, bool),
}

pub(super) struct World {
    pub(super) random: Random,
    pub(super) config: Config,
    pub(super) core: Core<Fake>,
    live: BTreeMap<RequestId, Expected>,
    pub(super) steps: u64,
    last_short: u64,
    pub(super) submitted: usize,
    pub(super) ended: usize,
    /// Generated tokens of each tenant.
    pub(super) served: BTreeMap<TenantId, usize>,
    tenant_of: BTreeMap<RequestId, TenantId>,
}

pub(super) fn tokenizer() -> Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let make = || {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tiny/llama-tied.gguf");
        Arc::new(Tokenizer::from_gguf(&Gguf::open(path).unwrap()).unwrap())
    };
    Arc::clone(TOKENIZER.get_or_init(make))
}

impl World {
    pub(super) fn new(config: Config, seed: u64) -> Self {
        let options = CoreOptions {
            limits: Limits {
                sequences: config.fake.sequences,
                prefill_chunk: config.prefill_chunk,
                preemption: config.preemption,
            },
            context: config.fake.context,
            vocabulary: VOCABULARY,
            queue: config.queue,
        };
        Self {
            core: Core::new(Fake::new(&config.fake), tokenizer(), options),
            random: Random(mix(seed, 1)),
            config,
            live: BTreeMap::new(),
            steps: 0,
            last_short: 0,
            submitted: 0,
            ended: 0,
            served: BTreeMap::new(),
            tenant_of: BTreeMap::new(),
        }
    }

    /// A random request.
    pub(super) fn request(&mut self) -> Request {
        let (config, random) = (&self.config, &mut self.random);
        let len = 1 + random.below(config.prompt_most.min(config.fake.context - 1));
        // Some begin alike.
        let (base, alike) = (random.next() % 3, random.below(len + 1));
        let mut prompt: Vec<u32> = (0..len)
            .map(|i| match i < alike {
                true => (mix(base, i as u64) % VOCABULARY as u64) as u32,
                false => random.below(VOCABULARY) as u32,
            })
            .map(|token| if token == POISON { POISON + 1 } else { token })
            .collect();
        if config.fails_in > 0 && random.one_in(config.fails_in) {
            prompt[random.below(len)] = POISON;
        }
        let sampling = match random.one_in(3) {
            true => Sampling {
                temperature: 0.8,
                top_k: 20,
                repetition_penalty: 1.1,
                seed: random.next(),
                ..Sampling::default()
            },
            false => Sampling::default(),
        };
        Request {
            prompt,
            sampling,
            max_tokens: Some(1 + random.below(config.answer_most)),
            logits_hash: random.one_in(10),
            prompt_log_probs: random.one_in(10).then_some(2),
            tenant: TenantId(random.below(config.tenants) as u64),
            priority: random.below(config.priorities) as i32,
            cache_prompt: !random.one_in(8),
            ..Request::default()
        }
    }

    /// What must come of `request`, by the model's definition.
    fn expect(&self, request: &Request) -> Expected {
        let tokenizer = tokenizer();
        let mut reference = Reference::new(&self.config.fake.layers);
        let (mut sampler, mut history) = (
            Sampler::new(VOCABULARY),
            History::new(VOCABULARY, &request.prompt),
        );
        let mut hasher = blake3::Hasher::new();
        let mut row = |reference: &mut Reference, token| {
            reference.push(token);
            if request.logits_hash {
                let bits = reference.logits.iter().flat_map(|l| l.to_le_bytes());
                hasher.update(&bits.collect::<Vec<u8>>());
            }
        };
        let mut known = Vec::new();
        for (i, &token) in request.prompt.iter().enumerate() {
            row(&mut reference, token);
            if let Some(&next) = request.prompt.get(i + 1) {
                known.push(log_probs(&reference.logits, next, 0).0.log_prob);
            }
        }
        let limit = request.answer_max(self.config.fake.context);
        let (mut tokens, mut reason) = (Vec::new(), FinishReason::Length);
        while tokens.len() < limit {
            let position = request.prompt.len() + tokens.len();
            let token = sampler.sample(&reference.logits, &request.sampling, &history, position);
            let token = token.unwrap();
            history.push(token);
            tokens.push(token);
            if tokenizer.is_end_of_generation(token) {
                reason = FinishReason::Stop;
                break;
            }
            if tokens.len() < limit {
                row(&mut reference, token);
            }
        }
        Expected {
            prompt_len: request.prompt.len(),
            tokens,
            reason,
            hash: request
                .logits_hash
                .then(|| hasher.finalize().to_hex().to_string()),
            prompt_log_probs: request.prompt_log_probs.map(|_| known),
            is_poisoned: request.prompt.contains(&POISON),
            has_started: false,
            cached: 0,
            has_prompt: false,
            seen: 0,
            progress: (self.steps, 0, false),
        }
    }

    pub(super) fn submit(&mut self, request: Request) -> Result<Option<RequestId>, String> {
        let expected = self.expect(&request);
        let (waiting, tenant) = (self.core.scheduler.queue.len(), request.tenant);
        let longest = request.prompt.len() + request.answer_max(self.config.fake.context) - 1;
        let fits = self.core.runner.fits(longest, self.config.prefill_chunk);
        match self.core.submit(request) {
            Ok(id) => {
                ensure(fits.is_ok() && waiting < 2 * self.config.queue, || {
                    format!("{id:?} was taken with {waiting} waiting, fits: {fits:?}")
                })?;
                self.live.insert(id, expected);
                self.tenant_of.insert(id, tenant);
                self.submitted += 1;
                Ok(Some(id))
            }
            Err(EngineError::NeverFits { .. }) => {
                ensure(fits.is_err(), || "refused what fits".to_owned())?;
                Ok(None)
            }
            Err(EngineError::QueueFull { .. }) => {
                ensure(waiting >= self.config.queue, || {
                    "the queue is not full".to_owned()
                })?;
                Ok(None)
            }
            Err(error) => Err(format!("a sound request was refused: {error}")),
        }
    }

    /// Cancels one of those that live.
    pub(super) fn cancel(&mut self) -> Result<(), String> {
        let at = self.random.below(self.live.len());
        let Some(&id) = self.live.keys().nth(at) else {
            return Ok(());
        };
        let event = self.core.cancel(id).map_err(|error| error.to_string())?;
        let event = event.ok_or_else(|| format!("{id:?} lives and can't be cancelled"))?;
        let is_end =
            matches!(&event, Event::Finished(end) if end.reason == FinishReason::Cancelled);
        ensure(is_end, || format!("{id:?} was cancelled: {event:?}"))?;
        self.take(event)
    }

    /// Whatever clients do, then a step, then the checks.
    pub(super) fn step(&mut self) -> Result<(), String> {
        while self.random.one_in(self.config.arrives_in.max(2)) {
            let request = self.request();
            self.submit(request)?;
        }
        if self.config.cancelled_in > 0 && self.random.one_in(self.config.cancelled_in) {
            self.cancel()?;
        }
        if self.config.fails_in > 0 && self.random.one_in(self.config.fails_in) {
            self.core.runner.failures = 1;
        }
        self.run()
    }

    /// A step and the checks.
    pub(super) fn run(&mut self) -> Result<(), String> {
        self.steps += 1;
        let decoding = self.core.scheduler.tasks().iter();
        let decoding = decoding.filter(|task| task.running().is_some() && task.is_decoding());
        let decoding: Vec<_> = decoding
            .map(|task| (task.id, self.live.get(&task.id).map_or(0, |e| e.seen)))
            .collect();
        let failed_before = self.core.stats().failed;
        let (rows_before, failures_before) =
            (self.core.runner.rows, self.core.stats().failed_steps);
        let steps_before = self.core.stats().steps;
        let mut events = Vec::new();
        let result = self.core.step(&mut events);
        let has_failed = self.core.stats().failed > failed_before;
        ensure(result.is_err() == has_failed, || {
            format!("{result:?}, and failed: {has_failed}")
        })?;
        let cached: BTreeMap<RequestId, usize> = self
            .core
            .scheduler
            .tasks()
            .iter()
            .filter_map(|task| Some((task.id, *self.core.runner.cached.get(&task.running()?)?)))
            .collect();
        for event in events {
            if let Event::Started(started) = &event
                && let Some(&true_cached) = cached.get(&started.request)
            {
                ensure(started.cached_tokens == true_cached, || {
                    format!("{started:?}: {true_cached} tokens were cached")
                })?;
            }
            self.take(event)?;
        }
        let stats = self.core.stats();
        let rows = (self.core.runner.rows - rows_before) as usize;
        if !has_failed && stats.failed_steps == failures_before && stats.steps > steps_before {
            let told = stats.last_step_tokens;
            ensure(rows == told, || {
                format!("{rows} rows ran, and {told} were told of")
            })?;
        }
        self.check_step(&decoding)?;
        self.check_progress()
    }

    /// What must hold after each step.
    fn check_step(&mut self, decoding: &[(RequestId, usize)]) -> Result<(), String> {
        self.core.runner.check()?;
        let (stats, limits) = (self.core.stats(), &self.config);
        let prompts = stats.last_step_tokens - stats.last_step_decodes;
        ensure(prompts <= limits.prefill_chunk, || {
            format!("a step of {prompts} prompt tokens")
        })?;
        let begun = self.core.scheduler.tasks().len();
        ensure(begun <= limits.fake.sequences, || {
            format!("{begun} have begun")
        })?;
        let sequences = self.core.runner.alive.len();
        let placed = self.core.scheduler.tasks().iter();
        let placed = placed
            .filter(|task| task.place != crate::task::Place::Nowhere)
            .count();
        ensure(sequences == placed, || {
            format!("{sequences} sequences for {placed} requests")
        })?;
        if self.core.scheduler.is_short() {
            self.last_short = self.steps;
            return Ok(());
        }
        for (id, seen) in decoding {
            let now = self.live.get(id).map_or(seen + 1, |expected| expected.seen);
            ensure(now == seen + 1, || format!("{id:?} was left out of a step"))?;
        }
        Ok(())
    }

    /// Everyone who has begun goes on within a number of steps.
    fn check_progress(&mut self) -> Result<(), String> {
        // Prompts wait their turn, and for a step or two to be measured at each number of answers.
        let sequences = self.config.fake.sequences as u64;
        let patience = 2 * PATIENCE_STEPS + 8 * sequences;
        for task in self.core.scheduler.tasks() {
            let Some(expected) = self.live.get_mut(&task.id) else {
                return Err(format!("{:?} runs and has ended", task.id));
            };
            let runs = task.running().is_some();
            let (step, done, ran) = &mut expected.progress;
            if (*done, *ran) != (task.done, runs) {
                (*step, *done, *ran) = (self.steps, task.done, runs);
            }
            let step = *step;
            let idle = self.steps - step.max(self.last_short);
            ensure(
                idle <= patience && self.steps - step <= SHORT_PATIENCE_STEPS,
                || {
                    format!(
                        "{:?} has not gone on for {} steps",
                        task.id,
                        self.steps - step
                    )
                },
            )?;
        }
        Ok(())
    }

    /// Checks an event against what must come.
    fn take(&mut self, event: Event) -> Result<(), String> {
        let id = event.request();
        let Some(expected) = self.live.get_mut(&id) else {
            return Err(format!("{event:?} of a request that has ended"));
        };
        match event {
            Event::Started(started) => {
                ensure(!expected.has_started, || format!("{id:?} started twice"))?;
                expected.has_started = true;
                expected.cached = started.cached_tokens;
                let is_sane = expected.cached < expected.prompt_len;
                ensure(is_sane, || {
                    format!("{started:?} of {}", expected.prompt_len)
                })
            }
            Event::Prompt(prompt) => {
                let found = prompt
                    .log_probs
                    .iter()
                    .skip(1)
                    .flatten()
                    .map(|p| p.chosen.log_prob);
                let is_right = Some(found.collect()) == expected.prompt_log_probs
                    && prompt.log_probs.len() == expected.prompt_len
                    && expected.seen == 0;
                ensure(is_right && !expected.has_prompt, || {
                    format!("{id:?}: a wrong {prompt:?}")
                })?;
                expected.has_prompt = true;
                Ok(())
            }
            Event::Token(token) => {
                let wanted = expected.tokens.get(expected.seen);
                let is_told = expected.has_prompt || expected.prompt_log_probs.is_none();
                ensure(expected.has_started && is_told, || {
                    format!("{id:?}: a token too early")
                })?;
                ensure(
                    wanted == Some(&token.token) && !expected.is_poisoned,
                    || {
                        format!(
                            "{id:?}: token {} is {}, not {wanted:?}",
                            expected.seen, token.token
                        )
                    },
                )?;
                expected.seen += 1;
                let tenant = self.tenant_of.get(&id).copied().unwrap_or(TenantId::LOCAL);
                *self.served.entry(tenant).or_default() += 1;
                Ok(())
            }
            Event::Finished(finished) => self.take_end(&finished),
        }
    }

    fn take_end(&mut self, end: &Finished) -> Result<(), String> {
        let id = end.request;
        let Some(expected) = self.live.remove(&id) else {
            return Err(format!("{end:?} of none"));
        };
        self.tenant_of.remove(&id);
        self.ended += 1;
        let is_right = match end.reason {
            FinishReason::Cancelled => true,
            FinishReason::Failed => expected.is_poisoned && end.error.is_some(),
            reason => {
                reason == expected.reason
                    && expected.seen == expected.tokens.len()
                    && end.logits_hash == expected.hash
                    && end.error.is_none()
            }
        };
        let has_numbers = (end.prompt_tokens, end.generated_tokens, end.cached_tokens)
            == (expected.prompt_len, expected.seen, expected.cached);
        ensure(is_right && has_numbers, || {
            format!("{end:?}, and expected was {expected:?}")
        })
    }

    /// No more arrivals: everyone comes to an end, and every page back.
    pub(super) fn drain(&mut self) -> Result<(), String> {
        for _ in 0..SHORT_PATIENCE_STEPS {
            if self.core.is_idle() {
                break;
            }
            self.run()?;
        }
        ensure(self.core.is_idle(), || "requests are left".to_owned())?;
        let left: Vec<_> = self.live.keys().collect();
        ensure(left.is_empty(), || format!("{left:?} never ended"))?;
        let stats = self.core.runner.table.stats();
        let is_clean = stats.pages_owned == 0
            && stats.pages_free + stats.pages_cached == stats.pages_total
            && (stats.sequences, stats.swapped_bytes) == (0, 0)
            && self.core.runner.alive.is_empty();
        ensure(is_clean, || format!("something is left: {stats:?}"))?;
        self.core.runner.table.clear_cache();
        let stats = self.core.runner.table.stats();
        ensure(stats.pages_free == stats.pages_total, || {
            format!("pages are lost: {stats:?}")
        })?;
        let figures = self.core.stats();
        let ends = figures.stopped + figures.reached_length + figures.cancelled + figures.failed;
        let counts = (ends as usize, figures.submitted as usize, self.ended);
        ensure(
            counts == (self.submitted, self.submitted, self.submitted),
            || format!("{counts:?} of {} requests", self.submitted),
        )
    }
}

fn ensure(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}
