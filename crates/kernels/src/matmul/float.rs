//! The product of packed floating-point weights and f32 activations: one accumulator for each output,
//! columns strictly ascending. Several groups of rows and rows of activations at once hide the latency.

use std::ops::Range;

use super::Outputs;
use crate::formats::Float;
use crate::lanes::Lanes;
use crate::packed::PackedMatrix;
use crate::packed::quants::GROUP;
use crate::prefetch;

/// Rows of activations at once, at most: as many as leave registers for two groups' sums. Each widened weight then
/// serves twelve multiply-adds.
const MAX_ROWS: usize = 12;

/// Groups of rows of weights that hide the latency of one another, for so many rows of activations.
pub(super) fn groups_at_once(rows: usize) -> usize {
    match rows {
        0..=2 => 8,
        3..=6 => 4,
        7..=8 => 3,
        // Tiles of 7 and 8 rows take three, larger ones two.
        _ => 6,
    }
}

/// Groups `groups` of `weight` times rows `rows` of `x`.
pub(super) struct FloatProduct<'a> {
    pub(super) weight: &'a PackedMatrix,
    pub(super) groups: Range<usize>,
    pub(super) x: &'a [f32],
    pub(super) rows: Range<usize>,
    pub(super) out: Outputs,
}

impl FloatProduct<'_> {
    /// All of it. `WIDE` is for instruction sets with 32 registers of sixteen lanes.
    ///
    /// # Safety
    /// The CPU must have the instruction set of `V`, and so must the function this is inlined into.
    #[inline(always)]
    pub(super) unsafe fn run<F: Float, V: Lanes, const WIDE: bool>(&self) {
        let most = if WIDE { MAX_ROWS } else { MAX_ROWS / 2 };
        let tiles = self.rows.len().div_ceil(most);
        for tile in 0..tiles {
            let rows = super::share(self.rows.len(), tile, tiles);
            let row = self.rows.start + rows.start;
            // Two matches, not one on both: the compiler then skips the kernels of the other branch.
            // SAFETY: as the caller vouches; the rows are within `x`.
            unsafe {
                if WIDE {
                    match rows.len() {
                        1 => self.columns::<F, V, 1, 8, 4>(row),
                        2 => self.columns::<F, V, 2, 8, 4>(row),
                        3 => self.columns::<F, V, 3, 6, 3>(row),
                        4 => self.columns::<F, V, 4, 6, 2>(row),
                        5 => self.columns::<F, V, 5, 4, 2>(row),
                        6 => self.columns::<F, V, 6, 4, 2>(row),
                        7 => self.columns::<F, V, 7, 3, 1>(row),
                        8 => self.columns::<F, V, 8, 3, 1>(row),
                        9 => self.columns::<F, V, 9, 2, 1>(row),
                        10 => self.columns::<F, V, 10, 2, 1>(row),
                        11 => self.columns::<F, V, 11, 2, 1>(row),
                        12 => self.columns::<F, V, 12, 2, 1>(row),
                        other => debug_assert_eq!(other, 0),
                    }
                } else {
                    match rows.len() {
                        1 => self.columns::<F, V, 1, 4, 1>(row),
                        2 => self.columns::<F, V, 2, 2, 1>(row),
                        3 => self.columns::<F, V, 3, 1, 1>(row),
                        4 => self.columns::<F, V, 4, 1, 1>(row),
                        5 => self.columns::<F, V, 5, 1, 1>(row),
                        6 => self.columns::<F, V, 6, 1, 1>(row),
                        other => debug_assert_eq!(other, 0),
                    }
                }
            }
        }
    }

    /// All groups times rows `row .. row + T`: `G` groups at a time, then `H`, then one.
    ///
    /// # Safety
    /// As for `run`.
    #[inline(always)]
    unsafe fn columns<F: Float, V: Lanes, const T: usize, const G: usize, const H: usize>(
        &self,
        row: usize,
    ) {
        let mut group = self.groups.start;
        while group < self.groups.end {
            let left = self.groups.end - group;
            // SAFETY: as the caller vouches.
            unsafe {
                if left >= G {
                    self.tile::<F, V, T, G>(row, group);
                    group += G;
                } else if left >= H && H > 1 {
                    self.tile::<F, V, T, H>(row, group);
                    group += H;
                } else {
                    self.tile::<F, V, T, 1>(row, group);
                    group += 1;
                }
            }
        }
    }

    /// Groups `group .. group + G` times rows `row .. row + T`.
    ///
    /// # Safety
    /// As for `run`; the groups and rows must exist.
    #[inline(always)]
    unsafe fn tile<F: Float, V: Lanes, const T: usize, const G: usize>(
        &self,
        row: usize,
        group: usize,
    ) {
        let cols = self.weight.cols();
        let stride = self.weight.layout().bytes;
        let start = self.weight.group(group);
        let x = self.x[row * cols..(row + T) * cols].as_ptr();
        let mut sums = [[V::splat(0.0); G]; T];
        for k in 0..cols {
            let mut weights = [V::splat(0.0); G];
            for (g, weights) in weights.iter_mut().enumerate() {
                // SAFETY: the groups exist and have `cols` vectors of sixteen aligned values.
                *weights = unsafe {
                    let at = start.add(g * stride + k * GROUP * F::BLOCK_BYTES);
                    // A line holds two columns of the shorter formats. Where a column takes few instructions, to ask
                    // costs more than to fetch twice.
                    if T <= 4 || (k * GROUP * F::BLOCK_BYTES).is_multiple_of(prefetch::LINE) {
                        prefetch::stream(at);
                    }
                    F::load(at)
                };
            }
            for (t, sums) in sums.iter_mut().enumerate() {
                // SAFETY: `x` has `T` rows from here on.
                let value = V::splat(unsafe { *x.add(t * cols + k) });
                for (sum, weights) in sums.iter_mut().zip(&weights) {
                    *sum = weights.fma(value, *sum);
                }
            }
        }
        for (t, sums) in sums.iter().enumerate() {
            for (g, &sums) in sums.iter().enumerate() {
                // SAFETY: nobody else writes these outputs.
                unsafe { self.out.write(row + t, (group + g) * GROUP, sums) };
            }
        }
    }
}
