//! The engine: takes requests, runs steps, gives events.

use std::sync::Arc;

use kernels::isa::Isa;
use kernels::pages::KvType;
use kernels::pool::Pool;
use model::{Decoder, Memory, MemoryOptions, Model, Ops};
use text::Tokenizer;

use crate::core::{Core, CoreOptions};
use crate::error::EngineError;
use crate::model_runner::ModelRunner;
use crate::request::{Event, Request, RequestId};
use crate::scheduler::Limits;
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

/// Runs requests, many at a time.
#[derive(Debug)]
pub struct Engine {
    core: Core<ModelRunner>,
    options: EngineOptions,
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
        if options.preemption == Preemption::Swap && options.swap_bytes == 0 {
            let range = "1 or more for preemption by moving pages".to_owned();
            return Err(EngineError::Option {
                name: "swap_bytes",
                value: 0,
                range,
            });
        }
        let options = EngineOptions {
            prefill_chunk: options.prefill_chunk.min(options.context),
            ..options
        };
        let memory = MemoryOptions {
            kv_type: options.kv_type,
            context: options.context,
            sequences: options.sequences,
            state_bytes: options.state_bytes,
            swap_bytes: options.swap_bytes,
        };
        let of_one =
            Memory::bytes_per_sequence(&model.architecture, options.kv_type, options.context);
        let most = (of_one as u64).saturating_mul(options.sequences as u64);
        let state_bytes = options.state_bytes.unwrap_or(most);
        let memory = Memory::new(&model.architecture, memory)?;
        let vocabulary = model.architecture.vocabulary;
        let capacity = options.prefill_chunk + options.sequences;
        let decoder = Decoder::new(model, Ops::new(isa, pool), capacity, options.context)?;
        let of_core = CoreOptions {
            limits: Limits {
                sequences: options.sequences,
                prefill_chunk: options.prefill_chunk,
                preemption: options.preemption,
            },
            context: options.context,
            vocabulary,
            queue: options.queue,
        };
        let core = Core::new(
            ModelRunner::new(decoder, memory, state_bytes),
            tokenizer,
            of_core,
        );
        Ok(Self { core, options })
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        self.core.runner.model()
    }

    /// How it was set up.
    #[must_use]
    pub fn options(&self) -> EngineOptions {
        self.options
    }

    /// Takes a request; it begins with one of the next steps.
    ///
    /// # Errors
    /// When the prompt is empty or doesn't fit, a parameter is out of range, prompt and answer never fit the
    /// memory, too many wait, or there is no memory for the answer's tokens.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        self.core.submit(request)
    }

    /// Ends a request, waiting or running. Gives its last event, where there was such a request.
    ///
    /// # Errors
    /// When the state's books are wrong: a bug.
    pub fn cancel(&mut self, id: RequestId) -> Result<Option<Event>, EngineError> {
        self.core.cancel(id)
    }

    /// What it did and holds.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        self.core.stats()
    }

    /// Whether nothing waits or runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.core.is_idle()
    }

    /// Runs one step for all requests that have work, and adds what happened to `events`.
    ///
    /// # Errors
    /// When a request failed in it; its last event says so too. The others and the engine go on.
    pub fn step(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        self.core.step(events)
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
