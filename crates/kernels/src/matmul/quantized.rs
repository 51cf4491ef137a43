//! The product of packed quantised weights and quantised activations: one skeleton for all formats and
//! instruction sets.

use std::ops::Range;

use super::Outputs;
use super::activations::{PANEL_ROWS, Panel};
use super::int_lanes::{IntLanes, Operands, Sums};
use crate::formats::Quantized;
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
        for group in self.groups.clone() {
            // SAFETY: as the caller vouches.
            unsafe { self.group::<F, V>(group) };
        }
    }

    /// One group.
    ///
    /// # Safety
    /// As for `run`.
    #[inline(always)]
    unsafe fn group<F: Quantized, V: IntLanes>(&self, group: usize) {
        let layout = self.weight.layout();
        let start = self.weight.group(group);
        let rows = self.panel.rows;
        let mut sums: Sums<V> = [V::splat(0.0); PANEL_ROWS];
        for block in 0..self.weight.cols() / F::BLOCK_LEN {
            let factors =
                start.wrapping_add(layout.factors + block * F::Scales::FACTORS * FACTOR_BYTES);
            prefetch::near(factors.wrapping_add(prefetch::FAR / 32));
            // The scales of the next group lie too far off the stream of quants to come with it.
            prefetch::second_level(factors.wrapping_add(layout.bytes));
            for number in block * F::SUB_BLOCKS..(block + 1) * F::SUB_BLOCKS {
                let quants = start.wrapping_add(number * F::Quants::BYTES);
                let small = start.wrapping_add(layout.small + number * F::Scales::SMALL * GROUP);
                if F::Scales::SMALL > 0 {
                    prefetch::second_level(small.wrapping_add(layout.bytes));
                }
                for line in 0..F::Quants::BYTES / 64 {
                    prefetch::stream(quants.wrapping_add(64 * line));
                }
                // SAFETY: the group holds that many blocks, laid out like this, and the panel too.
                unsafe {
                    let operands = Operands {
                        quants,
                        step: F::Scales::step::<V>(factors, small),
                        block: self.panel.block(number),
                        rows,
                    };
                    V::sub_block::<F>(&operands, &mut sums);
                }
            }
        }
        for (t, &sums) in sums[..rows].iter().enumerate() {
            // SAFETY: nobody else writes these outputs.
            unsafe {
                self.out
                    .write(self.panel.first_row + t, group * GROUP, sums)
            };
        }
    }
}
