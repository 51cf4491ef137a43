//! The reference: an array of sixteen floats, twice (hardware FMA, and `libm::fmaf`).

use super::{LANES, Lanes};

/// The reference on a CPU with FMA.
#[derive(Clone, Copy)]
pub struct Scalar([f32; LANES]);

/// The reference on a CPU without FMA.
#[derive(Clone, Copy)]
pub struct SoftFma([f32; LANES]);

/// `a * b + c` rounded once, in software.
#[must_use]
pub fn fma_soft(a: f32, b: f32, c: f32) -> f32 {
    libm::fmaf(a, b, c)
}

#[inline(always)]
fn fma_hard(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

/// `f` of each lane. (`std::array::from_fn` would do, but takes many times as long to compile.)
#[inline(always)]
fn each<T: Copy + Default>(f: impl Fn(usize) -> T) -> [T; LANES] {
    let mut lanes = [T::default(); LANES];
    for (i, lane) in lanes.iter_mut().enumerate() {
        *lane = f(i);
    }
    lanes
}

#[inline(always)]
fn map(a: [f32; LANES], f: impl Fn(f32) -> f32) -> [f32; LANES] {
    each(|i| f(a[i]))
}

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    each(|i| f(a[i], b[i]))
}

macro_rules! reference {
    ($name:ident, $fma:path) => {
        impl Lanes for $name {
            type Mask = [bool; LANES];

            #[inline(always)]
            fn splat(x: f32) -> Self {
                Self([x; LANES])
            }
            #[inline(always)]
            fn load(src: &[f32; LANES]) -> Self {
                Self(*src)
            }
            #[inline(always)]
            fn store(self, dst: &mut [f32; LANES]) {
                *dst = self.0;
            }
            #[inline(always)]
            fn load_f16(src: &[u16; LANES]) -> Self {
                Self(each(|i| half::f16::from_bits(src[i]).to_f32_const()))
            }
            #[inline(always)]
            fn store_f16(self, dst: &mut [u16; LANES]) {
                *dst = each(|i| half::f16::from_f32_const(self.0[i]).to_bits());
            }
            #[inline(always)]
            fn load_bf16(src: &[u16; LANES]) -> Self {
                Self(each(|i| f32::from_bits(u32::from(src[i]) << 16)))
            }
            #[inline(always)]
            fn from_i32(src: &[i32; LANES]) -> Self {
                Self(each(|i| src[i] as f32))
            }
            #[inline(always)]
            fn from_u8(src: &[u8; LANES]) -> Self {
                Self(each(|i| f32::from(src[i])))
            }
            #[inline(always)]
            fn from_i8(src: &[i8; LANES]) -> Self {
                Self(each(|i| f32::from(src[i])))
            }
            #[inline(always)]
            fn add(self, b: Self) -> Self {
                Self(zip(self.0, b.0, |a, b| a + b))
            }
            #[inline(always)]
            fn sub(self, b: Self) -> Self {
                Self(zip(self.0, b.0, |a, b| a - b))
            }
            #[inline(always)]
            fn mul(self, b: Self) -> Self {
                Self(zip(self.0, b.0, |a, b| a * b))
            }
            #[inline(always)]
            fn div(self, b: Self) -> Self {
                Self(zip(self.0, b.0, |a, b| a / b))
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                Self(map(self.0, libm::sqrtf))
            }
            #[inline(always)]
            fn fma(self, b: Self, c: Self) -> Self {
                Self(each(|i| $fma(self.0[i], b.0[i], c.0[i])))
            }
            #[inline(always)]
            fn max(self, b: Self) -> Self {
                Self(zip(self.0, b.0, |a, b| if a > b { a } else { b }))
            }
            #[inline(always)]
            fn min(self, b: Self) -> Self {
                Self(zip(self.0, b.0, |a, b| if a < b { a } else { b }))
            }
            #[inline(always)]
            fn abs(self) -> Self {
                Self(map(self.0, |a| f32::from_bits(a.to_bits() & 0x7fff_ffff)))
            }
            #[inline(always)]
            fn neg(self) -> Self {
                Self(map(self.0, |a| f32::from_bits(a.to_bits() ^ 0x8000_0000)))
            }
            #[inline(always)]
            fn round_even(self) -> Self {
                Self(map(self.0, libm::rintf))
            }
            #[inline(always)]
            fn exp2_integral(self) -> Self {
                Self(map(self.0, |n| {
                    f32::from_bits(((n as i32 + 127) as u32) << 23)
                }))
            }
            #[inline(always)]
            fn gt(self, b: Self) -> Self::Mask {
                each(|i| self.0[i] > b.0[i])
            }
            #[inline(always)]
            fn mask(bits: u16) -> Self::Mask {
                each(|i| bits >> i & 1 == 1)
            }
            #[inline(always)]
            fn select(mask: Self::Mask, a: Self, b: Self) -> Self {
                Self(each(|i| if mask[i] { a.0[i] } else { b.0[i] }))
            }
        }
    };
}

reference!(Scalar, fma_hard);
reference!(SoftFma, fma_soft);
