//! How many multiply-adds the units do, with all operands in registers.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::seconds_per_pass;
use crate::isa::Isa;
use crate::lanes::{LANES, LaneKernel, Lanes, dispatch};
use crate::pool::Pool;

/// A chunk takes at least so long.
const CHUNK: Duration = Duration::from_micros(200);
/// Chunks of one pass for each thread.
const CHUNKS_PER_THREAD: usize = 32;

/// What is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// Bytes, summed exactly in 32 bits.
    Integer,
    /// f32, each sum rounded once.
    Float,
}

impl Numbers {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Integer, Self::Float];
}

/// Multiply-adds a second that all threads of `pool` together do at most.
///
/// Integers: the scalar reference by 16-bit products, as compilers make of plain loops; AVX2 by four `vpmaddubsw`
/// for each `vpmaddwd`, which is the most that weights of up to four bits allow; AVX-512 by `vpdpbusd`; AMX by
/// `tdpbssd`. Floats: fused multiply-adds; AMX has those of AVX-512.
///
/// # Panics
/// When this CPU does not support `isa`.
#[must_use]
pub fn multiply_adds_per_second(pool: &Pool, isa: Isa, numbers: Numbers, budget: Duration) -> f64 {
    assert!(isa.is_supported(), "this CPU does not support {isa}");
    let kernel = Kernel { isa, numbers };
    let turns = kernel.turns_of_a_chunk();
    let chunks = pool.threads() * CHUNKS_PER_THREAD;
    let job = |_chunk: usize, _worker: usize| kernel.run(turns);
    let seconds = seconds_per_pass(budget, &mut || pool.run(chunks, &job));
    (chunks * kernel.multiply_adds(turns)) as f64 / seconds
}

/// One of the loops. `isa` must be supported.
#[derive(Clone, Copy)]
struct Kernel {
    isa: Isa,
    numbers: Numbers,
}

impl Kernel {
    /// Turns that take about [`CHUNK`].
    fn turns_of_a_chunk(self) -> usize {
        let mut turns = 1;
        loop {
            // The least of three: a thread that is held up would make the loop look slow.
            let times = [(); 3].map(|()| {
                let start = Instant::now();
                self.run(turns);
                start.elapsed()
            });
            if times.iter().min().is_some_and(|&time| time >= CHUNK) {
                return turns;
            }
            turns *= 2;
        }
    }

    /// Multiply-adds in so many turns.
    fn multiply_adds(self, turns: usize) -> usize {
        let of_a_turn = match (self.numbers, self.isa) {
            (Numbers::Float, isa) => chains(isa) * LANES,
            #[cfg(target_arch = "x86_64")]
            (Numbers::Integer, Isa::Avx2) => x86::OF_A_TURN_AVX2,
            #[cfg(target_arch = "x86_64")]
            (Numbers::Integer, Isa::Avx512) => x86::OF_A_TURN_AVX512,
            #[cfg(target_arch = "x86_64")]
            (Numbers::Integer, Isa::Amx) => x86::OF_A_TURN_AMX,
            (Numbers::Integer, _) => PAIRS * 2,
        };
        turns * of_a_turn
    }

    /// `turns` turns, at least one.
    fn run(self, turns: usize) {
        debug_assert!(turns > 0);
        match (self.numbers, self.isa) {
            (Numbers::Float, isa) if chains(isa) == MANY => dispatch(isa, Chains::<MANY> { turns }),
            (Numbers::Float, isa) => dispatch(isa, Chains::<FEW> { turns }),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the CPU has the instruction set, and there is a turn.
            (Numbers::Integer, Isa::Avx2) => unsafe { x86::integers_avx2(turns) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            (Numbers::Integer, Isa::Avx512) => unsafe { x86::integers_avx512(turns) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            (Numbers::Integer, Isa::Amx) => unsafe { x86::integers_amx(turns) },
            (Numbers::Integer, isa) => dispatch(isa, Words { turns }),
        }
    }
}

/// Chains of sums, enough to hide the latency of an addition: of one register each, and of two.
const MANY: usize = 12;
const FEW: usize = 5;

fn chains(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 | Isa::Amx => MANY,
        Isa::Scalar | Isa::Avx2 => FEW,
    }
}

/// Independent chains of fused multiply-adds.
struct Chains<const N: usize> {
    turns: usize,
}

impl<const N: usize> LaneKernel for Chains<N> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        // Sums stay between 1 and 2: no denormals.
        let (factor, addend) = (V::splat(black_box(0.5)), V::splat(black_box(0.75)));
        let mut sums = [factor; N];
        for sum in &mut sums {
            *sum = V::splat(black_box(1.5));
        }
        for _ in 0..self.turns {
            for sum in &mut sums {
                *sum = sum.fma(factor, addend);
            }
        }
        for sum in sums {
            black_box(sum.to_array());
        }
    }
}

/// Sums of two products each that [`Words`] adds to in a turn.
const PAIRS: usize = 32;

/// Plain loops over 16-bit numbers.
struct Words {
    turns: usize,
}

impl LaneKernel for Words {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let (a, b) = ([5_i16; 2 * PAIRS], [-7_i16; 2 * PAIRS]);
        let mut sums = [0_i32; PAIRS];
        for _ in 0..self.turns {
            let (a, b) = (black_box(&a), black_box(&b));
            for (i, sum) in sums.iter_mut().enumerate() {
                let product = |k: usize| i32::from(a[k]) * i32::from(b[k]);
                *sum = sum.wrapping_add(product(2 * i) + product(2 * i + 1));
            }
        }
        black_box(sums);
    }
}

/// Loops in assembly: a compiler would see that each turn does the same.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::*;

    /// Four sums of four `vpmaddubsw` of 32 each.
    pub(super) const OF_A_TURN_AVX2: usize = 4 * 4 * 32;
    /// Twelve `vpdpbusd` of 64 each.
    pub(super) const OF_A_TURN_AVX512: usize = 12 * 64;
    /// Four `tdpbssd` of 16 × 16 × 64 each.
    pub(super) const OF_A_TURN_AMX: usize = 4 * 16 * 16 * 64;

    /// One more product, added in 16 bits.
    macro_rules! next_product {
        ($narrow:literal, $other:literal) => {
            concat!(
                "vpmaddubsw ",
                $other,
                ", {a}, {b}\n",
                "vpaddw ",
                $narrow,
                ", ",
                $narrow,
                ", ",
                $other,
                "\n",
            )
        };
    }

    /// Four products in 16 bits, then in 32.
    macro_rules! four_products {
        ($sum:literal, $narrow:literal, $other:literal) => {
            concat!(
                "vpmaddubsw ",
                $narrow,
                ", {a}, {b}\n",
                next_product!($narrow, $other),
                next_product!($narrow, $other),
                next_product!($narrow, $other),
                "vpmaddwd ",
                $narrow,
                ", ",
                $narrow,
                ", {ones}\n",
                "vpaddd ",
                $sum,
                ", ",
                $sum,
                ", ",
                $narrow,
            )
        };
    }

    /// # Safety
    /// The CPU must have AVX2; `turns` must not be 0.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn integers_avx2(turns: usize) {
        // SAFETY: only registers are used, all of them told.
        unsafe {
            asm!(
                "2:",
                four_products!("ymm0", "ymm4", "ymm5"),
                four_products!("ymm1", "ymm6", "ymm7"),
                four_products!("ymm2", "ymm8", "ymm9"),
                four_products!("ymm3", "ymm10", "ymm11"),
                "dec {turns}",
                "jnz 2b",
                turns = inout(reg) turns => _,
                a = in(ymm_reg) _mm256_set1_epi8(11),
                b = in(ymm_reg) _mm256_set1_epi8(-105),
                ones = in(ymm_reg) _mm256_set1_epi16(1),
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
                out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
                out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                options(nostack, nomem)
            );
        }
    }

    /// # Safety
    /// The CPU must have AVX-512 VNNI; `turns` must not be 0.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) unsafe fn integers_avx512(turns: usize) {
        // SAFETY: only registers are used, all of them told.
        unsafe {
            asm!(
                "2:",
                "vpdpbusd zmm0, {a}, {b}",
                "vpdpbusd zmm1, {a}, {b}",
                "vpdpbusd zmm2, {a}, {b}",
                "vpdpbusd zmm3, {a}, {b}",
                "vpdpbusd zmm4, {a}, {b}",
                "vpdpbusd zmm5, {a}, {b}",
                "vpdpbusd zmm6, {a}, {b}",
                "vpdpbusd zmm7, {a}, {b}",
                "vpdpbusd zmm8, {a}, {b}",
                "vpdpbusd zmm9, {a}, {b}",
                "vpdpbusd zmm10, {a}, {b}",
                "vpdpbusd zmm11, {a}, {b}",
                "dec {turns}",
                "jnz 2b",
                turns = inout(reg) turns => _,
                a = in(zmm_reg) _mm512_set1_epi8(11),
                b = in(zmm_reg) _mm512_set1_epi8(-105),
                out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _,
                out("zmm4") _, out("zmm5") _, out("zmm6") _, out("zmm7") _,
                out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
                options(nostack, nomem)
            );
        }
    }

    /// One cache line: the configuration of tiles.
    #[repr(C, align(64))]
    struct Line([u8; 64]);

    /// # Safety
    /// The CPU must have AMX-INT8 and the process the permission to use tiles; `turns` must not be 0.
    pub(super) unsafe fn integers_amx(turns: usize) {
        let mut config = Line([0; 64]);
        // Palette 1, and eight tiles of 16 rows of 64 bytes.
        config.0[0] = 1;
        for tile in 0..8 {
            config.0[16 + 2 * tile] = 64;
            config.0[48 + tile] = 16;
        }
        let bytes = [0x5a_u8; 16 * 64];
        // SAFETY: the configuration is valid and the tiles are read from memory of their size.
        unsafe {
            asm!(
                "ldtilecfg [{config}]",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "tileloadd tmm4, [{bytes} + {stride}]",
                "tileloadd tmm5, [{bytes} + {stride}]",
                "tileloadd tmm6, [{bytes} + {stride}]",
                "tileloadd tmm7, [{bytes} + {stride}]",
                "2:",
                "tdpbssd tmm0, tmm4, tmm6",
                "tdpbssd tmm1, tmm4, tmm7",
                "tdpbssd tmm2, tmm5, tmm6",
                "tdpbssd tmm3, tmm5, tmm7",
                "dec {turns}",
                "jnz 2b",
                "tilerelease",
                config = in(reg) &raw const config,
                bytes = in(reg) &raw const bytes,
                stride = in(reg) 64_usize,
                turns = inout(reg) turns => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly)
            );
        }
    }
}
