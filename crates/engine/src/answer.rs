//! One running request: what the model reads of it, and what becomes of what the model says.

use std::sync::Arc;

use state::SequenceId;
use text::{Detokenizer, DetokenizerOptions, StopStrings, Tokenizer};

use crate::request::{
    Event, FinishReason, Finished, Request, RequestId, TokenEvent, TokenLogProbs,
};
use crate::sampling::{History, Sampler, Sampling, SamplingError, log_probs};

/// The tokens of a request, as the model reads them.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) sequence: SequenceId,
    /// Prompt and answer.
    tokens: Vec<u32>,
    /// Tokens the model has run.
    pub(crate) done: usize,
    prompt_len: usize,
}

impl Context {
    /// A sequence that begins with `prompt`, which should have room for the answer.
    pub(crate) fn new(sequence: SequenceId, prompt: Vec<u32>) -> Self {
        Self {
            sequence,
            prompt_len: prompt.len(),
            tokens: prompt,
            done: 0,
        }
    }

    /// Tokens not yet run.
    pub(crate) fn pending(&self) -> &[u32] {
        &self.tokens[self.done..]
    }

    /// Tokens of prompt and answer so far.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn is_decoding(&self) -> bool {
        self.done >= self.prompt_len
    }

    pub(crate) fn push(&mut self, token: u32) {
        self.tokens.push(token);
    }
}

/// What becomes of the logits of a request.
#[derive(Debug)]
pub(crate) struct Answer {
    id: RequestId,
    sampling: Sampling,
    log_probs: Option<usize>,
    ignore_end: bool,
    prompt_tokens: usize,
    tokenizer: Arc<Tokenizer>,
    history: History,
    detokenizer: Detokenizer<Arc<Tokenizer>>,
    stops: StopStrings,
    hasher: Option<blake3::Hasher>,
    /// Tokens that may be generated.
    limit: usize,
    generated: usize,
    /// What the last logits led to.
    chosen: Option<Result<(u32, Option<TokenLogProbs>), SamplingError>>,
}

/// What follows from a token.
pub(crate) enum Outcome {
    /// The request goes on with this token.
    GoOn(u32),
    /// It has ended.
    End,
}

impl Answer {
    pub(crate) fn new(
        id: RequestId,
        request: &Request,
        stops: StopStrings,
        tokenizer: &Arc<Tokenizer>,
        vocabulary: usize,
        context: usize,
    ) -> Self {
        Self {
            id,
            tokenizer: Arc::clone(tokenizer),
            history: History::new(vocabulary, &request.prompt),
            // The answer goes on from the prompt, so its first space is part of it.
            detokenizer: Detokenizer::new(Arc::clone(tokenizer), DetokenizerOptions::default()),
            stops,
            hasher: request.logits_hash.then(blake3::Hasher::new),
            limit: request.answer_max(context),
            generated: 0,
            chosen: None,
            sampling: request.sampling.clone(),
            log_probs: request.log_probs,
            ignore_end: request.ignore_end,
            prompt_tokens: request.prompt.len(),
        }
    }

    pub(crate) fn id(&self) -> RequestId {
        self.id
    }

    /// Whether the logits of every position are wanted, not only the last.
    pub(crate) fn wants_all(&self) -> bool {
        self.hasher.is_some()
    }

    /// Takes a row of logits; the last of a span (`is_last`) is sampled from.
    pub(crate) fn take(
        &mut self,
        sampler: &mut Sampler,
        logits: &[f32],
        position: usize,
        is_last: bool,
    ) {
        if let Some(hasher) = &mut self.hasher {
            hash_row(hasher, logits);
        }
        if is_last {
            // The token comes after `position`; draws are keyed by its own place.
            let token = sampler.sample(logits, &self.sampling, &self.history, position + 1);
            self.chosen = Some(token.map(|token| {
                let with = self.log_probs;
                (token, with.map(|n| to_event(log_probs(logits, token, n))))
            }));
        }
    }

    /// What the logits taken last led to.
    pub(crate) fn collect(
        &mut self,
        events: &mut Vec<Event>,
    ) -> Result<Option<Outcome>, SamplingError> {
        let Some(chosen) = self.chosen.take() else {
            return Ok(None);
        };
        let (token, log_probs) = chosen?;
        self.generated += 1;
        self.history.push(token);
        let ends = !self.ignore_end && self.tokenizer.is_end_of_generation(token);
        let new = if ends {
            ""
        } else {
            self.detokenizer.push(token)
        };
        let output = self.stops.push(new);
        let stopped = output.stopped.is_some();
        let (request, text) = (self.id, output.emit.to_owned());
        events.push(Event::Token(TokenEvent {
            request,
            token,
            text,
            log_probs,
        }));
        if stopped {
            events.push(self.finished(FinishReason::Stop, String::new()));
            return Ok(Some(Outcome::End));
        }
        if ends || self.generated >= self.limit {
            let reason = if ends {
                FinishReason::Stop
            } else {
                FinishReason::Length
            };
            let event = self.finish(reason);
            events.push(event);
            return Ok(Some(Outcome::End));
        }
        Ok(Some(Outcome::GoOn(token)))
    }

    /// The last event, with whatever text was held back.
    pub(crate) fn finish(&mut self, reason: FinishReason) -> Event {
        let output = self.stops.push(self.detokenizer.finish());
        let mut text = output.emit.to_owned();
        if output.stopped.is_some() {
            return self.finished(FinishReason::Stop, text);
        }
        text.push_str(self.stops.finish());
        self.finished(reason, text)
    }

    fn finished(&self, reason: FinishReason, text: String) -> Event {
        Event::Finished(Finished {
            request: self.id,
            reason,
            text,
            prompt_tokens: self.prompt_tokens,
            generated_tokens: self.generated,
            logits_hash: self
                .hasher
                .as_ref()
                .map(|hasher| hasher.finalize().to_hex().to_string()),
            cached_tokens: 0,
            queue_ms: 0.0,
            prefill_ms: 0.0,
            decode_ms: 0.0,
            preemptions: 0,
            error: None,
        })
    }

    /// The last event of a request that was cancelled before it ran.
    pub(crate) fn never_ran(id: RequestId, request: &Request) -> Event {
        Event::Finished(Finished {
            request: id,
            reason: FinishReason::Cancelled,
            text: String::new(),
            prompt_tokens: request.prompt.len(),
            generated_tokens: 0,
            logits_hash: None,
            cached_tokens: 0,
            queue_ms: 0.0,
            prefill_ms: 0.0,
            decode_ms: 0.0,
            preemptions: 0,
            error: None,
        })
    }
}

fn to_event(
    (chosen, top): (
        crate::sampling::TokenLogProb,
        Vec<crate::sampling::TokenLogProb>,
    ),
) -> TokenLogProbs {
    TokenLogProbs { chosen, top }
}

/// Adds the little-endian bits of a row.
fn hash_row(hasher: &mut blake3::Hasher, logits: &[f32]) {
    const CHUNK: usize = 1024;
    let mut bytes = [0; CHUNK * 4];
    for part in logits.chunks(CHUNK) {
        for (to, value) in bytes.chunks_exact_mut(4).zip(part) {
            to.copy_from_slice(&value.to_bits().to_le_bytes());
        }
        hasher.update(&bytes[..part.len() * 4]);
    }
}
