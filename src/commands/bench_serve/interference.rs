//! How much a long prompt disturbs the streams that run meanwhile, and they it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::Serialize;

use super::answer::Sample;
use super::load::{Load, locked, spawn};
use super::stats::Summary;
use crate::report::{median, milliseconds, thousandths};

/// Pieces of text that each stream gets before the long prompt is sent: those before are compared with those during.
const PIECES_BEFORE: usize = 32;
/// Prompts of a repeat: the long one alone, the long one among streams, and the streams'.
const PROMPTS_PER_REPEAT: usize = 2000;
const POLL: Duration = Duration::from_millis(1);

/// What came of one repeat.
#[derive(Debug, Serialize)]
pub(super) struct Interference {
    /// To the first text of the long prompt with nothing else running.
    ttft_alone_ms: f64,
    /// With the streams running.
    ttft_among_ms: f64,
    /// Between the pieces of all streams before the long prompt was sent.
    before_ms: Summary,
    /// Between those that overlap the time from then to its first text.
    during_ms: Summary,
    /// Streams that ended before that.
    streams_ended: usize,
    prompt_tokens: Option<usize>,
    pub(super) samples: Vec<Sample>,
}

/// All repeats.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    repeats: Vec<Interference>,
    /// Medians over the repeats.
    ttft_alone_ms: f64,
    ttft_among_ms: f64,
    ttft_ratio: f64,
    before_p50_ms: f64,
    before_p99_ms: f64,
    during_p50_ms: f64,
    during_p99_ms: f64,
    /// p99 during / median before.
    inter_token_ratio: f64,
    streams_ended: usize,
}

/// Measures as many repeats as asked for.
///
/// # Errors
/// When a request fails, or streams end before the long prompt is sent.
pub(super) fn measure(load: &Load<'_>, long_tokens: usize) -> Result<Report> {
    let mut repeats = Vec::new();
    for repeat in 0..load.args.repeat as usize {
        repeats.push(measure_once(load, long_tokens, repeat)?);
        load.bar.inc(1);
    }
    let over = |value: fn(&Interference) -> f64| {
        let values: Vec<f64> = repeats.iter().map(value).collect();
        thousandths(median(&values))
    };
    Ok(Report {
        ttft_alone_ms: over(|r| r.ttft_alone_ms),
        ttft_among_ms: over(|r| r.ttft_among_ms),
        ttft_ratio: over(|r| r.ttft_among_ms / r.ttft_alone_ms),
        before_p50_ms: over(|r| r.before_ms.p50),
        before_p99_ms: over(|r| r.before_ms.p99),
        during_p50_ms: over(|r| r.during_ms.p50),
        during_p99_ms: over(|r| r.during_ms.p99),
        inter_token_ratio: over(|r| r.during_ms.p99 / r.before_ms.p50),
        streams_ended: repeats.iter().map(|r| r.streams_ended).sum(),
        repeats,
    })
}

impl Report {
    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "long prompt    TTFT alone {:.1} ms, among the streams {:.1} ms: {:.2} times\n\
             inter-token    before: median {:.2} ms, p99 {:.2} ms; during: median {:.2} ms, p99 {:.2} ms, {:.2} times the median before\n",
            self.ttft_alone_ms,
            self.ttft_among_ms,
            self.ttft_ratio,
            self.before_p50_ms,
            self.before_p99_ms,
            self.during_p50_ms,
            self.during_p99_ms,
            self.inter_token_ratio,
        );
        if self.streams_ended > 0 {
            text.push_str(&format!(
                "note: {} ended before the long prompt's first text; raise --output-tokens\n",
                crate::report::counted(self.streams_ended, "stream")
            ));
        }
        text
    }
}

fn measure_once(load: &Load<'_>, long_tokens: usize, repeat: usize) -> Result<Interference> {
    let first = repeat * PROMPTS_PER_REPEAT;
    let long = |index| load.prompts.of_request(long_tokens, 0, first + index);
    let alone = ttft(load, &long(0))?;
    let streams = load.args.concurrency as usize;
    let pieces: Vec<AtomicUsize> = (0..streams).map(|_| AtomicUsize::new(0)).collect();
    let (enough, ended) = (AtomicBool::new(false), AtomicUsize::new(0));
    let samples = Mutex::new(Vec::with_capacity(streams));
    let start = Instant::now();
    let run_stream = |stream: usize| {
        let tokens = load.args.prompt_tokens as usize;
        let shared = load.args.shared_prefix_tokens as usize;
        let prompt = load.prompts.of_request(tokens, shared, first + 2 + stream);
        let due = Instant::now();
        let mut sample = load.client.stream(
            &prompt,
            load.args.output_tokens as usize,
            due,
            &mut |count, _| {
                pieces[stream].store(count, Ordering::Relaxed);
                !enough.load(Ordering::Relaxed)
            },
        );
        sample.index = stream;
        sample.due_ms = milliseconds(due - start);
        if !enough.load(Ordering::Relaxed) {
            ended.fetch_add(1, Ordering::Relaxed);
        }
        locked(&samples).push(sample);
    };
    let among = std::thread::scope(|scope| {
        let run_stream = &run_stream;
        let measured = (|| {
            for stream in 0..streams {
                spawn(scope, move || run_stream(stream))?;
            }
            wait(&pieces, &ended)?;
            let sent_ms = milliseconds(start.elapsed());
            let among = ttft(load, &long(1))?;
            Ok::<_, anyhow::Error>((sent_ms, among, ended.load(Ordering::Relaxed)))
        })();
        // Otherwise nobody would end the streams.
        enough.store(true, Ordering::Relaxed);
        measured
    });
    let samples = samples
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(failure) = samples.iter().find_map(|sample| sample.failure.clone()) {
        return Err(anyhow::Error::new(failure).context("a stream failed"));
    }
    let (sent_ms, among, streams_ended) = among?;
    let (Some(ttft_alone_ms), Some(ttft_among_ms)) = (alone.ttft_ms, among.ttft_ms) else {
        bail!("the long prompt got no answer");
    };
    let (before, during) = split(&samples, sent_ms, sent_ms + ttft_among_ms);
    let (Some(before_ms), Some(during_ms)) = (Summary::of(before), Summary::of(during)) else {
        bail!("no stream got text while the long prompt ran; raise --output-tokens");
    };
    Ok(Interference {
        ttft_alone_ms,
        ttft_among_ms,
        before_ms,
        during_ms,
        streams_ended,
        prompt_tokens: among.prompt_tokens,
        samples,
    })
}

/// The first text of a prompt; its failure is an error.
fn ttft(load: &Load<'_>, prompt: &str) -> Result<Sample> {
    let mut sample = load
        .client
        .stream(prompt, 1, Instant::now(), &mut |_, _| true);
    match sample.failure.take() {
        Some(failure) => Err(anyhow::Error::new(failure).context("the long prompt failed")),
        None => Ok(sample),
    }
}

/// Waits until all streams have run for a while.
fn wait(pieces: &[AtomicUsize], ended: &AtomicUsize) -> Result<()> {
    // The streams' own time limits end this loop too.
    while pieces
        .iter()
        .any(|pieces| pieces.load(Ordering::Relaxed) <= PIECES_BEFORE)
    {
        if ended.load(Ordering::Relaxed) > 0 {
            bail!("a stream ended before the long prompt was sent; raise --output-tokens");
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// Times between pieces of text: of those that ended before `sent_ms`, once all streams ran; and of those that overlap
/// the time from then to `first_ms`.
fn split(samples: &[Sample], sent_ms: f64, first_ms: f64) -> (Vec<f64>, Vec<f64>) {
    let firsts = samples
        .iter()
        .filter_map(|s| Some(s.due_ms + s.chunks_ms.first()?));
    let all_run_ms = firsts.fold(0.0, f64::max);
    let (mut before, mut during) = (Vec::new(), Vec::new());
    for sample in samples {
        for pair in sample.chunks_ms.windows(2) {
            let (begin, end) = (sample.due_ms + pair[0], sample.due_ms + pair[1]);
            let gap = thousandths(end - begin);
            if begin >= all_run_ms && end <= sent_ms {
                before.push(gap);
            } else if end > sent_ms && begin < first_ms {
                during.push(gap);
            }
        }
    }
    (before, during)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_split_at_the_long_prompt() {
        let stream = |due_ms, chunks_ms: &[f64]| Sample {
            due_ms,
            chunks_ms: chunks_ms.to_vec(),
            ..Sample::new(0)
        };
        // The second stream's first text is at 15; the long prompt is sent at 45 and answered at 80.
        let samples = [
            stream(0.0, &[5.0, 20.0, 30.0, 60.0, 90.0, 100.0]),
            stream(10.0, &[5.0, 32.0, 61.0]),
        ];
        let (before, during) = split(&samples, 45.0, 80.0);
        assert_eq!(before, [10.0, 27.0]);
        assert_eq!(during, [30.0, 30.0, 29.0]);
    }
}
