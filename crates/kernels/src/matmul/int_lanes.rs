//! Integer dot products of packed weights and quantised activations, on each instruction set.
//!
//! All of them are exact, so the instruction sets may differ in how they get there.

use super::activations::{PANEL_ROWS, PanelBlock, Plane};
use crate::formats::{Quantized, SUB_BLOCK};
use crate::lanes::{LANES, Lanes, Scalar, SoftFma};
use crate::packed::quants::Quants;
use crate::packed::scales::{Scales, Step};

/// The sums of sixteen rows of weights with each row of a panel. They live in memory: a load and a store for
/// each sub-block cost nothing beside its dot product, and the registers are needed for weights.
pub(super) type Sums<V> = [V; PANEL_ROWS];

/// One sub-block of sixteen rows of weights and of all rows of a panel.
#[derive(Clone, Copy)]
pub(super) struct Operands<V> {
    /// The packed quants.
    pub(super) quants: *const u8,
    /// The scales.
    pub(super) step: Step<V>,
    /// The activations.
    pub(super) block: PanelBlock,
    /// Rows of activations.
    pub(super) rows: usize,
}

impl<V: Lanes> Operands<V> {
    /// Adds the integer dot product with row `t` to its sum: this is the contract's order.
    ///
    /// # Safety
    /// `t` must be below `rows`.
    #[inline(always)]
    pub(super) unsafe fn add<S: Scales>(&self, sums: &mut Sums<V>, t: usize, dot: V) {
        debug_assert!(t < self.rows);
        // SAFETY: as the caller vouches; there are no more rows than sums.
        unsafe {
            let sum = sums.get_unchecked_mut(t);
            let scale = V::splat(self.block.float(Plane::Scale, t)).mul(self.step.scale);
            *sum = dot.fma(scale, *sum);
            if S::MIN {
                let scaled_sum = V::splat(self.block.float(Plane::ScaledSum, t));
                *sum = self.step.min.fma(scaled_sum, *sum);
            }
        }
    }

    /// The same, for a sub-block whose halves have integer scales: at most 16·32·127·128 each, so that
    /// both products and their sum are below 2²⁴ and exact.
    ///
    /// # Safety
    /// `t` must be below `rows`.
    #[inline(always)]
    pub(super) unsafe fn add_halves<S: Scales>(
        &self,
        sums: &mut Sums<V>,
        t: usize,
        low: V,
        high: V,
    ) {
        let [low_scale, high_scale] = self.step.halves;
        let dot = high.fma(high_scale, low.mul(low_scale));
        // SAFETY: as the caller vouches.
        unsafe { self.add::<S>(sums, t, dot) };
    }
}

/// The planes that take a format's bias off: of the whole sub-block, or of its halves.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
fn bias_planes<F: Quantized>() -> [Option<Plane>; 2] {
    if F::Scales::HALVES {
        return match F::BIAS {
            0 => [None; 2],
            32 => [Some(Plane::Bias32Low), Some(Plane::Bias32High)],
            other => unreachable!("no plane for a bias of {other} per half"),
        };
    }
    match F::BIAS {
        0 => [None; 2],
        8 => [Some(Plane::Bias8), None],
        16 => [Some(Plane::Bias16), None],
        128 => [Some(Plane::Bias128), None],
        other => unreachable!("no plane for a bias of {other}"),
    }
}

/// # Safety
/// Row `t` of `block` must exist.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
unsafe fn bias(block: PanelBlock, plane: Option<Plane>, t: usize) -> i32 {
    // SAFETY: as the caller vouches.
    plane.map_or(0, |plane| unsafe { block.int(plane, t) })
}

/// Lanes with a way to multiply packed quants.
pub(super) trait IntLanes: Lanes {
    /// Groups of rows of weights that are best worked on at once.
    const GROUPS: usize = 1;

    /// Adds one sub-block of each of `G` groups, at the same columns, to the sums of all rows of the panel.
    ///
    /// # Safety
    /// The quants must be readable for the format's bytes of one sub-block and aligned to 64, and the block, the
    /// same for all groups, must have `rows` rows. The CPU must have the instruction set, and so must the
    /// function this is inlined into.
    unsafe fn sub_blocks<F: Quantized, const G: usize>(
        operands: &[Operands<Self>; G],
        sums: &mut [Sums<Self>; G],
    );
}

macro_rules! reference {
    ($name:ident) => {
        impl IntLanes for $name {
            #[inline(always)]
            unsafe fn sub_blocks<F: Quantized, const G: usize>(
                operands: &[Operands<Self>; G],
                sums: &mut [Sums<Self>; G],
            ) {
                for (operands, sums) in operands.iter().zip(sums) {
                    // SAFETY: as the caller vouches.
                    unsafe { Self::sub_block::<F>(operands, sums) };
                }
            }
        }

        impl $name {
            /// One group.
            ///
            /// # Safety
            /// As for [`IntLanes::sub_blocks`].
            #[inline(always)]
            unsafe fn sub_block<F: Quantized>(operands: &Operands<Self>, sums: &mut Sums<Self>) {
                let packed = operands.quants;
                // SAFETY: as the caller vouches.
                let packed = unsafe { std::slice::from_raw_parts(packed, F::Quants::BYTES) };
                let mut weights = [[0; SUB_BLOCK]; LANES];
                for (lane, weights) in weights.iter_mut().enumerate() {
                    *weights = F::Quants::unpack(packed, lane);
                }
                for t in 0..operands.rows {
                    // SAFETY: the block has a row `t`.
                    let a: &[i8; SUB_BLOCK] = unsafe { operands.block.row(t) };
                    let mut dots = [[0; LANES]; 2];
                    for (lane, weights) in weights.iter().enumerate() {
                        for k in 0..SUB_BLOCK {
                            let weight = i32::from(weights[k]) - F::BIAS;
                            dots[k / 16][lane] += weight * i32::from(a[k]);
                        }
                    }
                    let [low, high] = dots;
                    // SAFETY: `t` is below `rows`.
                    unsafe {
                        if F::Scales::HALVES {
                            let (low, high) = (Self::from_i32(&low), Self::from_i32(&high));
                            operands.add_halves::<F::Scales>(sums, t, low, high);
                        } else {
                            let mut whole = low;
                            for (whole, high) in whole.iter_mut().zip(&high) {
                                *whole += high;
                            }
                            operands.add::<F::Scales>(sums, t, Self::from_i32(&whole));
                        }
                    }
                }
            }
        }
    };
}

reference!(Scalar);
reference!(SoftFma);

// Plain loops over indexes of several arrays at once: after unrolling they are registers.
#[cfg(target_arch = "x86_64")]
#[allow(clippy::needless_range_loop)]
mod x86 {
    use std::arch::x86_64::*;

    use super::*;
    use crate::lanes::{Avx2, Avx512};

    impl IntLanes for Avx512 {
        const GROUPS: usize = 2;

        #[inline(always)]
        unsafe fn sub_blocks<F: Quantized, const G: usize>(
            operands: &[Operands<Self>; G],
            sums: &mut [Sums<Self>; G],
        ) {
            let rows = operands[0].rows;
            // SAFETY: as the caller vouches.
            unsafe {
                // No closures: they would not have the instruction set.
                let mut weights = [[_mm512_setzero_si512(); 8]; G];
                for g in 0..G {
                    weights[g] = F::Quants::unpack_avx512(operands[g].quants);
                }
                let mut t = 0;
                // As many as there are registers for.
                while F::Scales::HALVES && t + 2 <= rows {
                    dots_avx512::<F, G, 2>(operands, &weights, t, sums);
                    t += 2;
                }
                while !F::Scales::HALVES && t + 4 <= rows {
                    dots_avx512::<F, G, 4>(operands, &weights, t, sums);
                    t += 4;
                }
                while t < rows {
                    dots_avx512::<F, G, 1>(operands, &weights, t, sums);
                    t += 1;
                }
            }
        }
    }

    /// Rows `first .. first + T` of the panel times each group, their dependent instructions interleaved: a row's
    /// activations are loaded once for all groups, since loads are what there is most of.
    ///
    /// # Safety
    /// As for [`IntLanes::sub_blocks`]; the rows must exist.
    #[inline(always)]
    unsafe fn dots_avx512<F: Quantized, const G: usize, const T: usize>(
        operands: &[Operands<Avx512>; G],
        weights: &[[__m512i; 8]; G],
        first: usize,
        sums: &mut [Sums<Avx512>; G],
    ) {
        let planes = bias_planes::<F>();
        let block = operands[0].block;
        // SAFETY: as the caller vouches.
        unsafe {
            let mut low = [[_mm512_setzero_si512(); G]; T];
            let mut high = low;
            for t in 0..T {
                low[t] = [_mm512_set1_epi32(bias(block, planes[0], first + t)); G];
                high[t] = [_mm512_set1_epi32(bias(block, planes[1], first + t)); G];
            }
            for j in 0..4 {
                for t in 0..T {
                    let four = _mm512_set1_epi32(block.four(first + t, j));
                    for g in 0..G {
                        low[t][g] = _mm512_dpbusd_epi32(low[t][g], weights[g][j], four);
                    }
                }
            }
            if !F::Scales::HALVES {
                high = low;
            }
            for j in 4..8 {
                for t in 0..T {
                    let four = _mm512_set1_epi32(block.four(first + t, j));
                    for g in 0..G {
                        high[t][g] = _mm512_dpbusd_epi32(high[t][g], weights[g][j], four);
                    }
                }
            }
            for t in 0..T {
                for g in 0..G {
                    let dot = Avx512(_mm512_cvtepi32_ps(high[t][g]));
                    let sums = &mut sums[g];
                    if F::Scales::HALVES {
                        let low = Avx512(_mm512_cvtepi32_ps(low[t][g]));
                        operands[g].add_halves::<F::Scales>(sums, first + t, low, dot);
                    } else {
                        operands[g].add::<F::Scales>(sums, first + t, dot);
                    }
                }
            }
        }
    }

    /// Products of one vector of weights with four activations, summed in pairs.
    ///
    /// # Safety
    /// The CPU must have AVX2, and so must the function this is inlined into.
    #[inline(always)]
    unsafe fn pairs<Q: Quants>(weights: __m256i, four: __m256i) -> __m256i {
        // SAFETY: as the caller vouches.
        unsafe {
            if Q::EIGHT_BITS {
                // Signed times signed: the sign moves to the activation, which is never −128.
                let signed = _mm256_xor_si256(weights, _mm256_set1_epi8(i8::MIN));
                _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(four, signed))
            } else {
                _mm256_maddubs_epi16(weights, four)
            }
        }
    }

    impl IntLanes for Avx2 {
        #[inline(always)]
        unsafe fn sub_blocks<F: Quantized, const G: usize>(
            operands: &[Operands<Self>; G],
            sums: &mut [Sums<Self>; G],
        ) {
            for (operands, sums) in operands.iter().zip(sums) {
                // SAFETY: as the caller vouches.
                unsafe {
                    if operands.rows < BUFFERED_FROM || is_cheap::<F>() {
                        rows_avx2::<F, _>(operands, &Packed(operands.quants), sums);
                    } else {
                        rows_avx2::<F, _>(operands, &Unpacked::of::<F>(operands.quants), sums);
                    }
                }
            }
        }
    }

    /// From this many rows on, AVX2 unpacks a sub-block to memory first: sixteen registers are too few to hold it, and
    /// unpacking it again for every few rows takes longer.
    const BUFFERED_FROM: usize = 8;

    /// Where the unpacked quants of a sub-block come from.
    trait Source {
        /// Half `half` of unpacked vector `j`.
        ///
        /// # Safety
        /// As for [`Quants::unpack_avx2`].
        unsafe fn vector<Q: Quants>(&self, j: usize, half: usize) -> __m256i;
    }

    /// Packed quants, unpacked at every use.
    struct Packed(*const u8);

    impl Source for Packed {
        #[inline(always)]
        unsafe fn vector<Q: Quants>(&self, j: usize, half: usize) -> __m256i {
            // SAFETY: as the caller vouches.
            unsafe { Q::unpack_avx2(self.0, j, half) }
        }
    }

    /// Unpacked quants.
    struct Unpacked([[__m256i; 2]; 8]);

    impl Unpacked {
        /// # Safety
        /// As for [`Quants::unpack_avx2`].
        #[inline(always)]
        unsafe fn of<F: Quantized>(quants: *const u8) -> Self {
            // SAFETY: as the caller vouches.
            unsafe {
                let mut vectors = [[_mm256_setzero_si256(); 2]; 8];
                for j in 0..8 {
                    for half in 0..2 {
                        vectors[j][half] = F::Quants::unpack_avx2(quants, j, half);
                    }
                }
                Self(vectors)
            }
        }
    }

    impl Source for Unpacked {
        #[inline(always)]
        unsafe fn vector<Q: Quants>(&self, j: usize, half: usize) -> __m256i {
            self.0[j][half]
        }
    }

    /// All rows of the panel.
    ///
    /// # Safety
    /// As for [`IntLanes::sub_blocks`].
    #[inline(always)]
    unsafe fn rows_avx2<F: Quantized, S: Source>(
        operands: &Operands<Avx2>,
        weights: &S,
        sums: &mut Sums<Avx2>,
    ) {
        let mut t = 0;
        // SAFETY: as the caller vouches.
        unsafe {
            while t + 4 <= operands.rows {
                dots_avx2::<F, S, 4>(operands, weights, t, sums);
                t += 4;
            }
            while t < operands.rows {
                dots_avx2::<F, S, 1>(operands, weights, t, sums);
                t += 1;
            }
        }
    }

    /// Rows `first .. first + T` of the panel.
    ///
    /// # Safety
    /// As for [`IntLanes::sub_blocks`]; the rows must exist.
    #[inline(always)]
    unsafe fn dots_avx2<F: Quantized, S: Source, const T: usize>(
        operands: &Operands<Avx2>,
        weights: &S,
        first: usize,
        sums: &mut Sums<Avx2>,
    ) {
        // SAFETY: as the caller vouches.
        unsafe {
            if F::Scales::HALVES {
                let low = half_dots::<F, S, T>(operands, weights, first, 0, 4);
                let high = half_dots::<F, S, T>(operands, weights, first, 4, 8);
                for t in 0..T {
                    operands.add_halves::<F::Scales>(sums, first + t, low[t], high[t]);
                }
            } else {
                let dots = half_dots::<F, S, T>(operands, weights, first, 0, 8);
                for t in 0..T {
                    operands.add::<F::Scales>(sums, first + t, dots[t]);
                }
            }
        }
    }

    /// Whether quants are unpacked in an instruction or two and their products need no widening on the way.
    #[inline(always)]
    fn is_cheap<F: Quantized>() -> bool {
        F::Quants::PAIRS == 8
    }

    /// The dot products of vectors `first .. end`, converted.
    ///
    /// # Safety
    /// As for [`IntLanes::sub_blocks`].
    #[inline(always)]
    unsafe fn half_dots<F: Quantized, S: Source, const T: usize>(
        operands: &Operands<Avx2>,
        weights: &S,
        first_row: usize,
        first: usize,
        end: usize,
    ) -> [Avx2; T] {
        let plane = if F::Quants::EIGHT_BITS {
            None
        } else {
            bias_planes::<F>()[usize::from(first > 0)]
        };
        // SAFETY: as the caller vouches.
        unsafe {
            let mut wide = [[_mm256_setzero_si256(); 2]; T];
            for t in 0..T {
                wide[t] = [_mm256_set1_epi32(bias(operands.block, plane, first_row + t)); 2];
            }
            // Both halves of the sixteen rows of weights side by side, or where there are no registers for that one
            // after the other.
            if T == 1 || is_cheap::<F>() {
                add_halves::<F, S, T, 2>(operands, weights, first_row, (first, end), 0, &mut wide);
            } else {
                for half in 0..2 {
                    add_halves::<F, S, T, 1>(
                        operands,
                        weights,
                        first_row,
                        (first, end),
                        half,
                        &mut wide,
                    );
                }
            }
            let mut dots = [Avx2(_mm256_setzero_ps(), _mm256_setzero_ps()); T];
            for t in 0..T {
                dots[t] = Avx2(
                    _mm256_cvtepi32_ps(wide[t][0]),
                    _mm256_cvtepi32_ps(wide[t][1]),
                );
            }
            dots
        }
    }

    /// Adds the dot products of vectors `first .. end` with halves `half .. half + H` of the sixteen rows of weights.
    ///
    /// # Safety
    /// As for [`IntLanes::sub_blocks`].
    #[inline(always)]
    unsafe fn add_halves<F: Quantized, S: Source, const T: usize, const H: usize>(
        operands: &Operands<Avx2>,
        weights: &S,
        first_row: usize,
        (first, end): (usize, usize),
        half: usize,
        wide: &mut [[__m256i; 2]; T],
    ) {
        // SAFETY: as the caller vouches.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let mut from = first;
            while from < end {
                let to = (from + F::Quants::PAIRS).min(end);
                let mut narrow = [[_mm256_setzero_si256(); H]; T];
                for j in from..to {
                    for h in 0..H {
                        let weights = weights.vector::<F::Quants>(j, half + h);
                        for t in 0..T {
                            let four = _mm256_set1_epi32(operands.block.four(first_row + t, j));
                            let products = pairs::<F::Quants>(weights, four);
                            narrow[t][h] = _mm256_add_epi16(narrow[t][h], products);
                        }
                    }
                }
                for t in 0..T {
                    for h in 0..H {
                        let sums = _mm256_madd_epi16(narrow[t][h], ones);
                        wide[t][half + h] = _mm256_add_epi32(wide[t][half + h], sums);
                    }
                }
                from = to;
            }
        }
    }
}
