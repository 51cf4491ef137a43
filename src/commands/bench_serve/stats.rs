//! Percentiles.

use serde::Serialize;

use crate::report::thousandths;

/// What is said of some measured values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Summary {
    pub(super) count: usize,
    pub(super) mean: f64,
    pub(super) min: f64,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

impl Summary {
    /// Of these values; nothing of none.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let sum: f64 = sorted.iter().sum();
        Some(Self {
            count: sorted.len(),
            mean: thousandths(sum / sorted.len() as f64),
            min,
            p50: percentile(&sorted, 50),
            p90: percentile(&sorted, 90),
            p99: percentile(&sorted, 99),
            max,
        })
    }
}

/// The least of the sorted values that `percent` per cent of them don't exceed (the nearest rank); there is at
/// least one.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let values: Vec<f64> = (1..=200).map(f64::from).rev().collect();
        let summary = Summary::of(values).unwrap();
        let expected = Summary {
            count: 200,
            mean: 100.5,
            min: 1.0,
            p50: 100.0,
            p90: 180.0,
            p99: 198.0,
            max: 200.0,
        };
        assert_eq!(summary, expected);
    }

    #[test]
    fn few_values_have_percentiles_too() {
        let one = Summary::of([7.0]).unwrap();
        assert_eq!((one.min, one.p50, one.p90, one.p99), (7.0, 7.0, 7.0, 7.0));
        let three = Summary::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!((three.p50, three.p90, three.p99), (2.0, 3.0, 3.0));
        assert_eq!(Summary::of([]), None);
    }
}
