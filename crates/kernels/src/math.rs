//! The project's own elementary functions, over [`Lanes`].
//!
//! Every function is a fixed chain of exactly rounded operations, so it gives the same bits on every
//! instruction set. None of them uses a table, an estimate or the platform's library.
//!
//! # The exponential
//! `x = n·ln 2 + r` with integral `n` and `|r| ≤ ln 2 / 2`; then `e^x = 2^n · e^r`. The reduction takes
//! `ln 2` in two parts: the first has 16 bits, so that `n` times it (at most 24 bits) and the difference
//! to `x` are exact; the second is rounded to f32. For `e^r` there is a polynomial of degree 6,
//! `1 + r + C2·r² + … + C6·r⁶`, whose two first coefficients are fixed at 1. The others are minimax for
//! the relative error on `|r| ≤ (1 + 2⁻¹²)·ln 2 / 2`, found by Remez exchange with 50 digits; they were
//! rounded to f32 one after the other from C2 up, the remaining ones being fitted anew after each
//! rounding. What is left is a relative error of 2⁻²⁸·², a twentieth of an ulp.
//!
//! # Error bounds
//! In units of the last place (ulp) of the exact result, against the f64 functions of `libm`; measured
//! over all floats where the result is a normal number:
//!
//! | function | stated bound | found |
//! |---|---|---|
//! | [`exp`], [`exp_softmax`] | 1 ulp | 0.892 |
//! | [`sigmoid`] | 2.5 ulp | 2.402 |
//! | [`tanh`] | 3 ulp | 2.499 |
//! | [`silu`] | 4 ulp | 3.345 |
//! | [`gelu_tanh`], `x ≥ −1` | 4 ulp | 3.019 |
//! | [`gelu_tanh`], `x < −1` | 3·2⁻²⁶ in absolute terms | |

use crate::isa::Isa;
use crate::lanes::{LANES, LaneKernel, Lanes, dispatch};

/// Below this [`exp`] is +0; e^x is then less than 2⁻¹²⁴, near the end of the normal numbers.
pub const EXP_CUT: f32 = -86.5;
/// Below this [`exp_softmax`] is +0 (part of the contract on softmax).
pub const SOFTMAX_CUT: f32 = -80.0;

/// Above this e^x overflows for certain, and 2^n is still within reach.
const EXP_TOP: f32 = 89.0;
const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// The first 16 bits of ln 2.
const LN_2_HIGH: f32 = f32::from_bits(0x3f31_7200);
/// The rest of ln 2.
const LN_2_LOW: f32 = 1.428_606_8e-6;
const C2: f32 = f32::from_bits(0x3eff_fffe);
const C3: f32 = f32::from_bits(0x3e2a_aa46);
const C4: f32 = f32::from_bits(0x3d2a_ac2c);
const C5: f32 = f32::from_bits(0x3c09_1ef0);
const C6: f32 = f32::from_bits(0x3ab5_63a7);

/// `n` and `r` with `x = n·ln 2 + r`.
#[inline(always)]
fn reduce<V: Lanes>(x: V) -> (V, V) {
    let n = x.mul(V::splat(LOG2_E)).round_even();
    let r = n.fma(V::splat(-LN_2_HIGH), x);
    (n, n.fma(V::splat(-LN_2_LOW), r))
}

/// `e^x`, but +0 below `cut`, which must not be less than [`EXP_CUT`].
#[inline(always)]
fn exp_above<V: Lanes>(x: V, cut: f32) -> V {
    let cut = V::splat(cut);
    // In this order of operands a NaN goes through both clamps.
    let clamped = cut.max(V::splat(EXP_TOP).min(x));
    let (n, r) = reduce(clamped);
    // Twice the polynomial, by half the power: so n = 128 needs no 2^128.
    let p = V::splat(2.0 * C6)
        .fma(r, V::splat(2.0 * C5))
        .fma(r, V::splat(2.0 * C4))
        .fma(r, V::splat(2.0 * C3))
        .fma(r, V::splat(2.0 * C2))
        .fma(r, V::splat(2.0))
        .fma(r, V::splat(2.0));
    let y = p.mul(n.sub(V::splat(1.0)).exp2_integral());
    V::select(cut.gt(x), V::splat(0.0), y)
}

/// `e^x`: exactly 1 at ±0, +0 below [`EXP_CUT`] (−∞ included), +∞ from the overflow threshold
/// (about 88.7228) on. A NaN stays one.
#[inline(always)]
pub fn exp<V: Lanes>(x: V) -> V {
    exp_above(x, EXP_CUT)
}

/// `e^x` for softmax: equals [`exp`] down to [`SOFTMAX_CUT`] and is +0 below it.
#[inline(always)]
pub fn exp_softmax<V: Lanes>(x: V) -> V {
    exp_above(x, SOFTMAX_CUT)
}

/// The numerator and denominator of the logistic function: `1/(1+e)` for `x ≥ 0` and `e/(1+e)` below,
/// with `e = exp(−|x|)`, so that nothing overflows.
#[inline(always)]
fn logistic<V: Lanes>(x: V) -> (V, V) {
    let one = V::splat(1.0);
    let e = exp(x.abs().neg());
    (V::select(V::splat(0.0).gt(x), e, one), one.add(e))
}

/// `1 / (1 + e^−x)`.
#[inline(always)]
pub fn sigmoid<V: Lanes>(x: V) -> V {
    let (numerator, denominator) = logistic(x);
    numerator.div(denominator)
}

/// `x · sigmoid(x)`, the product taken before the division.
#[inline(always)]
pub fn silu<V: Lanes>(x: V) -> V {
    let (numerator, denominator) = logistic(x);
    x.mul(numerator).div(denominator)
}

/// The hyperbolic tangent, `−t / (2 + t)` with `t = e^(−2|x|) − 1`, its sign restored.
///
/// `t` is put together from `e^r − 1`, so nothing cancels near zero; where `|x| < 2⁻¹³` the result is
/// `x` itself (−0 included).
#[inline(always)]
pub fn tanh<V: Lanes>(x: V) -> V {
    const SMALL: f32 = f32::from_bits((127 - 13) << 23);
    /// From here on tanh rounds to 1 (from 9.01 on).
    const FLAT: f32 = -20.0;
    let magnitude = x.abs();
    let (n, r) = reduce(V::splat(FLAT).max(magnitude.mul(V::splat(-2.0))));
    let q = V::splat(C6)
        .fma(r, V::splat(C5))
        .fma(r, V::splat(C4))
        .fma(r, V::splat(C3))
        .fma(r, V::splat(C2));
    let e_r_minus_1 = r.mul(r).fma(q, r);
    let power = n.exp2_integral();
    let t = power.fma(e_r_minus_1, power.sub(V::splat(1.0)));
    let y = t.neg().div(V::splat(2.0).add(t));
    let signed = V::select(V::splat(0.0).gt(x), y.neg(), y);
    V::select(V::splat(SMALL).gt(magnitude), x, signed)
}

/// The tanh approximation of GELU, `0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))`.
///
/// Computed as `x · sigmoid(2·√(2/π)·(x + 0.044715·x³))`, which is the same function and doesn't
/// cancel for negative `x`.
#[inline(always)]
pub fn gelu_tanh<V: Lanes>(x: V) -> V {
    /// 2·√(2/π)
    const LINEAR: f32 = 1.595_769_2;
    /// 2·√(2/π)·0.044715
    const CUBIC: f32 = 0.071_354_814;
    let u = x.mul(x.mul(x).fma(V::splat(CUBIC), V::splat(LINEAR)));
    let (numerator, denominator) = logistic(u);
    x.mul(numerator).div(denominator)
}

/// A function of one variable over [`Lanes`], so that it can be handed to [`map`].
///
/// A trait and not a closure, because only a function can be forced inline; one that is not inlined into
/// the kernel is compiled without its target features, and is a hundred times slower.
pub trait Unary: Copy {
    /// The function; must be `#[inline(always)]`.
    fn apply<V: Lanes>(self, x: V) -> V;
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident, $slice:ident, $function:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl Unary for $name {
            #[inline(always)]
            fn apply<V: Lanes>(self, x: V) -> V {
                $function(x)
            }
        }

        /// Applies the function to each element, in place:
        $(#[$doc])*
        pub fn $slice(isa: Isa, x: &mut [f32]) {
            map(isa, $name, x);
        }
    )*};
}

unary! {
    /// [`exp`].
    Exp, exp_in_place, exp;
    /// [`exp_softmax`].
    ExpSoftmax, exp_softmax_in_place, exp_softmax;
    /// [`sigmoid`].
    Sigmoid, sigmoid_in_place, sigmoid;
    /// [`tanh`].
    Tanh, tanh_in_place, tanh;
    /// [`silu`].
    Silu, silu_in_place, silu;
    /// [`gelu_tanh`].
    GeluTanh, gelu_tanh_in_place, gelu_tanh;
}

/// `x[i] = function(x[i])`.
pub fn map<F: Unary>(isa: Isa, function: F, x: &mut [f32]) {
    dispatch(isa, Map { function, x });
}

pub(crate) struct Map<'a, F> {
    pub(crate) function: F,
    pub(crate) x: &'a mut [f32],
}

impl<F: Unary> LaneKernel for Map<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let (whole, tail) = self.x.as_chunks_mut::<LANES>();
        for x in whole {
            self.function.apply(V::load(x)).store(x);
        }
        if !tail.is_empty() {
            self.function
                .apply(V::load_part(tail, 0.0))
                .store_part(tail);
        }
    }
}

/// A function of two variables over [`Lanes`], for [`Zip`].
pub(crate) trait Binary: Copy {
    /// The function; must be `#[inline(always)]`.
    fn apply<V: Lanes>(self, x: V, y: V) -> V;
}

/// `x[i] = function(x[i], y[i])`; both have the same length.
pub(crate) struct Zip<'a, F> {
    pub(crate) function: F,
    pub(crate) x: &'a mut [f32],
    pub(crate) y: &'a [f32],
}

impl<F: Binary> LaneKernel for Zip<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let (x_whole, x_tail) = self.x.as_chunks_mut::<LANES>();
        let (y_whole, y_tail) = self.y.as_chunks::<LANES>();
        for (x, y) in x_whole.iter_mut().zip(y_whole) {
            self.function.apply(V::load(x), V::load(y)).store(x);
        }
        if !x_tail.is_empty() {
            let (x, y) = (V::load_part(x_tail, 0.0), V::load_part(y_tail, 0.0));
            self.function.apply(x, y).store_part(x_tail);
        }
    }
}

#[cfg(test)]
mod tests;
