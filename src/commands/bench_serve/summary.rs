//! What many requests come to.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

use super::answer::Sample;
use super::stats::Summary;
use crate::cli::BenchServeArgs;
use crate::report::{counted, milliseconds, thousandths};

/// A run of many requests. Counts and rates are of those that were answered.
#[derive(Debug, Serialize)]
pub(super) struct Summed {
    wall_ms: f64,
    pub(super) succeeded: usize,
    pub(super) failed: usize,
    /// Failures by kind.
    errors: BTreeMap<String, usize>,
    /// Answers shorter than asked for.
    ended_early: usize,
    ttft_ms: Option<Summary>,
    tpot_ms: Option<Summary>,
    inter_token_ms: Option<Summary>,
    end_to_end_ms: Option<Summary>,
    /// Tokens of prompts, as the server counts them; nothing where it doesn't.
    prompt_tokens: Option<Summary>,
    prompt_tokens_total: Option<usize>,
    cached_tokens_total: Option<usize>,
    output_tokens_total: usize,
    requests_per_second: f64,
    prompt_tokens_per_second: Option<f64>,
    output_tokens_per_second: f64,
    /// Prompts and answers.
    total_tokens_per_second: Option<f64>,
    /// Answered within the limits asked for; nothing where none is.
    good: Option<usize>,
    good_requests_per_second: Option<f64>,
    good_output_tokens_per_second: Option<f64>,
    pub(super) samples: Vec<Sample>,
}

impl Summed {
    /// Of these requests, which took so long together.
    pub(super) fn new(args: &BenchServeArgs, samples: Vec<Sample>, wall: Duration) -> Self {
        let (limits, asked) = (
            (args.slo_ttft_ms, args.slo_tpot_ms),
            args.output_tokens as usize,
        );
        Self::of(limits, asked, samples, wall)
    }

    fn of(
        limits: (Option<f64>, Option<f64>),
        asked: usize,
        samples: Vec<Sample>,
        wall: Duration,
    ) -> Self {
        let mut errors = BTreeMap::new();
        for failure in samples.iter().filter_map(|sample| sample.failure.as_ref()) {
            *errors.entry(failure.kind.to_string()).or_insert(0) += 1;
        }
        let answered: Vec<&Sample> = samples
            .iter()
            .filter(|sample| sample.is_answered())
            .collect();
        let rate = |count: usize| thousandths(count as f64 / wall.as_secs_f64().max(1e-9));
        let output_tokens_total = answered.iter().map(|sample| sample.output_tokens).sum();
        let prompt_tokens_total: Option<usize> =
            answered.iter().map(|sample| sample.prompt_tokens).sum();
        let prompt_tokens_total = prompt_tokens_total.filter(|_| !answered.is_empty());
        let cached: Vec<usize> = answered
            .iter()
            .filter_map(|sample| sample.cached_tokens)
            .collect();
        let good = good(limits, &answered);
        let summary = |value: fn(&Sample) -> Option<f64>| {
            Summary::of(answered.iter().copied().filter_map(value))
        };
        Self {
            wall_ms: milliseconds(wall),
            succeeded: answered.len(),
            failed: samples.len() - answered.len(),
            errors,
            ended_early: answered
                .iter()
                .filter(|sample| sample.output_tokens < asked)
                .count(),
            ttft_ms: summary(|sample| sample.ttft_ms),
            tpot_ms: summary(|sample| sample.tpot_ms),
            inter_token_ms: Summary::of(answered.iter().flat_map(|sample| sample.gaps_ms())),
            end_to_end_ms: summary(|sample| Some(sample.end_to_end_ms)),
            prompt_tokens: summary(|sample| sample.prompt_tokens.map(|tokens| tokens as f64)),
            prompt_tokens_total,
            cached_tokens_total: (!cached.is_empty()).then(|| cached.iter().sum()),
            output_tokens_total,
            requests_per_second: rate(answered.len()),
            prompt_tokens_per_second: prompt_tokens_total.map(rate),
            output_tokens_per_second: rate(output_tokens_total),
            total_tokens_per_second: prompt_tokens_total
                .map(|tokens| rate(tokens + output_tokens_total)),
            good: good.map(|(requests, _)| requests),
            good_requests_per_second: good.map(|(requests, _)| rate(requests)),
            good_output_tokens_per_second: good.map(|(_, tokens)| rate(tokens)),
            samples,
        }
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text =
            String::from("ms                   mean        p50        p90        p99        max\n");
        for (name, summary) in [
            ("TTFT", self.ttft_ms),
            ("TPOT", self.tpot_ms),
            ("inter-token", self.inter_token_ms),
            ("end to end", self.end_to_end_ms),
        ] {
            let Some(s) = summary else { continue };
            let _ = writeln!(
                text,
                "{name:<14} {:>10.2} {:>10.2} {:>10.2} {:>10.2} {:>10.2}",
                s.mean, s.p50, s.p90, s.p99, s.max
            );
        }
        let _ = writeln!(
            text,
            "requests       {} answered, {} failed in {:.2} s, {:.2} a second",
            self.succeeded,
            self.failed,
            self.wall_ms / 1000.0,
            self.requests_per_second
        );
        for (kind, count) in &self.errors {
            let _ = writeln!(text, "errors         {kind}: {count}");
        }
        if let (Some(good), Some(rate)) = (self.good, self.good_requests_per_second) {
            let tokens = self.good_output_tokens_per_second.unwrap_or_default();
            let _ = writeln!(
                text,
                "good           {good}, {rate:.2} a second, {tokens:.2} output tokens a second"
            );
        }
        if let (Some(s), Some(rate)) = (self.prompt_tokens, self.prompt_tokens_per_second) {
            let cached = self.cached_tokens_total;
            let cached = cached.map_or(String::new(), |cached| {
                format!(", {cached} in all from the cache")
            });
            let _ = writeln!(
                text,
                "prompt tokens  {rate:.2} a second; {} to {} each{cached}",
                s.min, s.max
            );
        }
        let _ = writeln!(
            text,
            "output tokens  {:.2} a second",
            self.output_tokens_per_second
        );
        if let Some(rate) = self.total_tokens_per_second {
            let _ = writeln!(text, "all tokens     {rate:.2} a second");
        }
        if self.ended_early > 0 {
            let answers = counted(self.ended_early, "answer");
            let _ = writeln!(text, "note: {answers} ended before --output-tokens");
        }
        text
    }
}

/// Requests within the limits, and their answers' tokens; nothing where there are no limits.
fn good((ttft, tpot): (Option<f64>, Option<f64>), answered: &[&Sample]) -> Option<(usize, usize)> {
    if ttft.is_none() && tpot.is_none() {
        return None;
    }
    // An answer of one token has no further one that could be late.
    let within = |value: Option<f64>, limit: Option<f64>| {
        let late = value.zip(limit).is_some_and(|(value, limit)| value > limit);
        !late
    };
    let good = answered
        .iter()
        .filter(|s| within(s.ttft_ms, ttft) && within(s.tpot_ms, tpot));
    Some(good.fold((0, 0), |(requests, tokens), s| {
        (requests + 1, tokens + s.output_tokens)
    }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::answer::{Failure, FailureKind};
    use super::*;

    fn answered(ttft_ms: f64, tpot_ms: f64, tokens: usize) -> Sample {
        Sample {
            ttft_ms: Some(ttft_ms),
            tpot_ms: Some(tpot_ms),
            prompt_tokens: Some(100),
            output_tokens: tokens,
            ..Sample::new(0)
        }
    }

    #[test]
    fn counts_rates_and_errors_add_up() {
        let fail = |kind| Sample::unsent(Failure::new(kind, ""));
        let samples = vec![
            answered(10.0, 5.0, 8),
            answered(30.0, 5.0, 8),
            answered(10.0, 50.0, 4),
            fail(FailureKind::Status(429)),
            fail(FailureKind::Cut),
            fail(FailureKind::Status(429)),
        ];
        let summed = Summed::of((Some(20.0), Some(20.0)), 8, samples, Duration::from_secs(2));
        assert_eq!(
            (summed.succeeded, summed.failed, summed.ended_early),
            (3, 3, 1)
        );
        let errors = [("cut".to_owned(), 1), ("http_429".to_owned(), 2)];
        assert_eq!(summed.errors, BTreeMap::from(errors));
        assert_eq!(summed.output_tokens_per_second, 10.0);
        assert_eq!(summed.prompt_tokens_per_second, Some(150.0));
        assert_eq!(summed.total_tokens_per_second, Some(160.0));
        assert_eq!(
            (summed.good, summed.good_requests_per_second),
            (Some(1), Some(0.5))
        );
        assert_eq!(summed.good_output_tokens_per_second, Some(4.0));
    }

    #[test]
    fn limits_are_inclusive_and_optional() {
        let sample = answered(20.0, 5.0, 8);
        assert_eq!(good((Some(20.0), None), &[&sample]), Some((1, 8)));
        assert_eq!(good((Some(19.9), None), &[&sample]), Some((0, 0)));
        assert_eq!(good((None, None), &[&sample]), None);
    }

    #[test]
    fn a_prompt_that_was_not_counted_leaves_the_total_unknown() {
        let uncounted = Sample {
            prompt_tokens: None,
            ..answered(1.0, 1.0, 1)
        };
        let samples = vec![answered(1.0, 1.0, 1), uncounted];
        let summed = Summed::of((None, None), 1, samples, Duration::from_secs(1));
        assert_eq!(summed.prompt_tokens_total, None);
        assert_eq!(summed.total_tokens_per_second, None);
    }
}
