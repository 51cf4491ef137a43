//! How fast memory is read.

use std::hint::black_box;
use std::time::Duration;

use super::seconds_per_pass;
use crate::isa::Isa;
use crate::pool::Pool;
use crate::prefetch;
use crate::region::{Pages, Region};

/// A cache line.
const LINE: usize = 64;
/// Lines that one turn of the loop reads.
const LINES_AT_ONCE: usize = 4;
/// Sizes are multiples of this: a small page.
const GRAIN: usize = 4 << 10;
/// What a thread reads at once.
const CHUNK: usize = 1 << 20;
/// What a thread reads between two barriers where its share stays in its cache.
const CACHED_PASS: usize = 64 << 20;

/// In which order, and with what help, a thread reads its chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// One line after the other.
    Plain,
    /// The same, with software prefetch at two distances, as the matrix products do.
    Prefetch,
    /// Four streams side by side.
    Streams,
}

impl Access {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Plain, Self::Prefetch, Self::Streams];

    /// The name used in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Prefetch => "prefetch",
            Self::Streams => "streams",
        }
    }
}

/// Memory to read.
#[derive(Debug)]
pub struct Buffer(Region);

impl Buffer {
    /// At least `bytes` bytes, all of them in memory; `None` where they can't be had.
    #[must_use]
    pub fn new(bytes: usize, pages: Pages, pool: &Pool) -> Option<Self> {
        let bytes = bytes.max(1).checked_next_multiple_of(GRAIN)?;
        let buffer = Self(Region::new(bytes, pages)?);
        // A page that was never written to is the system's one page of zeros.
        pool.run(bytes.div_ceil(CHUNK), &|chunk, _worker| {
            let (address, len) = buffer.chunk(chunk);
            // SAFETY: chunks lie within the memory and don't overlap.
            unsafe { address.cast_mut().write_bytes(0x5a, len) };
        });
        Some(buffer)
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.len()
    }

    /// The start and length of a chunk.
    fn chunk(&self, chunk: usize) -> (*const u8, usize) {
        let from = (chunk * CHUNK).min(self.bytes());
        let len = CHUNK.min(self.bytes() - from);
        (self.0.as_ptr().wrapping_add(from), len)
    }
}

/// Bytes a second that all threads of `pool` together read from `buffer`, with the loads of `isa`.
///
/// Threads claim chunks of 1 MiB; where there would be no more than one for each, every thread reads its own
/// share of the buffer over and over, so that the share stays in its cache.
///
/// # Panics
/// When this CPU does not support `isa`.
#[must_use]
pub fn read_bytes_per_second(
    pool: &Pool,
    buffer: &Buffer,
    access: Access,
    isa: Isa,
    budget: Duration,
) -> f64 {
    assert!(isa.is_supported(), "this CPU does not support {isa}");
    let threads = pool.threads();
    let share = buffer.bytes() / threads / GRAIN * GRAIN;
    if share == 0 || share > CHUNK {
        let job = |chunk: usize, _worker: usize| {
            let (start, len) = buffer.chunk(chunk);
            // SAFETY: chunks lie within the memory, and the instruction set was checked.
            unsafe { read(isa, access, start, len) };
        };
        let chunks = buffer.bytes().div_ceil(CHUNK);
        let seconds = seconds_per_pass(budget, &mut || pool.run(chunks, &job));
        return buffer.bytes() as f64 / seconds;
    }
    let rounds = CACHED_PASS / share;
    let job = |_chunk: usize, worker: usize| {
        for _ in 0..rounds {
            // SAFETY: there is a share for each worker, and the instruction set was checked.
            unsafe {
                let start = buffer.0.as_ptr().add(worker * share);
                read(isa, access, start, share);
            }
        }
    };
    let seconds = seconds_per_pass(budget, &mut || pool.run(threads, &job));
    (threads * rounds * share) as f64 / seconds
}

/// Reads `len` bytes.
///
/// # Safety
/// They must be readable, `len` a multiple of [`GRAIN`], and the CPU must have the instruction set.
unsafe fn read(isa: Isa, access: Access, start: *const u8, len: usize) {
    let walk = Walk {
        start: black_box(start),
        turns: len / (LINES_AT_ONCE * LINE),
        step: match access {
            Access::Streams => LINE,
            _ => LINES_AT_ONCE * LINE,
        },
        stride: match access {
            Access::Streams => len / LINES_AT_ONCE,
            _ => LINE,
        },
    };
    let fetch = access == Access::Prefetch;
    // SAFETY: as the caller vouches.
    unsafe {
        match (isa, fetch) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 | Isa::Amx, false) => x86::read_avx512::<false>(walk),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512 | Isa::Amx, true) => x86::read_avx512::<true>(walk),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, false) => x86::read_avx2::<false>(walk),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, true) => x86::read_avx2::<true>(walk),
            (_, false) => walk.read::<Words, false>(),
            (_, true) => walk.read::<Words, true>(),
        }
    }
}

/// A way through memory: `turns` times a line at each of four places, `stride` bytes apart, which move on by
/// `step` bytes.
#[derive(Clone, Copy)]
struct Walk {
    start: *const u8,
    turns: usize,
    step: usize,
    stride: usize,
}

impl Walk {
    /// # Safety
    /// All lines must be readable and aligned; the function this is inlined into must have the registers.
    #[inline(always)]
    unsafe fn read<R: Registers, const PREFETCH: bool>(self) {
        let mut seen = [R::zero(); LINES_AT_ONCE];
        let mut address = self.start;
        for _ in 0..self.turns {
            for (place, seen) in seen.iter_mut().enumerate() {
                let line = address.wrapping_add(place * self.stride);
                if PREFETCH {
                    prefetch::stream(line);
                }
                // SAFETY: as the caller vouches.
                *seen = unsafe { seen.or_line(line) };
            }
            address = address.wrapping_add(self.step);
        }
        black_box(&seen);
    }
}

/// Registers that take a whole cache line.
trait Registers: Copy {
    fn zero() -> Self;

    /// `self` or the line at `line`, bit by bit.
    ///
    /// # Safety
    /// The line must be readable and aligned, and the CPU must have the registers.
    unsafe fn or_line(self, line: *const u8) -> Self;
}

/// Whatever the compiler makes of words.
#[derive(Clone, Copy)]
struct Words([u64; LINE / 8]);

impl Registers for Words {
    #[inline(always)]
    fn zero() -> Self {
        Self([0; LINE / 8])
    }

    #[inline(always)]
    unsafe fn or_line(self, line: *const u8) -> Self {
        // SAFETY: as the caller vouches.
        let line = unsafe { *line.cast::<[u64; LINE / 8]>() };
        let mut or = self.0;
        for (or, word) in or.iter_mut().zip(line) {
            *or |= word;
        }
        Self(or)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Registers, Walk};

    #[derive(Clone, Copy)]
    struct Zmm(__m512i);

    impl Registers for Zmm {
        #[inline(always)]
        fn zero() -> Self {
            // SAFETY: made only inside functions that have AVX-512.
            unsafe { Self(_mm512_setzero_si512()) }
        }

        #[inline(always)]
        unsafe fn or_line(self, line: *const u8) -> Self {
            // SAFETY: as the caller vouches.
            unsafe { Self(_mm512_or_si512(self.0, _mm512_load_si512(line.cast()))) }
        }
    }

    #[derive(Clone, Copy)]
    struct Ymm([__m256i; 2]);

    impl Registers for Ymm {
        #[inline(always)]
        fn zero() -> Self {
            // SAFETY: made only inside functions that have AVX2.
            unsafe { Self([_mm256_setzero_si256(); 2]) }
        }

        #[inline(always)]
        unsafe fn or_line(self, line: *const u8) -> Self {
            let [low, high] = self.0;
            // SAFETY: as the caller vouches.
            unsafe {
                let line: *const __m256i = line.cast();
                Self([
                    _mm256_or_si256(low, _mm256_load_si256(line)),
                    _mm256_or_si256(high, _mm256_load_si256(line.add(1))),
                ])
            }
        }
    }

    /// # Safety
    /// As for [`Walk::read`]; the CPU must have AVX-512.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn read_avx512<const PREFETCH: bool>(walk: Walk) {
        // SAFETY: as the caller vouches.
        unsafe { walk.read::<Zmm, PREFETCH>() }
    }

    /// # Safety
    /// As for [`Walk::read`]; the CPU must have AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn read_avx2<const PREFETCH: bool>(walk: Walk) {
        // SAFETY: as the caller vouches.
        unsafe { walk.read::<Ymm, PREFETCH>() }
    }
}
