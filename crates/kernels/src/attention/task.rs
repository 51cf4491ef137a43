//! One task: some heads of some rows over all their positions, or over one split of them.

use super::plan::Task;
use super::scratch::{Layout, TASK_TILES, TASK_VECTORS, partial_floats};
use super::tile::{
    Block, Partial, Running, Scoring, TILE_VECTORS, Visible, Weights, finish, merge, visit_block,
};
use super::{RowRef, SPLIT_POSITIONS};
use crate::lanes::{LANES, LaneKernel, Lanes};
use crate::pages::{KvType, KvValue, PAGE_POSITIONS, PageId, PageStore};

/// Blocks to a split.
const SPLIT_BLOCKS: usize = SPLIT_POSITIONS / PAGE_POSITIONS;

/// What all tasks of a call share.
pub(super) struct Shared<'a> {
    pub(super) store: &'a PageStore,
    pub(super) q: &'a [f32],
    /// `[rows][heads][value_dim]`
    pub(super) out: *mut f32,
    /// `[slot][partial_floats]`
    pub(super) partials: *mut f32,
    pub(super) heads: usize,
    pub(super) scoring: Scoring,
    pub(super) rows: &'a [RowRef],
    pub(super) page_tables: &'a [&'a [PageId]],
    pub(super) layout: Layout,
}

// SAFETY: `out` and `partials` are exclusive borrows of the call; tasks write disjoint parts of them.
unsafe impl Sync for Shared<'_> {}

impl Shared<'_> {
    /// The output of one head of one row.
    ///
    /// # Safety
    /// The row and head must exist, and no other slice of theirs be in use.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)] // the borrow is the call's, the parts are disjoint
    unsafe fn out(&self, row: usize, head: usize) -> &mut [f32] {
        let dim = self.store.shape().value_dim;
        // SAFETY: `out` holds rows × heads × dim floats; the caller answers for the rest.
        unsafe {
            let start = self.out.add((row * self.heads + head) * dim);
            std::slice::from_raw_parts_mut(start, dim)
        }
    }

    /// A partial result: the sums of values, and the maximum and sum as the first two of a last line.
    ///
    /// # Safety
    /// There must be room for the slot, and no other slice of it be in use.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)] // the borrow is the call's, the parts are disjoint
    unsafe fn partial(&self, slot: usize) -> (&mut [f32], &mut [f32]) {
        let floats = partial_floats(self.store.shape().value_dim);
        // SAFETY: the caller answers for the slot.
        let all =
            unsafe { std::slice::from_raw_parts_mut(self.partials.add(slot * floats), floats) };
        all.split_at_mut(floats - LANES)
    }
}

/// Query vectors of a task in tiles of nearly equal widths, none above [`TILE_VECTORS`].
#[derive(Clone, Copy)]
struct Tiling {
    vectors: usize,
    tiles: usize,
}

impl Tiling {
    fn new(vectors: usize) -> Self {
        let tiles = vectors.div_ceil(TILE_VECTORS);
        Self { vectors, tiles }
    }

    /// The first query vector of a tile and their number.
    #[inline(always)]
    fn tile(self, tile: usize) -> (usize, usize) {
        let (base, wider) = (self.vectors / self.tiles, self.vectors % self.tiles);
        let start = tile * base + tile.min(wider);
        (start, base + usize::from(tile < wider))
    }
}

/// A worker's memory, divided for one task.
struct Arena<'a> {
    /// Per tile `[head_dim][width]`.
    q: &'a mut [f32],
    /// Sums of values of the present split, `[vector][value stride]`.
    acc: &'a mut [f32],
    /// Those of the splits before.
    merged: &'a mut [f32],
    /// A block of K, widened.
    keys: &'a mut [f32],
    /// A block of V, widened.
    values: &'a mut [f32],
}

impl<'a> Arena<'a> {
    #[inline(always)]
    fn new(memory: &'a mut [f32], layout: &Layout) -> Self {
        let (q, rest) = memory.split_at_mut(layout.q);
        let (acc, rest) = rest.split_at_mut(layout.acc);
        let (merged, rest) = rest.split_at_mut(layout.merged);
        let (keys, rest) = rest.split_at_mut(layout.keys);
        let values = &mut rest[..layout.values];
        Self {
            q,
            acc,
            merged,
            keys,
            values,
        }
    }
}

/// Runs one task over pages of type `T`.
pub(super) struct RunTask<'a, T> {
    pub(super) shared: &'a Shared<'a>,
    pub(super) task: Task,
    /// The worker's own memory.
    pub(super) memory: &'a mut [f32],
    pub(super) kv_type: std::marker::PhantomData<T>,
}

impl<T: KvValue> LaneKernel for RunTask<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let (shared, task) = (self.shared, &self.task);
        let mut arena = Arena::new(self.memory, &shared.layout);
        let tiling = Tiling::new(task.tile.rows * task.heads.len());
        gather_queries(shared, task, tiling, arena.q);
        let mut weights = Weights([[0.0; PAGE_POSITIONS]; TILE_VECTORS]);
        let mut merged = [(0.0, 0.0); TASK_VECTORS];
        for split in task.splits.clone() {
            let mut running = [Running::START; TASK_TILES];
            let acc_len = tiling.vectors * shared.store.shape().value_stride();
            arena.acc[..acc_len].fill(0.0);
            let first = (split * SPLIT_BLOCKS).max(task.tile.first / PAGE_POSITIONS);
            let end = ((split + 1) * SPLIT_BLOCKS).min(task.tile.end.div_ceil(PAGE_POSITIONS));
            for block in first..end {
                run_block::<V, T>(
                    shared,
                    task,
                    tiling,
                    block,
                    &mut arena,
                    &mut weights,
                    &mut running,
                );
            }
            end_split::<V>(
                shared,
                task,
                tiling,
                split,
                &mut arena,
                &running,
                &mut merged,
            );
        }
    }
}

/// Copies the task's queries into tiles, so that those of a tile lie side by side per dimension.
#[inline(always)]
fn gather_queries(shared: &Shared<'_>, task: &Task, tiling: Tiling, q: &mut [f32]) {
    let dim = shared.store.shape().head_dim;
    let heads = task.heads.len();
    for tile in 0..tiling.tiles {
        let (start, width) = tiling.tile(tile);
        for within in 0..width {
            let vector = start + within;
            let row = task.tile.first_row + vector / heads;
            let head = task.heads.start + vector % heads;
            let source = &shared.q[(row * shared.heads + head) * dim..][..dim];
            let places = q[start * dim + within..].iter_mut().step_by(width);
            for (place, value) in places.zip(source) {
                *place = *value;
            }
        }
    }
}

/// What a row sees of a block.
#[inline(always)]
fn visible(row: &RowRef, block: usize) -> Visible {
    let start = block * PAGE_POSITIONS;
    let (first, end) = (row.first as usize, row.end as usize);
    let seen = Visible {
        first: first.saturating_sub(start),
        end: end.saturating_sub(start).min(PAGE_POSITIONS),
    };
    if seen.first < seen.end {
        seen
    } else {
        Visible::NONE
    }
}

/// Takes all query vectors of the task over one block.
#[inline(always)]
fn run_block<V: Lanes, T: KvValue>(
    shared: &Shared<'_>,
    task: &Task,
    tiling: Tiling,
    block: usize,
    arena: &mut Arena<'_>,
    weights: &mut Weights,
    running: &mut [Running; TASK_TILES],
) {
    let rows = &shared.rows[task.tile.first_row..][..task.tile.rows];
    if rows.iter().all(|row| visible(row, block).end == 0) {
        return;
    }
    let page = shared.page_tables[task.tile.table][block];
    let kv = Block {
        keys: shared.store.keys::<T>(page, task.kv_head),
        values: shared.store.values::<T>(page, task.kv_head),
        value_stride: shared.store.shape().value_stride(),
    };
    if T::TYPE == KvType::F32 || tiling.tiles == 1 {
        let (q, acc) = (&*arena.q, &mut *arena.acc);
        run_tiles::<V, T>(shared, task, tiling, block, kv, q, acc, weights, running);
    } else {
        // Used several times over, so widened once.
        widen::<V, T>(kv.keys.as_flattened(), arena.keys);
        widen::<V, T>(kv.values, arena.values);
        let kv = Block::<f32> {
            keys: arena.keys.as_chunks().0,
            values: arena.values,
            value_stride: kv.value_stride,
        };
        let (q, acc) = (&*arena.q, &mut *arena.acc);
        run_tiles::<V, f32>(shared, task, tiling, block, kv, q, acc, weights, running);
    }
}

#[inline(always)]
fn widen<V: Lanes, T: KvValue>(from: &[T], to: &mut [f32]) {
    let to = to.as_chunks_mut::<LANES>().0;
    for (from, to) in from.as_chunks::<LANES>().0.iter().zip(to) {
        T::load::<V>(from).store(to);
    }
}

/// Takes each tile of query vectors over one block.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // one level of a loop nest, split off for its length
fn run_tiles<V: Lanes, T: KvValue>(
    shared: &Shared<'_>,
    task: &Task,
    tiling: Tiling,
    block: usize,
    kv: Block<'_, T>,
    q: &[f32],
    acc: &mut [f32],
    weights: &mut Weights,
    running: &mut [Running; TASK_TILES],
) {
    let dim = shared.store.shape().head_dim;
    let heads = task.heads.len();
    for tile in 0..tiling.tiles {
        let (start, width) = tiling.tile(tile);
        let mut seen = [Visible::NONE; TILE_VECTORS];
        for (within, seen) in seen.iter_mut().enumerate().take(width) {
            let row = task.tile.first_row + (start + within) / heads;
            *seen = visible(&shared.rows[row], block);
        }
        let q = &q[start * dim..][..width * dim];
        let acc = &mut acc[start * kv.value_stride..][..width * kv.value_stride];
        let running = &mut running[tile];
        macro_rules! with_width {
            ($($width:literal)*) => {
                match width {
                    $($width => {
                        let q = q.as_chunks::<$width>().0;
                        if let Some(seen) = seen.first_chunk::<$width>() {
                            visit_block::<V, T, $width>(
                                q, kv, seen, shared.scoring, weights, running, acc,
                            );
                        }
                    })*
                    _ => unreachable!("a tile has 1 to {TILE_VECTORS} query vectors"),
                }
            };
        }
        with_width!(1 2 3 4 5 6);
    }
}

/// Puts the split's results with those of the splits before, or where they can be merged later; a row's
/// last split gives its output.
#[inline(always)]
fn end_split<V: Lanes>(
    shared: &Shared<'_>,
    task: &Task,
    tiling: Tiling,
    split: usize,
    arena: &mut Arena<'_>,
    running: &[Running; TASK_TILES],
    merged: &mut [(f32, f32); TASK_VECTORS],
) {
    let stride = shared.store.shape().value_stride();
    let heads = task.heads.len();
    for tile in 0..tiling.tiles {
        let (start, width) = tiling.tile(tile);
        for within in 0..width {
            let vector = start + within;
            let row = task.tile.first_row + vector / heads;
            let head = task.heads.start + vector % heads;
            let splits = shared.rows[row].splits();
            if !splits.contains(&split) {
                continue;
            }
            let acc = &arena.acc[vector * stride..][..stride];
            let (m, l) = (running[tile].m[within], running[tile].l[within]);
            if task.tile.partials.is_some() && splits.len() > 1 {
                let slot = task.tile.partial_slot(shared.heads, row, head, split);
                // SAFETY: the slot belongs to this row, head and split, hence to this task.
                let (sums, stats) = unsafe { shared.partial(slot) };
                sums.copy_from_slice(acc);
                stats[..2].copy_from_slice(&[m, l]);
                continue;
            }
            let sums = &mut arena.merged[vector * stride..][..stride];
            if split == splits.start {
                sums.copy_from_slice(acc);
                merged[vector] = (m, l);
            } else {
                merged[vector] = merge::<V>(merged[vector], sums, &Partial { m, l, acc });
            }
            if split + 1 == splits.end {
                // SAFETY: the row and head are this task's.
                finish::<V>(merged[vector].1, sums, unsafe { shared.out(row, head) });
            }
        }
    }
}

/// Merges the partial results of all heads of one row into its output.
pub(super) struct MergeRow<'a> {
    pub(super) shared: &'a Shared<'a>,
    pub(super) tile: super::plan::Tile,
    pub(super) row: usize,
}

impl LaneKernel for MergeRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let shared = self.shared;
        let splits = shared.rows[self.row].splits();
        if splits.len() < 2 {
            return;
        }
        for head in 0..shared.heads {
            let slot = |split| self.tile.partial_slot(shared.heads, self.row, head, split);
            // SAFETY: the tasks are done, and this row is merged by this call only.
            let (sums, stats) = unsafe { shared.partial(slot(splits.start)) };
            let mut merged = (stats[0], stats[1]);
            for split in splits.start + 1..splits.end {
                // SAFETY: as above; another split is another slot.
                let (acc, stats) = unsafe { shared.partial(slot(split)) };
                let next = Partial {
                    m: stats[0],
                    l: stats[1],
                    acc,
                };
                merged = merge::<V>(merged, sums, &next);
            }
            // SAFETY: as above.
            finish::<V>(merged.1, sums, unsafe { shared.out(self.row, head) });
        }
    }
}
