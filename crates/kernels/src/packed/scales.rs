//! How an integer dot product becomes a value: the scales of a format, for sixteen rows at once.

use super::quants::GROUP;
use crate::lanes::Lanes;

/// Bytes of one f16 factor for sixteen rows.
pub(crate) const FACTOR_BYTES: usize = 2 * GROUP;

/// The numbers by which one sub-block of sixteen rows enters the sum.
#[derive(Clone, Copy)]
pub(crate) struct Step<V> {
    /// Multiplies the integer dot product (together with the activation's scale).
    pub(crate) scale: V,
    /// Multiplies the activation's scaled sum. Used where [`Scales::MIN`] is true.
    pub(crate) min: V,
    /// The integer scales of columns 0 to 15 and 16 to 31. Used where [`Scales::HALVES`] is true.
    pub(crate) halves: [V; 2],
}

/// A system of scales.
pub(crate) trait Scales {
    /// f16 factors per row and block of the file.
    const FACTORS: usize;
    /// Bytes of small integers per row and sub-block.
    const SMALL: usize;
    /// Whether a multiple of the activations' sum is added.
    const MIN: bool = false;
    /// Whether the halves of a sub-block have integer scales of their own.
    const HALVES: bool = false;

    /// The numbers for one sub-block.
    ///
    /// # Safety
    /// `factors` must be readable for `FACTORS` vectors of 32 bytes and `small` for `SMALL` vectors of
    /// sixteen bytes, both aligned to their size.
    unsafe fn step<V: Lanes>(factors: *const u8, small: *const u8) -> Step<V>;

    /// GGUF's formula for the value at column `k` of a sub-block.
    fn value(factors: [f32; 2], small: [u8; 2], k: usize, quant: i32) -> f32;
}

/// `d·q`
pub(crate) struct PerBlock;
/// `d·q + m`
pub(crate) struct PerBlockMin;
/// `(d·sc)·q − dmin·m`, sc and m unsigned
pub(crate) struct SubBlocksMin;
/// `(d·sc)·q`, sc signed, one for each half of a sub-block
pub(crate) struct HalfBlocks;

/// # Safety
/// As for [`Scales::step`].
#[inline(always)]
unsafe fn factor<V: Lanes>(factors: *const u8, index: usize) -> V {
    // SAFETY: the caller gives that many vectors of sixteen aligned f16.
    unsafe { V::load_f16(&*factors.add(FACTOR_BYTES * index).cast()) }
}

impl Scales for PerBlock {
    const FACTORS: usize = 1;
    const SMALL: usize = 0;

    #[inline(always)]
    unsafe fn step<V: Lanes>(factors: *const u8, _small: *const u8) -> Step<V> {
        let zero = V::splat(0.0);
        Step {
            // SAFETY: as the caller vouches.
            scale: unsafe { factor(factors, 0) },
            min: zero,
            halves: [zero; 2],
        }
    }

    #[inline(always)]
    fn value(factors: [f32; 2], _small: [u8; 2], _k: usize, quant: i32) -> f32 {
        factors[0] * quant as f32
    }
}

impl Scales for PerBlockMin {
    const FACTORS: usize = 2;
    const SMALL: usize = 0;
    const MIN: bool = true;

    #[inline(always)]
    unsafe fn step<V: Lanes>(factors: *const u8, _small: *const u8) -> Step<V> {
        Step {
            // SAFETY: as the caller vouches.
            scale: unsafe { factor(factors, 0) },
            // SAFETY: as the caller vouches.
            min: unsafe { factor(factors, 1) },
            halves: [V::splat(0.0); 2],
        }
    }

    #[inline(always)]
    fn value(factors: [f32; 2], _small: [u8; 2], _k: usize, quant: i32) -> f32 {
        factors[0] * quant as f32 + factors[1]
    }
}

impl Scales for SubBlocksMin {
    const FACTORS: usize = 2;
    const SMALL: usize = 2;
    const MIN: bool = true;

    #[inline(always)]
    unsafe fn step<V: Lanes>(factors: *const u8, small: *const u8) -> Step<V> {
        // SAFETY: the caller gives two vectors of factors and two of small integers.
        let (d, dmin, sc, m) = unsafe {
            (
                factor::<V>(factors, 0),
                factor::<V>(factors, 1),
                V::from_u8(&*small.cast()),
                V::from_u8(&*small.add(GROUP).cast()),
            )
        };
        // Both products are exact: 11 bits times 6 (or 8).
        Step {
            scale: d.mul(sc),
            min: dmin.mul(m).neg(),
            halves: [V::splat(0.0); 2],
        }
    }

    #[inline(always)]
    fn value(factors: [f32; 2], small: [u8; 2], _k: usize, quant: i32) -> f32 {
        let [sc, m] = small.map(f32::from);
        (factors[0] * sc) * quant as f32 - factors[1] * m
    }
}

impl Scales for HalfBlocks {
    const FACTORS: usize = 1;
    const SMALL: usize = 2;
    const HALVES: bool = true;

    #[inline(always)]
    unsafe fn step<V: Lanes>(factors: *const u8, small: *const u8) -> Step<V> {
        // SAFETY: the caller gives one vector of factors and two of small integers.
        unsafe {
            Step {
                scale: factor(factors, 0),
                min: V::splat(0.0),
                halves: [
                    V::from_i8(&*small.cast()),
                    V::from_i8(&*small.add(GROUP).cast()),
                ],
            }
        }
    }

    #[inline(always)]
    fn value(factors: [f32; 2], small: [u8; 2], k: usize, quant: i32) -> f32 {
        let sc = f32::from(small[k / GROUP] as i8);
        (factors[0] * sc) * quant as f32
    }
}
