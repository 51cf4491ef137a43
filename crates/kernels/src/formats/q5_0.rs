//! Five bits, one scale per 32: `d·(q − 16)`.
//!
//! In the file: d f16, 32 fifth bits, 16 bytes of nibbles.

use super::{
    BlockFormat, Quantized, SubBlock, Visitor, add_fifth_bits, split_nibbles, u16_at, u32_at,
};
use crate::packed::quants::Bits5;
use crate::packed::scales::PerBlock;

/// Five bits, one scale per 32: `d·(q − 16)`.
#[allow(non_camel_case_types)]
pub(crate) struct Q5_0;

impl BlockFormat for Q5_0 {
    const NAME: &'static str = "Q5_0";
    const GGML_TYPE: u32 = 6;
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 22;

    fn accept<V: Visitor>(visitor: V) -> V::Output {
        visitor.quantized::<Self>()
    }
}

impl Quantized for Q5_0 {
    type Quants = Bits5;
    type Scales = PerBlock;
    const BIAS: i32 = 16;

    #[inline]
    fn factors(block: &[u8]) -> [u16; 2] {
        [u16_at(block, 0), 0]
    }

    #[inline]
    fn sub_block(block: &[u8], sub: usize) -> SubBlock {
        debug_assert_eq!(sub, 0);
        let mut quants = split_nibbles(&block[6..]);
        add_fifth_bits(&mut quants, u32_at(block, 2));
        SubBlock {
            quants,
            scales: [0; 2],
        }
    }
}
