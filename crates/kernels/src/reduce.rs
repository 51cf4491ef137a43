//! Reductions over a row, and the element-wise steps around them.
//!
//! Sums use sixteen virtual lanes: lane `i` takes elements `i`, `i + 16`, … ascending, and the lanes are
//! added by the fixed tree of [`Lanes::sum`]. A lane that the tail doesn't reach simply gets none.

use crate::isa::Isa;
use crate::lanes::{LANES, LaneKernel, Lanes, dispatch};
use crate::math::{self, Binary, Unary, Zip, map};

/// A row has no largest element that could be named.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ArgmaxError {
    /// The row has no elements.
    #[error("argmax of an empty row; there must be at least one element")]
    Empty,
    /// An element is infinite or not a number.
    #[error("element {index} is {value}; all must be finite")]
    NonFinite {
        /// The first such element.
        index: usize,
        /// What it is.
        value: f32,
    },
}

/// The index of the largest element; of several equal ones, the lowest.
///
/// # Errors
/// When the row is empty or has an element that is not finite.
pub fn argmax(isa: Isa, x: &[f32]) -> Result<usize, ArgmaxError> {
    dispatch(isa, Argmax { x })
}

/// The first element that is infinite or not a number.
#[must_use]
pub fn first_non_finite(isa: Isa, x: &[f32]) -> Option<usize> {
    dispatch(isa, FirstNonFinite { x })
}

/// The largest element, −∞ for an empty row. (Which zero, where +0 and −0 are both largest, is fixed but
/// not specified.)
#[must_use]
pub fn max(isa: Isa, x: &[f32]) -> f32 {
    dispatch(isa, Max { x })
}

/// `Σ x²`, each square added to its lane with one rounding.
#[must_use]
pub fn sum_of_squares(isa: Isa, x: &[f32]) -> f32 {
    dispatch(isa, SumOfSquares { x })
}

/// `x[i] += y[i]`.
///
/// # Panics
/// When the lengths differ.
pub fn add_assign(isa: Isa, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "rows to add differ in length");
    dispatch(
        isa,
        Zip {
            function: Add,
            x,
            y,
        },
    );
}

/// `x[i] += factor · y[i]`, rounded once.
///
/// # Panics
/// When the lengths differ.
pub fn add_scaled(isa: Isa, x: &mut [f32], factor: f32, y: &[f32]) {
    assert_eq!(x.len(), y.len(), "rows to add differ in length");
    let function = AddScaled { factor };
    dispatch(isa, Zip { function, x, y });
}

/// `x[i] *= factor`.
pub fn scale(isa: Isa, x: &mut [f32], factor: f32) {
    map(isa, Scale { factor }, x);
}

/// `x[i] = cap · tanh(x[i] / cap)`: bounds logits smoothly by ±`cap`, which must be greater than 0.
pub fn softcap(isa: Isa, x: &mut [f32], cap: f32) {
    map(isa, Softcap { cap }, x);
}

/// How many elements are checked or searched at once.
const BLOCK: usize = 1024;

/// Whether all elements of `x` are finite, and the largest of them.
#[inline(always)]
fn check_and_max<V: Lanes>(x: &[f32]) -> (bool, f32) {
    let zero = V::splat(0.0);
    let (mut check, mut largest) = (zero, V::splat(f32::NEG_INFINITY));
    let (whole, tail) = x.as_chunks::<LANES>();
    for x in whole {
        let v = V::load(x);
        // Zero times an infinity or a NaN is a NaN, and stays one.
        check = v.fma(zero, check);
        largest = largest.max(v);
    }
    if !tail.is_empty() {
        check = V::load_part(tail, 0.0).fma(zero, check);
        largest = largest.max(V::load_part(tail, f32::NEG_INFINITY));
    }
    (!check.sum().is_nan(), largest.largest())
}

struct Argmax<'a> {
    x: &'a [f32],
}

impl LaneKernel for Argmax<'_> {
    type Output = Result<usize, ArgmaxError>;

    #[inline(always)]
    fn run<V: Lanes>(self) -> Self::Output {
        let (mut largest, mut start) = (f32::NEG_INFINITY, None);
        for (block, x) in self.x.chunks(BLOCK).enumerate() {
            let (finite, of_block) = check_and_max::<V>(x);
            if !finite {
                let (index, value) = non_finite(x).unwrap_or((0, x[0]));
                let index = block * BLOCK + index;
                return Err(ArgmaxError::NonFinite { index, value });
            }
            if of_block > largest {
                (largest, start) = (of_block, Some(block * BLOCK));
            }
        }
        let start = start.ok_or(ArgmaxError::Empty)?;
        let within = self.x[start..].iter().position(|&v| v == largest);
        Ok(start + within.unwrap_or(0))
    }
}

fn non_finite(x: &[f32]) -> Option<(usize, f32)> {
    let index = x.iter().position(|v| !v.is_finite())?;
    Some((index, x[index]))
}

struct FirstNonFinite<'a> {
    x: &'a [f32],
}

impl LaneKernel for FirstNonFinite<'_> {
    type Output = Option<usize>;

    #[inline(always)]
    fn run<V: Lanes>(self) -> Option<usize> {
        self.x.chunks(BLOCK).enumerate().find_map(|(block, x)| {
            let (finite, _) = check_and_max::<V>(x);
            if finite {
                return None;
            }
            non_finite(x).map(|(index, _)| block * BLOCK + index)
        })
    }
}

struct Max<'a> {
    x: &'a [f32],
}

impl LaneKernel for Max<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<V: Lanes>(self) -> f32 {
        check_and_max::<V>(self.x).1
    }
}

pub(crate) struct SumOfSquares<'a> {
    pub(crate) x: &'a [f32],
}

impl LaneKernel for SumOfSquares<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<V: Lanes>(self) -> f32 {
        let mut sum = V::splat(0.0);
        let (whole, tail) = self.x.as_chunks::<LANES>();
        for x in whole {
            let v = V::load(x);
            sum = v.fma(v, sum);
        }
        if !tail.is_empty() {
            // Adding 0·0 leaves a lane as it is, for no lane is ever −0.
            let v = V::load_part(tail, 0.0);
            sum = v.fma(v, sum);
        }
        sum.sum()
    }
}

#[derive(Clone, Copy)]
struct Add;

impl Binary for Add {
    #[inline(always)]
    fn apply<V: Lanes>(self, x: V, y: V) -> V {
        x.add(y)
    }
}

#[derive(Clone, Copy)]
struct AddScaled {
    factor: f32,
}

impl Binary for AddScaled {
    #[inline(always)]
    fn apply<V: Lanes>(self, x: V, y: V) -> V {
        V::splat(self.factor).fma(y, x)
    }
}

#[derive(Clone, Copy)]
struct Scale {
    factor: f32,
}

impl Unary for Scale {
    #[inline(always)]
    fn apply<V: Lanes>(self, x: V) -> V {
        x.mul(V::splat(self.factor))
    }
}

#[derive(Clone, Copy)]
struct Softcap {
    cap: f32,
}

impl Unary for Softcap {
    #[inline(always)]
    fn apply<V: Lanes>(self, x: V) -> V {
        let cap = V::splat(self.cap);
        cap.mul(math::tanh(x.div(cap)))
    }
}

#[cfg(test)]
mod tests;
