//! What a server saves when a prompt begins as an earlier one did.

use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;

use super::answer::Sample;
use super::load::Load;
use crate::report::{median, thousandths};

/// Domains of shared prefixes, far from the numbers of requests.
const PREFIXES: u32 = 1 << 30;

#[derive(Debug, Serialize)]
struct Pair {
    first: Sample,
    second: Sample,
}

/// All repeats; times are medians.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pairs: Vec<Pair>,
    first_ttft_ms: f64,
    second_ttft_ms: f64,
    /// second / first.
    ratio: f64,
    /// What the server says that it had cached for the second requests, where it tells.
    cached_tokens: Option<usize>,
}

/// Sends pairs of requests one after the other, each pair with a prefix of its own.
///
/// # Errors
/// When a request fails.
pub(super) fn measure(load: &Load<'_>) -> Result<Report> {
    let mut pairs = Vec::new();
    for repeat in 0..load.args.repeat {
        let send = |index: u32| {
            let (tokens, shared) = (load.args.prompt_tokens, load.args.shared_prefix_tokens);
            let shared = (shared as usize, PREFIXES + repeat);
            let prompt = load
                .prompts
                .prompt(tokens as usize, shared, 2 * repeat + index + 1);
            let output_tokens = load.args.output_tokens as usize;
            let mut sample =
                load.client
                    .stream(&prompt, output_tokens, Instant::now(), &mut |_, _| true);
            match sample.failure.take() {
                Some(failure) => Err(failure),
                None => Ok(sample),
            }
        };
        pairs.push(Pair {
            first: send(0).context("a first request failed")?,
            second: send(1).context("a second request failed")?,
        });
        load.bar.inc(1);
    }
    let over = |value: &dyn Fn(&Pair) -> f64| {
        let values: Vec<f64> = pairs.iter().map(value).collect();
        thousandths(median(&values))
    };
    let ttft = |sample: &Sample| sample.ttft_ms.unwrap_or(sample.end_to_end_ms);
    Ok(Report {
        first_ttft_ms: over(&|pair| ttft(&pair.first)),
        second_ttft_ms: over(&|pair| ttft(&pair.second)),
        ratio: over(&|pair| ttft(&pair.second) / ttft(&pair.first)),
        cached_tokens: pairs
            .iter()
            .filter_map(|pair| pair.second.cached_tokens)
            .min(),
        pairs,
    })
}

impl Report {
    /// For people.
    pub(super) fn text(&self) -> String {
        let cached = self.cached_tokens.map_or_else(
            || "the server doesn't tell what it had cached".to_owned(),
            |tokens| format!("{tokens} tokens of it cached"),
        );
        format!(
            "TTFT of the first {:.1} ms, of the second {:.1} ms: {:.3} times; {cached}\n",
            self.first_ttft_ms, self.second_ttft_ms, self.ratio
        )
    }
}
