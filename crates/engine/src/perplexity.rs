//! Perplexity over a text, with the windows and scored positions of llama.cpp's tool, so that figures
//! compare.
//!
//! The text is cut into windows of `window` tokens that don't overlap; where the model asks for a
//! beginning-of-sequence token, it takes the place of each window's first. Within a window the logits at
//! the positions `window / 2 ..= window − 2` predict the token that follows, so that each prediction has
//! at least half a window before it.

use model::{Decoder, Memory, Rows, Span, Step};
use state::TenantId;

use crate::error::EngineError;
use crate::sampling::log_sum_exp;

/// How a text is scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Tokens of a window.
    pub window: usize,
    /// Windows at most; all of the text where there is none.
    pub limit: Option<usize>,
    /// Takes the place of each window's first token.
    pub bos: Option<u32>,
    /// Tokens run in one step.
    pub chunk: usize,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Windows scored.
    pub windows: usize,
    /// Tokens scored.
    pub tokens: usize,
    /// Mean negative log-likelihood per token, in nats.
    pub mean_nll: f64,
    /// Its exponential.
    pub perplexity: f64,
    /// Standard error of the perplexity.
    pub standard_error: f64,
}

#[derive(Default)]
struct Sums {
    tokens: usize,
    nll: f64,
    nll_squared: f64,
}

impl Sums {
    fn score(&self, windows: usize) -> Score {
        let n = self.tokens as f64;
        let mean = self.nll / n;
        let variance = (self.nll_squared / n - mean * mean).max(0.0);
        let perplexity = libm::exp(mean);
        let standard_error = perplexity * libm::sqrt(variance / (n - 1.0).max(1.0));
        Score {
            windows,
            tokens: self.tokens,
            mean_nll: mean,
            perplexity,
            standard_error,
        }
    }
}

/// Scores `tokens`; `progress` gets the score so far after each window.
///
/// # Errors
/// When the text is shorter than a window, or the model fails.
pub fn score(
    decoder: &mut Decoder,
    memory: &mut Memory,
    tokens: &[u32],
    windows: Windows,
    progress: &mut dyn FnMut(&Score),
) -> Result<Score, EngineError> {
    let Windows {
        window,
        limit,
        bos,
        chunk,
    } = windows;
    for (name, value, least) in [("window", window, 4), ("chunk", chunk, 1)] {
        if value < least {
            let range = format!("{least} or more");
            return Err(EngineError::Option { name, value, range });
        }
    }
    if limit == Some(0) {
        let range = "1 or more".to_owned();
        return Err(EngineError::Option {
            name: "limit",
            value: 0,
            range,
        });
    }
    let vocabulary = decoder.model().architecture.vocabulary;
    if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
        return Err(EngineError::NoSuchToken { token, vocabulary });
    }
    let count = (tokens.len() / window).min(limit.unwrap_or(usize::MAX));
    if count == 0 {
        return Err(EngineError::TextTooShort {
            tokens: tokens.len(),
            window,
        });
    }
    let mut sums = Sums::default();
    let mut input = Vec::with_capacity(window);
    for (done, part) in tokens.chunks_exact(window).take(count).enumerate() {
        input.clear();
        input.extend_from_slice(part);
        if let Some(bos) = bos {
            input[0] = bos;
        }
        score_window(decoder, memory, &input, chunk, &mut sums)?;
        progress(&sums.score(done + 1));
    }
    Ok(sums.score(count))
}

fn score_window(
    decoder: &mut Decoder,
    memory: &mut Memory,
    input: &[u32],
    chunk: usize,
    sums: &mut Sums,
) -> Result<(), EngineError> {
    let scored = input.len() / 2..input.len() - 1;
    let sequence = memory.create(TenantId::LOCAL)?;
    let mut position = 0;
    let mut result = Ok(());
    for tokens in input.chunks(chunk) {
        let rows = if position + tokens.len() > scored.start {
            Rows::All
        } else {
            Rows::None
        };
        let spans = [Span::tokens(sequence, position, tokens, rows)];
        result = decoder.forward(memory, Step { spans: &spans }, &mut |logits| {
            if scored.contains(&logits.position) {
                let target = input[logits.position + 1] as usize;
                let nll = log_sum_exp(logits.values) - f64::from(logits.values[target]);
                sums.tokens += 1;
                sums.nll += nll;
                sums.nll_squared += nll * nll;
            }
        });
        if result.is_err() {
            break;
        }
        position += tokens.len();
    }
    memory.release(sequence)?;
    Ok(result?)
}
