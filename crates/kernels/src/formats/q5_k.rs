//! Five bits, 6-bit scale and minimum per 32 under f16 ones per 256: `(d·sc)·q − dmin·m`.
//!
//! In the file: d f16, dmin f16, 12 bytes of scales and minima, 32 bytes of fifth bits (bit `sub`
//! of byte `k`), 4 runs of 32 bytes whose low nibbles are one sub-block and whose high nibbles are
//! the next.

use super::k_bits::{add_upper, pick, scale_and_min};
use super::{BlockFormat, Quantized, SubBlock, Visitor, u16_at};
use crate::packed::quants::Bits5;
use crate::packed::scales::SubBlocksMin;

/// Five bits, 6-bit scale and minimum per 32 under f16 ones per 256: `(d·sc)·q − dmin·m`.
#[allow(non_camel_case_types)]
pub(crate) struct Q5_K;

impl BlockFormat for Q5_K {
    const NAME: &'static str = "Q5_K";
    const GGML_TYPE: u32 = 13;
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 176;

    fn accept<V: Visitor>(visitor: V) -> V::Output {
        visitor.quantized::<Self>()
    }
}

impl Quantized for Q5_K {
    type Quants = Bits5;
    type Scales = SubBlocksMin;
    const BIAS: i32 = 0;

    #[inline]
    fn factors(block: &[u8]) -> [u16; 2] {
        [u16_at(block, 0), u16_at(block, 2)]
    }

    #[inline]
    fn sub_block(block: &[u8], sub: usize) -> SubBlock {
        let mut quants = pick(&block[48 + 32 * (sub / 2)..], 4 * (sub % 2), 15);
        add_upper(&mut quants, &pick(&block[16..48], sub, 1));
        SubBlock {
            quants,
            scales: scale_and_min(&block[4..16], sub),
        }
    }
}
