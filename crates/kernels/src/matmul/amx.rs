//! The product of packed quantised weights and many rows of activations, by AMX-INT8 tiles.
//!
//! A group of sixteen rows of weights is unpacked once, to signed bytes with the format's bias taken off,
//! and multiplied with many panels. For each block of 32 columns one tile instruction gives the exact
//! integer dot products of the group with all rows of a panel. Scales and sums are those of the AVX-512
//! kernel, on AVX-512 registers.

use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::Outputs;
use super::activations::{PANEL_ROWS, Panel, QuantizedRows};
use super::int_lanes::{Operands, Sums};
use crate::formats::{Quantized, SUB_BLOCK};
use crate::lanes::{Avx512, LANES, Lanes};
use crate::packed::PackedMatrix;
use crate::packed::quants::{GROUP, Quants};
use crate::packed::scales::{FACTOR_BYTES, Scales, Step};

/// From this many rows of activations on, tiles are faster than AVX-512.
pub(super) const MIN_ROWS: usize = 32;

/// Blocks whose dot products are on their way at the same time.
const AHEAD: usize = 4;

/// Groups `groups` of `weight` times the panels `panels` of `x`.
pub(super) struct TileProduct<'a> {
    pub(super) weight: &'a PackedMatrix,
    pub(super) groups: Range<usize>,
    pub(super) x: &'a QuantizedRows,
    pub(super) panels: Range<usize>,
    pub(super) out: Outputs,
}

/// One sub-block of sixteen rows of weights, ready to be multiplied.
struct Unpacked {
    /// As [`Quants::unpack_avx512`] gives them, but signed and without the bias.
    quants: [__m512i; 8],
    step: Step<Avx512>,
}

/// Integer dot products: of each row of a panel with sixteen rows of weights.
#[repr(C, align(64))]
struct Dots([[i32; LANES]; PANEL_ROWS]);

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

thread_local! {
    /// One unpacked group. It grows to the longest row, once.
    static UNPACKED: Cell<Vec<Unpacked>> = const { Cell::new(Vec::new()) };
}

impl TileProduct<'_> {
    /// All groups, one after the other.
    ///
    /// # Safety
    /// The CPU must have AVX-512 and AMX-INT8 and the process the permission to use tiles; the function
    /// this is inlined into must have AVX-512.
    #[inline(always)]
    pub(super) unsafe fn run<F: Quantized>(&self) {
        let blocks = self.weight.cols() / SUB_BLOCK;
        let mut unpacked = UNPACKED.take();
        unpacked.clear();
        unpacked.reserve(blocks);
        for group in self.groups.clone() {
            // SAFETY: as the caller vouches; there is room for all blocks.
            unsafe {
                self.unpack::<F>(group, unpacked.as_mut_ptr());
                self.group::<F>(group, unpacked.as_ptr());
            }
        }
        // SAFETY: the CPU has tiles.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags)) };
        UNPACKED.set(unpacked);
    }

    /// Unpacks `group` to `dst`.
    ///
    /// # Safety
    /// As for `run`; there must be room for all blocks at `dst`.
    #[inline(always)]
    unsafe fn unpack<F: Quantized>(&self, group: usize, dst: *mut Unpacked) {
        let layout = self.weight.layout();
        let start = self.weight.group(group);
        for number in 0..self.weight.cols() / SUB_BLOCK {
            let factors =
                layout.factors + number / F::SUB_BLOCKS * F::Scales::FACTORS * FACTOR_BYTES;
            let small = layout.small + number * F::Scales::SMALL * GROUP;
            // SAFETY: the group holds that many blocks, laid out like this.
            unsafe {
                let bias = _mm512_set1_epi8(F::BIAS as i8);
                let quants = F::Quants::unpack_avx512(start.add(number * F::Quants::BYTES));
                let dst = dst.add(number);
                for (j, quants) in quants.into_iter().enumerate() {
                    // 128 wraps, and leaves the signed byte that it was added to.
                    (&raw mut (*dst).quants[j]).write(_mm512_sub_epi8(quants, bias));
                }
                let step = F::Scales::step::<Avx512>(start.add(factors), start.add(small));
                (&raw mut (*dst).step).write(step);
            }
        }
    }

    /// One unpacked group times panels.
    ///
    /// # Safety
    /// As for `run`; all blocks must be at `unpacked`.
    #[inline(always)]
    unsafe fn group<F: Quantized>(&self, group: usize, unpacked: *const Unpacked) {
        let mut configured = 0;
        for index in self.panels.clone() {
            let panel = self.x.panel(index);
            // SAFETY: as the caller vouches; nobody else writes these outputs.
            unsafe {
                if panel.rows != configured {
                    configure::<F>(panel.rows);
                    configured = panel.rows;
                }
                let sums = if panel.rows == PANEL_ROWS {
                    self.panel::<F, PANEL_ROWS>(panel, unpacked)
                } else {
                    self.panel::<F, 0>(panel, unpacked)
                };
                for (t, &sums) in sums[..panel.rows].iter().enumerate() {
                    self.out.write(panel.first_row + t, group * GROUP, sums);
                }
            }
        }
    }

    /// The sums of one panel, of `ROWS` rows or, where that is zero, of as many as it has.
    ///
    /// # Safety
    /// As for `group`; tiles must be configured for the panel.
    #[inline(always)]
    unsafe fn panel<F: Quantized, const ROWS: usize>(
        &self,
        panel: Panel,
        unpacked: *const Unpacked,
    ) -> Sums<Avx512> {
        let rows = if ROWS == 0 { panel.rows } else { ROWS };
        let blocks = self.weight.cols() / SUB_BLOCK;
        let mut sums: Sums<Avx512> = [Avx512::splat(0.0); PANEL_ROWS];
        let mut ring = MaybeUninit::<[[Dots; 2]; AHEAD]>::uninit();
        let ring: *mut [Dots; 2] = ring.as_mut_ptr().cast();
        let mut number = 0;
        // SAFETY: as the caller vouches; all blocks exist, and the dots of each are stored before use.
        unsafe {
            for first in 0..(AHEAD - 1).min(blocks) {
                multiply::<F>(panel, first, unpacked, ring.add(first));
            }
            // Some blocks ahead, so that tiles and sums are worked on at the same time.
            while number + 2 * AHEAD <= blocks {
                for i in 0..AHEAD {
                    let next = number + i + AHEAD - 1;
                    multiply::<F>(panel, next, unpacked, ring.add((i + AHEAD - 1) % AHEAD));
                    let operands = operands(panel, number + i, unpacked, rows);
                    add::<F>(&operands, ring.add(i), &mut sums);
                }
                number += AHEAD;
            }
            while number < blocks {
                let next = number + AHEAD - 1;
                if next < blocks {
                    multiply::<F>(panel, next, unpacked, ring.add(next % AHEAD));
                }
                let operands = operands(panel, number, unpacked, rows);
                add::<F>(&operands, ring.add(number % AHEAD), &mut sums);
                number += 1;
            }
        }
        sums
    }
}

/// What the contract's order of sums needs of one block.
///
/// # Safety
/// The block must exist in both operands.
#[inline(always)]
unsafe fn operands(
    panel: Panel,
    number: usize,
    unpacked: *const Unpacked,
    rows: usize,
) -> Operands<Avx512> {
    // SAFETY: as the caller vouches.
    unsafe {
        Operands {
            quants: std::ptr::null(),
            step: (*unpacked.add(number)).step,
            block: panel.block(number),
            rows,
        }
    }
}

/// Adds the dot products of one block to the sums.
///
/// # Safety
/// Those of all rows must have been stored, and the CPU must have AVX-512.
#[inline(always)]
unsafe fn add<F: Quantized>(
    operands: &Operands<Avx512>,
    dots: *const [Dots; 2],
    sums: &mut Sums<Avx512>,
) {
    for t in 0..operands.rows {
        // SAFETY: as the caller vouches.
        unsafe {
            let [low, high] = [0, 1].map(|half| &raw const (*dots)[half].0[t]);
            let dot = Avx512::from_i32(&*low);
            if F::Scales::HALVES {
                operands.add_halves::<F::Scales>(sums, t, dot, Avx512::from_i32(&*high));
            } else {
                operands.add::<F::Scales>(sums, t, dot);
            }
        }
    }
}

/// Sets the sizes of tiles: 0 and 1 for activations, 2 and 3 for weights, 4 and 5 for dot products.
///
/// # Safety
/// The CPU must have AMX and the process the permission to use it; `rows` must be at most sixteen.
#[inline(always)]
unsafe fn configure<F: Quantized>(rows: usize) {
    let cols = if F::Scales::HALVES {
        SUB_BLOCK / 2
    } else {
        SUB_BLOCK
    };
    let mut config = TileConfig {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [0; 16],
        rows: [0; 16],
    };
    config.row_bytes[..6].copy_from_slice(&[cols as u16, cols as u16, 64, 64, 64, 64]);
    let (rows, weight_rows) = (rows as u8, (cols / 4) as u8);
    config.rows[..6].copy_from_slice(&[rows, rows, weight_rows, weight_rows, rows, rows]);
    // SAFETY: as the caller vouches; the configuration is valid.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly, preserves_flags));
    }
}

/// The dot products of block `number`: in `dots[0]`, or those of its halves in both.
///
/// # Safety
/// Tiles must be configured for the panel, and the block must exist in both operands.
#[inline(always)]
unsafe fn multiply<F: Quantized>(
    panel: Panel,
    number: usize,
    unpacked: *const Unpacked,
    dots: *mut [Dots; 2],
) {
    // SAFETY: as the caller vouches; a tile of dot products has at most sixteen rows.
    unsafe {
        let activations: *const i8 = panel.block(number).row(0).as_ptr();
        let weights = &raw const (*unpacked.add(number)).quants;
        if F::Scales::HALVES {
            asm!(
                "tileloadd tmm2, [{weights} + {wide}]",
                "tileloadd tmm3, [{weights} + {wide} + 256]",
                "tileloadd tmm0, [{activations} + {narrow}]",
                "tileloadd tmm1, [{activations} + {narrow} + 16]",
                "tilezero tmm4",
                "tilezero tmm5",
                "tdpbssd tmm4, tmm0, tmm2",
                "tdpbssd tmm5, tmm1, tmm3",
                "tilestored [{low} + {wide}], tmm4",
                "tilestored [{low} + {wide} + 1024], tmm5",
                weights = in(reg) weights,
                activations = in(reg) activations,
                low = in(reg) dots,
                wide = in(reg) 64_usize,
                narrow = in(reg) SUB_BLOCK,
                out("tmm0") _, out("tmm1") _, out("tmm2") _,
                out("tmm3") _, out("tmm4") _, out("tmm5") _,
                options(nostack, preserves_flags)
            );
        } else {
            asm!(
                "tileloadd tmm2, [{weights} + {wide}]",
                "tileloadd tmm0, [{activations} + {narrow}]",
                "tilezero tmm4",
                "tdpbssd tmm4, tmm0, tmm2",
                "tilestored [{low} + {wide}], tmm4",
                weights = in(reg) weights,
                activations = in(reg) activations,
                low = in(reg) dots,
                wide = in(reg) 64_usize,
                narrow = in(reg) SUB_BLOCK,
                out("tmm0") _, out("tmm2") _, out("tmm4") _,
                options(nostack, preserves_flags)
            );
        }
    }
}
