//! `bench --bounds`: what this machine can do at most.

use std::path::Path;

use anyhow::Result;
use indicatif::ProgressBar;
use kernels::bounds::{
    Access, Buffer, Numbers, Pages, barrier_nanoseconds, multiply_adds_per_second,
    read_bytes_per_second,
};
use kernels::isa::Isa;
use kernels::pool::Pool;
use kernels::topology;

use crate::bounds::{Bound, Bounds, Quantity, SPREAD};
use crate::cli::BenchArgs;
use crate::{progress, report, session};

const MIB: usize = 1 << 20;

/// Measures all bounds, prints each as it is done, and keeps them.
///
/// # Errors
/// When `PLAINCHANT_ISA` is wrong, or the results can't be kept.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let isas = session::isas()?;
    // What keeps them from being kept is better told before than after.
    Bounds::check_writable()?;
    Bounds::read()?;
    let meter = Meter {
        args,
        bar: progress::steps("", 0),
        reading_isa: reading_isa(isas.last().copied().unwrap_or(Isa::Scalar)),
        isas,
    };
    let (thread_counts, sizes) = (thread_counts(args), sizes(args));
    let of_arithmetic = meter.isas.len() * Numbers::ALL.len();
    let of_reading = (sizes.len() + 1) * Pages::ALL.len();
    let rows = thread_counts.len() * (1 + of_arithmetic + of_reading);
    meter.bar.set_length(rows as u64);
    if !args.json {
        report::print(HEADER)?;
    }
    let mut measured = Vec::with_capacity(rows);
    for threads in thread_counts {
        meter.measure(&session::pool(threads)?, &sizes, &mut measured)?;
    }
    meter.bar.finish_and_clear();
    let disturbed = measured.iter().filter(|row| row.is_disturbed()).count();
    if disturbed > 0 {
        report::note(&format!(
            "samples of {} of {} differ by more than {:.0} %: something else ran; the best count, and measuring \
             again on an idle machine may find better",
            disturbed,
            report::counted(measured.len(), "bound"),
            100.0 * SPREAD
        ));
    }
    Bounds::keep(measured)
}

/// The numbers of threads asked for; else one, and all.
fn thread_counts(args: &BenchArgs) -> Vec<usize> {
    let mut counts = args.thread_counts();
    if !args.threads_given() {
        counts.insert(0, 1);
        counts.dedup();
    }
    counts
}

/// Sizes of buffers asked for, in bytes, that leave at least half of the memory to others.
fn sizes(args: &BenchArgs) -> Vec<usize> {
    let available = topology::available_memory_bytes(Path::new("/"));
    let asked = args.bounds_mib.iter().map(|&mib| mib as usize * MIB);
    let (fit, too_large): (Vec<_>, Vec<_>) =
        asked.partition(|&bytes| available.is_none_or(|available| bytes as f64 * 2.0 <= available));
    for bytes in too_large {
        report::note(&format!(
            "left out a buffer of {}: it would take more than half of the {} available",
            report::bytes(bytes as u64),
            report::bytes(available.unwrap_or(0.0) as u64)
        ));
    }
    fit
}

/// Measures and prints.
struct Meter<'a> {
    args: &'a BenchArgs,
    bar: ProgressBar,
    isas: Vec<Isa>,
    /// The one that reads.
    reading_isa: Isa,
}

impl Meter<'_> {
    /// All bounds of one number of threads.
    fn measure(&self, pool: &Pool, sizes: &[usize], measured: &mut Vec<Bound>) -> Result<()> {
        let budget = self.args.bounds_budget();
        let row = |quantity: Quantity, isa: Option<Isa>, samples: Vec<f64>| {
            bound(pool, quantity, isa, samples)
        };
        self.say(pool, "fork and join");
        let samples = self.samples(|| barrier_nanoseconds(pool, budget));
        self.done(row(Quantity::BarrierNanoseconds, None, samples), measured)?;
        for &isa in &self.isas {
            for numbers in Numbers::ALL {
                self.say(pool, &format!("multiply-adds, {isa}"));
                let samples = self.samples(|| multiply_adds_per_second(pool, isa, numbers, budget));
                self.done(row(numbers.into(), Some(isa), samples), measured)?;
            }
        }
        // In the cache, and then from memory.
        let own = pool.threads() * MIB;
        for &bytes in std::iter::once(&own).chain(sizes) {
            for &pages in Pages::ALL {
                let size = report::bytes(bytes as u64);
                self.say(pool, &format!("reading {size}, {} pages", pages.name()));
                let Some(buffer) = Buffer::new(bytes, pages, pool) else {
                    let pages = pages.name();
                    let note =
                        format!("left out {size} in {pages} pages: there is no memory for it");
                    self.bar.suspend(|| report::note(&note));
                    self.bar.inc(1);
                    continue;
                };
                let (access, samples) = self.fastest(pool, &buffer);
                let row = Bound {
                    bytes: Some(buffer.bytes()),
                    pages: Some(pages.name().to_owned()),
                    access: Some(access.name().to_owned()),
                    ..row(
                        Quantity::ReadBytesPerSecond,
                        Some(self.reading_isa),
                        samples,
                    )
                };
                self.done(row, measured)?;
            }
        }
        Ok(())
    }

    fn say(&self, pool: &Pool, what: &str) {
        let threads = report::counted(pool.threads(), "thread");
        self.bar.set_message(format!("{what}, {threads}"));
    }

    /// As many samples as asked for, after one to warm up.
    fn samples(&self, mut sample: impl FnMut() -> f64) -> Vec<f64> {
        sample();
        (0..self.args.repeat).map(|_| sample()).collect()
    }

    /// The fastest way to read the buffer, with its samples: all ways in turn, so that a busy moment meets them
    /// all.
    fn fastest(&self, pool: &Pool, buffer: &Buffer) -> (Access, Vec<f64>) {
        let budget = self.args.bounds_budget();
        let read = |access| read_bytes_per_second(pool, buffer, access, self.reading_isa, budget);
        let rounds = self.args.repeat as usize;
        let rounds: Vec<_> = (0..rounds).map(|_| Access::ALL.map(read)).collect();
        let of_way = |way: usize| rounds.iter().map(|round| round[way]).collect::<Vec<_>>();
        let most = |way: &usize| report::extremes(&of_way(*way)).1;
        let best = (0..Access::ALL.len()).max_by(|a, b| most(a).total_cmp(&most(b)));
        let best = best.unwrap_or(0);
        (Access::ALL[best], of_way(best))
    }

    fn done(&self, row: Bound, measured: &mut Vec<Bound>) -> Result<()> {
        self.bar.suspend(|| match self.args.json {
            true => report::print_json(&row, true),
            false => report::print(&line(&row)),
        })?;
        self.bar.inc(1);
        measured.push(row);
        Ok(())
    }
}

/// A row that is not of memory.
fn bound(pool: &Pool, bound: Quantity, isa: Option<Isa>, samples: Vec<f64>) -> Bound {
    let samples: Vec<f64> = samples.into_iter().map(report::thousandths).collect();
    Bound {
        bound,
        isa: isa.map(|isa| isa.name().to_owned()),
        threads: pool.threads(),
        bytes: None,
        pages: None,
        access: None,
        median: report::median(&samples),
        samples,
    }
}

/// The one that reads, of an instruction set and those below it: that with the widest loads.
pub(super) fn reading_isa(isa: Isa) -> Isa {
    match isa {
        Isa::Amx => Isa::Avx512,
        isa => isa,
    }
}

const HEADER: &str = "bound                  isa     threads       MiB  pages  access        median        min        max  unit\n";

/// A row of the table.
fn line(row: &Bound) -> String {
    let (name, unit, scale) = match row.bound {
        Quantity::ReadBytesPerSecond => ("read", "GB/s", 1e9),
        Quantity::IntegerMultiplyAddsPerSecond => ("integer multiply-adds", "G/s", 1e9),
        Quantity::FloatMultiplyAddsPerSecond => ("float multiply-adds", "G/s", 1e9),
        Quantity::BarrierNanoseconds => ("fork and join", "µs", 1e3),
    };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (least, most) = report::extremes(&row.samples);
    let mib = row.bytes.map_or(String::new(), |b| (b / MIB).to_string());
    format!(
        "{name:<22} {:<7} {:>7} {mib:>9}  {:<6} {:<8} {:>11.2} {:>10.2} {:>10.2}  {unit}\n",
        text(&row.isa),
        row.threads,
        text(&row.pages),
        text(&row.access),
        row.median / scale,
        least / scale,
        most / scale,
    )
}
