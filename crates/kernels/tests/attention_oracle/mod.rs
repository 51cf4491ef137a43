//! Attention as the contract words it, one row and one head at a time in plain loops, sharing no code with
//! the kernels but the exponential and the hyperbolic tangent. Also the same with the contract broken.

use kernels::attention::{
    AttentionArgs, AttentionLimits, AttentionScratch, RowRef, attention, attention_soft,
};
use kernels::isa::Isa;
use kernels::lanes::{LaneKernel, Lanes, dispatch};
use kernels::math::{exp_softmax, tanh};
use kernels::pages::{KvShape, KvSlot, PAGE_POSITIONS, PageId, PageStore};
use kernels::pool::Pool;
use std::collections::BTreeMap;

/// A small generator (xorshift64*).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    /// Evenly between −1 and 1.
    pub(crate) fn unit(&mut self) -> f32 {
        self.bits() as f32 / 2_f32.powi(31) - 1.0
    }

    pub(crate) fn vector(&mut self, len: usize, size: f32) -> Vec<f32> {
        (0..len).map(|_| self.unit() * size).collect()
    }
}

pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// One way of computing one thing.
enum Elementary {
    Exp,
    Tanh,
}

struct Apply(Elementary, f32);

impl LaneKernel for Apply {
    type Output = f32;

    #[inline(always)]
    fn run<V: Lanes>(self) -> f32 {
        let x = V::splat(self.1);
        match self.0 {
            Elementary::Exp => exp_softmax(x).to_array()[0],
            Elementary::Tanh => tanh(x).to_array()[0],
        }
    }
}

fn exp(x: f32) -> f32 {
    dispatch(Isa::Scalar, Apply(Elementary::Exp, x))
}

/// The arithmetic's constants, and ways of breaking its order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contract {
    pub(crate) block: usize,
    pub(crate) split: usize,
    pub(crate) fault: Option<Fault>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// K and V are seen as they were before they were rounded to the page's type.
    BeforeRounding,
    /// What a row does not see is multiplied by zero, not skipped.
    TimesZero,
    /// The first product of a block rescales in the same rounding.
    FusedRescale,
    /// The sum of weights is rescaled, and rounded, before the block's is added.
    UnfusedSum,
    /// Blocks, and positions within them, descending.
    Descending,
    /// Dimensions of q·k descending.
    DimsDescending,
    /// The scale goes into the query.
    ScaledQuery,
    /// Splits are merged from the last one on.
    MergeDescending,
    /// A reciprocal instead of a division.
    Reciprocal,
}

pub(crate) const CONTRACT: Contract = Contract {
    block: 64,
    split: 1024,
    fault: None,
};

/// What a call of attention is about, apart from its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) shape: KvShape,
    pub(crate) heads: usize,
    pub(crate) scale: f32,
    pub(crate) softcap: Option<f32>,
}

/// K and V of one sequence.
pub(crate) struct Sequence {
    /// As given, `[len][kv_heads * head_dim]`.
    pub(crate) k: Vec<f32>,
    pub(crate) v: Vec<f32>,
    pub(crate) pages: Vec<PageId>,
    pub(crate) len: usize,
}

/// A store with some sequences in it, their pages in disorder.
pub(crate) struct World {
    pub(crate) setting: Setting,
    pub(crate) store: PageStore,
    pub(crate) sequences: Vec<Sequence>,
}

impl World {
    pub(crate) fn new(setting: Setting, lens: &[usize], seed: u64) -> Self {
        let mut random = Random(seed);
        let shape = setting.shape;
        let counts: Vec<usize> = lens
            .iter()
            .map(|len| len.div_ceil(PAGE_POSITIONS))
            .collect();
        let pages: usize = counts.iter().sum();
        let mut free: Vec<PageId> = (0..pages as u32).map(PageId).collect();
        for i in (1..free.len()).rev() {
            free.swap(i, random.bits() as usize % (i + 1));
        }
        let store = PageStore::new(shape, pages).expect("a small store");
        let mut world = Self {
            setting,
            store,
            sequences: Vec::new(),
        };
        for (len, count) in lens.iter().zip(counts) {
            let sequence = Sequence {
                k: random.vector(len * shape.kv_heads * shape.head_dim, 1.0),
                v: random.vector(len * shape.kv_heads * shape.value_dim, 1.0),
                pages: free.split_off(free.len() - count),
                len: *len,
            };
            world.sequences.push(sequence);
            world.write(world.sequences.len() - 1, 0..*len);
        }
        world
    }

    /// Writes some positions of a sequence (again).
    pub(crate) fn write(&mut self, sequence: usize, positions: std::ops::Range<usize>) {
        let (pool, shape) = (Pool::new(1), self.setting.shape);
        let sequence = &self.sequences[sequence];
        let slots: Vec<KvSlot> = positions.clone().map(|at| sequence.slot(at)).collect();
        let k = &sequence.k[positions.start * shape.kv_heads * shape.head_dim..]
            [..slots.len() * shape.kv_heads * shape.head_dim];
        let v = &sequence.v[positions.start * shape.kv_heads * shape.value_dim..]
            [..slots.len() * shape.kv_heads * shape.value_dim];
        self.store
            .write_rows(Isa::best(), &pool, &slots, k, v)
            .expect("values that fit");
    }

    /// Queries for that many rows, of a size that makes some weights stand out.
    pub(crate) fn queries(&self, rows: usize, seed: u64) -> Vec<f32> {
        let count = rows * self.setting.heads * self.setting.shape.head_dim;
        Random(seed).vector(count, 6.0)
    }

    /// The kernel's answer.
    pub(crate) fn run(&self, by: By, threads: usize, rows: &[RowRef], q: &[f32]) -> Vec<f32> {
        let tables: Vec<&[PageId]> = self.sequences.iter().map(|s| &s.pages[..]).collect();
        self.run_tables(by, threads, rows, q, &tables)
    }

    pub(crate) fn run_tables(
        &self,
        by: By,
        threads: usize,
        rows: &[RowRef],
        q: &[f32],
        page_tables: &[&[PageId]],
    ) -> Vec<f32> {
        let Setting { shape, heads, .. } = self.setting;
        let pool = Pool::new(threads);
        let mut scratch = AttentionScratch::new(AttentionLimits {
            rows: rows.len(),
            heads,
            head_dim: shape.head_dim,
            value_dim: shape.value_dim,
            context: rows.iter().map(|row| row.end as usize).max().unwrap_or(0),
            threads: pool.threads(),
        })
        .expect("a little memory");
        if threads > 1 {
            scratch.share_out_from(0);
        }
        // Not a number anybody should read or leave.
        let mut out = vec![f32::NAN; rows.len() * heads * shape.value_dim];
        let args = AttentionArgs {
            store: &self.store,
            q,
            out: &mut out,
            heads,
            scale: self.setting.scale,
            softcap: self.setting.softcap,
            rows,
            page_tables,
        };
        match by {
            By::Isa(isa) => attention(isa, &pool, &mut scratch, args),
            By::Soft => attention_soft(&pool, &mut scratch, args),
        }
        .expect("arguments that fit");
        out
    }

    /// The oracle's answer, row by row.
    pub(crate) fn expect(&self, contract: Contract, rows: &[RowRef], q: &[f32]) -> Vec<f32> {
        let setting = self.setting;
        let mut out = Vec::new();
        for (row, place) in rows.iter().enumerate() {
            let keys = self.keys(contract, place);
            for head in 0..setting.heads {
                let dim = setting.shape.head_dim;
                let q = &q[(row * setting.heads + head) * dim..][..dim];
                out.extend(one_head(contract, setting, head, place, q, &keys));
            }
        }
        out
    }

    /// What a row may read, by position: all of its blocks, the unseen positions of them included.
    fn keys(&self, contract: Contract, row: &RowRef) -> BTreeMap<usize, (Vec<f32>, Vec<f32>)> {
        let sequence = &self.sequences[row.table as usize];
        let shape = self.setting.shape;
        let (k_width, v_width) = (
            shape.kv_heads * shape.head_dim,
            shape.kv_heads * shape.value_dim,
        );
        let first = row.first as usize / PAGE_POSITIONS * PAGE_POSITIONS;
        let end = (row.end as usize).next_multiple_of(PAGE_POSITIONS);
        (first..end)
            .map(|at| {
                if contract.fault == Some(Fault::BeforeRounding) && at < sequence.len {
                    let k = sequence.k[at * k_width..][..k_width].to_vec();
                    return (at, (k, sequence.v[at * v_width..][..v_width].to_vec()));
                }
                let slot = sequence.slot(at);
                let read = self.store.read(slot.page, slot.slot);
                (at, read.expect("a page that exists"))
            })
            .collect()
    }
}

impl Sequence {
    pub(crate) fn slot(&self, position: usize) -> KvSlot {
        KvSlot {
            page: self.pages[position / PAGE_POSITIONS],
            slot: position % PAGE_POSITIONS,
        }
    }
}

/// Who computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Isa(Isa),
    Soft,
}

impl By {
    pub(crate) fn all() -> Vec<Self> {
        Isa::supported()
            .into_iter()
            .map(Self::Isa)
            .chain([Self::Soft])
            .collect()
    }
}

/// A softmax over some positions.
struct Part {
    m: f32,
    l: f32,
    acc: Vec<f32>,
}

fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Sixteen lanes to one: lane i with lane i + 8, then + 4, + 2, + 1.
fn tree(mut x: [f32; 16], join: impl Fn(f32, f32) -> f32) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            x[i] = join(x[i], x[i + half]);
        }
    }
    x[0]
}

fn one_head(
    contract: Contract,
    setting: Setting,
    head: usize,
    row: &RowRef,
    q: &[f32],
    keys: &BTreeMap<usize, (Vec<f32>, Vec<f32>)>,
) -> Vec<f32> {
    let (first, end) = (row.first as usize, row.end as usize);
    let mut parts: Vec<(usize, Part)> = Vec::new();
    let mut blocks: Vec<usize> = (first / contract.block..end.div_ceil(contract.block)).collect();
    if contract.fault == Some(Fault::Descending) {
        blocks.reverse();
    }
    for block in blocks {
        let split = block * contract.block / contract.split;
        let seen: Vec<usize> = (block * contract.block..(block + 1) * contract.block).collect();
        let before = parts.pop_if(|(of, _)| *of == split).map(|(_, part)| part);
        let part = one_block(contract, setting, head, row, q, keys, &seen, before);
        parts.push((split, part));
    }
    if contract.fault == Some(Fault::MergeDescending) {
        parts.reverse();
    }
    let mut parts = parts.into_iter().map(|(_, part)| part);
    let mut all = parts.next().expect("a row that sees something");
    for part in parts {
        let m = larger(all.m, part.m);
        let (c, e) = (exp(all.m - m), exp(part.m - m));
        all.l = all.l.mul_add(c, part.l * e);
        for (sum, next) in all.acc.iter_mut().zip(&part.acc) {
            *sum = sum.mul_add(c, next * e);
        }
        all.m = m;
    }
    if contract.fault == Some(Fault::Reciprocal) {
        return all.acc.iter().map(|sum| sum * (1.0 / all.l)).collect();
    }
    all.acc.iter().map(|sum| sum / all.l).collect()
}

/// The score of one position.
fn score(contract: Contract, setting: Setting, q: &[f32], k: &[f32]) -> f32 {
    let mut dims: Vec<usize> = (0..q.len()).collect();
    if contract.fault == Some(Fault::DimsDescending) {
        dims.reverse();
    }
    let mut s = 0.0_f32;
    if contract.fault == Some(Fault::ScaledQuery) {
        for d in dims {
            s = (q[d] * setting.scale).mul_add(k[d], s);
        }
    } else {
        for d in dims {
            s = q[d].mul_add(k[d], s);
        }
        s *= setting.scale;
    }
    match setting.softcap {
        Some(cap) => cap * dispatch(Isa::Scalar, Apply(Elementary::Tanh, s / cap)),
        None => s,
    }
}

#[allow(clippy::too_many_arguments)] // as the contract has it
fn one_block(
    contract: Contract,
    setting: Setting,
    head: usize,
    row: &RowRef,
    q: &[f32],
    keys: &BTreeMap<usize, (Vec<f32>, Vec<f32>)>,
    positions: &[usize],
    before: Option<Part>,
) -> Part {
    let shape = setting.shape;
    let kv_head = head / (setting.heads / shape.kv_heads);
    let sees = |j: usize| (row.first as usize..row.end as usize).contains(&j);
    let k = |j: usize| &keys[&j].0[kv_head * shape.head_dim..][..shape.head_dim];
    let v = |j: usize| &keys[&j].1[kv_head * shape.value_dim..][..shape.value_dim];

    let scores: Vec<f32> = positions
        .iter()
        .map(|&j| {
            if sees(j) {
                score(contract, setting, q, k(j))
            } else {
                f32::NEG_INFINITY
            }
        })
        .collect();
    let mut tops = [f32::NEG_INFINITY; 16];
    for (i, s) in scores.iter().enumerate() {
        tops[i % 16] = if i < 16 { *s } else { larger(tops[i % 16], *s) };
    }
    let top = tree(tops, larger);
    let m = before.as_ref().map_or(top, |before| larger(before.m, top));
    let weights: Vec<f32> = scores
        .iter()
        .zip(positions)
        .map(|(s, &j)| if sees(j) { exp(s - m) } else { 0.0 })
        .collect();
    let mut sums = [0.0_f32; 16];
    for (i, p) in weights.iter().enumerate() {
        sums[i % 16] += p;
    }
    let block_l = tree(sums, |a, b| a + b);

    let (l, mut acc, corr) = match before {
        None => (block_l, vec![0.0_f32; shape.value_dim], 0.0),
        Some(before) => {
            let corr = exp(before.m - m);
            let l = match contract.fault {
                Some(Fault::UnfusedSum) => before.l * corr + block_l,
                _ => before.l.mul_add(corr, block_l),
            };
            (l, before.acc, corr)
        }
    };
    let fused = contract.fault == Some(Fault::FusedRescale);
    if !fused {
        acc.iter_mut().for_each(|sum| *sum *= corr);
    }
    let mut order: Vec<usize> = (0..positions.len()).collect();
    if contract.fault == Some(Fault::Descending) {
        order.reverse();
    }
    let mut first = true;
    for i in order {
        let j = positions[i];
        if !sees(j) && contract.fault != Some(Fault::TimesZero) {
            continue;
        }
        for (sum, v) in acc.iter_mut().zip(v(j)) {
            *sum = if fused && first {
                sum.mul_add(corr, weights[i] * v)
            } else {
                weights[i].mul_add(*v, *sum)
            };
        }
        first = false;
    }
    Part { m, l, acc }
}

/// Softmax attention in f64, as a textbook has it, over what the pages hold.
pub(crate) fn textbook(world: &World, rows: &[RowRef], q: &[f32]) -> Vec<f64> {
    let Setting {
        shape,
        heads,
        scale,
        softcap,
    } = world.setting;
    let mut out = Vec::new();
    for (row, place) in rows.iter().enumerate() {
        let keys = world.keys(CONTRACT, place);
        let seen: Vec<_> = keys
            .range(place.first as usize..place.end as usize)
            .collect();
        for head in 0..heads {
            let kv_head = head / (heads / shape.kv_heads);
            let q = &q[(row * heads + head) * shape.head_dim..][..shape.head_dim];
            let scores: Vec<f64> = seen
                .iter()
                .map(|(_, (k, _))| {
                    let k = &k[kv_head * shape.head_dim..];
                    let dot: f64 = q
                        .iter()
                        .zip(k)
                        .map(|(q, k)| f64::from(*q) * f64::from(*k))
                        .sum();
                    let s = dot * f64::from(scale);
                    softcap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh())
                })
                .collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|s| (s - top).exp()).sum();
            for d in 0..shape.value_dim {
                let weighted = scores.iter().zip(&seen).map(|(s, (_, (_, v)))| {
                    (s - top).exp() * f64::from(v[kv_head * shape.value_dim + d])
                });
                out.push(weighted.sum::<f64>() / total);
            }
        }
    }
    out
}
