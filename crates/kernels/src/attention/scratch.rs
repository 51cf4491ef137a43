//! Memory that attention works in, allocated once.

use super::plan::Tile;
use super::tile::TILE_VECTORS;
use super::{AttentionError, SHARED_MULTIPLY_ADDS, SPLIT_POSITIONS};
use crate::lanes::LANES;
use crate::pages::{KvShape, PAGE_POSITIONS, ZeroedBytes};

/// The most register tiles in one task.
pub(super) const TASK_TILES: usize = 22;

/// The most query vectors (rows × heads) in one task.
pub(super) const TASK_VECTORS: usize = TASK_TILES * TILE_VECTORS;

/// Rows for which the splits of a long context can be shared out over threads.
const SPLIT_ROWS: usize = 32;

/// What one call of attention may ask for at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionLimits {
    /// Query rows, of all sequences together.
    pub rows: usize,
    /// Query heads.
    pub heads: usize,
    /// Dimensions of a query head.
    pub head_dim: usize,
    /// Dimensions of an output head.
    pub value_dim: usize,
    /// Positions of a sequence.
    pub context: usize,
    /// Threads of the pool.
    pub threads: usize,
}

/// Where a worker's parts begin, in floats; each a multiple of sixteen.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) acc: usize,
    pub(super) merged: usize,
    pub(super) keys: usize,
    pub(super) values: usize,
}

impl Layout {
    /// `None` where the sizes overflow.
    pub(super) fn new(head_dim: usize, value_dim: usize) -> Option<Self> {
        let stride = value_dim.checked_next_multiple_of(LANES)?;
        let acc = TASK_VECTORS.checked_mul(stride)?;
        Some(Self {
            acc,
            merged: acc,
            keys: head_dim.checked_mul(PAGE_POSITIONS)?,
            values: stride.checked_mul(PAGE_POSITIONS)?,
        })
    }

    /// The number of floats in all, with a page between one worker and the next.
    fn floats(&self) -> Option<usize> {
        [self.acc, self.merged, self.keys, self.values]
            .into_iter()
            .try_fold(1024, usize::checked_add)
    }
}

/// The number of floats of a partial result: its sums of values, then its maximum and sum.
pub(super) fn partial_floats(value_dim: usize) -> usize {
    value_dim.next_multiple_of(LANES) + LANES
}

/// Memory that [`attention`](super::attention) works in, allocated once so that no call allocates.
pub struct AttentionScratch {
    pub(super) limits: AttentionLimits,
    pub(super) worker_floats: usize,
    pub(super) workers: ZeroedBytes,
    /// Partial results, `[slot][partial_floats]`.
    pub(super) partials: ZeroedBytes,
    pub(super) tiles: Vec<Tile>,
    /// Calls with fewer multiply-adds are done by the calling thread alone.
    pub(super) shared_from: usize,
}

impl std::fmt::Debug for AttentionScratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AttentionScratch")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl AttentionScratch {
    /// Allocates what calls within `limits` need.
    ///
    /// # Errors
    /// [`AttentionError::Memory`] when the memory cannot be had.
    pub fn new(limits: AttentionLimits) -> Result<Self, AttentionError> {
        let failed = |bytes| AttentionError::Memory { bytes, limits };
        let (worker_floats, workers_bytes, partials_bytes) =
            sizes(&limits).ok_or_else(|| failed(usize::MAX))?;
        let zeroed = |bytes| ZeroedBytes::new(bytes).ok_or_else(|| failed(bytes));
        let mut tiles = Vec::new();
        tiles
            .try_reserve_exact(limits.rows)
            .map_err(|_| failed(limits.rows.saturating_mul(size_of::<Tile>())))?;
        Ok(Self {
            limits,
            worker_floats,
            workers: zeroed(workers_bytes)?,
            partials: zeroed(partials_bytes)?,
            tiles,
            shared_from: SHARED_MULTIPLY_ADDS,
        })
    }

    /// Shares out every call from so many multiply-adds on, for tests.
    #[doc(hidden)]
    pub fn share_out_from(&mut self, multiply_adds: usize) {
        self.shared_from = multiply_adds;
    }

    /// What calls may ask for at most.
    #[must_use]
    pub fn limits(&self) -> AttentionLimits {
        self.limits
    }

    /// Whether a call of this size fits.
    pub(super) fn check(
        &self,
        shape: KvShape,
        rows: usize,
        heads: usize,
        threads: usize,
    ) -> Result<(), AttentionError> {
        let limits = &self.limits;
        for (what, asked, limit) in [
            ("rows", rows, limits.rows),
            ("heads", heads, limits.heads),
            (
                "dimensions of a query head",
                shape.head_dim,
                limits.head_dim,
            ),
            (
                "dimensions of an output head",
                shape.value_dim,
                limits.value_dim,
            ),
            ("threads", threads, limits.threads),
        ] {
            if asked > limit {
                return Err(AttentionError::Limit { what, asked, limit });
            }
        }
        Ok(())
    }

    /// The number of partial results of that many dimensions that there is room for.
    pub(super) fn partial_slots(&self, value_dim: usize) -> usize {
        self.partials.len() / size_of::<f32>() / partial_floats(value_dim)
    }
}

/// The floats of a worker, the bytes of all workers, and the bytes of the partial results.
fn sizes(limits: &AttentionLimits) -> Option<(usize, usize, usize)> {
    let worker_floats = Layout::new(limits.head_dim, limits.value_dim)?
        .floats()?
        .checked_next_multiple_of(LANES)?;
    let workers_bytes = worker_floats
        .checked_mul(size_of::<f32>())?
        .checked_mul(limits.threads.max(1))?;
    let partials_bytes = limits
        .rows
        .min(SPLIT_ROWS)
        .checked_mul(limits.heads)?
        .checked_mul(limits.context.div_ceil(SPLIT_POSITIONS))?
        .checked_mul(partial_floats(limits.value_dim))?
        .checked_mul(size_of::<f32>())?;
    Some((worker_floats, workers_bytes, partials_bytes))
}
