//! The product of packed floating-point weights and f32 activations: one accumulator for each output,
//! columns strictly ascending. Several groups of rows and rows of activations at once hide the latency.

use std::ops::Range;

use super::Outputs;
use crate::formats::Float;
use crate::lanes::Lanes;
use crate::packed::PackedMatrix;
use crate::packed::quants::GROUP;

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
        let mut row = self.rows.start;
        while row < self.rows.end {
            let left = self.rows.end - row;
            // SAFETY: as the caller vouches; the rows are within `x`.
            row += unsafe {
                match left {
                    8.. if WIDE => self.columns::<F, V, 8, 3>(row),
                    4.. if WIDE => self.columns::<F, V, 4, 4>(row),
                    4.. => self.columns::<F, V, 4, 1>(row),
                    2.. if WIDE => self.columns::<F, V, 2, 8>(row),
                    2.. => self.columns::<F, V, 2, 2>(row),
                    _ if WIDE => self.columns::<F, V, 1, 8>(row),
                    _ => self.columns::<F, V, 1, 4>(row),
                }
            };
        }
    }

    /// All groups times rows `row .. row + T`, `G` groups at a time. Returns `T`.
    ///
    /// # Safety
    /// As for `run`.
    #[inline(always)]
    unsafe fn columns<F: Float, V: Lanes, const T: usize, const G: usize>(
        &self,
        row: usize,
    ) -> usize {
        let mut group = self.groups.start;
        while group < self.groups.end {
            // SAFETY: as the caller vouches.
            unsafe {
                if self.groups.end - group >= G {
                    self.tile::<F, V, T, G>(row, group);
                    group += G;
                } else {
                    self.tile::<F, V, T, 1>(row, group);
                    group += 1;
                }
            }
        }
        T
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
                *weights = unsafe { F::load(start.add(g * stride + k * GROUP * F::BLOCK_BYTES)) };
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
