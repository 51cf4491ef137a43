//! The engine: takes requests, runs steps, gives events.

use std::collections::VecDeque;
use std::sync::Arc;

use kernels::isa::Isa;
use kernels::pages::KvType;
use kernels::pool::Pool;
use model::{Decoder, Memory, MemoryOptions, Model, Ops, Rows, Span, Step};
use state::SequenceId;
use text::{StopStrings, Tokenizer};

use crate::answer::{Answer, Context, Outcome};
use crate::error::EngineError;
use crate::request::{Event, FinishReason, Request, RequestId};

use crate::sampling::Sampler;
use crate::stats::EngineStats;

/// Sequences in one step at most.
pub const SEQUENCES_MAX: usize = model::SPANS_MAX;
/// Prompt tokens in one step at most; the buffers of a step grow with it.
pub const PREFILL_CHUNK_MAX: usize = 8192;
/// Requests that may be let wait at most.
pub const QUEUE_MAX: usize = 65_536;

/// How a request makes room for others when memory runs out. It changes times, never tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preemption {
    /// Whatever takes less time, as measured.
    #[default]
    Auto,
    /// Its pages are moved elsewhere and back.
    Swap,
    /// Its pages are forgotten and computed again.
    Recompute,
}

/// How an engine is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// The type of keys and values.
    pub kv_type: KvType,
    /// Positions per sequence.
    pub context: usize,
    /// Requests that run at the same time.
    pub sequences: usize,
    /// Prompt tokens run in one step at most, beside one token for each answer.
    pub prefill_chunk: usize,
    /// Bytes for keys and values of all sequences; room for `sequences` whole contexts where there is none.
    pub state_bytes: Option<u64>,
    /// Requests that may wait.
    pub queue: usize,
    /// How a request makes room for others.
    pub preemption: Preemption,
    /// Bytes for pages that were moved elsewhere, beside `state_bytes`; 0 moves none.
    pub swap_bytes: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            kv_type: KvType::F16,
            context: 4096,
            sequences: 1,
            prefill_chunk: 512,
            state_bytes: None,
            queue: 1024,
            preemption: Preemption::Auto,
            swap_bytes: 0,
        }
    }
}

/// A request that has not begun.
#[derive(Debug)]
struct Waiting {
    id: RequestId,
    request: Request,
    stops: StopStrings,
}

/// Runs requests, many at a time.
#[derive(Debug)]
pub struct Engine {
    decoder: Decoder,
    memory: Memory,
    tokenizer: Arc<Tokenizer>,
    options: EngineOptions,
    waiting: VecDeque<Waiting>,
    /// What the model reads of each running request, and beside it, in the same order, what becomes of
    /// what it says.
    contexts: Vec<Context>,
    answers: Vec<Answer>,
    sampler: Sampler,
    next_id: u64,
}

impl Engine {
    /// An engine for `model` with `isa` on `pool`.
    ///
    /// # Errors
    /// When an option is out of range, or memory for the state can't be had.
    pub fn new(
        model: Arc<Model>,
        tokenizer: Arc<Tokenizer>,
        isa: Isa,
        pool: Pool,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let trained = model.architecture.context;
        check("context", options.context, trained)?;
        check("sequences", options.sequences, SEQUENCES_MAX)?;
        check("queue", options.queue, QUEUE_MAX)?;
        check("prefill_chunk", options.prefill_chunk, PREFILL_CHUNK_MAX)?;
        let prefill_chunk = options.prefill_chunk.min(options.context);
        let options = EngineOptions {
            prefill_chunk,
            ..options
        };
        let EngineOptions {
            kv_type,
            context,
            sequences,
            ..
        } = options;
        let memory = MemoryOptions {
            kv_type,
            context,
            sequences,
        };
        let memory = Memory::new(&model.architecture, memory)?;
        let sampler = Sampler::new(model.architecture.vocabulary);
        let capacity = prefill_chunk + sequences;
        let decoder = Decoder::new(model, Ops::new(isa, pool), capacity, context)?;
        Ok(Self {
            decoder,
            memory,
            tokenizer,
            options,
            waiting: VecDeque::new(),
            contexts: Vec::with_capacity(sequences),
            answers: Vec::with_capacity(sequences),
            sampler,
            next_id: 0,
        })
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        self.decoder.model()
    }

    /// How it was set up.
    #[must_use]
    pub fn options(&self) -> EngineOptions {
        self.options
    }

    /// Takes a request; it begins with one of the next steps.
    ///
    /// # Errors
    /// When the prompt is empty or doesn't fit, a parameter is out of range, too many wait, or there is no
    /// memory for the answer's tokens.
    pub fn submit(&mut self, mut request: Request) -> Result<RequestId, EngineError> {
        let vocabulary = self.model().architecture.vocabulary;
        let (prompt, context) = (request.prompt.len(), self.options.context);
        if prompt == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if prompt >= context {
            return Err(EngineError::PromptTooLong { prompt, context });
        }
        if let Some(&token) = request.prompt.iter().find(|&&t| t as usize >= vocabulary) {
            return Err(EngineError::NoSuchToken { token, vocabulary });
        }
        if request.max_tokens == Some(0) {
            let range = "1 or more".to_owned();
            return Err(EngineError::Option {
                name: "max_tokens",
                value: 0,
                range,
            });
        }
        request.sampling.validate(vocabulary)?;
        let stops = StopStrings::new(&request.stop)?;
        if self.waiting.len() >= self.options.queue {
            return Err(EngineError::QueueFull {
                waiting: self.waiting.len(),
                limit: self.options.queue,
                retry_after_s: 1,
            });
        }
        // All at once, so that no step has to make room for a token.
        let answer = request.answer_max(context);
        let reserved = request.prompt.try_reserve_exact(answer);
        reserved.map_err(|_| EngineError::OutOfMemory {
            bytes: (prompt + answer) * size_of::<u32>(),
        })?;
        let id = RequestId(self.next_id);
        self.next_id += 1;
        self.waiting.push_back(Waiting { id, request, stops });
        Ok(id)
    }

    /// Ends a request, waiting or running. Gives its last event, where there was such a request.
    ///
    /// # Errors
    /// When the state's books are wrong: a bug.
    pub fn cancel(&mut self, id: RequestId) -> Result<Option<Event>, EngineError> {
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.id == id) {
            let waiting = self.waiting.remove(at);
            return Ok(waiting.map(|w| Answer::never_ran(w.id, &w.request)));
        }
        match self.answers.iter().position(|answer| answer.id() == id) {
            Some(at) => {
                let event = self.answers[at].finish(FinishReason::Cancelled);
                self.end(at)?;
                Ok(Some(event))
            }
            None => Ok(None),
        }
    }

    /// What it did and holds.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            waiting: self.waiting.len(),
            running: self.answers.len(),
            ..EngineStats::default()
        }
    }

    /// Whether nothing waits or runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.answers.is_empty()
    }

    /// Runs one step for all requests that have work, and adds what happened to `events`.
    ///
    /// # Errors
    /// When the model fails; the requests that were running end as failed then.
    pub fn step(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        self.admit()?;
        if let Err(error) = self.run().and_then(|()| self.collect(events)) {
            while let Some(answer) = self.answers.first_mut() {
                events.push(answer.finish(FinishReason::Failed));
                self.end(0)?;
            }
            return Err(error);
        }
        Ok(())
    }

    /// Begins waiting requests while there is room.
    fn admit(&mut self) -> Result<(), EngineError> {
        while self.answers.len() < self.options.sequences {
            if self.waiting.is_empty() {
                break;
            }
            let sequence = self.memory.table_mut().create()?;
            let Some(Waiting {
                id,
                mut request,
                stops,
            }) = self.waiting.pop_front()
            else {
                break;
            };
            let (vocabulary, context) =
                (self.model().architecture.vocabulary, self.options.context);
            let answer = Answer::new(id, &request, stops, &self.tokenizer, vocabulary, context);
            let prompt = std::mem::take(&mut request.prompt);
            self.contexts.push(Context::new(sequence, prompt));
            self.answers.push(answer);
        }
        Ok(())
    }

    /// One forward pass: a token for each request that is decoding, then prompts in order of arrival
    /// until `prefill_chunk` tokens are in.
    fn run(&mut self) -> Result<(), EngineError> {
        let mut spans = [Span::tokens(SequenceId(u32::MAX), 0, &[], Rows::None); SEQUENCES_MAX];
        let mut owners = [0; SEQUENCES_MAX];
        let (mut count, mut budget) = (0, self.options.prefill_chunk);
        for (owner, (context, answer)) in self.contexts.iter().zip(&self.answers).enumerate() {
            let pending = context.pending();
            let run = if context.is_decoding() {
                pending.len()
            } else {
                pending.len().min(budget)
            };
            if run == 0 {
                continue;
            }
            if !context.is_decoding() {
                budget -= run;
            }
            let rows = match (answer.wants_all(), run == pending.len()) {
                (true, _) => Rows::All,
                (false, true) => Rows::Last,
                (false, false) => Rows::None,
            };
            spans[count] = Span::tokens(context.sequence, context.done, &pending[..run], rows);
            owners[count] = owner;
            count += 1;
        }
        let (answers, sampler, contexts) = (&mut self.answers, &mut self.sampler, &self.contexts);
        let step = Step {
            spans: &spans[..count],
        };
        self.decoder
            .forward(&mut self.memory, step, &mut |logits| {
                let owner = owners[logits.span];
                let is_last = logits.position + 1 == contexts[owner].len();
                answers[owner].take(sampler, logits.values, logits.position, is_last);
            })?;
        let mut ran = [0; SEQUENCES_MAX];
        for (ran, span) in ran.iter_mut().zip(&spans[..count]) {
            *ran = span.rows_of(1);
        }
        for (&owner, ran) in owners[..count].iter().zip(ran) {
            self.contexts[owner].done += ran;
        }
        Ok(())
    }

    /// Turns the chosen tokens into events.
    fn collect(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        let mut at = 0;
        while at < self.answers.len() {
            match self.answers[at].collect(events)? {
                Some(Outcome::End) => self.end(at)?,
                Some(Outcome::GoOn(token)) => {
                    self.contexts[at].push(token);
                    at += 1;
                }
                None => at += 1,
            }
        }
        Ok(())
    }

    /// Takes a request out and its pages back.
    fn end(&mut self, at: usize) -> Result<(), EngineError> {
        self.answers.remove(at);
        let context = self.contexts.remove(at);
        Ok(self.memory.table_mut().release(context.sequence)?)
    }
}

fn check(name: &'static str, value: usize, most: usize) -> Result<(), EngineError> {
    if (1..=most).contains(&value) {
        Ok(())
    } else {
        Err(EngineError::Option {
            name,
            value,
            range: format!("from 1 to {most}"),
        })
    }
}
