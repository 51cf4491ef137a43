//! `bench`: tokens per second of prefill and decode.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use kernels::isa::Isa;
use model::{Decoder, Memory, MemoryOptions, Model, OpKind, Ops, Rows, SPANS_MAX, Span, Step};
use serde::Serialize;
use state::{SequenceId, TenantId};

use super::bench_profile;
use super::bench_share::{BoundMeter, Shares};
use crate::bounds::{self, Bounds};
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
    #[serde(flatten)]
    shares: Shares,
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
    let bounds = known_bounds();
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
            let measured = bench.measure(case, args)?;
            bar.suspend(|| print_row(args, &bench, &bounds, case, measured))?;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    hint_at_bounds(args, isa, &bounds);
    Ok(())
}

/// The bounds that are kept of this machine; what can't be read is told, and counts as not measured.
fn known_bounds() -> Bounds {
    Bounds::read().unwrap_or_else(|error| {
        report::note(&format!("no shares of bounds: {error:#}"));
        Bounds::default()
    })
}

/// Says how to get shares where a row could have none.
fn hint_at_bounds(args: &BenchArgs, isa: Isa, bounds: &Bounds) {
    if args.bounds || args.json {
        return;
    }
    let mut counts = args.thread_counts().into_iter();
    if let Some(threads) = counts.find(|&threads| bounds.peaks(threads, isa, 1.0).is_empty()) {
        report::note(&format!(
            "`plainchant bench --bounds --threads {threads}` measures what this machine can do; rows then say which \
             share of it they use"
        ));
    }
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
            state_bytes: None,
            swap_bytes: 0,
        };
        Ok(Self {
            decoder,
            options,
            repeat: args.repeat as usize,
            chunk,
        })
    }

    /// Measures a row, and with `--bounds` its bound before and after each sample.
    fn measure(&mut self, case: Case, args: &BenchArgs) -> Result<Measured> {
        let Case {
            tokens,
            depth,
            batch,
            ..
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
            .map(|_| memory.create(TenantId::LOCAL))
            .collect::<Result<Vec<_>, _>>()?;
        self.fill(&mut memory, &sequences, &prompts, depth)?;
        // The first is to warm up, and to count what there is to do.
        self.decoder.ops().restart_profile(true);
        self.sample(&mut memory, &sequences, &prompts, case)?;
        let work = self.work_done(case);
        let mut meter = match args.bounds {
            true => Some(self.bound_meter(case, &work, args)?),
            false => None,
        };
        self.decoder.ops().restart_profile(args.profile);
        let mut seconds = Vec::with_capacity(self.repeat);
        for _ in 0..self.repeat {
            if let Some(meter) = &mut meter {
                meter.sample(self.decoder.ops().pool());
            }
            seconds.push(self.sample(&mut memory, &sequences, &prompts, case)?);
        }
        if let Some(meter) = &mut meter {
            meter.sample(self.decoder.ops().pool());
        }
        Ok(Measured {
            shares: meter.map(|meter| meter.shares(&work, &seconds)),
            seconds,
            work,
        })
    }

    /// Seconds that a row's work takes once; the sequences are then as before.
    fn sample(
        &mut self,
        memory: &mut Memory,
        sequences: &[SequenceId],
        prompts: &[Vec<u32>],
        case: Case,
    ) -> Result<f64> {
        let start = Instant::now();
        match case.work {
            Work::Prefill => self.fill(memory, sequences, prompts, case.tokens)?,
            Work::Decode => self.decode(memory, sequences, prompts, case.depth)?,
        }
        let seconds = start.elapsed().as_secs_f64();
        for &sequence in sequences {
            memory.truncate(sequence, case.depth)?;
        }
        Ok(seconds)
    }

    /// Steps of one sample.
    fn steps(&self, case: Case) -> usize {
        match case.work {
            Work::Prefill => (case.tokens * case.batch).div_ceil(self.chunk),
            Work::Decode => case.tokens,
        }
    }

    /// What the one sample since the profile was restarted had to do: its matrix products, and in decode the
    /// keys and values to read.
    fn work_done(&self, case: Case) -> bounds::Work {
        let totals = self.decoder.ops().profile().totals(OpKind::Matmul);
        let mut work = bounds::Work::of_products(&totals);
        if case.work == Work::Decode {
            let architecture = &self.decoder.model().architecture;
            let kv_bytes = (case.depth..case.depth + case.tokens)
                .map(|at| Memory::bytes_read_at(architecture, self.options.kv_type, at));
            work.bytes += (case.batch * kv_bytes.sum::<usize>()) as f64;
        }
        work
    }

    /// What limits a row: in decode the bandwidth, for a buffer of what a step reads, in prefill the arithmetic.
    fn bound_meter(&self, case: Case, work: &bounds::Work, args: &BenchArgs) -> Result<BoundMeter> {
        let (ops, budget) = (self.decoder.ops(), args.bounds_budget());
        match case.work {
            Work::Prefill => Ok(BoundMeter::of_arithmetic(ops.isa(), work, budget)),
            Work::Decode => {
                let bytes = work.bytes / self.steps(case) as f64;
                BoundMeter::of_reading(bytes, ops.pool(), budget)
            }
        }
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
    ) -> Result<()> {
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
        Ok(())
    }
}

/// What measuring a row gave.
struct Measured {
    /// Of each sample.
    seconds: Vec<f64>,
    /// What each sample had to do.
    work: bounds::Work,
    /// Where its bound was measured along with it.
    shares: Option<Shares>,
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

const HEADER: &str = "work     tokens  depth  batch  threads    tokens/s         min         max  bandwidth  multiply-adds\n";

fn print_row(
    args: &BenchArgs,
    bench: &Bench,
    bounds: &Bounds,
    case: Case,
    measured: Measured,
) -> Result<()> {
    let Case {
        work,
        tokens,
        depth,
        batch,
    } = case;
    let ops = bench.decoder.ops();
    let threads = ops.pool().threads();
    let rate = |&seconds: &f64| match seconds > 0.0 {
        true => report::thousandths((tokens * batch) as f64 / seconds),
        false => 0.0,
    };
    let samples: Vec<f64> = measured.seconds.iter().map(rate).collect();
    let steps = bench.steps(case);
    let peaks = bounds.peaks(threads, ops.isa(), measured.work.bytes / steps as f64);
    let typical = report::median(&measured.seconds);
    let of_kept = || Shares::of_peaks(&peaks, &measured.work, typical);
    let row = Row {
        work,
        tokens,
        depth,
        batch,
        threads,
        tokens_per_second: report::thousandths(report::median(&samples)),
        profile: args.profile.then(|| {
            let (tokens, steps) = (tokens * batch * samples.len(), steps * samples.len());
            bench_profile::lines(ops, &peaks, tokens, steps)
        }),
        samples_tokens_per_second: samples,
        model: &args.model.model,
        isa: ops.isa().name(),
        kv: bench.options.kv_type.name(),
        prefill_chunk: bench.chunk.min(case.prompt_tokens()),
        weight_bytes: bench.decoder.model().weight_bytes(),
        peak_rss_bytes: report::peak_rss_bytes(),
        shares: measured.shares.unwrap_or_else(of_kept),
    };
    match args.json {
        true => report::print_json(&row, true),
        false => report::print(&row.text()),
    }
}

impl Row<'_> {
    /// As a line of the table, and what is below it.
    fn text(&self) -> String {
        let (least, most) = report::extremes(&self.samples_tokens_per_second);
        let line = format!(
            "{:<8} {:>6} {:>6} {:>6} {:>8} {:>11.2} {:>11.2} {:>11.2} {:>10} {:>14}",
            self.work.name(),
            self.tokens,
            self.depth,
            self.batch,
            self.threads,
            self.tokens_per_second,
            least,
            most,
            report::percent(self.shares.bandwidth_share),
            report::percent(self.shares.multiply_adds_share),
        );
        let dropped = self.shares.alternation.as_ref().map(|a| a.rounds_dropped);
        let dropped = dropped.filter(|&n| n > 0).map_or(String::new(), |n| {
            let rounds = report::counted(self.samples_tokens_per_second.len(), "round");
            format!("  ({n} of {rounds} dropped: the bound moved)")
        });
        let below = self.profile.as_deref().map(bench_profile::table);
        format!(
            "{}{dropped}\n{}",
            line.trim_end(),
            below.unwrap_or_default()
        )
    }
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
