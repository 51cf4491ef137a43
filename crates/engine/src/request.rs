//! What is asked of the engine, and what it gives back.

use crate::sampling::{Sampling, TokenLogProb};

/// A request, as long as the engine holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

pub use state::TenantId;

/// A prompt and how to go on from it.
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids of the prompt; at least one.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens to generate at most; as many as the context holds where there is none.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer; none of them is part of it.
    pub stop: Vec<String>,
    /// Goes on past end-of-generation tokens.
    pub ignore_end: bool,
    /// The log-probability of each chosen token, and of so many of the most probable ones.
    pub log_probs: Option<usize>,
    /// A hash over all logits of all positions; every position is computed, whatever is cached.
    pub logits_hash: bool,
    /// On whose behalf.
    pub tenant: TenantId,
    /// Requests of a higher priority begin first.
    pub priority: i32,
    /// The log-probability of each token of the prompt, and of so many of the most probable ones; every
    /// position is computed, whatever is cached.
    pub prompt_log_probs: Option<usize>,
    /// Whether what was computed for the same beginning of a prompt may be used, and this prompt's kept.
    pub cache_prompt: bool,
}

impl Default for Request {
    /// The best tokens after an empty prompt (which is refused: give one).
    fn default() -> Self {
        Self {
            prompt: Vec::new(),
            sampling: Sampling::default(),
            max_tokens: None,
            stop: Vec::new(),
            ignore_end: false,
            log_probs: None,
            logits_hash: false,
            tenant: TenantId::LOCAL,
            priority: 0,
            prompt_log_probs: None,
            cache_prompt: true,
        }
    }
}

impl Request {
    /// Tokens to generate at most where a sequence holds `context` positions.
    pub(crate) fn answer_max(&self, context: usize) -> usize {
        let room = context.saturating_sub(self.prompt.len());
        self.max_tokens.unwrap_or(room).min(room)
    }
}

/// Something that happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The request runs for the first time.
    Started(Started),
    /// The prompt was read; asked for by [`Request::prompt_log_probs`].
    Prompt(PromptEvent),
    /// A token was generated.
    Token(TokenEvent),
    /// The request ended; nothing more comes of it.
    Finished(Finished),
}

impl Event {
    /// The request it happened to.
    #[must_use]
    pub fn request(&self) -> RequestId {
        match self {
            Self::Started(event) => event.request,
            Self::Prompt(event) => event.request,
            Self::Token(event) => event.request,
            Self::Finished(event) => event.request,
        }
    }
}

/// A request runs for the first time.
#[derive(Clone, Debug, PartialEq)]
pub struct Started {
    /// The request.
    pub request: RequestId,
    /// Tokens of the prompt that were computed before, for another request.
    pub cached_tokens: usize,
    /// Time since it was submitted.
    pub queue_ms: f64,
}

/// What the model made of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptEvent {
    /// The request.
    pub request: RequestId,
    /// For each token of the prompt its log-probability, as the chosen one, and the most probable tokens in
    /// its place. None for the first, which nothing comes before.
    pub log_probs: Vec<Option<TokenLogProbs>>,
}

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenEvent {
    /// The request.
    pub request: RequestId,
    /// The token.
    pub token: u32,
    /// Text that can be shown now: empty while a character or a possible stop text is incomplete.
    pub text: String,
    /// Asked for by [`Request::log_probs`].
    pub log_probs: Option<TokenLogProbs>,
}

/// Log-probabilities at one position, of the model itself (before penalties and temperature).
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogProbs {
    /// The chosen token.
    pub chosen: TokenLogProb,
    /// The most probable tokens, best first.
    pub top: Vec<TokenLogProb>,
}

/// The end of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// The request.
    pub request: RequestId,
    /// Why it ended.
    pub reason: FinishReason,
    /// Text that was held back and turned out to belong to the answer.
    pub text: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Asked for by [`Request::logits_hash`]: BLAKE3 in hexadecimal.
    pub logits_hash: Option<String>,
    /// Tokens of the prompt that were computed before, for another request.
    pub cached_tokens: usize,
    /// Time from its submission to its first step.
    pub queue_ms: f64,
    /// Time from its first step to its first token.
    pub prefill_ms: f64,
    /// Time from its first token to its end.
    pub decode_ms: f64,
    /// Times it had to make room for others and went on later.
    pub preemptions: u32,
    /// With [`FinishReason::Failed`]: what went wrong.
    pub error: Option<String>,
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its answer, or a stop text appeared.
    Stop,
    /// The limit on tokens or the context was reached.
    Length,
    /// It was cancelled.
    Cancelled,
    /// The model failed while it ran; [`Engine::step`](crate::Engine::step) says how.
    Failed,
}

impl FinishReason {
    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}
