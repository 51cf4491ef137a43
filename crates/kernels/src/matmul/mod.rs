//! Products of packed weights with rows of activations.
//!
//! The order of arithmetic, for every format, instruction set, number of threads and number of rows:
//!
//! - Quantised formats, for each block of 32 columns, ascending: `acc = fma(f32(I), (d·sc)·dx, acc)` with
//!   the exact integer dot product `I`, then for formats with a minimum `acc = fma(−(dmin·m), sx, acc)`
//!   (`+m` for Q4_1 and Q5_1), where `dx` and `sx` are the activations' scale and scaled sum.
//! - Floating-point formats: `acc = fma(w, x, acc)`, columns ascending.
//!
//! Each output starts from +0 and is computed by one thread, from its own row of weights and its own row of
//! activations only.

mod activations;
#[cfg(target_arch = "x86_64")]
mod amx;
mod dispatch;
mod float;
mod int_lanes;
mod quantized;

use std::marker::PhantomData;
use std::ops::Range;

use crate::isa::Isa;
use crate::lanes::{LANES, Lanes};
use crate::packed::quants::GROUP;
use crate::packed::{InputKind, PackedMatrix};
use crate::pool::Pool;
pub use activations::QuantizedRows;
use dispatch::Twin;
use float::FloatProduct;
use quantized::PanelProduct;

/// Rows of activations.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// For F32, F16 and BF16 weights.
    Float {
        /// `rows` × columns, row by row.
        x: &'a [f32],
        /// How many rows.
        rows: usize,
    },
    /// For quantised weights.
    Quantized(&'a QuantizedRows),
}

/// One product of a call to [`matmul`].
#[derive(Debug)]
pub struct Product<'a> {
    /// The weights; their columns are those of the input.
    pub weight: &'a PackedMatrix,
    /// Rows of the input × rows of `weight`, row by row.
    pub out: &'a mut [f32],
}

/// Multiplies one input with several matrices: `out[i][r] = Σ weight[r][k] · input[i][k]`.
///
/// All products share one fork and join of `pool`. The result depends on none of `isa`, the number of
/// threads, the other products and the other rows.
///
/// # Panics
/// When the CPU does not support `isa`, when a matrix needs the other kind of input, or when the sizes of
/// input, weights and outputs do not agree.
pub fn matmul(isa: Isa, pool: &Pool, input: Input<'_>, products: &mut [Product<'_>]) {
    run(Twin::of(isa), pool, input, products);
}

/// [`matmul`] by the scalar reference compiled without hardware FMA.
#[doc(hidden)]
pub fn matmul_soft_fma(pool: &Pool, input: Input<'_>, products: &mut [Product<'_>]) {
    run(Twin::SoftFma, pool, input, products);
}

/// Where the products of one matrix go: shared by the chunks of a job, which write to different places.
#[derive(Clone, Copy)]
struct Outputs {
    start: *mut f32,
    /// Rows of the weights, which is the length of a row of outputs.
    cols: usize,
}

impl Outputs {
    /// Fetches the cache line of an output that will be written soon.
    #[inline(always)]
    fn prefetch(self, row: usize, col: usize) {
        let address = self.start.wrapping_add(row * self.cols + col);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 CPU takes the instruction, some as one without effect, and it never faults.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = address;
    }

    /// Writes sixteen outputs of input row `row` from column `col` on, as far as there are columns.
    ///
    /// # Safety
    /// The row and column must exist and nobody else may write or read there. As for all values of `V`, the
    /// function this is inlined into must have its instruction set.
    #[inline(always)]
    unsafe fn write<V: Lanes>(self, row: usize, col: usize, values: V) {
        let len = (self.cols - col).min(LANES);
        // SAFETY: as the caller vouches.
        unsafe {
            let dst = self.start.add(row * self.cols + col);
            if len == LANES {
                values.store(&mut *dst.cast());
            } else {
                values.store_part(std::slice::from_raw_parts_mut(dst, len));
            }
        }
    }
}

/// How far ahead of its use weight memory is fetched into the first-level cache, in bytes.
const NEAR: usize = 512;
/// How far ahead it is fetched into the second-level cache. Each distance alone leaves a tenth of the memory's
/// bandwidth unused: the far one hides the memory's latency, the near one the second-level cache's.
const FAR: usize = 4096;

/// Fetches what follows `address` in a stream of weights.
#[inline(always)]
pub(crate) fn prefetch_stream(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has the instruction, and it never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(address.wrapping_add(FAR).cast());
    }
    prefetch(address.wrapping_add(NEAR));
}

/// Fetches the cache line at `address`, if there is one.
#[inline(always)]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has the instruction, and it never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// The products as the chunks of one job see them.
struct Shared<'a, 'b> {
    products: *mut Product<'a>,
    len: usize,
    lifetime: PhantomData<&'b mut Product<'a>>,
}

// SAFETY: chunks read the weights and write to different outputs.
unsafe impl Sync for Shared<'_, '_> {}

impl Shared<'_, '_> {
    fn get(&self, index: usize) -> (&PackedMatrix, Outputs) {
        assert!(index < self.len);
        // SAFETY: the index is in bounds, and only the pointer of the output is taken.
        unsafe {
            let product = self.products.add(index);
            let start = (&raw mut *(*product).out).cast();
            let weight = (*product).weight;
            let cols = weight.rows();
            (weight, Outputs { start, cols })
        }
    }
}

fn rows_and_cols(input: Input<'_>, products: &[Product<'_>]) -> (usize, Option<usize>) {
    match input {
        Input::Quantized(x) => (x.rows(), Some(x.cols())),
        Input::Float { x, rows } => {
            let cols = products.first().map(|p| p.weight.cols());
            if let Some(cols) = cols {
                assert_eq!(
                    x.len(),
                    rows * cols,
                    "the input is not {rows} rows of {cols}"
                );
            }
            (rows, cols)
        }
    }
}

fn run(twin: Twin, pool: &Pool, input: Input<'_>, products: &mut [Product<'_>]) {
    let (rows, cols) = rows_and_cols(input, products);
    let kind = match input {
        Input::Float { .. } => InputKind::Float,
        Input::Quantized(_) => InputKind::Quantized,
    };
    for product in &*products {
        let weight = product.weight;
        assert_eq!(
            weight.input_kind(),
            kind,
            "{} weights",
            weight.format().name()
        );
        assert_eq!(Some(weight.cols()), cols, "columns of weights and input");
        assert_eq!(product.out.len(), rows * weight.rows(), "size of an output");
    }
    if rows == 0 {
        return;
    }
    let plan = Plan::new(pool.threads(), rows, products);
    let shared = Shared {
        products: products.as_mut_ptr(),
        len: products.len(),
        lifetime: PhantomData,
    };
    let job = |chunk: usize, _worker: usize| {
        let Some(work) = plan.chunk(chunk, &shared) else {
            return;
        };
        let (weight, out) = shared.get(work.product);
        match input {
            #[cfg(target_arch = "x86_64")]
            Input::Quantized(x) if twin == Twin::Amx && rows >= amx::MIN_ROWS => {
                dispatch::tiles(&amx::TileProduct {
                    weight,
                    groups: work.groups,
                    x,
                    panels: share(x.panels(), work.part, plan.parts),
                    out,
                });
            }
            Input::Quantized(x) => {
                for index in share(x.panels(), work.part, plan.parts) {
                    let panel = x.panel(index);
                    let groups = work.groups.clone();
                    dispatch::quantized(
                        twin,
                        &PanelProduct {
                            weight,
                            groups,
                            panel,
                            out,
                        },
                    );
                }
            }
            Input::Float { x, rows } => dispatch::float(
                twin,
                &FloatProduct {
                    weight,
                    groups: work.groups,
                    x,
                    rows: share(rows, work.part, plan.parts),
                    out,
                },
            ),
        }
    };
    pool.run(plan.chunks, &job);
}

/// Part `part` of `parts` nearly equal ones of `0 .. len`.
fn share(len: usize, part: usize, parts: usize) -> Range<usize> {
    len * part / parts..len * (part + 1) / parts
}

/// Groups that a kernel for `rows` rows of quantised activations is best given at once.
fn quantized_at_once(rows: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if rows >= amx::MIN_ROWS {
        return amx::GROUPS_AT_ONCE;
    }
    let _ = rows;
    1
}

/// How the work of one call is cut into chunks.
struct Plan {
    /// Nanoseconds that a chunk should take.
    target: usize,
    threads: usize,
    rows: usize,
    /// Into how many parts the input's rows are split.
    parts: usize,
    chunks: usize,
}

/// What one chunk computes.
struct Work {
    product: usize,
    groups: Range<usize>,
    part: usize,
}

/// A chunk takes at least this long (in nanoseconds, by the estimate), where there is so much to do.
const MIN_CHUNK: usize = 20_000;
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

/// The smallest number of parts of the input that stay in the second-level cache from one group to the next.
fn parts_in_cache(rows: usize, products: &[Product<'_>]) -> usize {
    let row_bytes = |p: &Product<'_>| match p.weight.input_kind() {
        InputKind::Float => 0,
        InputKind::Quantized => activations::row_bytes(p.weight.cols()),
    };
    let bytes = rows * products.iter().map(row_bytes).max().unwrap_or(0);
    bytes
        .div_ceil(MAX_INPUT_BYTES)
        .clamp(1, rows.div_ceil(activations::PANEL_ROWS))
}

impl Plan {
    fn new(threads: usize, rows: usize, products: &[Product<'_>]) -> Self {
        let total: usize = products
            .iter()
            .map(|p| p.weight.groups() * group_cost(p.weight, rows))
            .sum();
        let target = (total / (threads * CHUNKS_PER_THREAD)).max(MIN_CHUNK);
        let mut plan = Self {
            target,
            threads,
            rows,
            parts: 1,
            chunks: 0,
        };
        plan.parts = parts_in_cache(rows, products);
        plan.rows = rows.div_ceil(plan.parts);
        let pieces: usize = products.iter().map(|p| plan.pieces(p.weight)).sum();
        let wanted = (total / MIN_CHUNK).min(threads * 4);
        // Few groups and many rows of input: share out the rows too.
        if threads > 1 {
            let parts = wanted.div_ceil(pieces.max(1)).clamp(1, rows);
            plan.parts = plan.parts.max(parts);
        }
        plan.chunks = pieces * plan.parts;
        plan
    }

    /// Groups of one chunk.
    ///
    /// As many runs of groups as take about the wanted time each, but as many for each thread as for the others:
    /// a thread that has one more than the rest keeps them waiting.
    fn step(&self, weight: &PackedMatrix) -> usize {
        let groups = weight.groups().max(1);
        let by_time = groups * group_cost(weight, self.rows) / self.target;
        let by_size = (groups * weight.layout().bytes).div_ceil(MAX_CHUNK_BYTES);
        let pieces = by_time.max(by_size).next_multiple_of(self.threads);
        let at_once = match weight.input_kind() {
            InputKind::Float => float::groups_at_once(self.rows),
            InputKind::Quantized => quantized_at_once(self.rows),
        };
        // Not so many at once that a thread would be left without any.
        let fair = groups.div_ceil(self.threads);
        let step = groups.div_ceil(pieces.max(1)).next_multiple_of(at_once);
        step.min(fair)
    }

    /// Runs of groups into which a matrix is cut.
    fn pieces(&self, weight: &PackedMatrix) -> usize {
        weight.groups().div_ceil(self.step(weight))
    }

    fn chunk(&self, chunk: usize, shared: &Shared<'_, '_>) -> Option<Work> {
        let (mut piece, part) = (chunk / self.parts, chunk % self.parts);
        for product in 0..shared.len {
            let (weight, _) = shared.get(product);
            let pieces = self.pieces(weight);
            if piece < pieces {
                let step = self.step(weight);
                let groups = piece * step..((piece + 1) * step).min(weight.groups());
                return Some(Work {
                    product,
                    groups,
                    part,
                });
            }
            piece -= pieces;
        }
        None
    }
}
