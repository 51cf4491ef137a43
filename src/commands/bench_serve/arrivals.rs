//! When requests of an open loop are due.

use std::time::Duration;

use engine::random::{Stream, uniform};

use crate::cli::Arrivals;

/// Stream of draws that no prompt takes from.
const POSITIONS: u64 = 1 << 40;

/// When each of `count` requests is due, from the start on, at `rate` a second. Poisson arrivals have gaps of
/// -ln(u) / rate, `u` being uniform in (0, 1); fixed ones the same gap each.
pub(super) fn due(arrivals: Arrivals, rate: f64, count: usize, seed: u64) -> Vec<Duration> {
    let mut seconds = 0.0;
    let gap = |index: usize| match arrivals {
        Arrivals::Fixed => 1.0 / rate,
        Arrivals::Poisson => {
            let u = uniform(seed, POSITIONS + index as u64, Stream::Token, 0);
            -u.ln() / rate
        }
    };
    (0..count)
        .map(|index| {
            let due = Duration::from_secs_f64(seconds);
            seconds += gap(index);
            due
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_arrivals_have_equal_gaps() {
        let expected = [0, 250, 500, 750].map(Duration::from_millis);
        assert_eq!(due(Arrivals::Fixed, 4.0, 4, 0), expected);
    }

    #[test]
    fn poisson_arrivals_follow_the_seed_and_the_rate() {
        let some = due(Arrivals::Poisson, 10.0, 20_000, 1);
        assert_eq!(some, due(Arrivals::Poisson, 10.0, 20_000, 1));
        assert_ne!(some, due(Arrivals::Poisson, 10.0, 20_000, 2));
        assert!(some.windows(2).all(|pair| pair[0] <= pair[1]));
        let gaps: Vec<f64> = some
            .windows(2)
            .map(|p| (p[1] - p[0]).as_secs_f64())
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance =
            gaps.iter().map(|g| (g - mean) * (g - mean)).sum::<f64>() / gaps.len() as f64;
        // Of an exponential distribution the deviation equals the mean.
        assert!((mean - 0.1).abs() < 0.003, "{mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05, "{variance}");
    }
}
