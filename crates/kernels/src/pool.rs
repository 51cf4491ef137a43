//! A pool of worker threads that share out the chunks of one job at a time.
//!
//! Each worker claims chunks one by one from a share of its own, one after the other as they lie in memory,
//! and then from the shares of others. So uneven cores finish together, and a worker that the operating
//! system holds up delays only the chunk it has, never a job in which it has none. Which worker runs which
//! chunk is left to chance: jobs must give the same result whoever does it.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::hint::spin_loop;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::fpenv;

mod ahead;
mod share;

use ahead::Ahead;
pub use ahead::Stretch;
use share::Share;

/// How long to spin before sleeping: longer than the pauses between the jobs of one forward pass.
const SPIN: Duration = Duration::from_micros(80);
/// How long to spin before offering the processor to others between looks: the thread that is waited
/// for may be queued on the very same one.
const SPIN_ALONE: Duration = Duration::from_micros(15);

/// What a pool runs: called with the chunk's number and the worker's.
pub type Job<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// A fixed set of threads that run jobs together with the caller.
///
/// Dropping the pool ends its threads.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// Held for the length of a run; a second caller waits here.
    turn: Mutex<()>,
}

/// Keeps what different threads write off each other's cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded<T>(T);

/// How often, and for how long, callers waited for helpers to finish their last chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Jobs that were shared out.
    pub jobs: u64,
    /// Time in all.
    pub time: Duration,
}

/// Counts [`Waits`] while it is on.
#[derive(Debug, Default)]
struct WaitCounter {
    on: AtomicBool,
    jobs: AtomicU64,
    nanoseconds: AtomicU64,
}

/// Where a worker sleeps until there is work in its share.
#[derive(Debug, Default)]
struct Bed {
    taken: AtomicBool,
    lock: Mutex<()>,
    work_posted: Condvar,
}

impl Bed {
    /// Wakes its worker, if it sleeps or is about to.
    fn wake(&self) {
        if self.taken.load(Ordering::SeqCst) {
            drop(lock(&self.lock));
            self.work_posted.notify_one();
        }
    }
}

struct Shared {
    /// Workers that there are, which may be fewer than there are shares.
    workers: AtomicUsize,
    /// For each worker, the chunks of its share of the posted job that nobody has claimed yet.
    shares: Vec<Padded<Share>>,
    /// For each worker, the memory that it will read next, to fetch while it waits.
    ahead: Vec<Padded<Ahead>>,
    /// Chunks of the posted job that have not been reported as done.
    unfinished: Padded<AtomicUsize>,
    /// The job that is being run, valid for whoever has claimed a chunk of it.
    posted: UnsafeCell<Option<*const Job<'static>>>,
    /// Set when a chunk panicked; the remaining ones are then skipped.
    panicked: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// For each worker, where it sleeps.
    beds: Vec<Padded<Bed>>,
    caller_sleeps: AtomicBool,
    caller_bed: Mutex<()>,
    work_done: Condvar,
    waits: WaitCounter,
    /// There are more threads than processors, so that spinning keeps others from working.
    crowded: bool,
}

// SAFETY: `posted` is written only by the caller that holds the pool's `turn`, while no chunk is
// unfinished, and read only by threads that have claimed a chunk; `Job` is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the raw pointer is only ever used during the run that posted it.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("shares", &self.shares)
            .field("unfinished", &self.unfinished.0)
            .finish_non_exhaustive()
    }
}

/// The chunks of a job that each of so many workers begins with.
#[must_use]
pub(crate) fn worker_share(worker: usize, workers: usize, chunks: usize) -> Range<usize> {
    chunks * worker / workers..chunks * (worker + 1) / workers
}

/// Nothing under the pool's locks can leave anything half done, so a poisoned one is as good as new.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// A pool of `threads` threads, the calling one included, so that 1 (or 0) starts none.
    ///
    /// When the operating system refuses a thread the pool has fewer; [`Pool::threads`] tells.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let shared = Arc::new(Shared::new(threads.max(1), threads > processors));
        let helpers: Vec<_> = (1..threads)
            .map_while(|worker| {
                let shared = Arc::clone(&shared);
                thread::Builder::new()
                    .name(format!("kernels-{worker}"))
                    .spawn(move || shared.help(worker))
                    .ok()
            })
            .collect();
        shared.workers.store(helpers.len() + 1, Ordering::Relaxed);
        Self {
            shared,
            helpers,
            turn: Mutex::new(()),
        }
    }

    /// The number of threads that run a job, the caller included. Workers are numbered below it.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Starts over with counting how long callers wait, or stops.
    pub fn count_waits(&self, on: bool) {
        let waits = &self.shared.waits;
        waits.on.store(on, Ordering::Relaxed);
        waits.jobs.store(0, Ordering::Relaxed);
        waits.nanoseconds.store(0, Ordering::Relaxed);
    }

    /// What was counted.
    #[must_use]
    pub fn waits(&self) -> Waits {
        let waits = &self.shared.waits;
        Waits {
            jobs: waits.jobs.load(Ordering::Relaxed),
            time: Duration::from_nanos(waits.nanoseconds.load(Ordering::Relaxed)),
        }
    }

    /// Has waiting workers fetch what they will read soon: `stretches[worker]`, up to a limit. A hint: it
    /// replaces the one before, and changes no result.
    pub fn fetch_ahead(&self, stretches: &[Stretch]) {
        for (ahead, stretch) in self.shared.ahead.iter().zip(stretches) {
            ahead.0.set(*stretch);
        }
    }

    /// Calls `job(chunk, worker)` once for each chunk below `chunks` and returns when all are done.
    ///
    /// The caller is worker 0. While a job runs no two threads have the same worker number, so
    /// scratch memory may be kept per worker. All workers compute in the standard floating-point
    /// environment (see [`fpenv`]). It allocates nothing, and takes no lock that anybody waits for
    /// unless a thread has gone to sleep.
    ///
    /// Called by several threads at once, the runs follow each other. Called from within a job of
    /// the same pool, the chunks are run there and then by the calling worker. (Two pools whose
    /// jobs run each other can wait for each other for ever.)
    ///
    /// # Panics
    /// With more than one thread for 2³² − 1 chunks or more; and with a job's own panic, after all threads have let
    /// go of the job; chunks not yet begun by then are skipped.
    pub fn run(&self, chunks: usize, job: &Job<'_>) {
        if let Some(worker) = Membership::of(&self.shared) {
            return (0..chunks).for_each(|chunk| job(chunk, worker));
        }
        let turn = lock(&self.turn);
        let member = Membership::enter(&self.shared, 0);
        let environment = fpenv::Guard::new();
        if self.helpers.is_empty() || chunks <= 1 {
            return (0..chunks).for_each(|chunk| job(chunk, 0));
        }
        let chunks = u32::try_from(chunks).ok().filter(|&n| n < u32::MAX);
        let chunks = chunks.expect("a job has fewer than 2³² − 1 chunks");
        self.shared.post(job, chunks);
        let done = self.shared.work(0);
        self.shared.report(done);
        self.shared.wait_and_count();
        let panic = self.shared.take_panic();
        drop((environment, member, turn));
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for (share, bed) in self.shared.shares.iter().zip(&self.shared.beds) {
            share.0.close();
            bed.0.wake();
        }
        for helper in self.helpers.drain(..) {
            // A helper catches the panics of jobs, and has no others.
            let _ = helper.join();
        }
    }
}

impl Shared {
    fn new(workers: usize, crowded: bool) -> Self {
        Self {
            workers: AtomicUsize::new(workers),
            shares: (0..workers).map(|_| Padded::default()).collect(),
            ahead: (0..workers).map(|_| Padded::default()).collect(),
            unfinished: Padded::default(),
            posted: UnsafeCell::new(None),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
            beds: (0..workers).map(|_| Padded::default()).collect(),
            caller_sleeps: AtomicBool::new(false),
            caller_bed: Mutex::new(()),
            work_done: Condvar::new(),
            waits: WaitCounter::default(),
            crowded,
        }
    }

    /// The life of a helper thread.
    fn help(&self, worker: usize) {
        let _environment = fpenv::Guard::new();
        let _member = Membership::enter(self, worker);
        while self.wait_for_work(worker) {
            let done = self.work(worker);
            self.report(done);
        }
    }

    /// Makes `job` the current one and wakes as many helpers as can be of use.
    fn post(&self, job: &Job<'_>, chunks: u32) {
        let job: *const Job<'_> = job;
        // SAFETY: only the lifetime changes. Whoever uses the pointer has a chunk unfinished, and `run`
        // doesn't return, nor unwind, before all chunks are finished.
        let job = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job) };
        // SAFETY: no chunk of the previous job is unfinished, so nobody reads this now; filling
        // the shares publishes it.
        unsafe { *self.posted.get() = Some(job) };
        self.unfinished.0.store(chunks as usize, Ordering::Relaxed);
        let workers = self.workers.load(Ordering::Relaxed);
        for worker in (0..workers).rev() {
            let part = worker_share(worker, workers, chunks as usize);
            if part.is_empty() {
                continue;
            }
            let part = part.start as u32..part.end as u32;
            self.shares[worker].0.fill(part);
            // Either this sees a helper that is going to sleep, or the helper sees its new chunks.
            self.beds[worker].0.wake();
        }
    }

    /// Runs chunks until none is left to claim; returns how many it ran. All of them belong to one
    /// job, for no other can be posted before they are reported.
    fn work(&self, worker: usize) -> usize {
        let workers = self.workers.load(Ordering::Relaxed);
        let mut done = 0;
        while let Some(chunk) = self.shares[worker].0.take_first() {
            self.run_chunk(chunk, worker);
            done += 1;
        }
        for other in (worker + 1..workers).chain(0..worker) {
            while let Some(chunk) = self.shares[other].0.take_last() {
                self.run_chunk(chunk, worker);
                done += 1;
            }
        }
        done
    }

    /// Runs a claimed chunk, unless another one has panicked.
    fn run_chunk(&self, chunk: u32, worker: usize) {
        // SAFETY: a chunk is claimed and not reported, so the job stays posted and isn't written to.
        let posted = unsafe { *self.posted.get() };
        let Some(job) = posted.filter(|_| !self.panicked.load(Ordering::Relaxed)) else {
            return;
        };
        // SAFETY: the caller of the pool keeps the job alive until all chunks are reported.
        let job = unsafe { &*job };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| job(chunk as usize, worker))) {
            self.keep_panic(payload);
        }
    }

    /// Reports chunks as done and wakes the caller when they were the last and it sleeps.
    fn report(&self, done: usize) {
        if done > 0
            && self.unfinished.0.fetch_sub(done, Ordering::SeqCst) == done
            && self.caller_sleeps.load(Ordering::SeqCst)
        {
            drop(lock(&self.caller_bed));
            self.work_done.notify_all();
        }
    }

    fn wait_and_count(&self) {
        if !self.waits.on.load(Ordering::Relaxed) {
            return self.wait_until_done();
        }
        let start = Instant::now();
        self.wait_until_done();
        let nanoseconds = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.waits.jobs.fetch_add(1, Ordering::Relaxed);
        self.waits
            .nanoseconds
            .fetch_add(nanoseconds, Ordering::Relaxed);
    }

    fn wait_until_done(&self) {
        let is_done = || self.unfinished.0.load(Ordering::SeqCst) == 0;
        if self.spin_until(0, is_done) {
            return;
        }
        let mut bed = lock(&self.caller_bed);
        self.caller_sleeps.store(true, Ordering::SeqCst);
        while !is_done() {
            bed = self
                .work_done
                .wait(bed)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_sleeps.store(false, Ordering::SeqCst);
    }

    /// Waits for chunks to claim; false when the pool is being dropped.
    fn wait_for_work(&self, worker: usize) -> bool {
        let share = &self.shares[worker].0;
        let has_news = || share.has_news();
        if !self.spin_until(worker, has_news) {
            let bed = &self.beds[worker].0;
            let mut asleep = lock(&bed.lock);
            bed.taken.store(true, Ordering::SeqCst);
            while !has_news() {
                asleep = bed
                    .work_posted
                    .wait(asleep)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            bed.taken.store(false, Ordering::SeqCst);
        }
        !share.is_closed()
    }

    /// Waits for `condition`, at most about [`SPIN`], and meanwhile fetches what `worker` will read; tells
    /// whether it holds.
    fn spin_until(&self, worker: usize, condition: impl Fn() -> bool) -> bool {
        const BETWEEN_CLOCKS: usize = 32;
        let start = Instant::now();
        let yield_after = if self.crowded {
            Duration::ZERO
        } else {
            SPIN_ALONE
        };
        loop {
            for _ in 0..BETWEEN_CLOCKS {
                if condition() {
                    return true;
                }
                if !self.ahead[worker].0.fetch() {
                    spin_loop();
                }
            }
            let elapsed = start.elapsed();
            if elapsed > SPIN {
                return condition();
            }
            if elapsed > yield_after {
                thread::yield_now();
            }
        }
    }

    fn keep_panic(&self, payload: Box<dyn Any + Send>) {
        self.panicked.store(true, Ordering::Relaxed);
        let mut kept = lock(&self.panic);
        if kept.is_none() {
            *kept = Some(payload);
        } else {
            // Dropping it would run code of the job's, which may panic again.
            std::mem::forget(payload);
        }
    }

    fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        if !self.panicked.swap(false, Ordering::Relaxed) {
            return None;
        }
        lock(&self.panic).take()
    }
}

thread_local! {
    /// The pool that this thread works for now, and as which worker.
    static MEMBER: Cell<(*const Shared, usize)> = const { Cell::new((std::ptr::null(), 0)) };
}

/// Notes, while it lives, that this thread is a worker of a pool.
struct Membership {
    before: (*const Shared, usize),
}

impl Membership {
    fn enter(pool: &Shared, worker: usize) -> Self {
        Self {
            before: MEMBER.replace((pool, worker)),
        }
    }

    /// This thread's worker number, if it is inside a job of `pool`.
    fn of(pool: &Shared) -> Option<usize> {
        let (current, worker) = MEMBER.get();
        std::ptr::eq(current, pool).then_some(worker)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        MEMBER.set(self.before);
    }
}
