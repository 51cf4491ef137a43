//! A few query vectors against one block of 64 positions, in registers.

use crate::lanes::{LANES, Lanes};
use crate::math::{exp_softmax, tanh};
use crate::pages::{KvValue, PAGE_POSITIONS};

/// The most query vectors whose sums are in registers at once.
pub(super) const TILE_VECTORS: usize = 6;

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
#[derive(Clone, Copy)]
pub(super) struct Visible {
    pub(super) first: usize,
    pub(super) end: usize,
}

impl Visible {
    pub(super) const NONE: Self = Self { first: 0, end: 0 };

    fn is_empty(self) -> bool {
        self.first >= self.end
    }

    fn is_whole(self) -> bool {
        self.first == 0 && self.end == PAGE_POSITIONS
    }

    /// Those of sixteen lanes from `16 * part` on, as bits.
    fn bits(self, part: usize) -> u16 {
        let below = |end: usize| ((1u128 << end) - 1) as u64;
        let all = below(self.end) & !below(self.first);
        (all >> (part * LANES)) as u16
    }
}

/// Scores, then weights, of up to [`TILE_VECTORS`] query vectors for the positions of a block.
#[repr(align(64))]
pub(super) struct Weights(pub(super) [[f32; PAGE_POSITIONS]; TILE_VECTORS]);

/// One block of K and V of one kv head.
#[derive(Clone, Copy)]
pub(super) struct Block<'a, T> {
    /// `[head_dim][64 positions]`
    pub(super) keys: &'a [[T; PAGE_POSITIONS]],
    /// `[64 positions][value stride]`
    pub(super) values: &'a [T],
    pub(super) value_stride: usize,
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

/// Takes `W` query vectors over one block: `q` is `[head_dim][W]`, `acc` is `[W][value stride]`.
#[inline(always)]
pub(super) fn visit_block<V: Lanes, T: KvValue, const W: usize>(
    q: &[[f32; W]],
    block: Block<'_, T>,
    visible: &[Visible; W],
    scoring: Scoring,
    weights: &mut Weights,
    running: &mut Running,
    acc: &mut [f32],
) {
    if is_one_register::<V>() {
        scores::<V, T, W, BLOCK_LANES>(q, block.keys, scoring.scale, weights);
    } else {
        scores::<V, T, W, 1>(q, block.keys, scoring.scale, weights);
    }
    if let Some(cap) = scoring.softcap {
        soften::<V, W>(cap, weights);
    }
    let corr = softmax::<V, W>(visible, weights, running);
    let mut dim = 0;
    if is_one_register::<V>() {
        while dim + BLOCK_LANES * LANES <= block.value_stride {
            add_values::<V, T, W, BLOCK_LANES>(block, dim, visible, weights, &corr, acc);
            dim += BLOCK_LANES * LANES;
        }
    }
    while dim < block.value_stride {
        add_values::<V, T, W, 1>(block, dim, visible, weights, &corr, acc);
        dim += LANES;
    }
}

/// `(q · k) * scale` for all 64 positions, `N` registers of them at a time.
#[inline(always)]
fn scores<V: Lanes, T: KvValue, const W: usize, const N: usize>(
    q: &[[f32; W]],
    keys: &[[T; PAGE_POSITIONS]],
    scale: f32,
    weights: &mut Weights,
) {
    for part in (0..BLOCK_LANES).step_by(N) {
        let mut sums = [[V::splat(0.0); N]; W];
        for (q, k) in q.iter().zip(keys) {
            let k = k.as_chunks::<LANES>().0;
            let mut wide = [V::splat(0.0); N];
            for n in 0..N {
                wide[n] = T::load(&k[part + n]);
            }
            for w in 0..W {
                let q = V::splat(q[w]);
                for n in 0..N {
                    sums[w][n] = q.fma(wide[n], sums[w][n]);
                }
            }
        }
        for w in 0..W {
            let row = weights.0[w].as_chunks_mut::<LANES>().0;
            for n in 0..N {
                sums[w][n].mul(V::splat(scale)).store(&mut row[part + n]);
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
            for part in 0..BLOCK_LANES {
                let seen = V::mask(visible[w].bits(part));
                V::select(seen, V::load(&row[part]), V::splat(f32::NEG_INFINITY))
                    .store(&mut row[part]);
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
        for part in 0..BLOCK_LANES {
            let mut weight = exp_softmax(V::load(&row[part]).sub(m));
            if !visible[w].is_whole() {
                let seen = V::mask(visible[w].bits(part));
                weight = V::select(seen, weight, V::splat(0.0));
            }
            weight.store(&mut row[part]);
            sum = sum.add(weight);
        }
        block_l[w] = sum.sum();
    }
    let new_l = V::select(active, l.fma(corr, V::load(&block_l)), l);
    new_l.store(&mut running.l);
    corr.to_array()
}

/// The lanes that all see, or `None` where there are none such, or one that sees nothing at all.
#[inline(always)]
fn seen_by_all<const W: usize>(visible: &[Visible; W]) -> Option<Visible> {
    let mut common = visible[0];
    for one in visible {
        common.first = common.first.max(one.first);
        common.end = common.end.min(one.end);
    }
    (!common.is_empty()).then_some(common)
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
    let mut sums = [[V::splat(0.0); N]; W];
    for w in 0..W {
        let row = acc[w * stride + dim..][..N * LANES].as_chunks::<LANES>().0;
        for n in 0..N {
            sums[w][n] = V::load(&row[n]).mul(V::splat(corr[w]));
        }
    }
    let mut hull = Visible {
        first: PAGE_POSITIONS,
        end: 0,
    };
    for one in visible {
        if !one.is_empty() {
            hull.first = hull.first.min(one.first);
            hull.end = hull.end.max(one.end);
        }
    }
    // Where all see the same, as nearly always, nothing is asked per position.
    let common = seen_by_all(visible).unwrap_or(Visible {
        first: hull.end,
        end: hull.end,
    });
    add_seen(
        block,
        dim,
        hull.first..common.first,
        visible,
        weights,
        &mut sums,
    );
    let rows = block.values.chunks_exact(stride);
    for (at, row) in rows.enumerate().take(common.end).skip(common.first) {
        let wide = load_row::<V, T, N>(row, dim);
        for w in 0..W {
            let weight = V::splat(weights.0[w][at % PAGE_POSITIONS]);
            for n in 0..N {
                sums[w][n] = weight.fma(wide[n], sums[w][n]);
            }
        }
    }
    add_seen(
        block,
        dim,
        common.end..hull.end,
        visible,
        weights,
        &mut sums,
    );
    for w in 0..W {
        let row = acc[w * stride + dim..][..N * LANES]
            .as_chunks_mut::<LANES>()
            .0;
        for n in 0..N {
            sums[w][n].store(&mut row[n]);
        }
    }
}

/// Positions that some of the query vectors see and others don't.
#[inline(always)]
fn add_seen<V: Lanes, T: KvValue, const W: usize, const N: usize>(
    block: Block<'_, T>,
    dim: usize,
    positions: std::ops::Range<usize>,
    visible: &[Visible; W],
    weights: &Weights,
    sums: &mut [[V; N]; W],
) {
    for at in positions {
        let row = &block.values[at * block.value_stride..][..block.value_stride];
        let wide = load_row::<V, T, N>(row, dim);
        for w in 0..W {
            if visible[w].first <= at && at < visible[w].end {
                let weight = V::splat(weights.0[w][at]);
                for n in 0..N {
                    sums[w][n] = weight.fma(wide[n], sums[w][n]);
                }
            }
        }
    }
}

#[inline(always)]
fn load_row<V: Lanes, T: KvValue, const N: usize>(row: &[T], dim: usize) -> [V; N] {
    let row = row[dim..][..N * LANES].as_chunks::<LANES>().0;
    let mut wide = [V::splat(0.0); N];
    for n in 0..N {
        wide[n] = T::load(&row[n]);
    }
    wide
}

/// A softmax over part of the positions: the maximum, the sum of weights, and the sum of weighted
/// values (`value stride` of them).
pub(super) struct Partial<'a> {
    pub(super) m: f32,
    pub(super) l: f32,
    pub(super) acc: &'a [f32],
}

/// Adds `next` to what the earlier splits gave: `acc`, and `(m, l)` which is returned.
#[inline(always)]
pub(super) fn merge<V: Lanes>(
    (m, l): (f32, f32),
    acc: &mut [f32],
    next: &Partial<'_>,
) -> (f32, f32) {
    let (old_m, next_m) = (V::splat(m), V::splat(next.m));
    let m = old_m.max(next_m);
    let corr = exp_softmax(old_m.sub(m));
    let next_corr = exp_softmax(next_m.sub(m));
    let l = V::splat(l).fma(corr, V::splat(next.l).mul(next_corr));
    let next_rows = next.acc.as_chunks::<LANES>().0;
    for (sum, next) in acc.as_chunks_mut::<LANES>().0.iter_mut().zip(next_rows) {
        V::load(sum)
            .fma(corr, V::load(next).mul(next_corr))
            .store(sum);
    }
    (m.to_array()[0], l.to_array()[0])
}

/// `acc / l`, for as many dimensions as `out` has.
#[inline(always)]
pub(super) fn finish<V: Lanes>(l: f32, acc: &[f32], out: &mut [f32]) {
    let l = V::splat(l);
    let rows = acc.as_chunks::<LANES>().0;
    for (sum, out) in rows.iter().zip(out.chunks_mut(LANES)) {
        V::load(sum).div(l).store_part(out);
    }
}
