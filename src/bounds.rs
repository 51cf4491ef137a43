//! What machines were measured to do at most, kept in the folder of the user's cache.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};
use kernels::bounds::Numbers;
use kernels::isa::Isa;
use kernels::topology;
use model::OpTotals;
use serde::{Deserialize, Serialize};
use weights::source::Cache;

use crate::report;

/// The file's name.
const FILE: &str = "bounds.json";

/// Samples of a bound that differ by more than this part of the best tell of something else that ran.
pub(crate) const SPREAD: f64 = 0.25;

/// What a bound is of; names end in the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Quantity {
    ReadBytesPerSecond,
    IntegerMultiplyAddsPerSecond,
    FloatMultiplyAddsPerSecond,
    BarrierNanoseconds,
}

impl Quantity {
    /// Whether more is better.
    fn is_rate(self) -> bool {
        self != Self::BarrierNanoseconds
    }
}

impl From<Numbers> for Quantity {
    fn from(numbers: Numbers) -> Self {
        match numbers {
            Numbers::Integer => Self::IntegerMultiplyAddsPerSecond,
            Numbers::Float => Self::FloatMultiplyAddsPerSecond,
        }
    }
}

/// One bound, as printed and as kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bound {
    pub(crate) bound: Quantity,
    /// The instruction set; none of a barrier.
    pub(crate) isa: Option<String>,
    pub(crate) threads: usize,
    /// The size of the buffer that was read.
    pub(crate) bytes: Option<usize>,
    /// The pages it asked for.
    pub(crate) pages: Option<String>,
    /// The fastest way of reading, which the samples are of.
    pub(crate) access: Option<String>,
    pub(crate) samples: Vec<f64>,
    pub(crate) median: f64,
}

impl Bound {
    /// What the machine can do at most: the best of the samples, since whatever else ran made them worse.
    pub(crate) fn best(&self) -> f64 {
        let (least, most) = report::extremes(&self.samples);
        match self.bound.is_rate() {
            true => most,
            false => least,
        }
    }

    /// Whether the samples of a rate differ by more than [`SPREAD`] of the best.
    pub(crate) fn is_disturbed(&self) -> bool {
        let (least, most) = report::extremes(&self.samples);
        self.bound.is_rate() && most - least > SPREAD * most
    }

    /// Whether it is no worse than `other`.
    fn is_as_good_as(&self, other: &Self) -> bool {
        match self.bound.is_rate() {
            true => self.best() >= other.best(),
            false => self.best() <= other.best(),
        }
    }

    /// Whether `other` is of the same thing, measured another time.
    fn is_of_same(&self, other: &Self) -> bool {
        let key = |b: &Self| (b.bound, b.isa.clone(), b.threads, b.bytes, b.pages.clone());
        key(self) == key(other)
    }
}

/// A machine and its bounds.
#[derive(Debug, Serialize, Deserialize)]
struct Machine {
    cpu: String,
    /// Processors that the process may use.
    processors: usize,
    bounds: Vec<Bound>,
}

/// The file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Machines {
    machines: Vec<Machine>,
}

impl Machines {
    /// Those of the file; none where there is no file.
    fn read(path: &Path) -> Result<Self> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(e) => return Err(e).with_context(|| format!("can't read {}", path.display())),
        };
        serde_json::from_str(&text).with_context(|| {
            format!(
                "{} is damaged: remove it, and `plainchant bench --bounds` measures anew",
                path.display()
            )
        })
    }

    /// This machine, which is added where it is not known yet.
    fn this(&mut self) -> &mut Machine {
        let cpu = topology::processor_name();
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let is_this = |m: &Machine| m.cpu == cpu && m.processors == processors;
        let index = self.machines.iter().position(is_this);
        let index = index.unwrap_or_else(|| {
            let bounds = Vec::new();
            self.machines.push(Machine {
                cpu,
                processors,
                bounds,
            });
            self.machines.len() - 1
        });
        &mut self.machines[index]
    }
}

/// The bounds of this machine.
#[derive(Debug, Default)]
pub(crate) struct Bounds {
    bounds: Vec<Bound>,
}

impl Bounds {
    /// What was measured on this machine.
    ///
    /// # Errors
    /// When the folder can't be known or the file is damaged.
    pub(crate) fn read() -> Result<Self> {
        let mut machines = Machines::read(&path()?)?;
        Ok(Self {
            bounds: std::mem::take(&mut machines.this().bounds),
        })
    }

    /// Whether the file can be written, found out before minutes of measuring are lost.
    ///
    /// # Errors
    /// When the folder can't be known, made or written to.
    pub(crate) fn check_writable() -> Result<()> {
        Ok(Cache::from_env()?.check_writable()?)
    }

    /// Keeps what was measured on this machine, where it is no worse than what was measured before; says how many
    /// were, and so stay.
    ///
    /// # Errors
    /// When the file is damaged or can't be written.
    pub(crate) fn keep(measured: Vec<Bound>) -> Result<()> {
        let path = path()?;
        let mut machines = Machines::read(&path)?;
        let better_before = merge(&mut machines.this().bounds, measured);
        if better_before > 0 {
            report::note(&format!(
                "{} measured better before and kept so; remove {} to start anew",
                report::counted(better_before, "bound"),
                path.display()
            ));
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        // By rename, so that nobody reads half a file.
        let temporary = folder.join(format!(".{FILE}.{}", std::process::id()));
        let text = serde_json::to_string(&machines)?;
        let written = fs::create_dir_all(folder)
            .and_then(|()| fs::write(&temporary, text))
            .and_then(|()| fs::rename(&temporary, &path));
        written.with_context(|| {
            let _ = fs::remove_file(&temporary);
            format!("can't write {}", path.display())
        })
    }

    /// What bounds work with so many threads and one instruction set that reads about `bytes` bytes over and over.
    pub(crate) fn peaks(&self, threads: usize, isa: Isa, bytes: f64) -> Peaks {
        let of = |quantity: Quantity| {
            let all = self.bounds.iter();
            all.filter(move |b| b.bound == quantity && b.threads == threads)
        };
        let arithmetic = |quantity| {
            let found = of(quantity).find(|b| b.isa.as_deref() == Some(isa.name()));
            found.map(Bound::best)
        };
        // Of the sizes measured, the nearest by ratio; of its pages, the faster.
        let distance = |b: &Bound| {
            let ratio = b.bytes.unwrap_or(0).max(1) as f64 / bytes;
            if ratio > 1.0 { ratio } else { 1.0 / ratio }
        };
        let better = |a: &&Bound, b: &&Bound| {
            let nearer = distance(b).total_cmp(&distance(a));
            nearer.then(a.best().total_cmp(&b.best()))
        };
        Peaks {
            read: of(Quantity::ReadBytesPerSecond)
                .max_by(better)
                .map(Bound::best),
            integer: arithmetic(Quantity::IntegerMultiplyAddsPerSecond),
            float: arithmetic(Quantity::FloatMultiplyAddsPerSecond),
        }
    }
}

/// Puts what was measured in place of what is kept, unless that is better; gives how many were.
fn merge(kept: &mut Vec<Bound>, measured: Vec<Bound>) -> usize {
    let mut better_before = 0;
    for new in measured {
        match kept.iter().position(|old| old.is_of_same(&new)) {
            Some(index) if new.is_as_good_as(&kept[index]) => kept[index] = new,
            Some(_) => better_before += 1,
            None => kept.push(new),
        }
    }
    better_before
}

fn path() -> Result<PathBuf> {
    Ok(Cache::from_env()?.folder().join(FILE))
}

/// Work to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Work {
    pub(crate) bytes: f64,
    pub(crate) integer_multiply_adds: f64,
    pub(crate) float_multiply_adds: f64,
}

impl Work {
    /// That of matrix products.
    pub(crate) fn of_products(totals: &OpTotals) -> Self {
        Self {
            bytes: totals.weight_bytes as f64,
            integer_multiply_adds: (totals.multiply_adds - totals.float_multiply_adds) as f64,
            float_multiply_adds: totals.float_multiply_adds as f64,
        }
    }
}

/// Rates that can't be exceeded, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Peaks {
    /// Bytes read a second.
    pub(crate) read: Option<f64>,
    /// Multiply-adds of integers a second.
    pub(crate) integer: Option<f64>,
    /// Multiply-adds of floats a second.
    pub(crate) float: Option<f64>,
}

impl Peaks {
    /// Whether nothing is known.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The share of the bandwidth that `work` done in `seconds` used.
    pub(crate) fn bandwidth_share(&self, work: &Work, seconds: f64) -> Option<f64> {
        share(least_seconds(work.bytes, self.read)?, seconds)
    }

    /// The share of the multiply-adds that could have been done in `seconds`.
    pub(crate) fn multiply_adds_share(&self, work: &Work, seconds: f64) -> Option<f64> {
        let integer = least_seconds(work.integer_multiply_adds, self.integer)?;
        let float = least_seconds(work.float_multiply_adds, self.float)?;
        share(integer + float, seconds)
    }
}

/// The seconds that `amount` takes at least; nothing takes none, at whatever rate.
fn least_seconds(amount: f64, rate: Option<f64>) -> Option<f64> {
    match amount > 0.0 {
        true => rate.filter(|&rate| rate > 0.0).map(|rate| amount / rate),
        false => Some(0.0),
    }
}

fn share(least: f64, seconds: f64) -> Option<f64> {
    (least > 0.0 && seconds > 0.0).then(|| report::thousandths(least / seconds))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn reading(threads: usize, bytes: usize, pages: &str, median: f64) -> Bound {
        Bound {
            bound: Quantity::ReadBytesPerSecond,
            isa: Some("avx2".to_owned()),
            threads,
            bytes: Some(bytes),
            pages: Some(pages.to_owned()),
            access: Some("plain".to_owned()),
            samples: vec![median],
            median,
        }
    }

    fn arithmetic(quantity: Quantity, isa: Isa, median: f64) -> Bound {
        Bound {
            bound: quantity,
            isa: Some(isa.name().to_owned()),
            bytes: None,
            ..reading(2, 0, "", median)
        }
    }

    #[test]
    fn peaks_are_those_of_threads_isa_and_the_nearest_size() {
        let bounds = Bounds {
            bounds: vec![
                reading(1, 64, "huge", 5.0),
                reading(2, 64, "small", 30.0),
                reading(2, 64, "huge", 40.0),
                reading(2, 1024, "huge", 20.0),
                arithmetic(Quantity::IntegerMultiplyAddsPerSecond, Isa::Avx512, 7.0),
                arithmetic(Quantity::IntegerMultiplyAddsPerSecond, Isa::Avx2, 3.0),
            ],
        };
        let peaks = |threads, bytes| bounds.peaks(threads, Isa::Avx2, bytes);
        assert_eq!(peaks(2, 10.0).read, Some(40.0));
        assert_eq!(peaks(2, 255.0).read, Some(40.0));
        assert_eq!(peaks(2, 257.0).read, Some(20.0));
        assert_eq!(peaks(2, 1e9).read, Some(20.0));
        assert_eq!(peaks(1, 1e9).read, Some(5.0));
        assert_eq!(
            (peaks(2, 1.0).integer, peaks(2, 1.0).float),
            (Some(3.0), None)
        );
        assert!(peaks(3, 1.0).is_empty());
    }

    #[test]
    fn the_best_sample_counts_and_what_was_better_stays() {
        let of = |bound, samples: &[f64]| Bound {
            bound,
            samples: samples.to_vec(),
            ..reading(1, 64, "huge", report::median(samples))
        };
        let read = |samples: &[f64]| of(Quantity::ReadBytesPerSecond, samples);
        let barrier = |samples: &[f64]| of(Quantity::BarrierNanoseconds, samples);
        assert_eq!(read(&[1.0, 9.0, 2.0]).best(), 9.0);
        assert_eq!(barrier(&[2.0, 1.0, 9.0]).best(), 1.0);
        assert!(read(&[7.4, 10.0]).is_disturbed() && !read(&[7.5, 10.0]).is_disturbed());

        let mut kept = vec![read(&[9.0]), barrier(&[3.0])];
        let worse = vec![read(&[1.0, 8.0]), barrier(&[4.0])];
        assert_eq!(merge(&mut kept, worse), 2);
        assert_eq!(kept, [read(&[9.0]), barrier(&[3.0])]);
        let better = vec![read(&[1.0, 10.0]), barrier(&[2.0])];
        assert_eq!(merge(&mut kept, better.clone()), 0);
        assert_eq!(kept, better);
        assert_eq!(merge(&mut kept, vec![reading(2, 64, "huge", 1.0)]), 0);
        assert_eq!(kept.len(), 3);
        let bounds = Bounds { bounds: kept };
        assert_eq!(bounds.peaks(1, Isa::Avx2, 64.0).read, Some(10.0));
    }

    #[test]
    fn shares_are_the_least_time_over_the_time_taken() {
        let peaks = Peaks {
            read: Some(10.0),
            integer: Some(100.0),
            float: None,
        };
        let mut work = Work {
            bytes: 20.0,
            integer_multiply_adds: 300.0,
            float_multiply_adds: 0.0,
        };
        assert_eq!(peaks.bandwidth_share(&work, 4.0), Some(0.5));
        assert_eq!(peaks.multiply_adds_share(&work, 4.0), Some(0.75));
        work.float_multiply_adds = 1.0;
        assert_eq!(peaks.multiply_adds_share(&work, 4.0), None);
        let both = Peaks {
            float: Some(1.0),
            ..peaks
        };
        assert_eq!(both.multiply_adds_share(&work, 8.0), Some(0.5));
        assert_eq!(Peaks::default().bandwidth_share(&work, 4.0), None);
        assert_eq!(peaks.bandwidth_share(&Work::default(), 4.0), None);
    }
}
