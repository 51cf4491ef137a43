//! What can go wrong.

use model::ModelError;
use state::StateError;
use text::StopError;

use crate::sampling::SamplingError;

/// The engine can't be made, or a request can't be taken or carried on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The prompt has no tokens.
    #[error("the prompt is empty; give at least one token")]
    EmptyPrompt,
    /// The prompt doesn't fit the context.
    #[error(
        "the prompt has {}, and the context holds {context}; at least one more is needed for an answer: \
         shorten the prompt or raise the context",
        in_tokens(*.prompt)
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Positions of the context.
        context: usize,
    },
    /// A token outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    NoSuchToken {
        /// The token.
        token: u32,
        /// Entries of the vocabulary.
        vocabulary: usize,
    },
    /// An option or a request's field outside its range.
    #[error("{name} is {value}: it must be {range}")]
    Option {
        /// Its name, as in the type that holds it.
        name: &'static str,
        /// Its value.
        value: usize,
        /// What is allowed.
        range: String,
    },
    /// The queue is full.
    #[error("{waiting} requests are waiting, and {limit} may; try again in {retry_after_s} s")]
    QueueFull {
        /// Requests waiting.
        waiting: usize,
        /// Requests that may wait.
        limit: usize,
        /// When there is likely room again, in seconds.
        retry_after_s: u64,
    },
    /// Prompt and answer don't fit the memory for sequences, even alone.
    #[error(
        "{} of prompt and answer take {needed_pages} pages of memory, and there are {pages}: shorten the \
         prompt, ask for a shorter answer, or give more memory",
        in_tokens(*.positions)
    )]
    NeverFits {
        /// Tokens of the prompt and at most of the answer.
        positions: usize,
        /// Pages that they take.
        needed_pages: usize,
        /// Pages there are.
        pages: usize,
    },
    /// Memory for a request's tokens can't be had.
    #[error(
        "cannot allocate {bytes} bytes for the tokens of a request; ask for a shorter answer or context"
    )]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// A stop text.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// A sampling parameter.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// State.
    #[error(transparent)]
    State(#[from] StateError),
    /// A text to score has too few tokens.
    #[error(
        "the text has {}, fewer than one window of {window}; use a longer text or a smaller window",
        in_tokens(*.tokens)
    )]
    TextTooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a window.
        window: usize,
    },
}

impl EngineError {
    /// The error for a request that never fits.
    pub(crate) fn from_fit(error: StateError) -> Self {
        match error {
            StateError::NeverFits { len, needed, total } => Self::NeverFits {
                positions: len,
                needed_pages: needed,
                pages: total,
            },
            other => Self::State(other),
        }
    }

    /// The option or field that is out of range, where that is the error. The message begins with it, so that
    /// a program can put its own name for it in that place.
    #[must_use]
    pub fn parameter(&self) -> Option<&'static str> {
        match self {
            Self::Option { name, .. } => Some(name),
            Self::Sampling(error) => Some(error.parameter()),
            _ => None,
        }
    }
}

/// A number of tokens.
fn in_tokens(count: usize) -> String {
    format!("{count} token{}", if count == 1 { "" } else { "s" })
}
