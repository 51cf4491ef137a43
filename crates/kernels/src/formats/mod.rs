//! The block formats of weights: how many values a block holds, in how many bytes, and what they mean.
//!
//! A format is one file in this folder, with a type that implements [`BlockFormat`] and either
//! [`Float`] or [`Quantized`], and one line in the registry below. Packing, dequantisation and the
//! matrix products of every instruction set follow from those.

mod bf16;
mod f16;
mod f32;
mod k_bits;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;

use crate::lanes::Lanes;
use crate::packed::quants::Quants;
use crate::packed::scales::Scales;

/// Values that share one activation scale, and the length of a sub-block of every quantised format.
pub const SUB_BLOCK: usize = 32;

/// What a format is called and how its blocks are sized.
pub(crate) trait BlockFormat {
    /// The name, as in GGUF tools.
    const NAME: &'static str;
    /// The type number in GGUF files.
    const GGML_TYPE: u32;
    /// Values per block.
    const BLOCK_LEN: usize;
    /// Bytes per block, in the file.
    const BLOCK_BYTES: usize;

    /// Calls the method of `visitor` for the kind of this format.
    fn accept<V: Visitor>(visitor: V) -> V::Output;
}

/// A format of plain floating-point values.
pub(crate) trait Float: BlockFormat {
    /// The value of one block, widened exactly.
    fn widen(block: &[u8]) -> f32;

    /// Whether the value of one block is finite.
    #[inline(always)]
    fn is_finite(block: &[u8]) -> bool {
        Self::widen(block).is_finite()
    }

    /// Sixteen values, widened exactly.
    ///
    /// # Safety
    /// `src` must be readable for sixteen blocks and aligned to the size of one.
    unsafe fn load<V: Lanes>(src: *const u8) -> V;
}

/// Thirty-two quants of one row, as a format's file holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SubBlock {
    /// The unsigned quants in the order of columns; the value's integer is `quants[k] - BIAS`.
    pub(crate) quants: [u8; SUB_BLOCK],
    /// Two small integers, whose meaning is that of the format's [`Scales`].
    pub(crate) scales: [u8; 2],
}

/// A format of small integers with scales.
pub(crate) trait Quantized: BlockFormat {
    /// How the integers are packed and unpacked.
    type Quants: Quants;
    /// How the integers become values.
    type Scales: Scales;
    /// What is subtracted from each unsigned quant.
    const BIAS: i32;
    /// Sub-blocks per block.
    const SUB_BLOCKS: usize = Self::BLOCK_LEN / SUB_BLOCK;

    /// The block's f16 factors, as bits; unused ones are zero.
    fn factors(block: &[u8]) -> [u16; 2];
    /// The quants and small scales of sub-block `sub` of `block`.
    fn sub_block(block: &[u8], sub: usize) -> SubBlock;
}

/// An operation that is generic over formats, to be run on a [`Format`] known at run time only.
pub(crate) trait Visitor {
    /// What it returns.
    type Output;
    /// For a floating-point format.
    fn float<F: Float>(self) -> Self::Output;
    /// For a quantised format.
    fn quantized<F: Quantized>(self) -> Self::Output;
}

macro_rules! registry {
    ($($name:ident => $kind:ty,)+) => {
        /// A block format of tensor data.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, missing_docs)]
        pub enum Format {
            $($name,)+
        }

        impl Format {
            /// All formats, in the order of their GGUF type numbers.
            pub const ALL: [Self; [$(Self::$name),+].len()] = [$(Self::$name),+];

            /// (name, GGUF type number, values per block, bytes per block)
            const fn facts(self) -> (&'static str, u32, usize, usize) {
                match self {
                    $(Self::$name => (
                        <$kind>::NAME,
                        <$kind>::GGML_TYPE,
                        <$kind>::BLOCK_LEN,
                        <$kind>::BLOCK_BYTES,
                    ),)+
                }
            }

            /// Runs `visitor` with the type of this format.
            pub(crate) fn visit<V: Visitor>(self, visitor: V) -> V::Output {
                match self {
                    $(Self::$name => <$kind>::accept(visitor),)+
                }
            }
        }
    };
}

registry! {
    F32 => f32::F32,
    F16 => f16::F16,
    Q4_0 => q4_0::Q4_0,
    Q4_1 => q4_1::Q4_1,
    Q5_0 => q5_0::Q5_0,
    Q5_1 => q5_1::Q5_1,
    Q8_0 => q8_0::Q8_0,
    Q4_K => q4_k::Q4_K,
    Q5_K => q5_k::Q5_K,
    Q6_K => q6_k::Q6_K,
    BF16 => bf16::BF16,
}

impl Format {
    /// The name, as in GGUF tools.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.facts().0
    }

    /// The type number in GGUF files.
    #[must_use]
    pub const fn ggml_type(self) -> u32 {
        self.facts().1
    }

    /// Values per block.
    #[must_use]
    pub const fn block_len(self) -> usize {
        self.facts().2
    }

    /// Bytes per block, in the file.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        self.facts().3
    }

    /// The format with that GGUF type number, where it is supported.
    #[must_use]
    pub fn from_ggml_type(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.ggml_type() == number)
    }

    /// Whether values are floats rather than small integers with scales.
    #[must_use]
    pub const fn is_float(self) -> bool {
        self.block_len() == 1
    }

    /// The values of whole blocks, by GGUF's formula in f32.
    ///
    /// # Panics
    /// When `src` is not the bytes of exactly `dst.len()` values in whole blocks.
    pub fn dequantize(self, src: &[u8], dst: &mut [f32]) {
        assert!(
            dst.len().is_multiple_of(self.block_len())
                && src.len() == dst.len() / self.block_len() * self.block_bytes(),
            "{} values of {} do not take {} bytes",
            dst.len(),
            self.name(),
            src.len(),
        );
        self.visit(Dequantize { src, dst });
    }
}

struct Dequantize<'a> {
    src: &'a [u8],
    dst: &'a mut [f32],
}

impl Visitor for Dequantize<'_> {
    type Output = ();

    fn float<F: Float>(self) {
        for (block, value) in self.src.chunks_exact(F::BLOCK_BYTES).zip(self.dst) {
            *value = F::widen(block);
        }
    }

    fn quantized<F: Quantized>(self) {
        let blocks = self.src.chunks_exact(F::BLOCK_BYTES);
        for (block, values) in blocks.zip(self.dst.chunks_exact_mut(F::BLOCK_LEN)) {
            let factors = F::factors(block).map(widen_f16);
            for (sub, values) in values.chunks_exact_mut(SUB_BLOCK).enumerate() {
                sub_block_values::<F>(factors, &F::sub_block(block, sub), values);
            }
        }
    }
}

/// The 32 values of one sub-block.
pub(crate) fn sub_block_values<F: Quantized>(factors: [f32; 2], sub: &SubBlock, dst: &mut [f32]) {
    for (k, (value, &quant)) in dst.iter_mut().zip(&sub.quants).enumerate() {
        *value = F::Scales::value(factors, sub.scales, k, i32::from(quant) - F::BIAS);
    }
}

/// An f16, given as bits, widened exactly.
pub(crate) fn widen_f16(bits: u16) -> f32 {
    half::f16::from_bits(bits).to_f32_const()
}

/// The little-endian u16 at byte `at`.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The little-endian u32 at byte `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The 32 nibbles of sixteen bytes: low ones first, then high ones.
#[inline]
pub(crate) fn split_nibbles(bytes: &[u8]) -> [u8; SUB_BLOCK] {
    let mut quants = [0; SUB_BLOCK];
    for (k, &byte) in bytes[..SUB_BLOCK / 2].iter().enumerate() {
        quants[k] = byte & 15;
        quants[k + SUB_BLOCK / 2] = byte >> 4;
    }
    quants
}

/// Adds bit `k` of `high` to quant `k`, as its bit 4.
#[inline]
pub(crate) fn add_fifth_bits(quants: &mut [u8; SUB_BLOCK], high: u32) {
    for (eight, bits) in quants.chunks_exact_mut(8).zip(high.to_le_bytes()) {
        // Byte i of `picked` is bit i of `bits`, still in its place, or zero. The sum carries any such bit
        // to the top of its byte, and no further.
        let picked = (u64::from(bits) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
        let fifth = ((picked + 0x7f7f_7f7f_7f7f_7f7f) & 0x8080_8080_8080_8080) >> 3;
        for (quant, bit) in eight.iter_mut().zip(fifth.to_le_bytes()) {
            *quant |= bit;
        }
    }
}
