//! What is measured is a number above nothing, with every instruction set. How large it is, nobody can say.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::isa::Isa;
use crate::pool::Pool;

const SHORT: Duration = Duration::from_micros(100);

fn is_a_rate(rate: f64) -> bool {
    rate.is_finite() && rate > 0.0
}

#[test]
fn reading_has_a_speed_with_every_instruction_set() {
    for threads in [1, 3] {
        let pool = Pool::new(threads);
        // A page, less than a page for each thread, shares within a chunk, chunks with a remainder.
        for bytes in [1, 8 << 10, 300 << 10, (4 << 20) + 5] {
            for &pages in Pages::ALL {
                let buffer = Buffer::new(bytes, pages, &pool).expect("memory");
                assert!(buffer.bytes() >= bytes);
                for isa in Isa::supported() {
                    for access in Access::ALL {
                        let rate = read_bytes_per_second(&pool, &buffer, access, isa, SHORT);
                        let name = access.name();
                        assert!(is_a_rate(rate), "{rate}: {bytes} bytes, {isa}, {name}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_buffer_that_no_machine_has_is_refused() {
    assert!(Buffer::new(usize::MAX, Pages::Small, &Pool::new(1)).is_none());
    assert!(Buffer::new(usize::MAX / 4, Pages::Small, &Pool::new(1)).is_none());
}

#[test]
fn multiply_adds_have_a_speed_with_every_instruction_set() {
    for threads in [1, 2] {
        let pool = Pool::new(threads);
        for isa in Isa::supported() {
            for numbers in Numbers::ALL {
                let rate = multiply_adds_per_second(&pool, isa, numbers, SHORT);
                assert!(is_a_rate(rate), "{rate}: {isa}, {numbers:?}");
            }
        }
    }
}

#[test]
fn a_fork_and_join_takes_time() {
    for threads in [1, 2, 5] {
        let nanoseconds = barrier_nanoseconds(&Pool::new(threads), SHORT);
        assert!(is_a_rate(nanoseconds), "{nanoseconds}");
    }
}

#[test]
fn a_pass_is_averaged_over_the_budget() {
    let passes = AtomicUsize::new(0);
    let mut pass = || {
        passes.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(2));
    };
    let seconds = seconds_per_pass(Duration::ZERO, &mut pass);
    assert_eq!(passes.load(Ordering::Relaxed), 1);
    assert!(seconds >= 0.002);
    // The whole time of all passes, of which each took at least its sleep.
    let seconds = seconds_per_pass(Duration::from_millis(5), &mut pass);
    assert!(seconds >= 0.002 && passes.load(Ordering::Relaxed) >= 2);
}
