//! Activations quantised to eight bits, in the layout the kernels read.
//!
//! Rows are held in panels of at most [`PANEL_ROWS`], which are what a kernel multiplies at a time. A panel
//! holds, for each block of 32 columns in turn, the 32 bytes of every row, then one vector of 32-bit
//! numbers (one for each row) for each [`Plane`]. All that a kernel needs for a block is in one place,
//! and a row's neighbours change where its numbers lie but not what they are.

use std::ops::Range;

use crate::buffer::{Buffer, OutOfMemory};
use crate::formats::SUB_BLOCK;
use crate::fpenv;
use crate::isa::Isa;
use crate::lanes::{LaneKernel, Lanes, dispatch};
use crate::pool::Pool;
#[cfg(target_arch = "x86_64")]
use crate::prefetch;

/// Rows a kernel multiplies at a time, at most.
pub(crate) const PANEL_ROWS: usize = 16;

/// The numbers that are kept of each row and block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plane {
    /// The scale, `amax / 127` (f32).
    Scale,
    /// The scaled sum, `f32(Σq) · scale` (f32).
    ScaledSum,
    /// `−8 · Σq` (i32), which takes a bias of 8 off unsigned weights; and so on.
    Bias8,
    /// `−16 · Σq`
    Bias16,
    /// `−128 · Σq`
    Bias128,
    /// `−32 · Σq` of columns 0 to 15.
    Bias32Low,
    /// `−32 · Σq` of columns 16 to 31.
    Bias32High,
}

const PLANES: usize = Plane::Bias32High as usize + 1;

/// Bytes of one row and block.
const ROW_BLOCK_BYTES: usize = SUB_BLOCK + 4 * PLANES;

/// Below this magnitude a block counts as zero (2⁻¹⁰⁰), so that its scale is never a denormal number.
const TINY: f32 = f32::from_bits((127 - 100) << 23);

/// 1.5 · 2²³: added to a number below 2²² it leaves the nearest integer (ties to even) in the low bits.
const ROUNDER: f32 = 12_582_912.0;

/// Elements that one chunk of work quantises, about ten microseconds.
const CHUNK_ELEMENTS: usize = 16 * 1024;

/// Rows of activations quantised to eight bits, in blocks of 32 with an f32 scale.
///
/// Of a block with largest magnitude `amax`: all zeros if `amax` < 2⁻¹⁰⁰, else `q = x · (127 / amax)`
/// rounded to nearest even, scale `amax / 127`. A block with a value that is not finite gets a scale
/// that is not finite, so that it can't pass unseen.
#[derive(Debug)]
pub struct QuantizedRows {
    /// As 32-bit words, in the order of the module's description.
    words: Buffer<u32>,
    /// A panel of activations for each thread.
    scratch: Buffer<f32>,
    rows: usize,
    cols: usize,
}

/// Up to [`PANEL_ROWS`] rows of a [`QuantizedRows`].
#[derive(Clone, Copy)]
pub(crate) struct Panel {
    /// The first block; aligned to 4.
    start: *const u8,
    /// The number of the first row.
    pub(crate) first_row: usize,
    /// How many rows.
    pub(crate) rows: usize,
}

/// One block of a panel.
#[derive(Clone, Copy)]
pub(crate) struct PanelBlock {
    /// The first row's 32 bytes.
    quants: *const u8,
    /// The first row's number in plane 0.
    planes: *const u8,
    /// Bytes from one plane to the next.
    plane_bytes: usize,
}

impl Panel {
    /// Block `block`.
    ///
    /// # Safety
    /// The rows it came from must be alive and have more than `block` blocks.
    #[inline(always)]
    pub(crate) unsafe fn block(&self, block: usize) -> PanelBlock {
        // SAFETY: the caller vouches that the block exists.
        unsafe {
            let quants = self.start.add(block * self.rows * ROW_BLOCK_BYTES);
            PanelBlock {
                quants,
                planes: quants.add(self.rows * SUB_BLOCK),
                plane_bytes: 4 * self.rows,
            }
        }
    }
}

impl PanelBlock {
    /// Fetches what a full panel's block holds of quants, scales and scaled sums.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(super) fn prefetch(&self) {
        for line in 0..(PANEL_ROWS * SUB_BLOCK / 64 + 2) {
            prefetch::near(self.quants.wrapping_add(64 * line));
        }
    }

    /// The number of row `row` in an f32 plane.
    ///
    /// # Safety
    /// The row must exist.
    #[inline(always)]
    pub(crate) unsafe fn float(&self, plane: Plane, row: usize) -> f32 {
        // SAFETY: the caller vouches for the row; planes are aligned to 4.
        unsafe { *self.plane(plane, row).cast() }
    }

    /// The number of row `row` in an i32 plane.
    ///
    /// # Safety
    /// The row must exist.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(crate) unsafe fn int(&self, plane: Plane, row: usize) -> i32 {
        // SAFETY: the caller vouches for the row; planes are aligned to 4.
        unsafe { *self.plane(plane, row).cast() }
    }

    /// The 32 bytes of row `row`.
    ///
    /// # Safety
    /// The row must exist, and live as long as the reference.
    #[inline(always)]
    pub(crate) unsafe fn row<'a>(&self, row: usize) -> &'a [i8; SUB_BLOCK] {
        // SAFETY: the caller vouches for the row.
        unsafe { &*self.quants.add(row * SUB_BLOCK).cast() }
    }

    /// Columns `4j .. 4j + 4` of row `row`, as one little-endian word.
    ///
    /// # Safety
    /// The row must exist and `j` be below 8.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(crate) unsafe fn four(&self, row: usize, j: usize) -> i32 {
        // SAFETY: the caller vouches for the row; rows' bytes are aligned to 4.
        unsafe { *self.quants.add(row * SUB_BLOCK + 4 * j).cast() }
    }

    /// # Safety
    /// The row must exist.
    #[inline(always)]
    unsafe fn plane(&self, plane: Plane, row: usize) -> *const u8 {
        // SAFETY: the caller vouches for the row.
        unsafe { self.planes.add(plane as usize * self.plane_bytes + 4 * row) }
    }
}

/// Bytes of one row of `cols` activations.
pub(super) fn row_bytes(cols: usize) -> usize {
    cols / SUB_BLOCK * ROW_BLOCK_BYTES
}

impl QuantizedRows {
    /// Room for `max_rows` rows of `max_cols` columns.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn with_capacity(max_rows: usize, max_cols: usize) -> Result<Self, OutOfMemory> {
        Self::with_threads(max_rows, max_cols, 0)
    }

    /// The same, with room for [`Self::quantize_with`] on `threads` threads.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn with_threads(
        max_rows: usize,
        max_cols: usize,
        threads: usize,
    ) -> Result<Self, OutOfMemory> {
        let row_words = max_cols
            .div_ceil(SUB_BLOCK)
            .saturating_mul(ROW_BLOCK_BYTES / 4);
        let panel = max_cols
            .div_ceil(SUB_BLOCK)
            .saturating_mul(PANEL_ROWS * SUB_BLOCK);
        Ok(Self {
            words: Buffer::zeroed(max_rows.saturating_mul(row_words))?,
            scratch: Buffer::zeroed(threads.saturating_mul(panel))?,
            rows: 0,
            cols: 0,
        })
    }

    /// Rows it holds.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of each row.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Replaces the contents by `rows` × `cols` activations, row by row in `x`.
    ///
    /// # Panics
    /// When `cols` is not a multiple of 32, `x` has another size, or there is no room.
    pub fn quantize(&mut self, isa: Isa, pool: &Pool, x: &[f32], rows: usize, cols: usize) {
        assert_eq!(x.len(), rows * cols, "{rows} rows of {cols} activations");
        let blocks = self.resize(rows, cols);
        if x.is_empty() {
            return;
        }
        // A panel is contiguous, here and there, so it is cut as little as will keep all threads busy.
        let panel_rows = rows.min(PANEL_ROWS);
        let blocks_per_chunk = (CHUNK_ELEMENTS / (panel_rows * SUB_BLOCK)).clamp(1, blocks);
        let parts = blocks.div_ceil(blocks_per_chunk);
        let _guard = fpenv::Guard::new();
        let words = Shared(self.words.base());
        let this = &*self;
        let job = |chunk: usize, _worker: usize| {
            let (panel, part) = (this.panel(chunk / parts), chunk % parts);
            let x = &x[panel.first_row * cols..][..panel.rows * cols];
            let range = part * blocks_per_chunk..((part + 1) * blocks_per_chunk).min(blocks);
            // SAFETY: every block of a panel is written by one chunk only.
            unsafe { this.quantize_panel(isa, words.get(), panel, x, range) };
        };
        let chunks = this.panels() * parts;
        if chunks == 1 {
            job(0, 0);
        } else {
            pool.run(chunks, &job);
        }
    }

    /// Replaces the contents by `rows` × `cols` activations that `fill(row, values)` makes, sixteen rows at a
    /// time, so that they go from one step of the arithmetic to the next in the cache.
    ///
    /// # Panics
    /// When `cols` is not a multiple of 32, there is no room, or the pool has more threads than were said.
    pub fn quantize_with(
        &mut self,
        isa: Isa,
        pool: &Pool,
        (rows, cols): (usize, usize),
        fill: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) {
        let blocks = self.resize(rows, cols);
        if rows * cols == 0 {
            return;
        }
        let scratch_len = PANEL_ROWS * cols;
        assert!(
            pool.threads() * scratch_len <= self.scratch.len(),
            "no room for {} threads",
            pool.threads()
        );
        let _guard = fpenv::Guard::new();
        let words = Shared(self.words.base());
        let scratch = Shared(self.scratch.base());
        let this = &*self;
        let job = |chunk: usize, worker: usize| {
            let panel = this.panel(chunk);
            // SAFETY: each worker has a stretch of its own, which is long enough as just checked.
            let x = unsafe {
                let start = scratch.get().add(worker * scratch_len);
                std::slice::from_raw_parts_mut(start, panel.rows * cols)
            };
            for (row, values) in (panel.first_row..).zip(x.chunks_exact_mut(cols)) {
                fill(row, values);
            }
            // SAFETY: every panel is written by one chunk only.
            unsafe { this.quantize_panel(isa, words.get(), panel, x, 0..blocks) };
        };
        if this.panels() == 1 {
            job(0, 0);
        } else {
            pool.run(this.panels(), &job);
        }
    }

    /// Makes room; gives the blocks of a row.
    fn resize(&mut self, rows: usize, cols: usize) -> usize {
        assert!(
            cols.is_multiple_of(SUB_BLOCK),
            "{cols} columns are not a multiple of 32"
        );
        let blocks = cols / SUB_BLOCK;
        assert!(
            rows * blocks * (ROW_BLOCK_BYTES / 4) <= self.words.len(),
            "no room for {rows} rows of {cols} activations"
        );
        (self.rows, self.cols) = (rows, cols);
        blocks
    }

    /// Quantises blocks `range` of the rows of `panel`, given in `x`.
    ///
    /// # Safety
    /// `words` must be those of `self`, and nobody else may use the blocks.
    unsafe fn quantize_panel(
        &self,
        isa: Isa,
        words: *mut u32,
        panel: Panel,
        x: &[f32],
        range: Range<usize>,
    ) {
        let row_words = self.cols / SUB_BLOCK * ROW_BLOCK_BYTES / 4;
        dispatch(
            isa,
            QuantizePanel {
                x,
                // SAFETY: it is the panel's place in `words`.
                dst: unsafe { words.add(panel.first_row * row_words) },
                rows: panel.rows,
                cols: self.cols,
                first: range.start,
                end: range.end,
            },
        );
    }

    /// How many panels there are.
    pub(crate) fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL_ROWS).max(1)
    }

    /// Panel `index`.
    pub(crate) fn panel(&self, index: usize) -> Panel {
        let first_row = index * PANEL_ROWS;
        let words = first_row * (self.cols / SUB_BLOCK) * (ROW_BLOCK_BYTES / 4);
        assert!(words <= self.words.len(), "there is no panel {index}");
        Panel {
            // Not by way of a slice: other threads may be writing to later panels.
            start: self.words.base().wrapping_add(words).cast_const().cast(),
            first_row,
            rows: (self.rows - first_row).min(PANEL_ROWS),
        }
    }
}

/// A pointer that the chunks of one job share.
struct Shared<T>(*mut T);
// SAFETY: each chunk writes to places of its own.
unsafe impl<T> Sync for Shared<T> {}
impl<T> Shared<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

/// Quantises blocks `first .. end` of the rows of one panel.
struct QuantizePanel<'a> {
    x: &'a [f32],
    dst: *mut u32,
    rows: usize,
    cols: usize,
    first: usize,
    end: usize,
}

impl LaneKernel for QuantizePanel<'_> {
    type Output = ();

    /// The same on every instruction set: each operation is exact or rounded once.
    #[inline(always)]
    fn run<V: Lanes>(self) {
        // As many blocks at once as give a number for each lane.
        let at_once = (PANEL_ROWS / self.rows).max(1);
        for first in (self.first..self.end).step_by(at_once) {
            self.blocks::<V>(first..(first + at_once).min(self.end));
        }
    }
}

impl QuantizePanel<'_> {
    /// Quantises some blocks of the panel's rows, sixteen of one row at most: of every row the first, then of
    /// every row the next.
    #[inline(always)]
    fn blocks<V: Lanes>(&self, blocks: Range<usize>) {
        let rows = self.rows;
        let mut amax = [0.0; PANEL_ROWS];
        for (amax, block) in amax.chunks_mut(rows).zip(blocks.clone()) {
            for (row, amax) in amax.iter_mut().enumerate().take(rows) {
                *amax = largest_magnitude(self.x(row, block));
            }
        }
        let factors = Factors::of(&amax);
        let mut sums = [[0.0; PANEL_ROWS]; 2];
        for (i, block) in blocks.clone().enumerate() {
            for row in 0..rows {
                let lane = i * rows + row;
                let (quants, [low, high]) = quantize::<V>(self.x(row, block), factors.id[lane]);
                (sums[0][lane], sums[1][lane]) = (low, high);
                // SAFETY: the block has a place for each row, and no one else writes there.
                unsafe {
                    self.dst(block)
                        .add(row * SUB_BLOCK / 4)
                        .cast::<[i8; SUB_BLOCK]>()
                        .write(quants);
                }
            }
        }
        let planes = planes(&factors, &sums);
        for (i, block) in blocks.enumerate() {
            for (plane, words) in planes.iter().enumerate() {
                // SAFETY: as above, in each plane.
                unsafe {
                    let dst = self.dst(block).add(rows * (SUB_BLOCK / 4 + plane));
                    if rows == PANEL_ROWS {
                        dst.cast::<[u32; PANEL_ROWS]>().write(*words);
                    } else {
                        for (row, &word) in words[i * rows..][..rows].iter().enumerate() {
                            dst.add(row).write(word);
                        }
                    }
                }
            }
        }
    }

    /// One block of one row.
    #[inline(always)]
    fn x(&self, row: usize, block: usize) -> &[f32; SUB_BLOCK] {
        let (x, _) = self.x[row * self.cols + block * SUB_BLOCK..]
            .split_first_chunk()
            .expect("a whole block");
        x
    }

    /// Where block `block` goes.
    ///
    /// # Safety
    /// The panel must have that many blocks.
    #[inline(always)]
    unsafe fn dst(&self, block: usize) -> *mut u32 {
        // SAFETY: as the caller vouches.
        unsafe { self.dst.add(block * self.rows * ROW_BLOCK_BYTES / 4) }
    }
}

/// What the rows of a block are multiplied with, for all rows of a panel.
struct Factors {
    /// `127 / amax`, or zero.
    id: [f32; PANEL_ROWS],
    /// `amax / 127`, or zero.
    scale: [f32; PANEL_ROWS],
}

impl Factors {
    #[inline(always)]
    fn of(amax: &[f32; PANEL_ROWS]) -> Self {
        let (mut id, mut scale) = ([0.0; PANEL_ROWS], [0.0; PANEL_ROWS]);
        for row in 0..PANEL_ROWS {
            let amax = amax[row];
            // Not a number is no reason for zeros: its block's scale must tell.
            let tiny = amax < TINY;
            id[row] = if tiny { 0.0 } else { 127.0 / amax };
            scale[row] = if tiny { 0.0 } else { amax / 127.0 };
        }
        Self { id, scale }
    }
}

/// The planes of all rows of a panel.
#[inline(always)]
fn planes(factors: &Factors, sums: &[[f32; PANEL_ROWS]; 2]) -> [[u32; PANEL_ROWS]; PLANES] {
    let mut planes = [[0; PANEL_ROWS]; PLANES];
    for row in 0..PANEL_ROWS {
        let [low, high] = [sums[0][row], sums[1][row]]
            .map(|sum| (sum + ROUNDER).to_bits() as i32 - ROUNDER.to_bits() as i32);
        let sum = low + high;
        let scale = factors.scale[row];
        planes[Plane::Scale as usize][row] = scale.to_bits();
        planes[Plane::ScaledSum as usize][row] = (sum as f32 * scale).to_bits();
        planes[Plane::Bias8 as usize][row] = (-8 * sum) as u32;
        planes[Plane::Bias16 as usize][row] = (-16 * sum) as u32;
        planes[Plane::Bias128 as usize][row] = (-128 * sum) as u32;
        planes[Plane::Bias32Low as usize][row] = (-32 * low) as u32;
        planes[Plane::Bias32High as usize][row] = (-32 * high) as u32;
    }
    planes
}

/// Half of a block: loops over sixteen elements become vector instructions on every instruction set.
const HALF: usize = SUB_BLOCK / 2;

/// The quants of one block, and the sums of its halves.
#[inline(always)]
fn quantize<V: Lanes>(x: &[f32; SUB_BLOCK], id: f32) -> ([i8; SUB_BLOCK], [f32; 2]) {
    let mut quants = [0; SUB_BLOCK];
    let mut sums = [0.0; 2];
    for half in 0..2 {
        let (x, _) = x[HALF * half..].split_first_chunk().expect("half a block");
        // What isn't a number becomes a bound too; its block's scale tells.
        let scaled = V::load(x)
            .mul(V::splat(id))
            .min(V::splat(127.0))
            .max(V::splat(-127.0));
        let shifted = scaled.add(V::splat(ROUNDER));
        for (quant, shifted) in quants[HALF * half..].iter_mut().zip(shifted.to_array()) {
            *quant = shifted.to_bits() as i8;
        }
        // Whole numbers this small are summed exactly, in any order.
        sums[half] = shifted.sub(V::splat(ROUNDER)).sum();
    }
    (quants, sums)
}

/// The largest magnitude; not finite if any value is not.
#[inline(always)]
fn largest_magnitude(x: &[f32; SUB_BLOCK]) -> f32 {
    // The bits of magnitudes are ordered as the magnitudes are, with what isn't a number on top.
    let mut largest = [0; HALF];
    for (i, largest) in largest.iter_mut().enumerate() {
        let [a, b] = [x[i], x[i + HALF]].map(|x| x.to_bits() & 0x7fff_ffff);
        *largest = a.max(b) as i32;
    }
    f32::from_bits(fold(largest, i32::max) as u32)
}

/// Combines sixteen integers by halving, which exact operations allow.
#[inline(always)]
fn fold(mut x: [i32; HALF], combine: impl Fn(i32, i32) -> i32) -> i32 {
    let mut len = HALF / 2;
    while len > 0 {
        for i in 0..len {
            x[i] = combine(x[i], x[i + len]);
        }
        len /= 2;
    }
    x[0]
}
