//! Cutting the work of one call into chunks. Nothing here changes a result.

use std::ops::Range;

use super::{activations, float};
use crate::packed::quants::GROUP;
use crate::packed::{InputKind, PackedMatrix};

/// A chunk takes at least this long (in nanoseconds, by the estimate), where there is so much to do.
const MIN_CHUNK: usize = 4_000;
/// Chunks for each thread, where there is enough to do.
const CHUNKS_PER_THREAD: usize = 16;
/// Weights that a chunk reads for every panel must stay in the second-level cache.
const MAX_CHUNK_BYTES: usize = 512 * 1024;

/// Quantised activations that a chunk reads for every group must stay there too.
const MAX_INPUT_BYTES: usize = 1 << 20;

/// The estimated nanoseconds for one group of a matrix: by memory bandwidth or by arithmetic.
fn group_cost(weight: &PackedMatrix, rows: usize) -> usize {
    let reading = weight.layout().bytes / 12;
    let per_nanosecond = if weight.input_kind() == InputKind::Float {
        40
    } else {
        160
    };
    let computing = rows * GROUP * weight.cols() / per_nanosecond;
    reading.max(computing).max(1)
}

/// The smallest number of parts of the input, of at most `most`, that stay in the second-level cache from one group to
/// the next.
fn parts_in_cache<'w>(
    rows: usize,
    weights: impl Iterator<Item = &'w PackedMatrix>,
    most: usize,
) -> usize {
    let row_bytes = |weight: &PackedMatrix| match weight.input_kind() {
        InputKind::Float => 0,
        InputKind::Quantized => activations::row_bytes(weight.cols()),
    };
    let bytes = rows * weights.map(row_bytes).max().unwrap_or(0);
    bytes.div_ceil(MAX_INPUT_BYTES).clamp(1, most)
}

/// Into how many parts the input can be split: quantised rows by panels.
fn parts_at_most<'w>(rows: usize, mut weights: impl Iterator<Item = &'w PackedMatrix>) -> usize {
    let is_quantized = weights.any(|weight| weight.input_kind() == InputKind::Quantized);
    let unit = if is_quantized {
        activations::PANEL_ROWS
    } else {
        1
    };
    rows.div_ceil(unit).max(1)
}

/// Part `part` of `parts` nearly equal ones of `0 .. len`.
pub(super) fn share(len: usize, part: usize, parts: usize) -> Range<usize> {
    len * part / parts..len * (part + 1) / parts
}

/// Groups of quantised weights that kernels are best given at once.
const QUANTIZED_AT_ONCE: usize = 2;

/// The most products in one call.
pub const PRODUCTS_MAX: usize = 8;

/// How the work of one call is cut into chunks.
pub(super) struct Plan {
    /// Into how many parts the input's rows are split.
    pub(super) parts: usize,
    pub(super) chunks: usize,
    cuts: [Cut; PRODUCTS_MAX],
}

/// How a matrix is cut into runs of groups.
#[derive(Clone, Copy, Default)]
struct Cut {
    groups: usize,
    /// Groups of a run.
    step: usize,
    /// Runs.
    pieces: usize,
}

/// What one chunk computes.
pub(super) struct Work {
    pub(super) product: usize,
    pub(super) groups: Range<usize>,
    pub(super) part: usize,
}

impl Plan {
    /// For the products of `weights` with `rows` rows of input.
    ///
    /// # Panics
    /// When there are more than [`PRODUCTS_MAX`] of them.
    pub(super) fn new<'w>(
        threads: usize,
        rows: usize,
        weights: impl Iterator<Item = &'w PackedMatrix> + Clone,
    ) -> Self {
        let total: usize = weights
            .clone()
            .map(|weight| weight.groups() * group_cost(weight, rows))
            .sum();
        let target = (total / (threads * CHUNKS_PER_THREAD)).max(MIN_CHUNK);
        let parts_max = parts_at_most(rows, weights.clone());
        let mut parts = parts_in_cache(rows, weights.clone(), parts_max);
        let rows_of_part = rows.div_ceil(parts);
        let mut cuts = [Cut::default(); PRODUCTS_MAX];
        let (mut products, mut pieces) = (0, 0);
        for weight in weights {
            assert!(products < PRODUCTS_MAX, "more than {PRODUCTS_MAX} products");
            cuts[products] = Cut::new(weight, rows_of_part, target, threads);
            pieces += cuts[products].pieces;
            products += 1;
        }
        // Few groups and many rows of input: share out the rows too.
        if threads > 1 {
            let wanted = (total / MIN_CHUNK).min(threads * 4);
            parts = parts.max(wanted.div_ceil(pieces.max(1)).clamp(1, parts_max));
        }
        Self {
            parts,
            chunks: pieces * parts,
            cuts,
        }
    }

    /// The work of a chunk; `None` when there is no such chunk.
    pub(super) fn chunk(&self, chunk: usize) -> Option<Work> {
        let (mut piece, part) = (chunk / self.parts, chunk % self.parts);
        for (product, cut) in self.cuts.iter().enumerate() {
            if piece < cut.pieces {
                let groups = piece * cut.step..((piece + 1) * cut.step).min(cut.groups);
                return Some(Work {
                    product,
                    groups,
                    part,
                });
            }
            piece -= cut.pieces;
        }
        None
    }
}

impl Cut {
    /// As many runs of groups as take about the wanted time each, but as many for each thread as for the others:
    /// a thread that has one more than the rest keeps them waiting.
    fn new(weight: &PackedMatrix, rows: usize, target: usize, threads: usize) -> Self {
        let groups = weight.groups().max(1);
        let by_time = groups * group_cost(weight, rows) / target;
        let by_size = (groups * weight.layout().bytes).div_ceil(MAX_CHUNK_BYTES);
        let pieces = by_time.max(by_size).next_multiple_of(threads);
        let at_once = match weight.input_kind() {
            InputKind::Float => float::groups_at_once(rows),
            InputKind::Quantized => QUANTIZED_AT_ONCE,
        };
        // Not so many at once that a thread would be left without any.
        let fair = groups.div_ceil(threads);
        let step = groups
            .div_ceil(pieces.max(1))
            .next_multiple_of(at_once)
            .min(fair);
        Self {
            groups: weight.groups(),
            step,
            pieces: weight.groups().div_ceil(step),
        }
    }
}
