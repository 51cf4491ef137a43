//! The HTTP API: an OpenAI-compatible server around one [`engine::Engine`].
//!
//! [`serve`] takes an engine and runs it on a thread of its own; connections are served by others. A request goes
//! through `record` (its line in the log), `auth` (who sends it), `body` (strict reading) and its file in
//! `routes`; `generate` hands it to the engine's thread and follows its events, and `stream` sends them as they
//! come. Nothing here computes, and nothing here makes the engine wait.

mod app;
mod auth;
mod body;
mod connection;
mod engine_thread;
mod errors;
mod generate;
mod limits;
mod metrics;
mod options;
mod prompt;
mod record;
mod routes;
mod serve;
mod shutdown;
mod stream;
mod token_text;
mod wire;

pub use auth::{ApiKeys, KeyError};
pub use options::{Options, Served};
pub use serve::{ServeError, serve};
pub use shutdown::Shutdown;

/// Reads a request as `/v1/chat/completions` (`is_chat`) or `/v1/completions` does; for fuzzing.
///
/// # Errors
/// The message and the field that a client would be told.
#[doc(hidden)]
pub fn read_request(bytes: &[u8], is_chat: bool) -> Result<(), (String, Option<String>)> {
    let read = if is_chat {
        body::parse::<wire::chat::ChatRequest>(bytes).map(drop)
    } else {
        body::parse::<wire::completion::CompletionRequest>(bytes).map(drop)
    };
    read.map_err(|error| {
        let error = error.into_body().error;
        (error.message, error.param)
    })
}
