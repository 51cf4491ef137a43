//! Six bits, signed 8-bit scale per 16 under an f16 one per 256: `(d·sc)·(q − 32)`.
//!
//! In the file: per half of 128 values 64 bytes of low nibbles (128 in all), then 32 bytes of
//! upper bit pairs (64 in all), then 16 scales, then d f16.

use super::k_bits::{add_upper, pick};
use super::{BlockFormat, Quantized, SubBlock, Visitor, u16_at};
use crate::packed::quants::Bits6;
use crate::packed::scales::HalfBlocks;

/// Six bits, signed 8-bit scale per 16 under an f16 one per 256: `(d·sc)·(q − 32)`.
#[allow(non_camel_case_types)]
pub(crate) struct Q6_K;

impl BlockFormat for Q6_K {
    const NAME: &'static str = "Q6_K";
    const GGML_TYPE: u32 = 14;
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 210;

    fn accept<V: Visitor>(visitor: V) -> V::Output {
        visitor.quantized::<Self>()
    }
}

impl Quantized for Q6_K {
    type Quants = Bits6;
    type Scales = HalfBlocks;
    const BIAS: i32 = 32;

    #[inline]
    fn factors(block: &[u8]) -> [u16; 2] {
        [u16_at(block, 208), 0]
    }

    #[inline]
    fn sub_block(block: &[u8], sub: usize) -> SubBlock {
        let (half, quarter) = (sub / 4, sub % 4);
        let low = &block[64 * half + 32 * (quarter % 2)..];
        let high = &block[128 + 32 * half..];
        let mut quants = pick(low, 4 * (quarter / 2), 15);
        add_upper(&mut quants, &pick(high, 2 * quarter, 3));
        SubBlock {
            quants,
            scales: [block[192 + 2 * sub], block[193 + 2 * sub]],
        }
    }
}
