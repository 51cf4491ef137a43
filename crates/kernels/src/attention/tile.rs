//! Query vectors against one block of 64 positions: a few of them at a time, in registers.

use super::RowRef;
use crate::lanes::{LANES, LaneKernel, Lanes};
use crate::math::{exp_softmax, tanh};
use crate::pages::{KvValue, PAGE_POSITIONS};
use crate::prefetch;

/// The most query vectors whose sums are in registers at once, where there are many.
pub(super) const TILE_VECTORS: usize = 6;

/// The most query vectors in a tile that is alone, with fewer positions or dimensions at once.
pub(super) const LONE_TILE_VECTORS: usize = 8;

/// The number of registers of lanes in a block of positions.
const BLOCK_LANES: usize = PAGE_POSITIONS / LANES;

/// The maximum and the sum of up to sixteen query vectors, one per lane.
#[derive(Clone, Copy)]
pub(super) struct Running {
    pub(super) m: [f32; LANES],
    pub(super) l: [f32; LANES],
}

impl Running {
    /// Before the first block.
    pub(super) const START: Self = Self {
        m: [f32::NEG_INFINITY; LANES],
        l: [0.0; LANES],
    };
}

/// The positions of a block that a query vector sees, as lanes `first..end` (none: `first >= end`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Visible {
    first: u8,
    end: u8,
}

impl Visible {
    pub(super) const NONE: Self = Self { first: 0, end: 0 };

    /// What a row sees of a block.
    pub(super) fn of(row: &RowRef, block: usize) -> Self {
        let start = block * PAGE_POSITIONS;
        let within = |position: u32| {
            (position as usize)
                .saturating_sub(start)
                .min(PAGE_POSITIONS)
        };
        let seen = Self {
            first: within(row.first) as u8,
            end: within(row.end) as u8,
        };
        if seen.is_empty() { Self::NONE } else { seen }
    }

    pub(super) fn is_empty(self) -> bool {
        self.first >= self.end
    }

    fn is_whole(self) -> bool {
        self.first == 0 && self.end as usize == PAGE_POSITIONS
    }

    /// Those of sixteen lanes from `16 * part` on, as bits.
    fn bits(self, part: usize) -> u16 {
        let below = |end: u8| ((1u128 << end) - 1) as u64;
        let all = below(self.end) & !below(self.first);
        (all >> (part * LANES)) as u16
    }
}

/// Scores, then weights, of up to [`LONE_TILE_VECTORS`] query vectors for the positions of a block.
#[repr(align(64))]
pub(super) struct Weights(pub(super) [[f32; PAGE_POSITIONS]; LONE_TILE_VECTORS]);

/// One block of K and V of one kv head.
#[derive(Clone, Copy)]
pub(super) struct Block<'a, T> {
    /// `[head_dim][64 positions]`
    pub(super) keys: &'a [[T; PAGE_POSITIONS]],
    /// `[64 positions][value stride]`
    pub(super) values: &'a [T],
    pub(super) value_stride: usize,
    /// The block that will be visited after this one, to be fetched meanwhile.
    pub(super) next: Option<Next>,
}

/// Where the K and V of a block begin.
#[derive(Clone, Copy)]
pub(super) struct Next {
    pub(super) keys: *const u8,
    pub(super) values: *const u8,
}

/// Fetches `len` values from number `start` on of what begins at `from`.
#[inline(always)]
fn fetch<T>(from: *const u8, start: usize, len: usize) {
    let from = from.wrapping_add(start * size_of::<T>());
    for at in (0..len * size_of::<T>()).step_by(prefetch::LINE) {
        prefetch::second_level(from.wrapping_add(at));
    }
}

/// What turns q·k into a score.
#[derive(Clone, Copy)]
pub(super) struct Scoring {
    pub(super) scale: f32,
    pub(super) softcap: Option<f32>,
}

/// Whether a value of sixteen lanes is one register, of which there are 32: decides how much of a tile
/// fits in registers, and nothing else.
const fn is_one_register<V: Lanes>() -> bool {
    align_of::<V>() == size_of::<[f32; LANES]>()
}

/// Whether the lanes are an array: then a tile is one query vector, a wider one being only more code.
const fn is_array<V: Lanes>() -> bool {
    align_of::<V>() == align_of::<f32>()
}

/// Query vectors in tiles of nearly equal widths.
#[derive(Clone, Copy)]
pub(super) struct Tiling {
    vectors: usize,
    pub(super) tiles: usize,
}

impl Tiling {
    /// Tiles of at most `widest` vectors, or of at most `widest_lone` if that makes it a single one.
    pub(super) fn new(vectors: usize, (widest, widest_lone): (usize, usize)) -> Self {
        let tiles = if vectors <= widest_lone {
            1
        } else {
            vectors.div_ceil(widest)
        };
        Self { vectors, tiles }
    }

    /// The first query vector of a tile and their number.
    #[inline(always)]
    pub(super) fn tile(self, tile: usize) -> (usize, usize) {
        let (base, wider) = (self.vectors / self.tiles, self.vectors % self.tiles);
        let start = tile * base + tile.min(wider);
        (start, base + usize::from(tile < wider))
    }
}

/// Query vectors, and how far they have come.
pub(super) struct Visit<'a> {
    pub(super) tiling: Tiling,
    /// All queries, and where that of each query vector starts.
    pub(super) q: &'a [f32],
    pub(super) starts: &'a [usize],
    /// Per query vector.
    pub(super) visible: &'a [Visible],
    pub(super) scoring: Scoring,
    /// Per tile.
    pub(super) running: &'a mut [Running],
    /// `[vector][value stride]`
    pub(super) acc: &'a mut [f32],
}

/// Takes query vectors, tile by tile, over one block.
pub(super) struct VisitBlock<'a, T> {
    pub(super) visit: Visit<'a>,
    pub(super) block: Block<'a, T>,
}

impl<T: KvValue> LaneKernel for VisitBlock<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(mut self) {
        let mut weights = Weights([[0.0; PAGE_POSITIONS]; LONE_TILE_VECTORS]);
        for tile in 0..self.visit.tiling.tiles {
            let (_, width) = self.visit.tiling.tile(tile);
            if const { is_array::<V>() } {
                self.visit::<V, 1>(tile, &mut weights);
                continue;
            }
            match width {
                1 => self.visit::<V, 1>(tile, &mut weights),
                2 => self.visit::<V, 2>(tile, &mut weights),
                3 => self.visit::<V, 3>(tile, &mut weights),
                4 => self.visit::<V, 4>(tile, &mut weights),
                5 => self.visit::<V, 5>(tile, &mut weights),
                // Only where there are 32 registers are tiles ever wider.
                6 => self.visit::<V, 6>(tile, &mut weights),
                _ if !is_one_register::<V>() => unreachable!("a tile too wide"),
                7 => self.visit::<V, 7>(tile, &mut weights),
                _ => self.visit::<V, LONE_TILE_VECTORS>(tile, &mut weights),
            }
        }
    }
}

impl<T: KvValue> VisitBlock<'_, T> {
    /// Takes a tile of `W` query vectors over the block.
    #[inline(always)]
    fn visit<V: Lanes, const W: usize>(&mut self, tile: usize, weights: &mut Weights) {
        let (visit, block) = (&mut self.visit, self.block);
        let (start, _) = visit.tiling.tile(tile);
        let (dim, stride) = (block.keys.len(), block.value_stride);
        let starts = &visit.starts[start..start + W];
        let q = std::array::from_fn(|w| &visit.q[starts[w]..][..dim]);
        let acc = &mut visit.acc[start * stride..][..W * stride];
        let mut visible = [Visible::NONE; W];
        visible.copy_from_slice(&visit.visible[start..start + W]);

        let scale = visit.scoring.scale;
        // Positions beyond what anyone sees get no scores; softmax masks them.
        let end = visible.iter().map(|one| one.end as usize).max();
        let parts = end.unwrap_or(0).div_ceil(LANES);
        if !is_one_register::<V>() {
            scores::<V, T, W, 1>(&q, block, scale, parts, weights);
        } else if W <= TILE_VECTORS && parts > 2 {
            scores::<V, T, W, 4>(&q, block, scale, parts, weights);
        } else {
            scores::<V, T, W, 2>(&q, block, scale, parts, weights);
        }
        if let Some(cap) = visit.scoring.softcap {
            soften::<V, W>(cap, weights);
        }
        let corr = softmax::<V, W>(&visible, weights, &mut visit.running[tile]);
        let mut dim = 0;
        if is_one_register::<V>() {
            while W <= TILE_VECTORS && dim + 4 * LANES <= stride {
                add_values::<V, T, W, 4>(block, dim, &visible, weights, &corr, acc);
                dim += 4 * LANES;
            }
            while W > TILE_VECTORS && dim + 2 * LANES <= stride {
                add_values::<V, T, W, 2>(block, dim, &visible, weights, &corr, acc);
                dim += 2 * LANES;
            }
        }
        while dim < stride {
            add_values::<V, T, W, 1>(block, dim, &visible, weights, &corr, acc);
            dim += LANES;
        }
    }
}

/// Widens a block of K or V that is used several times over.
pub(super) struct Widen<'a, T> {
    pub(super) from: &'a [T],
    pub(super) to: &'a mut [f32],
}

impl<T: KvValue> LaneKernel for Widen<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let to = self.to.as_chunks_mut::<LANES>().0;
        for (from, to) in self.from.as_chunks::<LANES>().0.iter().zip(to) {
            T::load::<V>(from).store(to);
        }
    }
}

/// `(q · k) * scale` for the first `parts` registers of positions, `N` registers of them at a time.
#[inline(always)]
fn scores<V: Lanes, T: KvValue, const W: usize, const N: usize>(
    q: &[&[f32]; W],
    block: Block<'_, T>,
    scale: f32,
    parts: usize,
    weights: &mut Weights,
) {
    let keys = block.keys;
    assert!(q.iter().all(|q| q.len() == keys.len()));
    for part in (0..parts.min(BLOCK_LANES)).step_by(N) {
        let mut sums = [[V::splat(0.0); N]; W];
        for (d, k) in keys.iter().enumerate() {
            if let Some(next) = block.next {
                fetch::<T>(next.keys, d * PAGE_POSITIONS + part * LANES, N * LANES);
            }
            let k = k.as_chunks::<LANES>().0;
            let mut wide = [V::splat(0.0); N];
            for n in 0..N {
                wide[n] = T::load(&k[part + n]);
            }
            for w in 0..W {
                // SAFETY: asserted above.
                let q = V::splat(unsafe { *q[w].get_unchecked(d) });
                for n in 0..N {
                    sums[w][n] = q.fma(wide[n], sums[w][n]);
                }
            }
        }
        for (sums, row) in sums.iter().zip(&mut weights.0) {
            let row = &mut row.as_chunks_mut::<LANES>().0[part..];
            for (sum, lanes) in sums.iter().zip(row) {
                sum.mul(V::splat(scale)).store(lanes);
            }
        }
    }
}

/// `cap * tanh(score / cap)`.
#[inline(always)]
fn soften<V: Lanes, const W: usize>(cap: f32, weights: &mut Weights) {
    let cap = V::splat(cap);
    for w in 0..W {
        for lanes in weights.0[w].as_chunks_mut::<LANES>().0 {
            let score = V::load(lanes);
            cap.mul(tanh(score.div(cap))).store(lanes);
        }
    }
}

/// Turns scores into weights and moves the maximum and the sum on; gives what the sums of values so far
/// are to be multiplied by.
#[inline(always)]
fn softmax<V: Lanes, const W: usize>(
    visible: &[Visible; W],
    weights: &mut Weights,
    running: &mut Running,
) -> [f32; LANES] {
    let mut active = 0;
    let mut block_m = [f32::NEG_INFINITY; LANES];
    for w in 0..W {
        if visible[w].is_empty() {
            continue;
        }
        active |= 1 << w;
        let row = weights.0[w].as_chunks_mut::<LANES>().0;
        if !visible[w].is_whole() {
            for (part, lanes) in row.iter_mut().enumerate() {
                let seen = V::mask(visible[w].bits(part));
                V::select(seen, V::load(lanes), V::splat(f32::NEG_INFINITY)).store(lanes);
            }
        }
        let mut top = V::load(&row[0]);
        for lanes in &row[1..] {
            top = top.max(V::load(lanes));
        }
        block_m[w] = top.largest();
    }
    let active = V::mask(active);
    let (m, l) = (V::load(&running.m), V::load(&running.l));
    let new_m = V::select(active, m.max(V::load(&block_m)), m);
    new_m.store(&mut running.m);
    let corr = V::select(active, exp_softmax(m.sub(new_m)), V::splat(1.0));

    let mut block_l = [0.0; LANES];
    for w in 0..W {
        if visible[w].is_empty() {
            continue;
        }
        let row = weights.0[w].as_chunks_mut::<LANES>().0;
        let m = V::splat(running.m[w]);
        let mut sum = V::splat(0.0);
        for (part, lanes) in row.iter_mut().enumerate() {
            let mut weight = exp_softmax(V::load(lanes).sub(m));
            if !visible[w].is_whole() {
                let seen = V::mask(visible[w].bits(part));
                weight = V::select(seen, weight, V::splat(0.0));
            }
            weight.store(lanes);
            sum = sum.add(weight);
        }
        block_l[w] = sum.sum();
    }
    let new_l = V::select(active, l.fma(corr, V::load(&block_l)), l);
    new_l.store(&mut running.l);
    corr.to_array()
}

/// The positions that all see; none where one sees nothing at all.
#[inline(always)]
fn seen_by_all<const W: usize>(visible: &[Visible; W]) -> Visible {
    let mut common = visible[0];
    for one in visible {
        common.first = common.first.max(one.first);
        common.end = common.end.min(one.end);
    }
    if common.is_empty() {
        // At the end of the block, so that all that anyone sees is before it.
        common = Visible {
            first: PAGE_POSITIONS as u8,
            end: PAGE_POSITIONS as u8,
        };
    }
    common
}

/// `acc * corr`, then `fma(weight, value, acc)` for each visible position, ascending, for the `16 * N`
/// dimensions from `dim` on.
#[inline(always)]
fn add_values<V: Lanes, T: KvValue, const W: usize, const N: usize>(
    block: Block<'_, T>,
    dim: usize,
    visible: &[Visible; W],
    weights: &Weights,
    corr: &[f32; LANES],
    acc: &mut [f32],
) {
    let stride = block.value_stride;
    let common = seen_by_all(visible);
    if visible.iter().all(|one| *one == common) {
        add_common::<V, T, W, N>(block, dim, common, &weights.0, corr, acc);
        return;
    }
    // What only some see is added one query vector after the other, before and after what all see.
    for w in 0..W {
        let before = Visible {
            first: visible[w].first,
            end: visible[w].end.min(common.first),
        };
        let (weights, acc) = (&weights.0[w..], &mut acc[w * stride..]);
        add_common::<V, T, 1, N>(block, dim, before, weights, &[corr[w]; LANES], acc);
    }
    // A product with 1 changes nothing.
    add_common::<V, T, W, N>(block, dim, common, &weights.0, &[1.0; LANES], acc);
    for w in 0..W {
        let after = Visible {
            first: visible[w].first.max(common.end),
            end: visible[w].end,
        };
        let (weights, acc) = (&weights.0[w..], &mut acc[w * stride..]);
        add_common::<V, T, 1, N>(block, dim, after, weights, &[1.0; LANES], acc);
    }
}

/// [`add_values`] for the first `W` of `weights`, that all see the same positions.
#[inline(always)]
fn add_common<V: Lanes, T: KvValue, const W: usize, const N: usize>(
    block: Block<'_, T>,
    dim: usize,
    seen: Visible,
    weights: &[[f32; PAGE_POSITIONS]],
    corr: &[f32; LANES],
    acc: &mut [f32],
) {
    let stride = block.value_stride;
    // Asked once here, so that the loop need not.
    assert!(dim + N * LANES <= stride && W <= weights.len());
    let mut sums = [[V::splat(0.0); N]; W];
    for w in 0..W {
        let row = acc[w * stride + dim..][..N * LANES].as_chunks::<LANES>().0;
        for n in 0..N {
            sums[w][n] = V::load(&row[n]).mul(V::splat(corr[w]));
        }
    }
    let positions = seen.first as usize..seen.end.max(seen.first) as usize;
    let rows = &block.values[positions.start * stride..positions.end * stride];
    for (at, row) in positions.zip(rows.chunks_exact(stride)) {
        if let Some(next) = block.next {
            fetch::<T>(next.values, at * stride + dim, N * LANES);
        }
        let row = row[dim..][..N * LANES].as_chunks::<LANES>().0;
        let mut wide = [V::splat(0.0); N];
        for n in 0..N {
            wide[n] = T::load(&row[n]);
        }
        for w in 0..W {
            let weight = V::splat(weights[w][at % PAGE_POSITIONS]);
            for n in 0..N {
                sums[w][n] = weight.fma(wide[n], sums[w][n]);
            }
        }
    }
    for w in 0..W {
        let row = acc[w * stride + dim..][..N * LANES]
            .as_chunks_mut::<LANES>()
            .0;
        for n in 0..N {
            sums[w][n].store(&mut row[n]);
        }
    }
}
