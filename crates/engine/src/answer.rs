//! What becomes of the logits of a request: a token, text, log-probabilities, a hash.

use std::sync::Arc;
use std::time::Duration;

use text::{Detokenizer, DetokenizerOptions, StopStrings, Tokenizer};

use crate::request::{
    Event, FinishReason, Finished, PromptEvent, Request, RequestId, Started, TokenEvent,
    TokenLogProbs,
};
use crate::sampling::{History, Sampler, Sampling, SamplingError, log_probs};
use crate::task::Task;

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
    prompt_log_probs: Option<PromptLogProbs>,
    /// Tokens that may be generated.
    limit: usize,
    generated: usize,
    /// The first position whose logits were not taken: a step that is run again gives them again.
    next_row: usize,
    /// What the last logits led to.
    chosen: Option<Result<(u32, Option<TokenLogProbs>), SamplingError>>,
    times: Times,
}

/// When a request got how far.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    submitted: Duration,
    started: Option<Duration>,
    first_token: Option<Duration>,
}

impl Times {
    /// Times of the queue, the prompt and the answer, in milliseconds, of a request that ends at `end`.
    fn parts_ms(&self, end: Duration) -> [f64; 3] {
        let started = self.started.unwrap_or(end);
        let first_token = self.first_token.unwrap_or(end);
        [
            between_ms(self.submitted, started),
            between_ms(started, first_token),
            between_ms(first_token, end),
        ]
    }
}

/// The log-probabilities of a prompt, as far as they are known.
#[derive(Debug)]
struct PromptLogProbs {
    top: usize,
    known: Vec<Option<TokenLogProbs>>,
}

/// What follows from a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The request goes on with this token.
    GoOn(u32),
    /// It has ended.
    End(FinishReason),
}

impl Answer {
    /// The answer to `request`, of at most `limit` tokens.
    pub(crate) fn new(
        id: RequestId,
        request: &Request,
        stops: StopStrings,
        tokenizer: &Arc<Tokenizer>,
        (limit, submitted): (usize, Duration),
    ) -> Self {
        Self {
            id,
            tokenizer: Arc::clone(tokenizer),
            // Large: made when it begins.
            history: History::new(0, &[]),
            // The answer goes on from the prompt, so its first space is part of it.
            detokenizer: Detokenizer::new(Arc::clone(tokenizer), DetokenizerOptions::default()),
            stops,
            hasher: request.logits_hash.then(blake3::Hasher::new),
            prompt_log_probs: request.prompt_log_probs.map(|top| PromptLogProbs {
                top,
                known: Vec::new(),
            }),
            limit,
            generated: 0,
            next_row: 0,
            chosen: None,
            sampling: request.sampling.clone(),
            log_probs: request.log_probs,
            ignore_end: request.ignore_end,
            prompt_tokens: request.prompt.len(),
            times: Times {
                submitted,
                ..Times::default()
            },
        }
    }

    /// Tokens generated so far.
    pub(crate) fn generated(&self) -> usize {
        self.generated
    }

    /// The request begins.
    pub(crate) fn begin(&mut self, task: &Task, vocabulary: usize, now: Duration) -> Event {
        self.history = History::new(vocabulary, &task.tokens);
        self.times.started = Some(now);
        if let Some(prompt) = &mut self.prompt_log_probs {
            prompt.known.reserve_exact(task.prompt_len);
            prompt.known.push(None);
        }
        Event::Started(Started {
            request: self.id,
            cached_tokens: task.cached,
            queue_ms: between_ms(self.times.submitted, now),
        })
    }

    /// Takes the row of logits at `position` of a request with these `tokens`; the last is sampled from.
    pub(crate) fn take(
        &mut self,
        sampler: &mut Sampler,
        logits: &[f32],
        position: usize,
        tokens: &[u32],
    ) {
        let is_new = position >= self.next_row;
        if is_new && let Some(hasher) = &mut self.hasher {
            hash_row(hasher, logits);
        }
        if let Some(prompt) = &mut self.prompt_log_probs
            && prompt.known.len() == position + 1
            && position + 1 < self.prompt_tokens
        {
            let (chosen, top) = log_probs(logits, tokens[position + 1], prompt.top);
            prompt.known.push(Some(TokenLogProbs { chosen, top }));
        }
        self.next_row = self.next_row.max(position + 1);
        if position + 1 == tokens.len() && self.limit > 0 {
            // The token comes after `position`; draws are keyed by its own place.
            let token = sampler.sample(logits, &self.sampling, &self.history, position + 1);
            self.chosen = Some(token.map(|token| {
                let with = self.log_probs;
                let with = with.map(|n| log_probs(logits, token, n));
                (
                    token,
                    with.map(|(chosen, top)| TokenLogProbs { chosen, top }),
                )
            }));
        }
    }

    /// What the logits taken so far led to, where all `tokens` have run.
    pub(crate) fn collect(
        &mut self,
        now: Duration,
        events: &mut Vec<Event>,
    ) -> Result<Option<Outcome>, SamplingError> {
        if self.limit == 0 {
            self.tell_prompt(events);
            return Ok(Some(Outcome::End(FinishReason::Length)));
        }
        let Some(chosen) = self.chosen.take() else {
            return Ok(None);
        };
        let (token, log_probs) = chosen?;
        self.tell_prompt(events);
        self.times.first_token.get_or_insert(now);
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
        Ok(Some(
            match (ends || stopped, self.generated >= self.limit) {
                (true, _) => Outcome::End(FinishReason::Stop),
                (false, true) => Outcome::End(FinishReason::Length),
                (false, false) => Outcome::GoOn(token),
            },
        ))
    }

    /// Says what is known of the prompt, once.
    fn tell_prompt(&mut self, events: &mut Vec<Event>) {
        if let Some(prompt) = self.prompt_log_probs.take() {
            events.push(Event::Prompt(PromptEvent {
                request: self.id,
                log_probs: prompt.known,
            }));
        }
    }

    /// The last event, with whatever text was held back.
    pub(crate) fn finish(
        &mut self,
        task: &Task,
        (mut reason, now): (FinishReason, Duration),
        error: Option<String>,
    ) -> Finished {
        let mut text = String::new();
        if self.stops.stopped().is_none() {
            let output = self.stops.push(self.detokenizer.finish());
            text.push_str(output.emit);
            if output.stopped.is_some() {
                if reason == FinishReason::Length {
                    reason = FinishReason::Stop;
                }
            } else {
                text.push_str(self.stops.finish());
            }
        }
        let [queue_ms, prefill_ms, decode_ms] = self.times.parts_ms(now);
        let hash = self
            .hasher
            .as_ref()
            .filter(|_| self.times.started.is_some());
        Finished {
            request: self.id,
            reason,
            text,
            prompt_tokens: self.prompt_tokens,
            generated_tokens: self.generated,
            logits_hash: hash.map(|hasher| hasher.finalize().to_hex().to_string()),
            cached_tokens: task.cached,
            queue_ms,
            prefill_ms,
            decode_ms,
            preemptions: task.preemptions,
            error,
        }
    }
}

fn between_ms(from: Duration, to: Duration) -> f64 {
    to.saturating_sub(from).as_secs_f64() * 1e3
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
