//! What this machine can do at most, so that speeds can be given as shares of it: bytes read a second,
//! multiply-adds a second, and the time of one fork and join.
//!
//! Everything is measured on the pool that kernels run on, in samples of a given length.

mod arithmetic;
mod bandwidth;
mod barrier;

use std::time::{Duration, Instant};

pub use arithmetic::{Numbers, multiply_adds_per_second};
pub use bandwidth::{Access, Buffer, read_bytes_per_second};
pub use barrier::barrier_nanoseconds;

pub use crate::region::Pages;

/// Seconds that `pass` takes, on average over as many as fill `budget`, at least one.
pub fn seconds_per_pass(budget: Duration, pass: &mut dyn FnMut()) -> f64 {
    let start = Instant::now();
    let mut passes = 0.0;
    loop {
        pass();
        passes += 1.0;
        let elapsed = start.elapsed();
        if elapsed >= budget {
            // A coarse clock may not have moved.
            return elapsed.max(Duration::from_nanos(1)).as_secs_f64() / passes;
        }
    }
}

#[cfg(test)]
mod tests;
