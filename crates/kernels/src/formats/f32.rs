//! IEEE 754 single precision.

use super::{BlockFormat, Float, Visitor};
use crate::lanes::Lanes;

/// IEEE 754 single precision.
pub(crate) struct F32;

impl BlockFormat for F32 {
    const NAME: &'static str = "F32";
    const GGML_TYPE: u32 = 0;
    const BLOCK_LEN: usize = 1;
    const BLOCK_BYTES: usize = 4;

    fn accept<V: Visitor>(visitor: V) -> V::Output {
        visitor.float::<Self>()
    }
}

impl Float for F32 {
    #[inline(always)]
    fn widen(block: &[u8]) -> f32 {
        f32::from_le_bytes([block[0], block[1], block[2], block[3]])
    }

    #[inline(always)]
    unsafe fn load<V: Lanes>(src: *const u8) -> V {
        // SAFETY: the caller gives sixteen aligned values.
        unsafe { V::load(&*src.cast()) }
    }
}
