//! Four bits, scale and offset per 32: `d·q + m`.
//!
//! In the file: d f16, m f16, 16 bytes of nibbles.

use super::{BlockFormat, Quantized, SubBlock, Visitor, split_nibbles, u16_at};
use crate::packed::quants::Bits4;
use crate::packed::scales::PerBlockMin;

/// Four bits, scale and offset per 32: `d·q + m`.
#[allow(non_camel_case_types)]
pub(crate) struct Q4_1;

impl BlockFormat for Q4_1 {
    const NAME: &'static str = "Q4_1";
    const GGML_TYPE: u32 = 3;
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 20;

    fn accept<V: Visitor>(visitor: V) -> V::Output {
        visitor.quantized::<Self>()
    }
}

impl Quantized for Q4_1 {
    type Quants = Bits4;
    type Scales = PerBlockMin;
    const BIAS: i32 = 0;

    #[inline]
    fn factors(block: &[u8]) -> [u16; 2] {
        [u16_at(block, 0), u16_at(block, 2)]
    }

    #[inline]
    fn sub_block(block: &[u8], sub: usize) -> SubBlock {
        debug_assert_eq!(sub, 0);
        SubBlock {
            quants: split_nibbles(&block[4..]),
            scales: [0; 2],
        }
    }
}
