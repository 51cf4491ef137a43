//! The product of packed quantised weights and quantised activations: one skeleton for all formats and
//! instruction sets.

use std::ops::Range;

use super::Outputs;
use super::activations::{PANEL_ROWS, Panel};
use super::int_lanes::{IntLanes, Operands, Sums};
use crate::formats::{Quantized, SUB_BLOCK};
use crate::packed::PackedMatrix;
use crate::packed::quants::{GROUP, Quants};
use crate::packed::scales::{FACTOR_BYTES, Scales};
use crate::prefetch;

/// Groups `groups` of `weight` times the rows of `panel`.
pub(super) struct PanelProduct<'a> {
    pub(super) weight: &'a PackedMatrix,
    pub(super) groups: Range<usize>,
    pub(super) panel: Panel,
    pub(super) out: Outputs,
}

impl PanelProduct<'_> {
    /// All groups, one after the other.
    ///
    /// # Safety
    /// The CPU must have the instruction set of `V`, and so must the function this is inlined into.
    #[inline(always)]
    pub(super) unsafe fn run<F: Quantized, V: IntLanes>(&self) {
        let mut group = self.groups.start;
        // SAFETY: as the caller vouches.
        unsafe {
            if V::GROUPS == 2 {
                while group + 2 <= self.groups.end {
                    self.side_by_side::<F, V, 2>(group);
                    group += 2;
                }
            }
            for group in group..self.groups.end {
                self.side_by_side::<F, V, 1>(group);
            }
        }
    }

    /// Groups `first .. first + G` at once.
    ///
    /// # Safety
    /// As for `run`.
    #[inline(always)]
    unsafe fn side_by_side<F: Quantized, V: IntLanes, const G: usize>(&self, first: usize) {
        let mut sums: [Sums<V>; G] = [[V::splat(0.0); PANEL_ROWS]; G];
        for number in 0..self.weight.cols() / SUB_BLOCK {
            // SAFETY: as the caller vouches.
            unsafe {
                // No closures: they would not have the instruction set.
                let mut operands = [self.operands::<F, V>(first, number); G];
                for (g, operands) in operands.iter_mut().enumerate().skip(1) {
                    *operands = self.operands::<F, V>(first + g, number);
                }
                V::sub_blocks::<F, G>(&operands, &mut sums);
            }
        }
        for (g, sums) in sums.iter().enumerate() {
            for (t, &sums) in sums[..self.panel.rows].iter().enumerate() {
                // SAFETY: nobody else writes these outputs.
                unsafe {
                    self.out
                        .write(self.panel.first_row + t, (first + g) * GROUP, sums);
                };
            }
        }
    }

    /// Sub-block `number` of a group; fetches what comes after it.
    ///
    /// # Safety
    /// As for `run`; the sub-block must exist.
    #[inline(always)]
    unsafe fn operands<F: Quantized, V: IntLanes>(
        &self,
        group: usize,
        number: usize,
    ) -> Operands<V> {
        let layout = self.weight.layout();
        let start = self.weight.group(group);
        let block = number / F::SUB_BLOCKS;
        let factors =
            start.wrapping_add(layout.factors + block * F::Scales::FACTORS * FACTOR_BYTES);
        let quants = start.wrapping_add(number * F::Quants::BYTES);
        let small = start.wrapping_add(layout.small + number * F::Scales::SMALL * GROUP);
        // The scales of the next group lie too far off the stream of quants to come with it.
        if number.is_multiple_of(F::SUB_BLOCKS) {
            prefetch::near(factors.wrapping_add(prefetch::FAR / 32));
            prefetch::second_level(factors.wrapping_add(V::GROUPS * layout.bytes));
        }
        if F::Scales::SMALL > 0 {
            prefetch::second_level(small.wrapping_add(V::GROUPS * layout.bytes));
        }
        for line in 0..F::Quants::BYTES / 64 {
            prefetch::stream(quants.wrapping_add(64 * line));
        }
        // SAFETY: the group holds that many blocks, laid out like this, and the panel too.
        unsafe {
            Operands {
                quants,
                step: F::Scales::step::<V>(factors, small),
                block: self.panel.block(number),
                rows: self.panel.rows,
            }
        }
    }
}
