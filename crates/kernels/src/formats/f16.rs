//! IEEE 754 half precision.

use super::{BlockFormat, Float, Visitor};
use crate::lanes::Lanes;

/// IEEE 754 half precision.
pub(crate) struct F16;

impl BlockFormat for F16 {
    const NAME: &'static str = "F16";
    const GGML_TYPE: u32 = 1;
    const BLOCK_LEN: usize = 1;
    const BLOCK_BYTES: usize = 2;

    fn accept<V: Visitor>(visitor: V) -> V::Output {
        visitor.float::<Self>()
    }
}

impl Float for F16 {
    #[inline(always)]
    fn widen(block: &[u8]) -> f32 {
        super::widen_f16(super::u16_at(block, 0))
    }

    // Faster than by way of f32.
    #[inline(always)]
    fn is_finite(block: &[u8]) -> bool {
        super::u16_at(block, 0) & 0x7c00 != 0x7c00
    }

    #[inline(always)]
    unsafe fn load<V: Lanes>(src: *const u8) -> V {
        // SAFETY: the caller gives sixteen aligned values.
        unsafe { V::load_f16(&*src.cast()) }
    }
}
