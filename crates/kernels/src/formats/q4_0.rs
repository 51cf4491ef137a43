//! Four bits, one scale per 32: `d·(q − 8)`.
//!
//! In the file: d f16, 16 bytes of nibbles.

use super::{BlockFormat, Quantized, SubBlock, Visitor, split_nibbles, u16_at};
use crate::packed::quants::Bits4;
use crate::packed::scales::PerBlock;

/// Four bits, one scale per 32: `d·(q − 8)`.
#[allow(non_camel_case_types)]
pub(crate) struct Q4_0;

impl BlockFormat for Q4_0 {
    const NAME: &'static str = "Q4_0";
    const GGML_TYPE: u32 = 2;
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 18;

    fn accept<V: Visitor>(visitor: V) -> V::Output {
        visitor.quantized::<Self>()
    }
}

impl Quantized for Q4_0 {
    type Quants = Bits4;
    type Scales = PerBlock;
    const BIAS: i32 = 8;

    #[inline]
    fn factors(block: &[u8]) -> [u16; 2] {
        [u16_at(block, 0), 0]
    }

    #[inline]
    fn sub_block(block: &[u8], sub: usize) -> SubBlock {
        debug_assert_eq!(sub, 0);
        SubBlock {
            quants: split_nibbles(&block[2..]),
            scales: [0; 2],
        }
    }
}
