//! The worker pool: every chunk once, whatever the threads, the load and the accidents.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kernels::fpenv;
use kernels::pool::{Pool, Waits};

/// A small generator of test values (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }
}

/// Runs `chunks` chunks and checks that each ran exactly once, and that no two threads shared a worker
/// number.
fn check_run(pool: &Pool, chunks: usize, work: usize) {
    let times: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
    let busy: Vec<AtomicBool> = (0..pool.threads())
        .map(|_| AtomicBool::new(false))
        .collect();
    pool.run(chunks, &|chunk, worker| {
        assert!(
            !busy[worker].swap(true, Ordering::SeqCst),
            "worker {worker} is two threads"
        );
        times[chunk].fetch_add(1, Ordering::Relaxed);
        for i in 0..work {
            std::hint::black_box(i);
        }
        busy[worker].store(false, Ordering::SeqCst);
    });
    for (chunk, times) in times.iter().enumerate() {
        assert_eq!(
            times.load(Ordering::Relaxed),
            1,
            "chunk {chunk} of {chunks}"
        );
    }
}

#[test]
fn every_chunk_runs_once_on_any_number_of_threads() {
    let mut random = Random(7);
    for threads in 1..=8 {
        let pool = Pool::new(threads);
        assert_eq!(pool.threads(), threads);
        for _ in 0..2_000 {
            check_run(&pool, random.below(40), random.below(300));
        }
    }
}

#[test]
fn zero_threads_means_the_caller_alone() {
    let pool = Pool::new(0);
    assert_eq!(pool.threads(), 1);
    check_run(&pool, 5, 0);
}

#[test]
fn sleeping_workers_wake_up() {
    let pool = Pool::new(4);
    for pause in [0, 30, 100, 300, 1_000, 5_000, 20_000] {
        for _ in 0..5 {
            std::thread::sleep(Duration::from_micros(pause));
            // All four must take part: each waits until the others are there.
            let there = AtomicUsize::new(0);
            pool.run(4, &|_, _| {
                there.fetch_add(1, Ordering::SeqCst);
                let start = Instant::now();
                while there.load(Ordering::SeqCst) < 4 {
                    assert!(
                        start.elapsed() < Duration::from_secs(20),
                        "a worker never woke up"
                    );
                    std::thread::yield_now();
                }
            });
        }
    }
}

#[test]
fn a_slow_chunk_is_waited_for() {
    let pool = Pool::new(3);
    let finished = AtomicUsize::new(0);
    pool.run(6, &|chunk, _| {
        std::thread::sleep(Duration::from_millis(if chunk == 0 { 60 } else { 1 }));
        finished.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(finished.load(Ordering::Relaxed), 6);
}

#[test]
fn results_of_a_run_are_visible_after_it() {
    let pool = Pool::new(4);
    for round in 0..3_000_u64 {
        let slots: Vec<AtomicU64> = (0..16).map(|_| AtomicU64::new(0)).collect();
        pool.run(16, &|chunk, _| {
            slots[chunk].store(round ^ chunk as u64, Ordering::Relaxed)
        });
        for (chunk, slot) in slots.iter().enumerate() {
            assert_eq!(slot.load(Ordering::Relaxed), round ^ chunk as u64);
        }
    }
}

#[test]
fn works_while_other_threads_take_the_processors() {
    let stop = Arc::new(AtomicBool::new(false));
    let hogs: Vec<_> = (0..4)
        .map(|_| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || while !stop.load(Ordering::Relaxed) {})
        })
        .collect();
    for threads in [2, 8] {
        let pool = Pool::new(threads);
        let mut random = Random(11);
        for _ in 0..100 {
            check_run(&pool, random.below(30), random.below(2_000));
        }
    }
    stop.store(true, Ordering::Relaxed);
    for hog in hogs {
        hog.join().expect("a hog doesn't panic");
    }
}

fn message(payload: &(dyn std::any::Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no text)")
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
    for threads in 1..=5 {
        let pool = Pool::new(threads);
        for bad in [0, 3, 19] {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(20, &|chunk, _| assert_ne!(chunk, bad, "chunk of ill omen"));
            }));
            let payload = caught.expect_err("the panic was lost");
            assert!(
                message(&*payload).contains("ill omen"),
                "{}",
                message(&*payload)
            );
            check_run(&pool, 20, 10);
        }
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run(20, &|_, _| panic!("all of them"))
        }));
        assert_eq!(
            message(&*caught.expect_err("the panic was lost")),
            "all of them"
        );
        check_run(&pool, 20, 10);
    }
}

#[test]
fn what_the_job_borrows_outlives_every_worker_that_panics() {
    let pool = Pool::new(4);
    for _ in 0..200 {
        let borrowed: Mutex<Vec<usize>> = Mutex::new(Vec::new());
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run(12, &|chunk, _| {
                borrowed.lock().expect("not poisoned").push(chunk);
                assert!(chunk % 5 != 4, "planted");
            });
        }));
        assert!(caught.is_err());
        // Nobody pushes any more: the run is over for all workers.
        let count = borrowed.lock().expect("not poisoned").len();
        std::thread::yield_now();
        assert_eq!(borrowed.into_inner().expect("not poisoned").len(), count);
    }
}

#[test]
fn a_run_inside_a_job_is_done_by_the_same_worker() {
    for threads in [1, 4] {
        let pool = Pool::new(threads);
        let inner_runs = AtomicUsize::new(0);
        pool.run(10, &|_, outer| {
            pool.run(7, &|_, inner| {
                assert_eq!(inner, outer);
                inner_runs.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(inner_runs.load(Ordering::Relaxed), 70);
        check_run(&pool, 10, 0);
    }
}

#[test]
fn a_job_may_use_another_pool() {
    let (outer, inner) = (Pool::new(3), Pool::new(2));
    let count = AtomicUsize::new(0);
    outer.run(9, &|_, _| {
        inner.run(5, &|_, _| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        outer.run(2, &|_, _| {
            count.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(count.load(Ordering::Relaxed), 9 * 7);
}

#[test]
fn callers_at_the_same_time_take_turns() {
    let pool = Pool::new(3);
    let busy: Vec<AtomicBool> = (0..3).map(|_| AtomicBool::new(false)).collect();
    let chunks_run = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..40 {
                    pool.run(1 + round % 4, &|_, worker| {
                        // All callers are worker 0: overlapping runs would meet here.
                        let met = busy[worker].swap(true, Ordering::SeqCst);
                        assert!(!met, "worker {worker} is two threads");
                        std::thread::sleep(Duration::from_micros(100));
                        busy[worker].store(false, Ordering::SeqCst);
                        chunks_run.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(chunks_run.into_inner(), 4 * (1 + 2 + 3 + 4) * 10);
}

#[test]
fn an_idle_pool_can_be_dropped() {
    for pause in [0, 50, 500] {
        for threads in 1..=6 {
            let pool = Pool::new(threads);
            check_run(&pool, 3, 0);
            std::thread::sleep(Duration::from_micros(pause));
            drop(pool);
            drop(Pool::new(threads));
        }
    }
}

/// The mode of the control register in which denormals are flushed to zero, and the standard one.
#[cfg(target_arch = "x86_64")]
const FLUSH_TO_ZERO: u32 = STANDARD | 1 << 15;
#[cfg(target_arch = "x86_64")]
const STANDARD: u32 = 0x1f80;

/// Sets this thread's floating-point control register.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
fn set(mxcsr: u32) {
    // SAFETY: sets a control register of this thread from a valid value in memory.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const mxcsr) };
}

#[cfg(target_arch = "x86_64")]
#[test]
fn workers_and_caller_compute_in_the_standard_environment() {
    let pool = Pool::new(3);
    set(FLUSH_TO_ZERO);
    assert!(!fpenv::is_standard(), "the planted setting took no effect");
    for chunks in [1, 64] {
        let standard = AtomicUsize::new(0);
        pool.run(chunks, &|_, _| {
            standard.fetch_add(usize::from(fpenv::is_standard()), Ordering::Relaxed);
        });
        assert_eq!(standard.load(Ordering::Relaxed), chunks);
        assert!(
            !fpenv::is_standard(),
            "the caller's own setting was not restored"
        );
    }
    // Threads inherit the setting of the one that makes them.
    let heir = Pool::new(3);
    let standard = AtomicUsize::new(0);
    heir.run(64, &|_, _| {
        std::thread::sleep(Duration::from_micros(100));
        standard.fetch_add(usize::from(fpenv::is_standard()), Ordering::Relaxed);
    });
    assert_eq!(standard.load(Ordering::Relaxed), 64);
    set(STANDARD);
    assert!(fpenv::is_standard());
}

#[cfg(target_arch = "x86_64")]
#[test]
fn small_work_of_the_caller_alone_is_done_in_the_standard_environment() {
    let pool = Pool::new(2);
    let mut rows = [1.0; 32];
    set(FLUSH_TO_ZERO);
    let standard = AtomicUsize::new(0);
    kernels::rows::for_each_row(&pool, &mut rows, 16, &|_, _| {
        standard.fetch_add(usize::from(fpenv::is_standard()), Ordering::Relaxed);
    });
    let mut quantized =
        kernels::matmul::QuantizedRows::with_threads(1, 32, 2).expect("a little memory");
    let isa = kernels::isa::Isa::best();
    quantized.quantize_with(isa, &pool, (1, 32), &|_, values| {
        values.fill(1.0);
        standard.fetch_add(usize::from(fpenv::is_standard()), Ordering::Relaxed);
    });
    assert!(!fpenv::is_standard());
    set(STANDARD);
    assert_eq!(standard.load(Ordering::Relaxed), 3);
}

#[test]
fn a_worker_that_is_held_up_keeps_only_the_chunk_it_has() {
    const CHUNKS: usize = 64;
    // A limit on a test that would otherwise hang: it is far above what any machine needs.
    const PATIENCE: Duration = Duration::from_secs(60);
    let pool = Pool::new(2);
    for _ in 0..20 {
        let (others, held_up) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let start = std::time::Instant::now();
        pool.run(CHUNKS, &|_, worker| {
            if worker == 0 || held_up.fetch_add(1, Ordering::Relaxed) > 0 {
                others.fetch_add(1, Ordering::Relaxed);
                return;
            }
            // Until all chunks but this one are done, by whoever finds the time.
            while others.load(Ordering::Relaxed) < CHUNKS - 1 && start.elapsed() < PATIENCE {
                std::thread::yield_now();
            }
            assert_eq!(others.load(Ordering::Relaxed), CHUNKS - 1, "nobody helped");
        });
    }
}

/// What a run costs beyond the work itself: each chunk is a fixed time of spinning, one per thread.
///
/// `cargo test --release -p plainchant-kernels --test pool -- --ignored --nocapture round_trip`
#[test]
#[ignore = "a measurement, not a test"]
#[allow(clippy::print_stdout)]
fn round_trip() {
    const WORK: Duration = Duration::from_micros(10);
    let work = || {
        let start = Instant::now();
        while start.elapsed() < WORK {
            std::hint::spin_loop();
        }
    };
    for threads in [1, 2, 3, 4, 8] {
        let pool = Pool::new(threads);
        for (name, pause, rounds) in [("awake", 0, 10_000), ("asleep", 500, 500)] {
            let mut extra: Vec<Duration> = (0..rounds)
                .map(|_| {
                    if pause > 0 {
                        std::thread::sleep(Duration::from_micros(pause));
                    }
                    let start = Instant::now();
                    pool.run(threads, &|_, _| work());
                    start.elapsed().saturating_sub(WORK)
                })
                .collect();
            extra.sort_unstable();
            let at = |share: usize| extra[rounds * share / 100];
            println!(
                "{threads} threads, {name}: median {:?}, 90% {:?}, 99% {:?}",
                at(50),
                at(90),
                at(99)
            );
        }
    }
}

#[test]
fn waits_are_counted_when_asked_for() {
    let pool = Pool::new(2);
    let work = || pool.run(8, &|_, _| {});
    work();
    assert_eq!(pool.waits(), Waits::default());
    pool.count_waits(true);
    work();
    work();
    assert_eq!(pool.waits().jobs, 2);
    pool.count_waits(false);
    work();
    assert_eq!(pool.waits(), Waits::default());
}
