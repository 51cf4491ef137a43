//! Where the time of forward passes goes, by operation.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

macro_rules! operations {
    ($($name:ident => $text:literal,)+) => {
        /// What the decoder asks of the back end.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum OpKind {
            $($name,)+
        }

        impl OpKind {
            /// All kinds, in the order of a block.
            pub const ALL: [Self; [$(Self::$name),+].len()] = [$(Self::$name),+];

            /// What it is called in reports.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

operations! {
    Embed => "embed",
    Norm => "norm",
    Activations => "activations",
    Matmul => "matmul",
    Bias => "bias",
    Rope => "rope",
    WriteKv => "write kv",
    Attention => "attention",
    Add => "add",
    Check => "check",
    Softcap => "softcap",
}

/// Time and work of one kind of operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpTotals {
    /// How often it ran.
    pub calls: u64,
    /// How long it took, as the thread that calls the back end sees it.
    pub time: Duration,
    /// Multiply-adds of matrix products.
    pub multiply_adds: u64,
    /// Bytes of packed weights read, each counted once a call.
    pub weight_bytes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    calls: AtomicU64,
    nanoseconds: AtomicU64,
    multiply_adds: AtomicU64,
    weight_bytes: AtomicU64,
}

/// Totals of all operations since it was switched on. Switched off it costs one test an operation.
#[derive(Debug, Default)]
pub struct Profile {
    on: AtomicBool,
    counters: [Counters; OpKind::ALL.len()],
}

impl Profile {
    /// Starts over, counting or not.
    pub fn restart(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
        for counters in &self.counters {
            for counter in [
                &counters.calls,
                &counters.nanoseconds,
                &counters.multiply_adds,
                &counters.weight_bytes,
            ] {
                counter.store(0, Ordering::Relaxed);
            }
        }
    }

    /// What was counted of `kind`.
    #[must_use]
    pub fn totals(&self, kind: OpKind) -> OpTotals {
        let counters = &self.counters[kind as usize];
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        OpTotals {
            calls: load(&counters.calls),
            time: Duration::from_nanos(load(&counters.nanoseconds)),
            multiply_adds: load(&counters.multiply_adds),
            weight_bytes: load(&counters.weight_bytes),
        }
    }

    /// Measures until it is dropped.
    pub(crate) fn timer(&self, kind: OpKind) -> Timer<'_> {
        let on = self.on.load(Ordering::Relaxed);
        Timer {
            running: on.then(|| (&self.counters[kind as usize], Instant::now())),
        }
    }
}

/// Adds to a profile what passed during its life.
pub(crate) struct Timer<'a> {
    running: Option<(&'a Counters, Instant)>,
}

impl Timer<'_> {
    /// Notes what a matrix product does.
    pub(crate) fn product(&self, multiply_adds: usize, weight_bytes: usize) {
        if let Some((counters, _)) = self.running {
            let add =
                |counter: &AtomicU64, n: usize| counter.fetch_add(n as u64, Ordering::Relaxed);
            add(&counters.multiply_adds, multiply_adds);
            add(&counters.weight_bytes, weight_bytes);
        }
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        if let Some((counters, start)) = self.running {
            let nanoseconds = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            counters
                .nanoseconds
                .fetch_add(nanoseconds, Ordering::Relaxed);
            counters.calls.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_only_when_on_and_starts_over() {
        let profile = Profile::default();
        drop(profile.timer(OpKind::Rope));
        assert_eq!(profile.totals(OpKind::Rope), OpTotals::default());
        profile.restart(true);
        profile.timer(OpKind::Matmul).product(6, 2);
        profile.timer(OpKind::Matmul).product(1, 1);
        let totals = profile.totals(OpKind::Matmul);
        assert_eq!(
            (totals.calls, totals.multiply_adds, totals.weight_bytes),
            (2, 7, 3)
        );
        assert_eq!(profile.totals(OpKind::Rope), OpTotals::default());
        profile.restart(false);
        assert_eq!(profile.totals(OpKind::Matmul), OpTotals::default());
    }
}
