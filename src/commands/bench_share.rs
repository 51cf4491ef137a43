//! Which share of what the machine can do a row of `bench` used: of the bounds that are kept, or of one that is
//! measured again before and after each sample.

use std::time::Duration;

use anyhow::{Context, Result};
use kernels::bounds::{
    Access, Buffer, Numbers, Pages, multiply_adds_per_second, read_bytes_per_second,
};
use kernels::isa::Isa;
use kernels::pool::Pool;
use serde::Serialize;

use super::bench_bounds::reading_isa;
use crate::bounds::{Peaks, Quantity, Work};
use crate::report;

/// A round counts only if the bounds before and after it differ by no more than this part of the larger.
const AGREEMENT: f64 = 0.1;

/// The shares of a row.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(super) struct Shares {
    /// Of the bandwidth of memory: weights, each read counted once a step, and in decode the keys and values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bandwidth_share: Option<f64>,
    /// Of the multiply-adds, by those of matrix products.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) multiply_adds_share: Option<f64>,
    /// Where a bound was measured along with the row.
    #[serde(flatten)]
    pub(super) alternation: Option<Alternation>,
}

/// A bound measured in turn with the samples of a row.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Alternation {
    bound: Quantity,
    /// One more than the samples of the row.
    samples_bound: Vec<f64>,
    /// Samples of the row that don't count for the share, since the bounds before and after them differ too much.
    pub(super) rounds_dropped: usize,
}

impl Shares {
    /// Whether one is more than there can be, so that the bound was measured too low.
    pub(super) fn are_too_high(&self) -> bool {
        let shares = [self.bandwidth_share, self.multiply_adds_share];
        shares.into_iter().flatten().any(report::is_too_high)
    }

    /// Of bounds that are known, for a row that does `work` in `seconds`.
    pub(super) fn of_peaks(peaks: &Peaks, work: &Work, seconds: f64) -> Self {
        Self {
            bandwidth_share: peaks.bandwidth_share(work, seconds),
            multiply_adds_share: peaks.multiply_adds_share(work, seconds),
            alternation: None,
        }
    }
}

/// A bound that is measured in turn with the samples of a row.
#[derive(Debug)]
pub(super) struct BoundMeter {
    measure: Measure,
    budget: Duration,
    samples: Vec<f64>,
}

#[derive(Debug)]
enum Measure {
    Read { buffer: Buffer, access: Access },
    MultiplyAdds { isa: Isa, numbers: Numbers },
}

impl Measure {
    fn run(&self, pool: &Pool, budget: Duration) -> f64 {
        match self {
            Self::Read { buffer, access } => {
                read_bytes_per_second(pool, buffer, *access, reading_isa(Isa::best()), budget)
            }
            Self::MultiplyAdds { isa, numbers } => {
                multiply_adds_per_second(pool, *isa, *numbers, budget)
            }
        }
    }
}

impl BoundMeter {
    /// The bandwidth of a buffer of `bytes` bytes, read in the way that is fastest now.
    ///
    /// # Errors
    /// When there is no memory for the buffer.
    pub(super) fn of_reading(bytes: f64, pool: &Pool, budget: Duration) -> Result<Self> {
        let buffer = Buffer::new(bytes as usize, Pages::OF_WEIGHTS, pool);
        let buffer = buffer.with_context(|| {
            let size = report::bytes(bytes as u64);
            format!(
                "there is no memory for a buffer of {size}, which --bounds reads beside the model"
            )
        })?;
        let mut rates = [0.0; Access::ALL.len()];
        for _ in 0..3 {
            for (rate, access) in rates.iter_mut().zip(Access::ALL) {
                let now =
                    read_bytes_per_second(pool, &buffer, access, reading_isa(Isa::best()), budget);
                *rate = if now > *rate { now } else { *rate };
            }
        }
        let best = (0..rates.len()).max_by(|&a, &b| rates[a].total_cmp(&rates[b]));
        let access = Access::ALL[best.unwrap_or(0)];
        Ok(Self::new(Measure::Read { buffer, access }, budget))
    }

    /// The multiply-adds of the numbers that `work` has more of.
    pub(super) fn of_arithmetic(isa: Isa, work: &Work, budget: Duration) -> Self {
        let numbers = match work.float_multiply_adds > work.integer_multiply_adds {
            true => Numbers::Float,
            false => Numbers::Integer,
        };
        Self::new(Measure::MultiplyAdds { isa, numbers }, budget)
    }

    fn new(measure: Measure, budget: Duration) -> Self {
        Self {
            measure,
            budget,
            samples: Vec::new(),
        }
    }

    /// Measures once.
    pub(super) fn sample(&mut self, pool: &Pool) {
        self.samples.push(self.measure.run(pool, self.budget));
    }

    /// The shares of a row whose samples did `work` in `seconds` each, each between two samples of the bound. The
    /// median of those whose two bounds agree; none where no two do.
    pub(super) fn shares(self, work: &Work, seconds: &[f64]) -> Shares {
        let (mut bandwidth, mut multiply_adds) = (Vec::new(), Vec::new());
        let mut rounds_dropped = 0;
        for (pair, &seconds) in self.samples.windows(2).zip(seconds) {
            let (least, most) = match pair[0] < pair[1] {
                true => (pair[0], pair[1]),
                false => (pair[1], pair[0]),
            };
            if most - least > AGREEMENT * most {
                rounds_dropped += 1;
                continue;
            }
            let rate = Some(f64::midpoint(least, most));
            match &self.measure {
                Measure::Read { .. } => {
                    let peaks = Peaks {
                        read: rate,
                        ..Peaks::default()
                    };
                    bandwidth.extend(peaks.bandwidth_share(work, seconds));
                }
                Measure::MultiplyAdds { numbers, .. } => {
                    // What there is of the other numbers isn't counted: its bound is not measured.
                    let mut work = *work;
                    match numbers {
                        Numbers::Integer => work.float_multiply_adds = 0.0,
                        Numbers::Float => work.integer_multiply_adds = 0.0,
                    }
                    let peaks = Peaks {
                        integer: rate,
                        float: rate,
                        read: None,
                    };
                    multiply_adds.extend(peaks.multiply_adds_share(&work, seconds));
                }
            }
        }
        let median = |shares: Vec<f64>| (!shares.is_empty()).then(|| report::median(&shares));
        Shares {
            bandwidth_share: median(bandwidth),
            multiply_adds_share: median(multiply_adds),
            alternation: Some(Alternation {
                bound: match self.measure {
                    Measure::Read { .. } => Quantity::ReadBytesPerSecond,
                    Measure::MultiplyAdds { numbers, .. } => numbers.into(),
                },
                samples_bound: self.samples.into_iter().map(report::thousandths).collect(),
                rounds_dropped,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter(numbers: Numbers, samples: &[f64]) -> BoundMeter {
        let isa = Isa::Scalar;
        let mut meter = BoundMeter::new(Measure::MultiplyAdds { isa, numbers }, Duration::ZERO);
        meter.samples = samples.to_vec();
        meter
    }

    #[test]
    fn rounds_between_bounds_that_differ_are_dropped() {
        let work = Work {
            bytes: 1.0,
            integer_multiply_adds: 50.0,
            float_multiply_adds: 5.0,
        };
        // 100 and 95 agree, 95 and 80 don't, 80 and 80 do.
        let samples = [100.0, 95.0, 80.0, 80.0];
        let shares = meter(Numbers::Integer, &samples).shares(&work, &[1.0, 0.001, 1.0]);
        let kept = [50.0 / 97.5, 50.0 / 80.0].map(report::thousandths);
        assert_eq!(shares.multiply_adds_share, Some(report::median(&kept)));
        assert_eq!(shares.bandwidth_share, None);
        let dropped = shares.alternation.map(|a| a.rounds_dropped);
        assert_eq!(dropped, Some(1));
        let shares = meter(Numbers::Float, &[100.0, 50.0]).shares(&work, &[1.0]);
        assert_eq!(shares.multiply_adds_share, None);
        assert_eq!(shares.alternation.map(|a| a.rounds_dropped), Some(1));
    }

    #[test]
    fn the_bound_is_of_the_numbers_there_are_more_of() {
        let numbers = |integer, float| {
            let work = Work {
                bytes: 0.0,
                integer_multiply_adds: integer,
                float_multiply_adds: float,
            };
            match BoundMeter::of_arithmetic(Isa::Scalar, &work, Duration::ZERO).measure {
                Measure::MultiplyAdds { numbers, .. } => Some(numbers),
                Measure::Read { .. } => None,
            }
        };
        assert_eq!(numbers(2.0, 1.0), Some(Numbers::Integer));
        assert_eq!(numbers(1.0, 2.0), Some(Numbers::Float));
    }
}
