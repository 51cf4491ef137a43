//! `bench`: tokens per second of prefill and decode.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use kernels::isa::Isa;
use model::{Decoder, Memory, MemoryOptions, Model, Ops, Rows, SPANS_MAX, Span, Step};
use serde::Serialize;
use state::SequenceId;

use super::bench_profile;
use crate::cli::BenchArgs;
use crate::report::Usage;
use crate::{progress, report, session};

/// What a row measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Work {
    Prefill,
    Decode,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// One thing to measure.
#[derive(Clone, Copy, Debug)]
struct Case {
    work: Work,
    /// Tokens per sequence and sample.
    tokens: usize,
    /// Positions remembered before.
    depth: usize,
    batch: usize,
}

impl Case {
    /// Prompt tokens that are run before or as what is measured, over all sequences.
    fn prompt_tokens(&self) -> usize {
        let per_sequence = match self.work {
            Work::Prefill => self.tokens,
            Work::Decode => self.depth,
        };
        per_sequence * self.batch
    }
}

#[derive(Serialize)]
struct Row<'a> {
    work: Work,
    tokens: usize,
    depth: usize,
    batch: usize,
    threads: usize,
    samples_tokens_per_second: Vec<f64>,
    /// The median of the samples.
    tokens_per_second: f64,
    model: &'a str,
    isa: &'static str,
    kv: &'static str,
    /// Prompt tokens in the largest step that there was: what was asked for, or all there are.
    prefill_chunk: usize,
    weight_bytes: usize,
    peak_rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Vec<bench_profile::Line>>,
}

/// Measures the rows asked for and prints each as it is done.
///
/// # Errors
/// When the model can't be had or run, or a row needs more positions than it was trained for.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let isa = Isa::from_env()?;
    let cases = cases(args);
    if cases.is_empty() {
        let message = "there is nothing to measure: --prefill and --decode are both 0";
        return Err(Usage(message.to_owned()).into());
    }
    let file = session::open(&args.model.model)?;
    let trained = model::arch::read(&file)?.context;
    let context = needed(&cases, trained)?;
    let largest = cases.iter().map(Case::prompt_tokens).max().unwrap_or(0);
    let thread_counts = args.thread_counts();
    let most = thread_counts.iter().copied().max().unwrap_or(1);
    let model = session::load(&file, &session::pool(most)?)?;
    if !args.json {
        report::print(HEADER)?;
    }
    let bar = progress::steps("", thread_counts.len() * cases.len());
    for threads in thread_counts {
        let mut bench = Bench::new(args, Arc::clone(&model), isa, threads, (context, largest))?;
        for &case in &cases {
            bar.set_message(format!(
                "{} {} at {}, {}",
                case.work.name(),
                case.tokens,
                case.depth,
                report::counted(threads, "thread")
            ));
            let samples = bench.measure(case, args.profile)?;
            bar.suspend(|| print_row(args, &bench, case, samples))?;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// The rows asked for, in the order of the flags.
fn cases(args: &BenchArgs) -> Vec<Case> {
    let mut cases = Vec::new();
    for batch in args.batch.iter().map(|&n| n as usize) {
        for tokens in args.prefill.iter().map(|&n| n as usize).filter(|&n| n > 0) {
            cases.push(Case {
                work: Work::Prefill,
                tokens,
                depth: 0,
                batch,
            });
        }
        for depth in args
            .depth
            .iter()
            .map(|&n| n as usize)
            .filter(|_| args.decode > 0)
        {
            cases.push(Case {
                work: Work::Decode,
                tokens: args.decode as usize,
                depth,
                batch,
            });
        }
    }
    cases
}

/// The positions that the longest row needs.
fn needed(cases: &[Case], trained: usize) -> Result<usize> {
    let mut most = 0;
    for Case {
        work,
        tokens,
        depth,
        ..
    } in cases
    {
        let positions = depth + tokens;
        if positions > trained {
            let message = format!(
                "the {} row of {} at depth {depth} needs {}: it must be at most {trained}, what the model \
                 was trained for",
                work.name(),
                report::counted(*tokens, "token"),
                report::counted(positions, "position"),
            );
            return Err(Usage(message).into());
        }
        most = most.max(positions);
    }
    Ok(most)
}

/// Everything that stays the same between rows of one number of threads.
struct Bench {
    decoder: Decoder,
    options: MemoryOptions,
    repeat: usize,
    chunk: usize,
}

impl Bench {
    fn new(
        args: &BenchArgs,
        model: Arc<Model>,
        isa: Isa,
        threads: usize,
        (context, largest): (usize, usize),
    ) -> Result<Self> {
        let chunk = args.prefill_chunk.within(largest);
        let pool = session::pool(threads)?;
        let decoder = Decoder::new(model, Ops::new(isa, pool), chunk.max(SPANS_MAX), context)?;
        let options = MemoryOptions {
            kv_type: args.kv.kv_type(),
            context,
            sequences: 1,
        };
        Ok(Self {
            decoder,
            options,
            repeat: args.repeat as usize,
            chunk,
        })
    }

    /// Samples of a row, in tokens per second over all sequences.
    fn measure(&mut self, case: Case, profile: bool) -> Result<Vec<f64>> {
        let Case {
            work,
            tokens,
            depth,
            batch,
        } = case;
        let model = Arc::clone(self.decoder.model());
        let options = MemoryOptions {
            context: depth + tokens,
            sequences: batch,
            ..self.options
        };
        let mut memory = Memory::new(&model.architecture, options)?;
        let vocabulary = model.architecture.vocabulary;
        let prompts: Vec<Vec<u32>> = (0..batch)
            .map(|i| token_ids(vocabulary, depth + tokens, i as u64))
            .collect();
        let sequences = (0..batch)
            .map(|_| memory.table_mut().create())
            .collect::<Result<Vec<_>, _>>()?;
        self.fill(&mut memory, &sequences, &prompts, depth)?;
        let mut samples = Vec::with_capacity(self.repeat);
        // The first is to warm up.
        for sample in 0..=self.repeat {
            if sample == 1 {
                self.decoder.ops().profile().restart(profile);
            }
            let elapsed = match work {
                Work::Prefill => {
                    let start = Instant::now();
                    self.fill(&mut memory, &sequences, &prompts, tokens)?;
                    start.elapsed()
                }
                Work::Decode => self.decode(&mut memory, &sequences, &prompts, depth)?,
            };
            if sample > 0 {
                samples.push(rate(tokens * batch, elapsed));
            }
            for &sequence in &sequences {
                memory.table_mut().truncate(sequence, depth)?;
            }
        }
        Ok(samples)
    }

    /// Runs each sequence, in steps of at most a chunk of tokens, up to `len` positions and reads its last
    /// logits. The sequences must be empty.
    fn fill(
        &mut self,
        memory: &mut Memory,
        sequences: &[SequenceId],
        prompts: &[Vec<u32>],
        len: usize,
    ) -> Result<()> {
        let (mut current, mut done) = (0, 0);
        while len > 0 && current < sequences.len() {
            let mut spans: Vec<Span<'_>> = Vec::new();
            let mut budget = self.chunk;
            while budget > 0 && current < sequences.len() {
                let n = (len - done).min(budget);
                let rows = if done + n == len {
                    Rows::Last
                } else {
                    Rows::None
                };
                spans.push(Span::tokens(
                    sequences[current],
                    done,
                    &prompts[current][done..done + n],
                    rows,
                ));
                budget -= n;
                done += n;
                if done == len {
                    (current, done) = (current + 1, 0);
                }
            }
            self.decoder
                .forward(memory, Step { spans: &spans }, &mut |logits| {
                    black_box(logits.values);
                })?;
        }
        Ok(())
    }

    /// Runs the tokens from `depth` on, one of each sequence in a step.
    fn decode(
        &mut self,
        memory: &mut Memory,
        sequences: &[SequenceId],
        prompts: &[Vec<u32>],
        depth: usize,
    ) -> Result<Duration> {
        let start = Instant::now();
        let mut spans = [Span::tokens(SequenceId(0), 0, &[], Rows::None); SPANS_MAX];
        for position in depth..prompts[0].len() {
            for ((span, &sequence), prompt) in spans.iter_mut().zip(sequences).zip(prompts) {
                *span = Span::tokens(sequence, position, &prompt[position..=position], Rows::Last);
            }
            let step = Step {
                spans: &spans[..sequences.len()],
            };
            self.decoder.forward(memory, step, &mut |logits| {
                black_box(logits.values);
            })?;
        }
        Ok(start.elapsed())
    }
}

fn rate(tokens: usize, elapsed: Duration) -> f64 {
    report::per_second(tokens, elapsed).unwrap_or(0.0)
}

/// Token ids spread over the vocabulary, the same at every call (a linear congruential generator: Knuth's
/// MMIX constants).
fn token_ids(vocabulary: usize, count: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let ids = (0..count).map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % vocabulary.max(1) as u64) as u32
    });
    ids.collect()
}

const HEADER: &str = "work     tokens  depth  batch  threads    tokens/s         min         max\n";

fn print_row(args: &BenchArgs, bench: &Bench, case: Case, samples: Vec<f64>) -> Result<()> {
    let Case {
        work,
        tokens,
        depth,
        batch,
    } = case;
    let ops = bench.decoder.ops();
    let threads = ops.pool().threads();
    let median = report::thousandths(report::median(&samples));
    let profile = args.profile.then(|| {
        let steps = match work {
            Work::Prefill => (tokens * batch).div_ceil(bench.chunk),
            Work::Decode => tokens,
        };
        let samples = samples.len();
        bench_profile::lines(ops.profile(), tokens * batch * samples, steps * samples)
    });
    if !args.json {
        let least = samples
            .iter()
            .copied()
            .reduce(|a, b| if b < a { b } else { a })
            .unwrap_or(0.0);
        let most = samples
            .iter()
            .copied()
            .reduce(|a, b| if b > a { b } else { a })
            .unwrap_or(0.0);
        let work = work.name();
        let below = profile.as_deref().map(bench_profile::table);
        return report::print(&format!(
            "{work:<8} {tokens:>6} {depth:>6} {batch:>6} {threads:>8} {median:>11.2} {least:>11.2} {most:>11.2}\n{}",
            below.unwrap_or_default()
        ));
    }
    let row = Row {
        work,
        tokens,
        depth,
        batch,
        threads,
        samples_tokens_per_second: samples,
        tokens_per_second: median,
        model: &args.model.model,
        isa: ops.isa().name(),
        kv: bench.options.kv_type.name(),
        prefill_chunk: bench.chunk.min(case.prompt_tokens()),
        weight_bytes: bench.decoder.model().weight_bytes(),
        peak_rss_bytes: report::peak_rss_bytes(),
        profile,
    };
    report::print_json(&row, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_ids_are_valid_fixed_and_spread() {
        let ids = token_ids(280, 1000, 1);
        assert_eq!(ids, token_ids(280, 1000, 1));
        assert_ne!(ids, token_ids(280, 1000, 2));
        assert!(ids.iter().all(|&id| id < 280));
        let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
        assert!(distinct.len() > 200);
    }
}
