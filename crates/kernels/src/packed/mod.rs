//! Weights packed once for every kernel: rows interleaved in groups of sixteen.
//!
//! A group of a quantised format holds, one after the other: the quants of every sub-block of 32 columns
//! (see [`quants`]), the f16 factors of every block, the small integer scales of every sub-block. A group
//! of a floating-point format holds sixteen values per column. The last group is padded with zeros.

pub(crate) mod quants;
pub(crate) mod scales;
mod storage;

use std::ops::Range;
use std::sync::Mutex;

use crate::formats::{
    Float, Format, Quantized, SUB_BLOCK, SubBlock, Visitor, sub_block_values, u16_at, widen_f16,
};
use crate::pool::Pool;
use crate::prefetch;
use quants::{GROUP, Quants};
use scales::{FACTOR_BYTES, Scales};
use storage::Storage;

/// Bytes of the file that one chunk of packing work reads, at least.
const CHUNK_BYTES: usize = 1 << 20;

/// Bytes to which a group is padded.
const PADDING: usize = 64;
/// How far ahead of the packing the file is fetched, in bytes: beyond the page of memory that the CPU itself
/// looks ahead in.
const AHEAD: usize = 4096;

/// What a matrix is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputKind {
    /// Rows of f32.
    Float,
    /// Rows quantised to eight bits.
    Quantized,
}

/// Why a tensor could not be packed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// The columns are not whole blocks.
    #[error("{cols} columns are not a multiple of the {block_len} values of a {format} block")]
    Columns {
        /// Columns asked for.
        cols: usize,
        /// Values per block.
        block_len: usize,
        /// The format's name.
        format: &'static str,
    },
    /// The bytes are not those of the shape.
    #[error("{rows} rows of {cols} {format} values take {expected} bytes, not {actual}")]
    Size {
        /// Rows asked for.
        rows: usize,
        /// Columns asked for.
        cols: usize,
        /// The format's name.
        format: &'static str,
        /// Bytes the shape takes.
        expected: u128,
        /// Bytes given.
        actual: usize,
    },
    /// A value or a scale is infinite or not a number.
    #[error(
        "the {format} block {block} of row {row} has a scale or value that is not finite ({value}); \
         the file is damaged or was made from a diverged model"
    )]
    NotFinite {
        /// The format's name.
        format: &'static str,
        /// Row of the block.
        row: usize,
        /// Block within the row.
        block: usize,
        /// The value, as text.
        value: String,
    },
    /// There is no memory for the packed form.
    #[error("no memory for {bytes} bytes of packed weights; free some, or take a smaller model")]
    Memory {
        /// Bytes asked for.
        bytes: u128,
    },
}

/// Where things are in a packed group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupLayout {
    /// Offset of the f16 factors.
    pub(crate) factors: usize,
    /// Offset of the small integer scales.
    pub(crate) small: usize,
    /// Bytes from one group to the next.
    pub(crate) bytes: usize,
}

/// A matrix of weights in packed form.
///
/// Resident size is that of the file, plus at most 3 % for formats with 6-bit scales, plus the padding
/// of the last group of rows.
#[derive(Debug)]
pub struct PackedMatrix {
    format: Format,
    rows: usize,
    cols: usize,
    layout: GroupLayout,
    storage: Storage,
}

impl PackedMatrix {
    /// Packs `rows` × `cols` weights of `format`, given the tensor's bytes as in the file.
    ///
    /// All threads of `pool` take part. `done` is called with a range of bytes of `src` once those have
    /// been read for the last time, in no particular order, from any thread; the ranges are disjoint and
    /// cover `src` unless there is an error.
    ///
    /// # Errors
    /// When the columns are not whole blocks, `src` has another size, a value or a scale is not finite
    /// (the first such block is named), or there is no memory.
    pub fn pack(
        format: Format,
        rows: usize,
        cols: usize,
        src: &[u8],
        pool: &Pool,
        done: &(dyn Fn(Range<usize>) + Sync),
    ) -> Result<Self, PackError> {
        if !cols.is_multiple_of(format.block_len()) {
            return Err(PackError::Columns {
                cols,
                block_len: format.block_len(),
                format: format.name(),
            });
        }
        let row_bytes = (cols / format.block_len()) as u128 * format.block_bytes() as u128;
        let expected = row_bytes.saturating_mul(rows as u128);
        if src.len() as u128 != expected {
            return Err(PackError::Size {
                rows,
                cols,
                format: format.name(),
                expected,
                actual: src.len(),
            });
        }
        // A matrix without rows may claim any number of columns.
        let cols_held = if rows == 0 { 0 } else { cols };
        let layout = format.visit(LayoutOf { cols: cols_held });
        let groups = rows.div_ceil(GROUP);
        let bytes = layout.bytes as u128 * groups as u128;
        let storage = usize::try_from(bytes)
            .ok()
            .and_then(Storage::uninitialised)
            .ok_or(PackError::Memory { bytes })?;
        let packed = Self {
            format,
            rows,
            cols,
            layout,
            storage,
        };
        format.visit(PackAll {
            packed: &packed,
            src,
            pool,
            done,
        })?;
        Ok(packed)
    }

    /// The format of the weights.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Rows, which are the outputs of a product.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns, which are the inputs of a product.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Resident bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.storage.len()
    }

    /// What [`crate::matmul::matmul`] takes as input for this matrix.
    #[must_use]
    pub fn input_kind(&self) -> InputKind {
        if self.format.is_float() {
            InputKind::Float
        } else {
            InputKind::Quantized
        }
    }

    /// The values of one row, the same bits as [`Format::dequantize`] gives.
    ///
    /// # Panics
    /// When `row` is not below `rows` or `out` is not `cols` long.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(out.len(), self.cols, "a row has {} columns", self.cols);
        self.format.visit(Row {
            layout: self.layout,
            group: self.group_bytes(row / GROUP),
            lane: row % GROUP,
            out,
        });
    }

    /// Groups of sixteen rows.
    pub(crate) fn groups(&self) -> usize {
        self.rows.div_ceil(GROUP)
    }

    /// Where things are in a group.
    pub(crate) fn layout(&self) -> GroupLayout {
        self.layout
    }

    /// The first byte of a group; aligned to 64.
    pub(crate) fn group(&self, group: usize) -> *const u8 {
        assert!(group < self.groups());
        // SAFETY: the storage holds `groups` groups.
        unsafe { self.storage.as_ptr().add(group * self.layout.bytes) }
    }

    fn group_bytes(&self, group: usize) -> &[u8] {
        // SAFETY: the group lies within the storage, and all of it was written when packing.
        unsafe { std::slice::from_raw_parts(self.group(group), self.layout.bytes) }
    }
}

struct LayoutOf {
    cols: usize,
}

impl Visitor for LayoutOf {
    type Output = GroupLayout;

    fn float<F: Float>(self) -> GroupLayout {
        let end = self.cols * F::BLOCK_BYTES * GROUP;
        GroupLayout {
            factors: end,
            small: end,
            bytes: end.next_multiple_of(PADDING),
        }
    }

    fn quantized<F: Quantized>(self) -> GroupLayout {
        let factors = self.cols / SUB_BLOCK * F::Quants::BYTES;
        let small = factors + self.cols / F::BLOCK_LEN * F::Scales::FACTORS * FACTOR_BYTES;
        let end = small + self.cols / SUB_BLOCK * F::Scales::SMALL * GROUP;
        GroupLayout {
            factors,
            small,
            bytes: end.next_multiple_of(PADDING),
        }
    }
}

struct PackAll<'a> {
    packed: &'a PackedMatrix,
    src: &'a [u8],
    pool: &'a Pool,
    done: &'a (dyn Fn(Range<usize>) + Sync),
}

/// A place of a value that is not finite: (row, block, value), compared in that order.
type Bad = (usize, usize, f32);

impl PackAll<'_> {
    /// Packs all groups with `pack(rows' bytes, first row, group)`.
    fn run(
        self,
        pack: impl Fn(&[u8], usize, &mut [u8]) -> Result<(), Bad> + Sync,
    ) -> Result<(), PackError> {
        let PackedMatrix {
            rows,
            layout,
            format,
            ..
        } = *self.packed;
        if self.src.is_empty() {
            return Ok(());
        }
        let row_bytes = self.src.len() / rows;
        let groups_per_chunk = (CHUNK_BYTES / (row_bytes * GROUP)).max(1);
        let groups = self.packed.groups();
        let first_bad = Mutex::new(None::<Bad>);
        self.pool.run(
            groups.div_ceil(groups_per_chunk),
            &|chunk: usize, _worker: usize| {
                let first = chunk * groups_per_chunk;
                let end = (first + groups_per_chunk).min(groups);
                for group in first..end {
                    let rows = group * GROUP..((group + 1) * GROUP).min(rows);
                    // SAFETY: each group is packed by one chunk only, and nobody reads it before the end.
                    let dst = unsafe {
                        let start = self.packed.group(group).cast_mut();
                        // A whole group writes all of its bytes but the padding behind them.
                        let kept = match rows.len() == GROUP {
                            true => layout.bytes.saturating_sub(PADDING),
                            false => 0,
                        };
                        start.add(kept).write_bytes(0, layout.bytes - kept);
                        std::slice::from_raw_parts_mut(start, layout.bytes)
                    };
                    let src = &self.src[rows.start * row_bytes..rows.end * row_bytes];
                    if let Err(bad) = pack(src, rows.start, dst) {
                        let mut first = first_bad.lock().unwrap_or_else(|e| e.into_inner());
                        if first.is_none_or(|first| (bad.0, bad.1) < (first.0, first.1)) {
                            *first = Some(bad);
                        }
                    }
                }
                let end_row = (end * GROUP).min(rows);
                (self.done)(first * GROUP * row_bytes..end_row * row_bytes);
            },
        );
        match first_bad.into_inner().unwrap_or_else(|e| e.into_inner()) {
            None => Ok(()),
            Some((row, block, value)) => Err(PackError::NotFinite {
                format: format.name(),
                row,
                block,
                value: value.to_string(),
            }),
        }
    }
}

impl Visitor for PackAll<'_> {
    type Output = Result<(), PackError>;

    fn float<F: Float>(self) -> Self::Output {
        let cols = self.packed.cols;
        self.run(|src, first_row, dst| pack_floats::<F>(src, first_row, cols, dst))
    }

    fn quantized<F: Quantized>(self) -> Self::Output {
        let layout = self.packed.layout;
        let blocks = self.packed.cols / F::BLOCK_LEN;
        self.run(|src, first_row, dst| pack_blocks::<F>(src, first_row, blocks, layout, dst))
    }
}

fn pack_floats<F: Float>(
    src: &[u8],
    first_row: usize,
    cols: usize,
    dst: &mut [u8],
) -> Result<(), Bad> {
    let size = F::BLOCK_BYTES;
    let mut bad = None;
    // Sixteen columns at a time, so that the lines written to stay in the first-level cache.
    for first_col in (0..cols).step_by(GROUP) {
        let end_col = (first_col + GROUP).min(cols);
        for (lane, row) in src.chunks_exact(cols * size).enumerate() {
            for col in first_col..end_col {
                let value = &row[col * size..(col + 1) * size];
                if !F::is_finite(value) {
                    let here = (first_row + lane, col, F::widen(value));
                    if bad.is_none_or(|bad: Bad| (here.0, here.1) < (bad.0, bad.1)) {
                        bad = Some(here);
                    }
                }
                let at = (col * GROUP + lane) * size;
                dst[at..at + size].copy_from_slice(value);
            }
        }
    }
    bad.map_or(Ok(()), Err)
}

fn pack_blocks<F: Quantized>(
    src: &[u8],
    first_row: usize,
    blocks: usize,
    layout: GroupLayout,
    dst: &mut [u8],
) -> Result<(), Bad> {
    let (quants, rest) = dst.split_at_mut(layout.factors);
    let (factors, small) = rest.split_at_mut(layout.small - layout.factors);
    for (lane, row) in src.chunks_exact(blocks * F::BLOCK_BYTES).enumerate() {
        for (b, block) in row.chunks_exact(F::BLOCK_BYTES).enumerate() {
            for line in (0..F::BLOCK_BYTES).step_by(prefetch::LINE) {
                prefetch::second_level(block.as_ptr().wrapping_add(AHEAD + line));
            }
            for (i, &factor) in F::factors(block)[..F::Scales::FACTORS].iter().enumerate() {
                if factor & 0x7c00 == 0x7c00 {
                    return Err((first_row + lane, b, widen_f16(factor)));
                }
                let at = (b * F::Scales::FACTORS + i) * FACTOR_BYTES + 2 * lane;
                factors[at..at + 2].copy_from_slice(&factor.to_le_bytes());
            }
            for sub in 0..F::SUB_BLOCKS {
                let number = b * F::SUB_BLOCKS + sub;
                let decoded = F::sub_block(block, sub);
                let place = &mut quants[number * F::Quants::BYTES..][..F::Quants::BYTES];
                F::Quants::pack(place, lane, &decoded.quants);
                for (i, &scale) in decoded.scales[..F::Scales::SMALL].iter().enumerate() {
                    small[(number * F::Scales::SMALL + i) * GROUP + lane] = scale;
                }
            }
        }
    }
    Ok(())
}

struct Row<'a> {
    layout: GroupLayout,
    group: &'a [u8],
    lane: usize,
    out: &'a mut [f32],
}

impl Visitor for Row<'_> {
    type Output = ();

    fn float<F: Float>(self) {
        let size = F::BLOCK_BYTES;
        for (k, value) in self.out.iter_mut().enumerate() {
            let at = (k * GROUP + self.lane) * size;
            *value = F::widen(&self.group[at..at + size]);
        }
    }

    fn quantized<F: Quantized>(self) {
        let (quants, rest) = self.group.split_at(self.layout.factors);
        let (factors, small) = rest.split_at(self.layout.small - self.layout.factors);
        for (number, values) in self.out.chunks_exact_mut(SUB_BLOCK).enumerate() {
            let mut block_factors = [0.0; 2];
            for (i, factor) in block_factors[..F::Scales::FACTORS].iter_mut().enumerate() {
                let index = number / F::SUB_BLOCKS * F::Scales::FACTORS + i;
                *factor = widen_f16(u16_at(factors, index * FACTOR_BYTES + 2 * self.lane));
            }
            let mut scales = [0; 2];
            for (i, scale) in scales[..F::Scales::SMALL].iter_mut().enumerate() {
                *scale = small[(number * F::Scales::SMALL + i) * GROUP + self.lane];
            }
            let place = &quants[number * F::Quants::BYTES..][..F::Quants::BYTES];
            let sub = SubBlock {
                quants: F::Quants::unpack(place, self.lane),
                scales,
            };
            sub_block_values::<F>(block_factors, &sub, values);
        }
    }
}
