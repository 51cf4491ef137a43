//! Requests, scheduling, sampling, events.
//!
//! An [`Engine`] takes [`Request`]s, runs them together step by step, and gives [`Event`]s. A request's
//! tokens depend on its prompt, parameters and seed only, never on what else runs.

mod answer;
mod core;
mod engine;
mod error;
mod fault;
mod model_runner;
mod pace;
pub mod perplexity;
mod queue;
pub mod random;
mod request;
mod runner;
pub mod sampling;
mod scheduler;
#[cfg(test)]
mod sim;
mod stats;
mod task;
mod tenants;

pub use engine::{Engine, EngineOptions, PREFILL_CHUNK_MAX, Preemption, QUEUE_MAX, SEQUENCES_MAX};
pub use error::EngineError;
pub use random::derive_seed;
pub use request::{
    Event, FinishReason, Finished, PromptEvent, Request, RequestId, Started, TenantId, TokenEvent,
    TokenLogProbs,
};
pub use stats::EngineStats;
