//! One task: some heads of some rows over all their positions, or over one split of them.

use super::merge::{Finish, Merge, Stats};
use super::plan::{Task, Tile};
use super::scratch::{Layout, TASK_TILES, TASK_VECTORS, partial_floats};
use super::tile::{Block, Next, Running, Scoring, Tiling, Visible, Visit, VisitBlock, Widen};
use super::{RowRef, SPLIT_POSITIONS, Twin};
use crate::lanes::LANES;
use crate::pages::{KvType, KvValue, PAGE_POSITIONS, PageId, PageStore};

/// Blocks to a split.
const SPLIT_BLOCKS: usize = SPLIT_POSITIONS / PAGE_POSITIONS;

/// What all tasks of a call share.
pub(super) struct Shared<'a> {
    pub(super) twin: Twin,
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
    #[allow(clippy::mut_from_ref)] // the borrow is the call's, the parts are disjoint
    unsafe fn partial(&self, slot: usize) -> (&mut [f32], &mut [f32]) {
        let floats = partial_floats(self.store.shape().value_dim);
        // SAFETY: the caller answers for the slot.
        let all =
            unsafe { std::slice::from_raw_parts_mut(self.partials.add(slot * floats), floats) };
        all.split_at_mut(floats - LANES)
    }

    /// Merges the partial results of all heads of one row of a tile into its output.
    ///
    /// # Safety
    /// The tile's tasks must be done, and the row be merged by this call only.
    pub(super) unsafe fn merge_row(&self, tile: &Tile, row: usize) {
        let splits = self.rows[row].splits();
        if splits.len() < 2 {
            return;
        }
        for head in 0..self.heads {
            let slot = |split| tile.partial_slot(self.heads, row, head, split);
            // SAFETY: the slot has room, and nobody else uses the row's.
            let (acc, first) = unsafe { self.partial(slot(splits.start)) };
            let mut stats = Stats {
                m: first[0],
                l: first[1],
            };
            for split in splits.start + 1..splits.end {
                // SAFETY: as above; another split is another slot.
                let (next_acc, next) = unsafe { self.partial(slot(split)) };
                stats = self.twin.run(Merge {
                    stats,
                    acc,
                    next: Stats {
                        m: next[0],
                        l: next[1],
                    },
                    next_acc,
                });
            }
            self.twin.run(Finish {
                l: stats.l,
                acc,
                // SAFETY: the row and head exist, and nobody else uses the row's.
                out: unsafe { self.out(row, head) },
            });
        }
    }
}

/// A task at work, with its worker's memory divided for it.
pub(super) struct Work<'a> {
    shared: &'a Shared<'a>,
    task: Task,
    next_task: Option<Task>,
    tiling: Tiling,
    /// Sums of values of the present split, `[vector][value stride]`.
    acc: &'a mut [f32],
    /// Those of the splits before.
    merged_acc: &'a mut [f32],
    /// A block of K, widened.
    keys: &'a mut [f32],
    /// A block of V, widened.
    values: &'a mut [f32],
}

impl<'a> Work<'a> {
    /// Begins a task in a worker's own memory.
    pub(super) fn new(
        shared: &'a Shared<'a>,
        task: Task,
        next_task: Option<Task>,
        memory: &'a mut [f32],
    ) -> Self {
        let layout = &shared.layout;
        let (acc, rest) = memory.split_at_mut(layout.acc);
        let (merged_acc, rest) = rest.split_at_mut(layout.merged);
        let (keys, rest) = rest.split_at_mut(layout.keys);
        let tiling = Tiling::new(
            task.tile.rows * task.heads.len(),
            shared.twin.widest_tiles(),
        );
        Self {
            shared,
            task,
            next_task,
            tiling,
            acc,
            merged_acc,
            keys,
            values: &mut rest[..layout.values],
        }
    }

    /// Runs the task over pages of type `T`.
    pub(super) fn run<T: KvValue>(mut self) {
        let vectors = self.vectors();
        let mut starts = [0; TASK_VECTORS];
        for (vector, start) in starts.iter_mut().enumerate().take(vectors) {
            let (row, head) = self.row_and_head(vector);
            *start = (row * self.shared.heads + head) * self.shared.store.shape().head_dim;
        }
        let acc_len = vectors * self.shared.store.shape().value_stride();
        let mut running = [Running::START; TASK_TILES];
        let mut merged = [Stats { m: 0.0, l: 0.0 }; TASK_VECTORS];
        for split in self.task.splits.clone() {
            running[..self.tiling.tiles].fill(Running::START);
            self.acc[..acc_len].fill(0.0);
            let (seen_first, seen_end) = (self.task.tile.first, self.task.tile.end);
            let first = (split * SPLIT_BLOCKS).max(seen_first / PAGE_POSITIONS);
            let end = ((split + 1) * SPLIT_BLOCKS).min(seen_end.div_ceil(PAGE_POSITIONS));
            for block in first..end {
                self.visit_block::<T>(block, &starts, &mut running);
            }
            self.end_split(split, &running, &mut merged);
        }
    }

    /// The number of query vectors.
    fn vectors(&self) -> usize {
        self.task.tile.rows * self.task.heads.len()
    }

    /// The row and the head of a query vector.
    fn row_and_head(&self, vector: usize) -> (usize, usize) {
        let heads = self.task.heads.len();
        let row = self.task.tile.first_row + vector / heads;
        (row, self.task.heads.start + vector % heads)
    }

    /// What is visited after block `block`: the next one, or the first of the worker's next task.
    fn next<T: KvValue>(&self, block: usize) -> Option<Next> {
        let (task, block) = if block + 1
            < self
                .task
                .tile
                .end
                .div_ceil(PAGE_POSITIONS)
                .min(self.task.splits.end * SPLIT_BLOCKS)
        {
            (&self.task, block + 1)
        } else {
            let task = self.next_task.as_ref()?;
            let first = task.splits.start * SPLIT_BLOCKS;
            (task, first.max(task.tile.first / PAGE_POSITIONS))
        };
        let page = *self.shared.page_tables[task.tile.table].get(block)?;
        let store = self.shared.store;
        // The page of a block that nobody sees may be gone, and its entry be anything.
        ((page.0 as usize) < store.pages()).then(|| Next {
            keys: store.keys::<T>(page, task.kv_head).as_ptr().cast(),
            values: store.values::<T>(page, task.kv_head).as_ptr().cast(),
        })
    }

    /// Takes all query vectors over one block.
    fn visit_block<T: KvValue>(
        &mut self,
        block: usize,
        starts: &[usize; TASK_VECTORS],
        running: &mut [Running; TASK_TILES],
    ) {
        let (shared, task) = (self.shared, &self.task);
        let heads = task.heads.len();
        let rows = &shared.rows[task.tile.first_row..][..task.tile.rows];
        let mut seen = [Visible::NONE; TASK_VECTORS];
        let mut any = false;
        for (row, seen) in rows.iter().zip(seen.chunks_mut(heads)) {
            let visible = Visible::of(row, block);
            any |= !visible.is_empty();
            seen.fill(visible);
        }
        // The page of a block that nobody sees may be gone.
        if !any {
            return;
        }
        let page = shared.page_tables[task.tile.table][block];
        let lone = self.tiling.tiles == 1;
        let kv = Block {
            keys: shared.store.keys::<T>(page, task.kv_head),
            values: shared.store.values::<T>(page, task.kv_head),
            value_stride: shared.store.shape().value_stride(),
            next: lone.then(|| self.next::<T>(block)).flatten(),
        };
        let visit = Visit {
            tiling: self.tiling,
            q: shared.q,
            starts,
            visible: &seen,
            scoring: shared.scoring,
            running,
            acc: self.acc,
        };
        if T::TYPE == KvType::F32 || lone {
            shared.twin.run(VisitBlock { visit, block: kv });
            return;
        }
        // It is used several times over, so it is widened once.
        shared.twin.run(Widen {
            from: kv.keys.as_flattened(),
            to: self.keys,
        });
        shared.twin.run(Widen {
            from: kv.values,
            to: self.values,
        });
        shared.twin.run(VisitBlock {
            visit,
            block: Block::<f32> {
                keys: self.keys.as_chunks().0,
                values: self.values,
                value_stride: kv.value_stride,
                next: None,
            },
        });
    }

    /// Puts the split's results with those of the splits before, or where they can be merged later; a
    /// row's last split gives its output.
    fn end_split(
        &mut self,
        split: usize,
        running: &[Running; TASK_TILES],
        merged: &mut [Stats; TASK_VECTORS],
    ) {
        for (tile, running) in running.iter().enumerate().take(self.tiling.tiles) {
            let (start, width) = self.tiling.tile(tile);
            for within in 0..width {
                let next = Stats {
                    m: running.m[within],
                    l: running.l[within],
                };
                let vector = start + within;
                self.end_split_of(split, vector, next, &mut merged[vector]);
            }
        }
    }

    fn end_split_of(&mut self, split: usize, vector: usize, next: Stats, merged: &mut Stats) {
        let shared = self.shared;
        let stride = shared.store.shape().value_stride();
        let (row, head) = self.row_and_head(vector);
        let splits = shared.rows[row].splits();
        if !splits.contains(&split) {
            return;
        }
        let next_acc = &self.acc[vector * stride..][..stride];
        if splits.len() == 1 {
            shared.twin.run(Finish {
                l: next.l,
                acc: next_acc,
                // SAFETY: the row and head are this task's alone.
                out: unsafe { shared.out(row, head) },
            });
            return;
        }
        if self.task.tile.partials.is_some() {
            let slot = self.task.tile.partial_slot(shared.heads, row, head, split);
            // SAFETY: the slot is that of this row, head and split, hence this task's alone.
            let (acc, stats) = unsafe { shared.partial(slot) };
            acc.copy_from_slice(next_acc);
            stats[..2].copy_from_slice(&[next.m, next.l]);
            return;
        }
        let acc = &mut self.merged_acc[vector * stride..][..stride];
        if split == splits.start {
            acc.copy_from_slice(next_acc);
            *merged = next;
        } else {
            *merged = shared.twin.run(Merge {
                stats: *merged,
                acc,
                next,
                next_acc,
            });
        }
        if split + 1 == splits.end {
            shared.twin.run(Finish {
                l: merged.l,
                acc,
                // SAFETY: the row and head are this task's alone.
                out: unsafe { shared.out(row, head) },
            });
        }
    }
}
