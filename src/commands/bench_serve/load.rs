//! Sends the requests of a run: so many at a time, or at the times that they are due.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::ProgressBar;

use super::answer::{Failure, FailureKind, Sample};
use super::client::Client;
use super::prompts::Prompts;
use crate::cli::{BenchServeArgs, CONCURRENCY_MAX};
use crate::report::milliseconds;

/// All that a thread needs to send a request.
#[derive(Debug)]
pub(super) struct Load<'a> {
    pub(super) args: &'a BenchServeArgs,
    pub(super) client: &'a Client,
    pub(super) prompts: &'a Prompts,
    pub(super) bar: &'a ProgressBar,
}

impl Load<'_> {
    /// Keeps as many requests under way as asked for, until all have been answered.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub(super) fn closed(&self) -> Result<Vec<Sample>> {
        let count = self.args.requests as usize;
        let next = AtomicUsize::new(0);
        let samples = Mutex::new(Vec::with_capacity(count));
        let start = Instant::now();
        let work = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    return;
                }
                let prompt = self.prompt(index);
                self.send(index, &prompt, start, Instant::now(), &samples);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..count.min(self.args.concurrency as usize) {
                spawn(scope, work)?;
            }
            Ok::<_, anyhow::Error>(())
        })?;
        Ok(in_order(samples))
    }

    /// Sends each request when it is due, whatever became of those before. Times count from when it was due.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub(super) fn open(&self, due: &[Duration]) -> Result<Vec<Sample>> {
        let under_way = AtomicUsize::new(0);
        let samples = Mutex::new(Vec::with_capacity(due.len()));
        let start = Instant::now();
        std::thread::scope(|scope| {
            for (index, &due) in due.iter().enumerate() {
                let prompt = self.prompt(index);
                let at = start + due;
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
                if under_way.fetch_add(1, Ordering::Relaxed) >= CONCURRENCY_MAX as usize {
                    under_way.fetch_sub(1, Ordering::Relaxed);
                    let problem = format!("not sent: {CONCURRENCY_MAX} requests were under way");
                    let sample = Sample::unsent(Failure::new(FailureKind::TooMany, problem));
                    self.keep(index, due, sample, &samples);
                    continue;
                }
                let (samples, under_way) = (&samples, &under_way);
                spawn(scope, move || {
                    self.send(index, &prompt, start, at, samples);
                    under_way.fetch_sub(1, Ordering::Relaxed);
                })?;
            }
            Ok::<_, anyhow::Error>(())
        })?;
        Ok(in_order(samples))
    }

    fn prompt(&self, index: usize) -> String {
        let (tokens, shared) = (self.args.prompt_tokens, self.args.shared_prefix_tokens);
        self.prompts
            .of_request(tokens as usize, shared as usize, index)
    }

    fn send(
        &self,
        index: usize,
        prompt: &str,
        start: Instant,
        due: Instant,
        samples: &Mutex<Vec<Sample>>,
    ) {
        let tokens = self.args.output_tokens as usize;
        let sample = self.client.stream(prompt, tokens, due, &mut |_, _| true);
        self.keep(index, due - start, sample, samples);
    }

    fn keep(&self, index: usize, due: Duration, sample: Sample, samples: &Mutex<Vec<Sample>>) {
        let due_ms = milliseconds(due);
        let sample = Sample {
            index,
            due_ms,
            ..sample
        };
        locked(samples).push(sample);
        self.bar.inc(1);
    }
}

/// Starts a thread.
///
/// # Errors
/// When the system gives none.
pub(super) fn spawn<'scope, 'env>(
    scope: &'scope std::thread::Scope<'scope, 'env>,
    work: impl FnOnce() + Send + 'scope,
) -> Result<()> {
    let thread = std::thread::Builder::new().name("client".into());
    thread
        .spawn_scoped(scope, work)
        .context("the system gives no thread for a request; reduce --concurrency or --rate")?;
    Ok(())
}

/// What a lock holds; a thread that panicked leaves nothing half done here.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn in_order(samples: Mutex<Vec<Sample>>) -> Vec<Sample> {
    let mut samples = samples
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    samples.sort_by_key(|sample| sample.index);
    samples
}
