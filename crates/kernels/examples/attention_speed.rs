//! Speed of attention: prefill in fused multiply-adds per second, decode in bytes of K and V per second.
//!
//!     cargo run --release -p plainchant-kernels --example attention_speed
#![allow(clippy::print_stdout)]

use kernels::attention::{
    AttentionArgs, AttentionError, AttentionLimits, AttentionScratch, RowRef, attention,
};
use kernels::isa::{Isa, IsaError};
use kernels::lanes::{LANES, LaneKernel, Lanes, dispatch};
use kernels::pages::{KvShape, KvSlot, KvType, PAGE_POSITIONS, PageError, PageId, PageStore};
use kernels::pool::Pool;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// What the kernels' errors have in common here: the program ends.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Isa(#[from] IsaError),
    #[error(transparent)]
    Pages(#[from] PageError),
    #[error(transparent)]
    Attention(#[from] AttentionError),
}

/// Layers whose pages are visited in turn, so that decode finds them no closer than a model would.
const LAYERS: usize = 24;

#[derive(Clone, Copy)]
struct Heads {
    heads: usize,
    kv_heads: usize,
    dim: usize,
}

fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Chains of multiply-adds that nothing waits for.
struct Peak(usize);

impl LaneKernel for Peak {
    type Output = f32;

    #[inline(always)]
    fn run<V: Lanes>(self) -> f32 {
        let (a, b) = (V::splat(black_box(0.5)), V::splat(black_box(0.25)));
        let mut sums = [V::splat(black_box(1.0)); 12];
        for _ in 0..self.0 {
            for sum in &mut sums {
                *sum = a.fma(*sum, b);
            }
        }
        sums.iter().map(|sum| sum.sum()).sum()
    }
}

fn peak(isa: Isa) -> f64 {
    let rounds = 2_000_000;
    let best = (0..5)
        .map(|_| {
            let start = Instant::now();
            black_box(dispatch(isa, Peak(rounds)));
            start.elapsed()
        })
        .min()
        .unwrap_or_default();
    (rounds * 12 * LANES) as f64 / best.as_secs_f64() / 1e9
}

struct Bench {
    isa: Isa,
    pool: Pool,
    heads: Heads,
    store: PageStore,
    tables: Vec<Vec<PageId>>,
    scratch: AttentionScratch,
}

impl Bench {
    fn new(isa: Isa, threads: usize, heads: Heads, rows: usize, len: usize) -> Result<Self, Error> {
        let shape = KvShape {
            kv_heads: heads.kv_heads,
            head_dim: heads.dim,
            value_dim: heads.dim,
            kv_type: KvType::F16,
        };
        let pages = len.div_ceil(PAGE_POSITIONS);
        let pool = Pool::new(threads);
        let mut store = PageStore::new(shape, pages * LAYERS)?;
        let tables: Vec<Vec<PageId>> = (0..LAYERS)
            .map(|layer| (0..pages).map(move |page| PageId((layer * pages + page) as u32)))
            .map(Iterator::collect)
            .collect();
        let width = heads.kv_heads * heads.dim;
        let (k, v) = (noise(len * width, 3), noise(len * width, 5));
        for table in &tables {
            let slots: Vec<KvSlot> = (0..len)
                .map(|at| KvSlot {
                    page: table[at / PAGE_POSITIONS],
                    slot: at % PAGE_POSITIONS,
                })
                .collect();
            store.write_rows(isa, &pool, &slots, &k, &v)?;
        }
        let scratch = AttentionScratch::new(AttentionLimits {
            rows,
            heads: heads.heads,
            head_dim: heads.dim,
            value_dim: heads.dim,
            context: len,
            threads,
        })?;
        Ok(Self {
            isa,
            pool,
            heads,
            store,
            tables,
            scratch,
        })
    }

    /// The time of one call (of ten, the second fastest) over the last `rows` of `len` positions.
    fn time(&mut self, rows: usize, len: usize) -> Result<Duration, Error> {
        let width = rows * self.heads.heads * self.heads.dim;
        let q = noise(width, 7);
        let mut out = vec![0.0; width];
        let rows: Vec<RowRef> = (len - rows..len)
            .map(|position| RowRef::causal(position as u32, None, 0))
            .collect();
        let mut times = Vec::new();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(600) || times.len() < 2 * LAYERS {
            let table = &self.tables[times.len() % LAYERS];
            let start = Instant::now();
            attention(
                self.isa,
                &self.pool,
                &mut self.scratch,
                AttentionArgs {
                    store: &self.store,
                    q: &q,
                    out: &mut out,
                    heads: self.heads.heads,
                    scale: 0.125,
                    softcap: None,
                    rows: &rows,
                    page_tables: &[table],
                },
            )?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        Ok(times[times.len() / 10])
    }
}

fn main() -> Result<(), Error> {
    let isa = Isa::from_env()?;
    let peak = peak(isa);
    println!("{isa}: peak {peak:.1} G FMA/s on one thread");
    for (heads, kv_heads, dim) in [(9, 3, 64), (14, 2, 64), (4, 1, 256)] {
        let heads = Heads {
            heads,
            kv_heads,
            dim,
        };
        for threads in [1, 2] {
            print!("{}/{kv_heads}/{dim} threads {threads}:", heads.heads);
            for rows in [512, 2048] {
                let time = Bench::new(isa, threads, heads, rows, rows)?.time(rows, rows)?;
                let seen = rows * (rows + 1) / 2;
                let fmas = (seen * heads.heads * 2 * dim) as f64 / time.as_secs_f64() / 1e9;
                let part = fmas / peak / threads as f64 * 100.0;
                print!("  prefill {rows}: {fmas:.1} G FMA/s ({part:.0} %)");
            }
            for len in [512, 2048, 8192] {
                let time = Bench::new(isa, threads, heads, 1, len)?.time(1, len)?;
                let bytes = len * kv_heads * dim * 2 * KvType::F16.bytes_per_value();
                let speed = bytes as f64 / time.as_secs_f64() / 1e9;
                let us = time.as_secs_f64() * 1e6;
                print!("  decode at {len}: {speed:.1} GB/s ({us:.0} us)");
            }
            println!();
        }
    }
    Ok(())
}
