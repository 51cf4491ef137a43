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

use super::activations::{PANEL_ROWS, Panel, PanelBlock, QuantizedRows};
use super::int_lanes::{Operands, Sums};
use super::{Outputs, TILES_FROM};
use crate::formats::{Float, Quantized, SUB_BLOCK, Visitor};
use crate::lanes::{Avx512, LANES, Lanes};
use crate::packed::PackedMatrix;
use crate::packed::quants::{GROUP, Quants};
use crate::packed::scales::{FACTOR_BYTES, Scales, Step};

/// Groups that are multiplied with a panel while it is in the first-level cache.
const GROUPS_AT_ONCE: usize = 2;

/// Whether tiles are the fastest way to multiply `rows` rows of activations. They never are where each half of a
/// block has a scale of its own: there would be twice as many tiles, each half empty.
pub(super) fn pays(weight: &PackedMatrix, rows: usize) -> bool {
    rows >= TILES_FROM && !weight.format().visit(HasHalves)
}

struct HasHalves;

impl Visitor for HasHalves {
    type Output = bool;

    fn float<F: Float>(self) -> bool {
        false
    }

    fn quantized<F: Quantized>(self) -> bool {
        F::Scales::HALVES
    }
}

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

/// How many [`Dots`] there is room for.
const SLOTS: usize = 4;

/// Dot products on their way from tiles to sums.
///
/// Four kilobytes, so that no two of them have the same place in a page: a load of one would wait for the
/// store of the other.
#[repr(C, align(4096))]
struct Ring(MaybeUninit<[Dots; SLOTS]>);

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
    /// Some unpacked groups. It grows to the longest rows, once.
    static UNPACKED: Cell<Vec<Unpacked>> = const { Cell::new(Vec::new()) };
}

/// A panel and a group to be multiplied.
#[derive(Clone, Copy)]
struct Pair {
    panel: Panel,
    /// The group's blocks.
    unpacked: *const Unpacked,
}

impl Pair {
    /// Multiplies block `number`; the dot products go to `dots`.
    ///
    /// # Safety
    /// The block must exist in panel and group, and tiles must be configured for the panel.
    #[inline(always)]
    unsafe fn multiply(&self, number: usize, dots: *mut Dots) {
        // SAFETY: as the caller vouches.
        unsafe { multiply(self.panel.block(number), self.unpacked.add(number), dots) }
    }
}

impl TileProduct<'_> {
    /// All groups, a few at once.
    ///
    /// # Safety
    /// The CPU must have AVX-512 and AMX-INT8 and the process the permission to use tiles; the function
    /// this is inlined into must have AVX-512.
    #[inline(always)]
    pub(super) unsafe fn run<F: Quantized>(&self) {
        if self.panels.is_empty() {
            return;
        }
        let blocks = self.weight.cols() / SUB_BLOCK;
        let mut unpacked = UNPACKED.take();
        unpacked.clear();
        unpacked.reserve(GROUPS_AT_ONCE * blocks);
        for first in self.groups.clone().step_by(GROUPS_AT_ONCE) {
            let groups = first..(first + GROUPS_AT_ONCE).min(self.groups.end);
            // SAFETY: as the caller vouches; there is room for all blocks.
            unsafe {
                for (i, group) in groups.clone().enumerate() {
                    self.unpack::<F>(group, unpacked.as_mut_ptr().add(i * blocks));
                }
                self.multiply::<F>(groups, unpacked.as_ptr());
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

    /// The groups, whose blocks are at `unpacked`, times all panels.
    ///
    /// # Safety
    /// As for `run`; the groups' blocks must be at `unpacked`, one group after the other.
    #[inline(always)]
    unsafe fn multiply<F: Quantized>(&self, groups: Range<usize>, unpacked: *const Unpacked) {
        let blocks = self.weight.cols() / SUB_BLOCK;
        let pairs = self.panels.len() * groups.len();
        let pair = |number: usize| Pair {
            panel: self.x.panel(self.panels.start + number / groups.len()),
            unpacked: unpacked.wrapping_add(number % groups.len() * blocks),
        };
        let mut ring = Ring(MaybeUninit::uninit());
        let mut walk = Walk {
            blocks,
            ring: ring.0.as_mut_ptr().cast(),
            done: 0,
            started: false,
        };
        let mut configured = 0;
        for number in 0..pairs {
            let this = pair(number);
            let next = (number + 1 < pairs).then(|| pair(number + 1));
            let panel = this.panel;
            let col = (groups.start + number % groups.len()) * GROUP;
            for t in 0..panel.rows {
                self.out.prefetch(panel.first_row + t, col);
            }
            // SAFETY: as the caller vouches; nobody else writes these outputs.
            unsafe {
                if panel.rows != configured {
                    configure(panel.rows);
                    configured = panel.rows;
                }
                let sums = if panel.rows == PANEL_ROWS {
                    walk.sums::<F, PANEL_ROWS>(this, next)
                } else {
                    walk.sums::<F, 0>(this, next)
                };
                for (t, &sums) in sums[..panel.rows].iter().enumerate() {
                    self.out.write(panel.first_row + t, col, sums);
                }
            }
        }
    }
}

/// The way through all blocks of all pairs, with tiles some blocks ahead of sums, so that both are worked on at
/// the same time.
struct Walk {
    /// Blocks of each pair.
    blocks: usize,
    ring: *mut Dots,
    /// Blocks that have been added to sums.
    done: usize,
    /// Whether the first blocks of the pair that comes next have been multiplied.
    started: bool,
}

impl Walk {
    /// Where the dot products of the block `ahead` of the one whose turn it is are.
    #[inline(always)]
    fn dots(&self, ahead: usize) -> *mut Dots {
        self.ring.wrapping_add((self.done + ahead) % SLOTS)
    }

    /// The sums of one pair, of `ROWS` rows or, where that is zero, of as many as its panel has; and the first
    /// dot products of the next pair.
    ///
    /// # Safety
    /// Tiles must be configured for the panel, and the function this is inlined into must have AVX-512.
    #[inline(always)]
    unsafe fn sums<F: Quantized, const ROWS: usize>(
        &mut self,
        this: Pair,
        next: Option<Pair>,
    ) -> Sums<Avx512> {
        let rows = if ROWS == 0 { this.panel.rows } else { ROWS };
        let ahead = SLOTS - 1;
        let next = next.filter(|next| next.panel.rows == rows && self.blocks >= ahead);
        let mut sums: Sums<Avx512> = [Avx512::splat(0.0); PANEL_ROWS];
        // SAFETY: as the caller vouches; all blocks exist, and the dots of each are stored before use.
        unsafe {
            if !self.started {
                for number in 0..ahead.min(self.blocks) {
                    this.multiply(number, self.dots(number));
                }
            }
            let last = self.blocks.saturating_sub(ahead);
            for number in 0..last {
                this.multiply(number + ahead, self.dots(ahead));
                self.add::<F>(this, number, rows, next, &mut sums);
            }
            for number in last..self.blocks {
                if let Some(next) = next {
                    next.multiply(number - last, self.dots(ahead));
                }
                self.add::<F>(this, number, rows, next, &mut sums);
            }
        }
        self.started = next.is_some();
        sums
    }

    /// Adds the dot products of block `number` to the sums, and fetches that of the next pair.
    ///
    /// # Safety
    /// Those of all rows must have been stored, and the CPU must have AVX-512.
    #[inline(always)]
    unsafe fn add<F: Quantized>(
        &mut self,
        this: Pair,
        number: usize,
        rows: usize,
        next: Option<Pair>,
        sums: &mut Sums<Avx512>,
    ) {
        // SAFETY: as the caller vouches.
        unsafe {
            if let Some(next) = next {
                next.panel.block(number).prefetch();
            }
            let operands = operands(this.panel.block(number), this.unpacked.add(number), rows);
            add::<F>(&operands, self.dots(0), sums);
        }
        self.done += 1;
    }
}

/// What the contract's order of sums needs of one block.
///
/// # Safety
/// The block must exist in both operands.
#[inline(always)]
unsafe fn operands(block: PanelBlock, unpacked: *const Unpacked, rows: usize) -> Operands<Avx512> {
    // SAFETY: as the caller vouches.
    unsafe {
        Operands {
            quants: std::ptr::null(),
            step: (*unpacked).step,
            block,
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
    dots: *const Dots,
    sums: &mut Sums<Avx512>,
) {
    for t in 0..operands.rows {
        // SAFETY: as the caller vouches.
        unsafe {
            let dot = Avx512::from_i32(&(*dots).0[t]);
            operands.add::<F::Scales>(sums, t, dot);
        }
    }
}

/// Sets the sizes of tiles: 0 for activations, 2 for weights, 4 for dot products.
///
/// # Safety
/// The CPU must have AMX and the process the permission to use it; `rows` must be at most sixteen.
#[inline(always)]
unsafe fn configure(rows: usize) {
    let mut config = TileConfig {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [0; 16],
        rows: [0; 16],
    };
    let (rows, weight_rows) = (rows as u8, (SUB_BLOCK / 4) as u8);
    for (tile, row_bytes, rows) in [
        (0, SUB_BLOCK as u16, rows),
        (2, 64, weight_rows),
        (4, 64, rows),
    ] {
        config.row_bytes[tile] = row_bytes;
        config.rows[tile] = rows;
    }
    // SAFETY: as the caller vouches; the configuration is valid.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly, preserves_flags));
    }
}

/// The dot products of a block.
///
/// # Safety
/// Tiles must be configured for the panel, and the block must exist in both operands.
#[inline(always)]
unsafe fn multiply(block: PanelBlock, unpacked: *const Unpacked, dots: *mut Dots) {
    // SAFETY: as the caller vouches; a tile of dot products has at most sixteen rows.
    unsafe {
        let activations: *const i8 = block.row(0).as_ptr();
        let weights = &raw const (*unpacked).quants;
        asm!(
            "tileloadd tmm2, [{weights} + {wide}]",
            "tileloadd tmm0, [{activations} + {narrow}]",
            "tilezero tmm4",
            "tdpbssd tmm4, tmm0, tmm2",
            "tilestored [{dots} + {wide}], tmm4",
            weights = in(reg) weights,
            activations = in(reg) activations,
            dots = in(reg) dots,
            wide = in(reg) 64_usize,
            narrow = in(reg) SUB_BLOCK,
            out("tmm0") _, out("tmm2") _, out("tmm4") _,
            options(nostack, preserves_flags)
        );
    }
}
