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
mod plan;
mod quantized;

use std::marker::PhantomData;

use crate::isa::Isa;
use crate::lanes::{LANES, Lanes};
use crate::packed::{InputKind, PackedMatrix};
use crate::pool::{Pool, Stretch, worker_share};
pub use activations::QuantizedRows;
use dispatch::Twin;
use float::FloatProduct;
pub use plan::PRODUCTS_MAX;
use plan::{Plan, share};
use quantized::PanelProduct;

/// From this many rows of activations on, AMX tiles are faster than AVX-512. Tests choose their sizes by it.
#[doc(hidden)]
pub const TILES_FROM: usize = 48;

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
    #[cfg(target_arch = "x86_64")]
    fn prefetch(self, row: usize, col: usize) {
        crate::prefetch::for_write(self.start.wrapping_add(row * self.cols + col).cast());
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

/// Where each of `threads` threads begins to read in a call of [`matmul`] with these weights and one row of
/// input, and how much of a matrix it reads from there: for [`Pool::fetch_ahead`].
///
/// # Panics
/// As [`matmul`], for more than [`PRODUCTS_MAX`] weights.
#[must_use]
pub fn openings(threads: usize, weights: &[&PackedMatrix]) -> Vec<Stretch> {
    let threads = threads.max(1);
    let plan = Plan::new(threads, 1, weights.iter().copied());
    let opening = |worker: usize| {
        let chunks = worker_share(worker, threads, plan.chunks);
        if chunks.is_empty() {
            return None;
        }
        let (first, last) = (
            plan.chunk(chunks.start)?,
            plan.chunk(chunks.end.checked_sub(1)?)?,
        );
        let weight = weights[first.product];
        let end = if last.product == first.product {
            last.groups.end
        } else {
            weight.groups()
        };
        Some(Stretch {
            address: weight.group(first.groups.start).addr(),
            bytes: end.saturating_sub(first.groups.start) * weight.layout().bytes,
        })
    };
    (0..threads)
        .map(|worker| opening(worker).unwrap_or_default())
        .collect()
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
    let plan = Plan::new(pool.threads(), rows, products.iter().map(|p| p.weight));
    let shared = Shared {
        products: products.as_mut_ptr(),
        len: products.len(),
        lifetime: PhantomData,
    };
    let job = |chunk: usize, _worker: usize| {
        let Some(work) = plan.chunk(chunk) else {
            return;
        };
        let (weight, out) = shared.get(work.product);
        match input {
            #[cfg(target_arch = "x86_64")]
            Input::Quantized(x) if twin == Twin::Amx && amx::pays(weight, rows) => {
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
