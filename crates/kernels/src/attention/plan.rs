//! Sharing out the work: tiles of rows, and tasks of a tile.
//!
//! Nothing here changes a result. A task is some query heads of one kv head, for the rows of a tile,
//! over all their positions or over one split of them.

use super::scratch::TASK_TILES;
use super::{RowRef, SPLIT_POSITIONS};
use std::ops::Range;

/// Tiles with more rows than this take all their splits in one task: they are many enough.
const MAX_SPLIT_ROWS: usize = 8;

/// Tasks to aim at for each thread, so that they finish together.
const TASKS_PER_THREAD: usize = 4;

/// Neighbouring rows of one sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    pub(super) first_row: usize,
    pub(super) rows: usize,
    pub(super) table: usize,
    /// The positions that any of the rows sees.
    pub(super) first: usize,
    pub(super) end: usize,
    /// The first partial result, where each split is a task of its own.
    pub(super) partials: Option<usize>,
    first_task: usize,
}

impl Tile {
    /// The splits that any of the rows visits.
    pub(super) fn splits(&self) -> Range<usize> {
        self.first / SPLIT_POSITIONS..self.end.div_ceil(SPLIT_POSITIONS)
    }

    fn split_tasks(&self) -> usize {
        match self.partials {
            Some(_) => self.splits().len(),
            None => 1,
        }
    }

    /// The place of a partial result, where the tile has such.
    pub(super) fn partial_slot(
        &self,
        heads: usize,
        row: usize,
        head: usize,
        split: usize,
    ) -> usize {
        let splits = self.splits();
        let within = ((row - self.first_row) * heads + head) * splits.len() + split - splits.start;
        self.partials.unwrap_or(0) + within
    }
}

/// The heads there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
}

impl Heads {
    /// The number of query heads that share a kv head.
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

/// All tasks of a call.
pub(super) struct Plan<'a> {
    pub(super) tiles: &'a [Tile],
    heads: Heads,
    /// The number of tasks that share a kv head.
    parts: usize,
    pub(super) tasks: usize,
}

/// One task.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) tile: Tile,
    pub(super) kv_head: usize,
    /// Query heads, all of `kv_head`.
    pub(super) heads: Range<usize>,
    pub(super) splits: Range<usize>,
}

impl<'a> Plan<'a> {
    /// Plans into `tiles`, which must have room for as many as there are rows.
    pub(super) fn new(
        tiles: &'a mut Vec<Tile>,
        rows: &[RowRef],
        heads: Heads,
        partial_slots: usize,
        threads: usize,
        widest_tile: usize,
    ) -> Self {
        let aim = if threads > 1 {
            threads * TASKS_PER_THREAD
        } else {
            1
        };
        fill_tiles(tiles, rows, tile_rows(rows.len(), heads, aim, widest_tile));
        let mut used = 0;
        for tile in tiles.iter_mut() {
            let slots = tile.rows * heads.heads * tile.splits().len();
            let many = tile.splits().len() > 1 && tile.rows <= MAX_SPLIT_ROWS;
            if many && threads > 1 && used + slots <= partial_slots {
                tile.partials = Some(used);
                used += slots;
            }
        }
        let whole: usize = tiles.iter().map(Tile::split_tasks).sum::<usize>() * heads.kv_heads;
        let wanted = if threads > 1 && whole < threads * 2 {
            (threads * 2).div_ceil(whole.max(1))
        } else {
            1
        };
        let needed = heads.group().div_ceil(TASK_TILES * widest_tile);
        let parts = wanted.max(needed).min(heads.group());
        let mut tasks = 0;
        for tile in tiles.iter_mut() {
            tile.first_task = tasks;
            tasks += tile.split_tasks() * heads.kv_heads * parts;
        }
        Self {
            tiles,
            heads,
            parts,
            tasks,
        }
    }

    /// The task of that number.
    pub(super) fn task(&self, number: usize) -> Task {
        let after = self.tiles.partition_point(|tile| tile.first_task <= number);
        let tile = self.tiles[after - 1];
        let within = number - tile.first_task;
        let (part, rest) = (within % self.parts, within / self.parts);
        let (split, kv_head) = (rest % tile.split_tasks(), rest / tile.split_tasks());
        let group = self.heads.group();
        let from = kv_head * group + part * group / self.parts;
        let to = kv_head * group + (part + 1) * group / self.parts;
        let splits = tile.splits();
        Task {
            tile,
            kv_head,
            heads: from..to,
            splits: match tile.partials {
                Some(_) => splits.start + split..splits.start + split + 1,
                None => splits,
            },
        }
    }
}

/// How many rows to a tile: enough to use a block of K and V often, few enough that every thread gets
/// several tasks.
fn tile_rows(rows: usize, heads: Heads, aim: usize, widest_tile: usize) -> usize {
    let group = heads.group();
    let most = TASK_TILES * widest_tile / group;
    let least = (2 * widest_tile).div_ceil(group);
    let even = (rows * heads.kv_heads).div_ceil(aim);
    even.max(least).min(most).max(1)
}

/// Groups neighbouring rows that share a page table.
fn fill_tiles(tiles: &mut Vec<Tile>, rows: &[RowRef], tile_rows: usize) {
    tiles.clear();
    for (row, place) in rows.iter().enumerate() {
        let (first, end) = (place.first as usize, place.end as usize);
        let table = place.table as usize;
        match tiles.last_mut() {
            Some(tile) if tile.table == table && tile.rows < tile_rows => {
                tile.rows += 1;
                tile.first = tile.first.min(first);
                tile.end = tile.end.max(end);
            }
            _ => tiles.push(Tile {
                first_row: row,
                rows: 1,
                table,
                first,
                end,
                partials: None,
                first_task: 0,
            }),
        }
    }
}
