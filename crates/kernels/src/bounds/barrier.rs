//! The time of one fork and join of the pool.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::seconds_per_pass;
use crate::pool::Pool;

/// Runs between two looks at the clock.
const RUNS: usize = 100;
/// Looks at the others before the processor is offered to them.
const PATIENCE: usize = 10_000;

/// Nanoseconds from the call of [`Pool::run`] to its return, of jobs in which every thread takes part and does
/// nothing: each has one chunk, which waits until all have theirs. (Else the caller would run all chunks before
/// anybody noticed.)
#[must_use]
pub fn barrier_nanoseconds(pool: &Pool, budget: Duration) -> f64 {
    let threads = pool.threads();
    let arrived = AtomicUsize::new(0);
    let meet = |_chunk: usize, _worker: usize| {
        arrived.fetch_add(1, Ordering::AcqRel);
        let mut looks = 0;
        while arrived.load(Ordering::Acquire) < threads {
            spin_loop();
            looks += 1;
            if looks % PATIENCE == 0 {
                thread::yield_now();
            }
        }
    };
    let seconds = seconds_per_pass(budget, &mut || {
        for _ in 0..RUNS {
            arrived.store(0, Ordering::Release);
            pool.run(threads, &meet);
        }
    });
    seconds * 1e9 / RUNS as f64
}
