//! The upper half of IEEE 754 single precision.

use super::{BlockFormat, Float, Visitor};
use crate::lanes::Lanes;

/// The upper half of IEEE 754 single precision.
pub(crate) struct BF16;

impl BlockFormat for BF16 {
    const NAME: &'static str = "BF16";
    const GGML_TYPE: u32 = 30;
    const BLOCK_LEN: usize = 1;
    const BLOCK_BYTES: usize = 2;

    fn accept<V: Visitor>(visitor: V) -> V::Output {
        visitor.float::<Self>()
    }
}

impl Float for BF16 {
    #[inline(always)]
    fn widen(block: &[u8]) -> f32 {
        f32::from_bits(u32::from(super::u16_at(block, 0)) << 16)
    }

    #[inline(always)]
    unsafe fn load<V: Lanes>(src: *const u8) -> V {
        // SAFETY: the caller gives sixteen aligned values.
        unsafe { V::load_bf16(&*src.cast()) }
    }
}
