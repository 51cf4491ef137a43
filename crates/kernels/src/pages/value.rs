//! The two types a page can hold.

use super::KvType;
use crate::lanes::{LANES, Lanes};

/// A value as it is kept in a page.
pub(crate) trait KvValue: Copy + Send + Sync + 'static {
    /// Its name at run time.
    const TYPE: KvType;
    /// Magnitudes below this round to a finite value.
    const LIMIT: f32;

    /// Sixteen values, widened exactly.
    fn load<V: Lanes>(src: &[Self; LANES]) -> V;
    /// Sixteen values, rounded to nearest even.
    fn round<V: Lanes>(x: V) -> [Self; LANES];
    /// One value, widened exactly.
    fn widen(self) -> f32;
}

impl KvValue for f32 {
    const TYPE: KvType = KvType::F32;
    const LIMIT: f32 = f32::INFINITY;

    #[inline(always)]
    fn load<V: Lanes>(src: &[Self; LANES]) -> V {
        V::load(src)
    }

    #[inline(always)]
    fn round<V: Lanes>(x: V) -> [Self; LANES] {
        x.to_array()
    }

    fn widen(self) -> f32 {
        self
    }
}

impl KvValue for u16 {
    const TYPE: KvType = KvType::F16;
    /// Halfway from the largest f16, 65504, to what would be the next.
    const LIMIT: f32 = 65520.0;

    #[inline(always)]
    fn load<V: Lanes>(src: &[Self; LANES]) -> V {
        V::load_f16(src)
    }

    #[inline(always)]
    fn round<V: Lanes>(x: V) -> [Self; LANES] {
        let mut bits = [0; LANES];
        x.store_f16(&mut bits);
        bits
    }

    fn widen(self) -> f32 {
        half::f16::from_bits(self).to_f32_const()
    }
}
