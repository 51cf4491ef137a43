//! Sixteen virtual lanes of f32, on every instruction set.
//!
//! A float kernel is written once, over [`Lanes`], and run through [`dispatch`]. Every operation here
//! is either exactly rounded (IEEE 754) or exact, and lane `i` never sees lane `j` except in the two
//! reductions, whose tree is fixed. So all instruction sets give the same bits: the array of sixteen
//! floats ([`Scalar`]) *is* the definition, a zmm register or a pair of ymm registers are its twins.
//!
//! This is the one place with lists of target features for float kernels; they must match what
//! [`Isa::is_supported`] tests for.

mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::isa::Isa;
pub use scalar::{Scalar, SoftFma, fma_soft};
#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

/// The number of virtual lanes.
pub const LANES: usize = 16;

/// Sixteen lanes of f32.
///
/// Methods are `#[inline(always)]` in every implementation, so that they take on the target features
/// of the kernel they are inlined into. Values may be made only inside [`dispatch`].
pub trait Lanes: Copy {
    /// One bit of truth per lane.
    type Mask: Copy;

    /// `x` in every lane.
    fn splat(x: f32) -> Self;
    /// The first sixteen floats of `src`; shorter slices fill lanes from 0 and leave `fill` in the rest.
    fn load(src: &[f32; LANES]) -> Self;
    /// Lane `i` to `dst[i]`.
    fn store(self, dst: &mut [f32; LANES]);
    /// Sixteen f16 (as bits), widened exactly.
    fn load_f16(src: &[u16; LANES]) -> Self;
    /// Rounds to f16, to nearest even. Overflow gives an infinity: callers check beforehand.
    fn store_f16(self, dst: &mut [u16; LANES]);
    /// Sixteen bf16 (as bits), widened exactly.
    fn load_bf16(src: &[u16; LANES]) -> Self;
    /// Sixteen i32, each converted with rounding to nearest even.
    fn from_i32(src: &[i32; LANES]) -> Self;

    /// Sixteen unsigned bytes, converted exactly.
    fn from_u8(src: &[u8; LANES]) -> Self;
    /// Sixteen signed bytes, converted exactly.
    fn from_i8(src: &[i8; LANES]) -> Self;

    /// `self + b`, lane by lane.
    fn add(self, b: Self) -> Self;
    /// `self - b`.
    fn sub(self, b: Self) -> Self;
    /// `self * b`.
    fn mul(self, b: Self) -> Self;
    /// `self / b`.
    fn div(self, b: Self) -> Self;
    /// The square root, exactly rounded.
    fn sqrt(self) -> Self;
    /// `self * b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// `if self > b { self } else { b }`.
    fn max(self, b: Self) -> Self;
    /// `if self < b { self } else { b }`.
    fn min(self, b: Self) -> Self;
    /// Clears the sign bit.
    fn abs(self) -> Self;
    /// Flips the sign bit.
    fn neg(self) -> Self;
    /// The nearest integral value, ties to even.
    fn round_even(self) -> Self;
    /// `2^self` for integral lanes in −126 ..= 127, exactly.
    fn exp2_integral(self) -> Self;

    /// Lanes where `self > b`.
    fn gt(self, b: Self) -> Self::Mask;
    /// Lane `i` true where bit `i` is set.
    fn mask(bits: u16) -> Self::Mask;
    /// `a` where the mask is true, else `b`.
    fn select(mask: Self::Mask, a: Self, b: Self) -> Self;

    /// `src` (at most sixteen floats) in the first lanes, `fill` in the rest.
    #[inline(always)]
    fn load_part(src: &[f32], fill: f32) -> Self {
        let mut whole = [fill; LANES];
        whole[..src.len()].copy_from_slice(src);
        Self::load(&whole)
    }

    /// The first lanes to `dst` (at most sixteen floats).
    #[inline(always)]
    fn store_part(self, dst: &mut [f32]) {
        let whole = self.to_array();
        let n = dst.len();
        dst.copy_from_slice(&whole[..n]);
    }

    /// The lanes as an array.
    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        let mut whole = [0.0; LANES];
        self.store(&mut whole);
        whole
    }

    /// The sum by the fixed tree: lane i + lane i+8, then +4, then +2, then +1.
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut x = self.to_array();
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                x[i] += x[i + half];
            }
            half /= 2;
        }
        x[0]
    }

    /// The largest lane, by the same tree and `if a > b { a } else { b }`.
    #[inline(always)]
    fn largest(self) -> f32 {
        let mut x = self.to_array();
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                x[i] = if x[i] > x[i + half] {
                    x[i]
                } else {
                    x[i + half]
                };
            }
            half /= 2;
        }
        x[0]
    }
}

/// A kernel written once over [`Lanes`]; `run` must be `#[inline(always)]`, and so must every function that
/// it hands [`Lanes`] to. Closures can't be: one that takes, returns or captures lanes may be compiled
/// without the target features, and is then a hundred times slower.
pub trait LaneKernel {
    /// What it returns.
    type Output;
    /// The kernel itself.
    fn run<V: Lanes>(self) -> Self::Output;
}

/// Runs `kernel` with the twin for `isa`.
///
/// # Panics
/// When this CPU does not support `isa` (callers hold an [`Isa`] that was checked).
#[inline]
pub fn dispatch<K: LaneKernel>(isa: Isa, kernel: K) -> K::Output {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx => {
            assert!(supported(Isa::Avx512), "AVX-512 is not supported here");
            // SAFETY: the CPU has the features, as just checked.
            unsafe { run_avx512(kernel) }
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => {
            assert!(supported(Isa::Avx2), "AVX2 is not supported here");
            // SAFETY: the CPU has the features, as just checked.
            unsafe { run_avx2(kernel) }
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Scalar => {
            if is_x86_feature_detected!("fma") {
                // SAFETY: the CPU has FMA, as just checked.
                unsafe { run_scalar_fma(kernel) }
            } else {
                kernel.run::<SoftFma>()
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        _ => kernel.run::<SoftFma>(),
    }
}

/// Runs `kernel` on the scalar reference compiled without hardware FMA.
pub fn dispatch_soft<K: LaneKernel>(kernel: K) -> K::Output {
    kernel.run::<SoftFma>()
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn supported(isa: Isa) -> bool {
    // The standard library caches the CPUID answers: this is a load and a test.
    isa.is_supported()
}

/// # Safety
/// The CPU must have the features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn run_avx512<K: LaneKernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512>()
}

/// # Safety
/// The CPU must have the features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_avx2<K: LaneKernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2>()
}

/// # Safety
/// The CPU must have FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "fma")]
unsafe fn run_scalar_fma<K: LaneKernel>(kernel: K) -> K::Output {
    kernel.run::<Scalar>()
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod twins;
