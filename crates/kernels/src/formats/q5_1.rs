//! Five bits, scale and offset per 32: `d·q + m`.
//!
//! In the file: d f16, m f16, 32 fifth bits, 16 bytes of nibbles.

use super::{
    BlockFormat, Quantized, SubBlock, Visitor, add_fifth_bits, split_nibbles, u16_at, u32_at,
};
use crate::packed::quants::Bits5;
use crate::packed::scales::PerBlockMin;

/// Five bits, scale and offset per 32: `d·q + m`.
#[allow(non_camel_case_types)]
pub(crate) struct Q5_1;

impl BlockFormat for Q5_1 {
    const NAME: &'static str = "Q5_1";
    const GGML_TYPE: u32 = 7;
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 24;

    fn accept<V: Visitor>(visitor: V) -> V::Output {
        visitor.quantized::<Self>()
    }
}

impl Quantized for Q5_1 {
    type Quants = Bits5;
    type Scales = PerBlockMin;
    const BIAS: i32 = 0;

    #[inline]
    fn factors(block: &[u8]) -> [u16; 2] {
        [u16_at(block, 0), u16_at(block, 2)]
    }

    #[inline]
    fn sub_block(block: &[u8], sub: usize) -> SubBlock {
        debug_assert_eq!(sub, 0);
        let mut quants = split_nibbles(&block[8..]);
        add_fifth_bits(&mut quants, u32_at(block, 4));
        SubBlock {
            quants,
            scales: [0; 2],
        }
    }
}
