//! Where the time of forward passes goes, by operation.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kernels::packed::{InputKind, PackedMatrix};

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
    /// Those of them with floats for weights.
    pub float_multiply_adds: u64,
    /// Bytes of packed weights read, each counted once a call.
    pub weight_bytes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    calls: AtomicU64,
    nanoseconds: AtomicU64,
    multiply_adds: AtomicU64,
    float_multiply_adds: AtomicU64,
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
    pub(crate) fn restart(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
        for counters in &self.counters {
            for counter in [
                &counters.calls,
                &counters.nanoseconds,
                &counters.multiply_adds,
                &counters.float_multiply_adds,
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
            float_multiply_adds: load(&counters.float_multiply_adds),
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
    /// Notes what the product of `rows` rows with `weight` does.
    pub(crate) fn product(&self, rows: usize, weight: &PackedMatrix) {
        if let Some((counters, _)) = self.running {
            let add =
                |counter: &AtomicU64, n: usize| counter.fetch_add(n as u64, Ordering::Relaxed);
            let multiply_adds = rows * weight.rows() * weight.cols();
            add(&counters.multiply_adds, multiply_adds);
            if weight.input_kind() == InputKind::Float {
                add(&counters.float_multiply_adds, multiply_adds);
            }
            add(&counters.weight_bytes, weight.bytes());
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
#[allow(clippy::unwrap_used)]
mod tests {
    use kernels::formats::Format;
    use kernels::pool::Pool;

    use super::*;

    /// Two rows of 32 columns.
    fn matrix(format: Format) -> PackedMatrix {
        let bytes = vec![0; 2 * 32 / format.block_len() * format.block_bytes()];
        PackedMatrix::pack(format, 2, 32, &bytes, &Pool::new(1), &|_| ()).unwrap()
    }

    #[test]
    fn counts_only_when_on_and_starts_over() {
        let (float, quantized) = (matrix(Format::F32), matrix(Format::Q8_0));
        let profile = Profile::default();
        drop(profile.timer(OpKind::Rope));
        assert_eq!(profile.totals(OpKind::Rope), OpTotals::default());
        profile.restart(true);
        profile.timer(OpKind::Matmul).product(3, &float);
        profile.timer(OpKind::Matmul).product(1, &quantized);
        let totals = profile.totals(OpKind::Matmul);
        assert_eq!(
            (
                totals.calls,
                totals.multiply_adds,
                totals.float_multiply_adds
            ),
            (2, 4 * 2 * 32, 3 * 2 * 32)
        );
        let bytes = float.bytes() + quantized.bytes();
        assert_eq!(totals.weight_bytes, bytes as u64);
        assert_eq!(profile.totals(OpKind::Rope), OpTotals::default());
        profile.restart(false);
        assert_eq!(profile.totals(OpKind::Matmul), OpTotals::default());
    }
}
