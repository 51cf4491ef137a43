//! Requests, scheduling, sampling, events.
//!
//! An [`Engine`] takes [`Request`]s, runs them together step by step, and gives [`Event`]s. A request's
//! tokens depend on its prompt, parameters and seed only, never on what else runs.

mod answer;
mod engine;
mod error;
pub mod perplexity;
pub mod random;
mod request;
pub mod sampling;
mod stats;

pub use engine::{Engine, EngineOptions, PREFILL_CHUNK_MAX, Preemption, QUEUE_MAX, SEQUENCES_MAX};
pub use error::EngineError;
pub use random::derive_seed;
pub use request::{
    Event, FinishReason, Finished, PromptEvent, Request, RequestId, Started, TenantId, TokenEvent,
    TokenLogProbs,
};
pub use stats::EngineStats;
