//! Normalisation by the root of the mean square.

use crate::isa::Isa;
use crate::lanes::{LaneKernel, Lanes, dispatch};
use crate::math::{Binary, Zip};
use crate::reduce::SumOfSquares;

/// `out[i] = (x[i] · s) · weight[i]` with `s = 1 / √(Σx² / n + eps)`, every operation rounded once and the
/// sum as in [`crate::reduce::sum_of_squares`].
///
/// All three slices have the length of a row. A norm without weights is one with ones, exactly.
///
/// # Panics
/// When the lengths differ.
pub fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), weight.len(), "row and weight differ in length");
    assert_eq!(x.len(), out.len(), "row and output differ in length");
    dispatch(
        isa,
        RmsNorm {
            x,
            weight,
            eps,
            out,
        },
    );
}

/// [`rms_norm`] of each stretch of `weight.len()` elements by itself, in place: of the heads of a query
/// or key, or of the rows of a batch.
///
/// # Panics
/// When the length of `rows` is not a multiple of that of `weight`.
pub fn rms_norm_in_place(isa: Isa, rows: &mut [f32], weight: &[f32], eps: f32) {
    assert!(
        rows.is_empty() || rows.len().is_multiple_of(weight.len()),
        "{} elements are no whole number of rows of {}",
        rows.len(),
        weight.len()
    );
    dispatch(isa, RmsNormInPlace { rows, weight, eps });
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl LaneKernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let factor = factor::<V>(self.x, self.eps);
        self.out.copy_from_slice(self.x);
        Zip {
            function: Weighted { factor },
            x: self.out,
            y: self.weight,
        }
        .run::<V>();
    }
}

struct RmsNormInPlace<'a> {
    rows: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl LaneKernel for RmsNormInPlace<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        for row in self.rows.chunks_exact_mut(self.weight.len().max(1)) {
            let factor = factor::<V>(row, self.eps);
            Zip {
                function: Weighted { factor },
                x: row,
                y: self.weight,
            }
            .run::<V>();
        }
    }
}

/// `(x · factor) · weight`.
#[derive(Clone, Copy)]
struct Weighted {
    factor: f32,
}

impl Binary for Weighted {
    #[inline(always)]
    fn apply<V: Lanes>(self, x: V, weight: V) -> V {
        x.mul(V::splat(self.factor)).mul(weight)
    }
}

/// `1 / √(Σx² / n + eps)`.
#[inline(always)]
fn factor<V: Lanes>(x: &[f32], eps: f32) -> f32 {
    let mean = SumOfSquares { x }.run::<V>() / x.len() as f32;
    let root = V::sqrt(V::splat(mean + eps)).to_array()[0];
    1.0 / root
}

#[cfg(test)]
mod tests;
