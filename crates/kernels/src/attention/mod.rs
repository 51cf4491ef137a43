//! Attention over paged K and V, in one order.
//!
//! # The order of arithmetic
//! For one row and one query head `h` of `heads`, with kv head `h / (heads / kv_heads)`; `q` is the
//! query, `k[j]` and `v[j]` what the pages hold of position `j` widened to f32, and the row sees the
//! positions `first <= j < end`. All operations are f32, each rounded once; `fma(a, b, c)` is `a·b + c`
//! rounded once; `max(a, b)` is `if a > b { a } else { b }`.
//!
//! **Blocks and splits.** Block `b` is the positions `64·b .. 64·b + 64`, split `s` the positions
//! `1024·s .. 1024·s + 1024`, both absolute. A row visits, ascending, the blocks that hold at least one
//! position it sees, and no others.
//!
//! **A block**, given `(m, l, acc)` of the blocks of the same split before it:
//!
//! 1. For each of the 64 positions, `s_j = +0`, then `s_j = fma(q[d], k[j][d], s_j)` for `d` ascending,
//!    then `s_j = s_j · scale`; with a softcap then `s_j = cap · tanh(s_j / cap)`. Where the row does not
//!    see `j`, `s_j` is replaced by −∞.
//! 2. The block's maximum: lane `i` of sixteen takes `max(max(max(s_i, s_{i+16}), s_{i+32}), s_{i+48})`,
//!    and [`Lanes::largest`](crate::lanes::Lanes::largest) reduces the lanes. `m' = max(m, that)`.
//! 3. `p_j = exp_softmax(s_j − m')`, replaced by +0 where the row does not see `j`.
//! 4. `l_blk`: lane `i` adds `p_i, p_{i+16}, p_{i+32}, p_{i+48}` in this order from +0, and
//!    [`Lanes::sum`](crate::lanes::Lanes::sum) adds the lanes.
//! 5. In the first visited block of a split, `l' = l_blk` and `acc = +0`. In later ones
//!    `corr = exp_softmax(m − m')`, `l' = fma(l, corr, l_blk)` and `acc[d] = acc[d] · corr`.
//! 6. `acc[d] = fma(p_j, v[j][d], acc[d])` for `j` ascending over the positions the row sees; the others
//!    are skipped.
//!
//! **Merging.** Each split begins afresh. The result `(M, L, A)` is at first that of the first visited
//! split. For each later one, ascending, `M' = max(M, m)`, `c = exp_softmax(M − M')`,
//! `e = exp_softmax(m − M')`, `L = fma(L, c, l · e)` and `A[d] = fma(A[d], c, acc[d] · e)`.
//! The output is `A[d] / L`.
//!
//! Everything is independent from one head and row to the next, so tiles of rows, threads and the
//! company a row is in change nothing. (The kernels start from `m = −∞`, `l = acc = +0` and treat the
//! first block as a later one: `corr` is then +0 and the bits are the same.)

mod merge;
mod plan;
mod scratch;
mod task;
mod tile;

pub use scratch::{AttentionLimits, AttentionScratch};

use crate::fpenv;
use crate::isa::Isa;
use crate::lanes::{LaneKernel, dispatch, dispatch_soft};
use crate::pages::{KvType, KvValue, PAGE_POSITIONS, PageId, PageStore};
use crate::pool::Pool;
use plan::{Heads, Plan, Tile};
use scratch::Layout;
use task::{Shared, Work};
use tile::{LONE_TILE_VECTORS, Scoring, TILE_VECTORS};

/// The number of positions after which the running maximum and sums begin afresh.
pub const SPLIT_POSITIONS: usize = 1024;

/// Less is done by the calling thread alone; waking others, and their fetching from its cache, would cost more.
const SHARED_MULTIPLY_ADDS: usize = 150_000;

/// A query row: what it sees, and of which sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowRef {
    /// The first absolute position it sees.
    pub first: u32,
    /// One more than the last position it sees.
    pub end: u32,
    /// The index of its page table.
    pub table: u32,
}

impl RowRef {
    /// A row at an absolute position that sees itself and what precedes it; with a window only the last
    /// `window` of those, itself included.
    #[must_use]
    pub fn causal(position: u32, window: Option<u32>, table: u32) -> Self {
        let end = position.saturating_add(1);
        Self {
            first: window.map_or(0, |window| end.saturating_sub(window)),
            end,
            table,
        }
    }

    /// A row that sees the first `len` positions, those after itself included.
    #[must_use]
    pub fn full(len: u32, table: u32) -> Self {
        Self {
            first: 0,
            end: len,
            table,
        }
    }

    /// The splits it visits.
    fn splits(&self) -> std::ops::Range<usize> {
        self.first as usize / SPLIT_POSITIONS..(self.end as usize).div_ceil(SPLIT_POSITIONS)
    }
}

/// What to compute.
#[derive(Debug)]
pub struct AttentionArgs<'a> {
    /// K and V.
    pub store: &'a PageStore,
    /// Queries, `[rows][heads][head_dim]`.
    pub q: &'a [f32],
    /// Where the outputs go, `[rows][heads][value_dim]`.
    pub out: &'a mut [f32],
    /// The number of query heads, a multiple of the store's kv heads.
    pub heads: usize,
    /// What q·k is multiplied by.
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// The rows. Neighbours of one sequence should stand together.
    pub rows: &'a [RowRef],
    /// A page table per sequence: entry `b` is the page, of the layer in question, that holds the
    /// absolute positions from `64 * b` on. Pages that no row sees may be [`PageId::NONE`].
    pub page_tables: &'a [&'a [PageId]],
}

/// Why attention cannot be computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AttentionError {
    /// The scratch memory cannot be had.
    #[error(
        "cannot allocate {bytes} bytes for attention of {} tokens at once over {} positions; use a shorter \
         context or a smaller prefill chunk",
        .limits.rows, .limits.context
    )]
    Memory {
        /// Bytes asked for, as far as they can be counted.
        bytes: usize,
        /// What was asked for.
        limits: AttentionLimits,
    },
    /// The call is larger than the scratch memory was made for.
    #[error("attention was set up for {limit} {what}, and asked for {asked}")]
    Limit {
        /// What there are too many of.
        what: &'static str,
        /// How many there are.
        asked: usize,
        /// How many there may be.
        limit: usize,
    },
    /// Query heads cannot share kv heads evenly.
    #[error("{heads} query heads cannot share {kv_heads} kv heads evenly")]
    Heads {
        /// Query heads.
        heads: usize,
        /// Heads of K and V.
        kv_heads: usize,
    },
    /// A slice has the wrong length.
    #[error("{what} of {rows} rows has {found} values instead of {expected}")]
    Length {
        /// Which slice.
        what: &'static str,
        /// The number of rows.
        rows: usize,
        /// The number of values it should have.
        expected: usize,
        /// The number of values it has.
        found: usize,
    },
    /// A row sees nothing, or more than its page table has.
    #[error(
        "row {row} sees positions {first}..{end} of page table {table}, which has {positions} positions"
    )]
    Row {
        /// The row.
        row: usize,
        /// The first position it sees.
        first: u32,
        /// One more than the last.
        end: u32,
        /// Its page table.
        table: u32,
        /// The positions of that table (0 where there is no such table).
        positions: usize,
    },
    /// A page that a row sees does not exist.
    #[error("row {row} sees entry {entry} of page table {table}, which is page {page} of {pages}")]
    Page {
        /// The row.
        row: usize,
        /// Its page table.
        table: u32,
        /// The entry of the page table.
        entry: usize,
        /// The page given there.
        page: u32,
        /// The number of pages of the store.
        pages: usize,
    },
}

/// What runs kernels: an instruction set, or the reference without hardware FMA.
#[derive(Clone, Copy)]
enum Twin {
    Isa(Isa),
    Soft,
}

impl Twin {
    #[inline]
    fn run<K: LaneKernel>(self, kernel: K) -> K::Output {
        match self {
            Self::Isa(isa) => dispatch(isa, kernel),
            Self::Soft => dispatch_soft(kernel),
        }
    }

    /// The most query vectors in a register tile, and in one that is alone.
    fn widest_tiles(self) -> (usize, usize) {
        match self {
            Self::Isa(Isa::Scalar) | Self::Soft => (1, 1),
            Self::Isa(Isa::Avx2) => (TILE_VECTORS, TILE_VECTORS),
            Self::Isa(_) => (TILE_VECTORS, LONE_TILE_VECTORS),
        }
    }
}

/// Computes attention, shared out over the pool. Allocates nothing.
///
/// # Errors
/// When the arguments don't fit each other or the scratch memory; nothing is computed then.
pub fn attention(
    isa: Isa,
    pool: &Pool,
    scratch: &mut AttentionScratch,
    args: AttentionArgs<'_>,
) -> Result<(), AttentionError> {
    attention_on(Twin::Isa(isa), pool, scratch, args)
}

/// [`attention`] by the scalar reference without hardware FMA: slow, for checking the others.
///
/// # Errors
/// As [`attention`].
pub fn attention_soft(
    pool: &Pool,
    scratch: &mut AttentionScratch,
    args: AttentionArgs<'_>,
) -> Result<(), AttentionError> {
    attention_on(Twin::Soft, pool, scratch, args)
}

fn attention_on(
    twin: Twin,
    pool: &Pool,
    scratch: &mut AttentionScratch,
    args: AttentionArgs<'_>,
) -> Result<(), AttentionError> {
    // A small call is not run by the pool, which would see to this.
    let _guard = fpenv::Guard::new();
    check(&args)?;
    let shape = args.store.shape();
    scratch.check(shape, args.rows.len(), args.heads, pool.threads())?;
    match shape.kv_type {
        KvType::F32 => compute::<f32>(twin, pool, scratch, args),
        KvType::F16 => compute::<u16>(twin, pool, scratch, args),
    }
    Ok(())
}

fn check(args: &AttentionArgs<'_>) -> Result<(), AttentionError> {
    let shape = args.store.shape();
    let (rows, heads) = (args.rows.len(), args.heads);
    if heads == 0 || !heads.is_multiple_of(shape.kv_heads) {
        let kv_heads = shape.kv_heads;
        return Err(AttentionError::Heads { heads, kv_heads });
    }
    for (what, found, dim) in [
        ("q", args.q.len(), shape.head_dim),
        ("out", args.out.len(), shape.value_dim),
    ] {
        let expected = rows.saturating_mul(heads).saturating_mul(dim);
        if found != expected {
            return Err(AttentionError::Length {
                what,
                rows,
                expected,
                found,
            });
        }
    }
    // Neighbouring rows see mostly the same pages: remember which are checked.
    let (mut table, mut checked) = (u32::MAX, 0..0);
    for (row, place) in args.rows.iter().enumerate() {
        let pages = args.page_tables.get(place.table as usize);
        let positions = pages.map_or(0, |pages| pages.len().saturating_mul(PAGE_POSITIONS));
        let blocks =
            place.first as usize / PAGE_POSITIONS..(place.end as usize).div_ceil(PAGE_POSITIONS);
        let (Some(pages), true, true) = (
            pages,
            place.first < place.end,
            place.end as usize <= positions,
        ) else {
            return Err(AttentionError::Row {
                row,
                first: place.first,
                end: place.end,
                table: place.table,
                positions,
            });
        };
        if table == place.table && checked.start <= blocks.start && blocks.end <= checked.end {
            continue;
        }
        for entry in blocks.clone() {
            if pages[entry].0 as usize >= args.store.pages() {
                return Err(AttentionError::Page {
                    row,
                    table: place.table,
                    entry,
                    page: pages[entry].0,
                    pages: args.store.pages(),
                });
            }
        }
        (table, checked) = (place.table, blocks);
    }
    Ok(())
}

/// Computes what was checked.
fn compute<T: KvValue>(
    twin: Twin,
    pool: &Pool,
    scratch: &mut AttentionScratch,
    args: AttentionArgs<'_>,
) {
    let shape = args.store.shape();
    let heads = Heads {
        heads: args.heads,
        kv_heads: shape.kv_heads,
    };
    // Sizes within the limits that the scratch memory was allocated for do not overflow.
    let Some(layout) = Layout::new(shape.head_dim, shape.value_dim) else {
        return;
    };
    let slots = scratch.partial_slots(shape.value_dim);
    let threads = pool.threads();
    let (worker_floats, memory) = (
        scratch.worker_floats,
        Workers(scratch.workers.as_mut_ptr().cast()),
    );
    let shared = Shared {
        twin,
        store: args.store,
        q: args.q,
        out: args.out.as_mut_ptr(),
        partials: scratch.partials.as_mut_ptr().cast(),
        heads: args.heads,
        scoring: Scoring {
            scale: args.scale,
            softcap: args.softcap,
        },
        rows: args.rows,
        page_tables: args.page_tables,
        layout,
    };
    let plan = Plan::new(
        &mut scratch.tiles,
        args.rows,
        heads,
        slots,
        threads,
        twin.widest_tiles().0,
    );
    let job = |chunk: usize, worker: usize| {
        // SAFETY: `check` saw that there is memory for each of the pool's workers, and no two threads
        // have the same number at once.
        let memory = unsafe { memory.of(worker, worker_floats) };
        // Later rows see more: the longest tasks of a share go first, so that none is left to the end.
        let task = plan.task(plan.tasks - 1 - chunk);
        let next = plan
            .tasks
            .checked_sub(chunk + 2)
            .map(|next| plan.task(next));
        Work::new(&shared, task, next, memory).run::<T>();
    };
    let seen = args.rows.iter().map(|row| (row.end - row.first) as usize);
    let multiply_adds = seen.sum::<usize>() * args.heads * (shape.head_dim + shape.value_dim);
    if multiply_adds < scratch.shared_from {
        (0..plan.tasks).for_each(|chunk| job(chunk, 0));
    } else {
        pool.run(plan.tasks, &job);
    }
    if plan.tiles.iter().any(|tile| tile.partials.is_some()) {
        merge(pool, &shared, plan.tiles);
    }
}

/// Merges the partial results of all tiles, whose tasks are done.
fn merge(pool: &Pool, shared: &Shared<'_>, tiles: &[Tile]) {
    pool.run(tiles.len(), &|chunk, _worker| {
        let tile = tiles[chunk];
        if tile.partials.is_some() {
            for row in tile.first_row..tile.first_row + tile.rows {
                // SAFETY: all tasks are done, and the row is in this tile only.
                unsafe { shared.merge_row(&tile, row) };
            }
        }
    });
}

/// The memory of all workers.
struct Workers(*mut f32);

// SAFETY: an exclusive borrow of the call; each worker takes its own part.
unsafe impl Sync for Workers {}

impl Workers {
    /// The memory of one worker.
    ///
    /// # Safety
    /// There must be that many workers' memory of that size, and the worker be on one thread only.
    #[allow(clippy::mut_from_ref)] // the borrow is the call's, the parts are disjoint
    unsafe fn of(&self, worker: usize, floats: usize) -> &mut [f32] {
        // SAFETY: the caller answers for it.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(worker * floats), floats) }
    }
}
