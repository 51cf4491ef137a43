//! Eight bits, one scale per 32: `d·q`.
//!
//! In the file: d f16, 32 signed bytes.

use super::{BlockFormat, Quantized, SUB_BLOCK, SubBlock, Visitor, u16_at};
use crate::packed::quants::Bits8;
use crate::packed::scales::PerBlock;

/// Eight bits, one scale per 32: `d·q`.
#[allow(non_camel_case_types)]
pub(crate) struct Q8_0;

impl BlockFormat for Q8_0 {
    const NAME: &'static str = "Q8_0";
    const GGML_TYPE: u32 = 8;
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 34;

    fn accept<V: Visitor>(visitor: V) -> V::Output {
        visitor.quantized::<Self>()
    }
}

impl Quantized for Q8_0 {
    type Quants = Bits8;
    type Scales = PerBlock;
    const BIAS: i32 = 128;

    #[inline]
    fn factors(block: &[u8]) -> [u16; 2] {
        [u16_at(block, 0), 0]
    }

    #[inline]
    fn sub_block(block: &[u8], sub: usize) -> SubBlock {
        debug_assert_eq!(sub, 0);
        let mut quants = [0; SUB_BLOCK];
        for (quant, &byte) in quants.iter_mut().zip(&block[2..34]) {
            *quant = byte ^ 0x80;
        }
        SubBlock {
            quants,
            scales: [0; 2],
        }
    }
}
