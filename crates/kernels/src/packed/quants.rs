//! How the integers of sixteen rows × 32 columns are packed, and unpacked on each instruction set.
//!
//! Unpacked, they are eight vectors of 64 bytes. 32-bit lane `r` of vector `j` holds the quants of
//! row `r` at columns `4j .. 4j + 4`: what the dot-product instructions take, with four activations
//! broadcast to all lanes.
//!
//! Packed, four bits take four vectors: vector `j` has unpacked vector `j` in its low nibbles and
//! unpacked vector `j + 4` in its high nibbles. Further bits follow in planes of one vector each.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use crate::formats::SUB_BLOCK;

/// Rows that are interleaved.
pub(crate) const GROUP: usize = 16;

/// Bytes of one vector.
const VECTOR: usize = 4 * GROUP;

/// Bytes of four bits for sixteen rows × 32 columns.
const NIBBLES: usize = 4 * VECTOR;

/// A packing of unsigned integers.
pub(crate) trait Quants {
    /// Bytes of sixteen rows × 32 columns; a multiple of 64.
    const BYTES: usize;
    /// How many products of column pairs AVX2 may add in 16 bits before it must widen.
    #[cfg(target_arch = "x86_64")]
    const PAIRS: usize;
    /// Whether a quant needs all eight bits, so that AVX2 must multiply it as a signed number.
    #[cfg(target_arch = "x86_64")]
    const EIGHT_BITS: bool = false;

    /// Writes one row's quants.
    fn pack(dst: &mut [u8], row: usize, quants: &[u8; SUB_BLOCK]);

    /// Reads one row's quants back.
    fn unpack(src: &[u8], row: usize) -> [u8; SUB_BLOCK];

    /// The eight unpacked vectors.
    ///
    /// # Safety
    /// `src` must be readable for `BYTES` bytes and aligned to 64; the CPU must have AVX-512 F and BW,
    /// and so must the function this is inlined into.
    #[cfg(target_arch = "x86_64")]
    unsafe fn unpack_avx512(src: *const u8) -> [__m512i; 8];

    /// Half `half` (rows 0 to 7 or 8 to 15) of unpacked vector `j`.
    ///
    /// # Safety
    /// `src` must be readable for `BYTES` bytes and aligned to 64; the CPU must have AVX2, and so must
    /// the function this is inlined into.
    #[cfg(target_arch = "x86_64")]
    unsafe fn unpack_avx2(src: *const u8, j: usize, half: usize) -> __m256i;
}

/// Four bits.
pub(crate) struct Bits4;
/// Five bits: bit `j` of byte `b` of the plane belongs to byte `b` of unpacked vector `j`.
pub(crate) struct Bits5;
/// Six bits: bits `2j` and `2j + 1` of byte `b` of plane `p` belong to byte `b` of unpacked vector `4p + j`.
pub(crate) struct Bits6;
/// Eight bits, not folded.
pub(crate) struct Bits8;

/// The place of (row, column) in the unpacked vectors, in bytes.
#[inline(always)]
fn place(row: usize, column: usize) -> usize {
    VECTOR * (column / 4) + 4 * row + column % 4
}

/// Columns `4j .. 4j + 4` as one word, whose bytes are then handled together.
#[inline(always)]
fn word(bytes: &[u8], j: usize) -> u32 {
    u32::from_le_bytes([
        bytes[4 * j],
        bytes[4 * j + 1],
        bytes[4 * j + 2],
        bytes[4 * j + 3],
    ])
}

/// Moves `bits` (1 or 2) bits above the nibbles of each word `first + j` to bit `bits·j` of a word.
#[inline(always)]
fn gather_bits<const COUNT: usize>(quants: &[u8; SUB_BLOCK], first: usize, bits: usize) -> [u8; 4] {
    let mask = 0x0101_0101 * ((1 << bits) - 1);
    let mut plane = 0;
    for j in 0..COUNT {
        plane |= (word(quants, first + j) >> 4 & mask) << (bits * j);
    }
    plane.to_le_bytes()
}

/// The inverse of [`gather_bits`].
#[inline(always)]
fn spread_bits<const COUNT: usize>(
    quants: &mut [u8; SUB_BLOCK],
    first: usize,
    bits: usize,
    plane: u32,
) {
    let mask = 0x0101_0101 * ((1 << bits) - 1);
    for j in 0..COUNT {
        let at = first + j;
        let with = word(quants, at) | (plane >> (bits * j) & mask) << 4;
        quants[4 * at..4 * at + 4].copy_from_slice(&with.to_le_bytes());
    }
}

#[inline(always)]
fn pack_nibbles(dst: &mut [u8], row: usize, quants: &[u8; SUB_BLOCK]) {
    let mask = 0x0f0f_0f0f;
    for j in 0..4 {
        let both = word(quants, j) & mask | (word(quants, j + 4) & mask) << 4;
        dst[VECTOR * j + 4 * row..][..4].copy_from_slice(&both.to_le_bytes());
    }
}

#[inline(always)]
fn unpack_nibbles(src: &[u8], row: usize) -> [u8; SUB_BLOCK] {
    let mut quants = [0; SUB_BLOCK];
    for k in 0..SUB_BLOCK / 2 {
        let byte = src[place(row, k)];
        quants[k] = byte & 15;
        quants[k + SUB_BLOCK / 2] = byte >> 4;
    }
    quants
}

/// # Safety
/// As for [`Quants::unpack_avx512`], for 256 bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn nibbles_avx512(src: *const u8) -> [__m512i; 8] {
    // SAFETY: the caller vouches for the memory and the features.
    unsafe {
        let mask = _mm512_set1_epi8(15);
        let mut vectors = [mask; 8];
        for j in 0..4 {
            let both = _mm512_load_si512(src.add(VECTOR * j).cast());
            vectors[j] = _mm512_and_si512(both, mask);
            vectors[j + 4] = _mm512_and_si512(_mm512_srli_epi16::<4>(both), mask);
        }
        vectors
    }
}

/// # Safety
/// As for [`Quants::unpack_avx2`], for 256 bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn nibbles_avx2(src: *const u8, j: usize, half: usize) -> __m256i {
    // SAFETY: the caller vouches for the memory and the features.
    unsafe {
        let both = _mm256_load_si256(src.add(VECTOR * (j % 4) + VECTOR / 2 * half).cast());
        let nibbles = if j < 4 {
            both
        } else {
            _mm256_srli_epi16::<4>(both)
        };
        _mm256_and_si256(nibbles, _mm256_set1_epi8(15))
    }
}

/// `(a & b) | c`
///
/// # Safety
/// The CPU must have AVX-512 F, and so must the function this is inlined into.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn and_or(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    // SAFETY: the caller vouches for the features.
    unsafe { _mm512_ternarylogic_epi32::<0xea>(a, b, c) }
}

impl Quants for Bits4 {
    const BYTES: usize = NIBBLES;
    // 16 products of 15 · 127 are below 2^15.
    #[cfg(target_arch = "x86_64")]
    const PAIRS: usize = 8;

    #[inline(always)]
    fn pack(dst: &mut [u8], row: usize, quants: &[u8; SUB_BLOCK]) {
        pack_nibbles(dst, row, quants);
    }
    #[inline(always)]
    fn unpack(src: &[u8], row: usize) -> [u8; SUB_BLOCK] {
        unpack_nibbles(src, row)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn unpack_avx512(src: *const u8) -> [__m512i; 8] {
        // SAFETY: as the caller vouches.
        unsafe { nibbles_avx512(src) }
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn unpack_avx2(src: *const u8, j: usize, half: usize) -> __m256i {
        // SAFETY: as the caller vouches.
        unsafe { nibbles_avx2(src, j, half) }
    }
}

impl Quants for Bits5 {
    const BYTES: usize = NIBBLES + VECTOR;
    // 8 products of 31 · 127 are below 2^15.
    #[cfg(target_arch = "x86_64")]
    const PAIRS: usize = 4;

    #[inline(always)]
    fn pack(dst: &mut [u8], row: usize, quants: &[u8; SUB_BLOCK]) {
        pack_nibbles(dst, row, quants);
        let plane = gather_bits::<8>(quants, 0, 1);
        dst[NIBBLES + 4 * row..][..4].copy_from_slice(&plane);
    }
    #[inline(always)]
    fn unpack(src: &[u8], row: usize) -> [u8; SUB_BLOCK] {
        let mut quants = unpack_nibbles(src, row);
        spread_bits::<8>(&mut quants, 0, 1, word(&src[NIBBLES..], row));
        quants
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn unpack_avx512(src: *const u8) -> [__m512i; 8] {
        // SAFETY: as the caller vouches.
        unsafe {
            let mut vectors = nibbles_avx512(src);
            let bits = _mm512_load_si512(src.add(NIBBLES).cast());
            let fifth = _mm512_set1_epi8(16);
            let places = [
                _mm512_slli_epi16::<4>(bits),
                _mm512_slli_epi16::<3>(bits),
                _mm512_slli_epi16::<2>(bits),
                _mm512_slli_epi16::<1>(bits),
                bits,
                _mm512_srli_epi16::<1>(bits),
                _mm512_srli_epi16::<2>(bits),
                _mm512_srli_epi16::<3>(bits),
            ];
            for j in 0..8 {
                vectors[j] = and_or(places[j], fifth, vectors[j]);
            }
            vectors
        }
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn unpack_avx2(src: *const u8, j: usize, half: usize) -> __m256i {
        // SAFETY: as the caller vouches.
        unsafe {
            let nibbles = nibbles_avx2(src, j, half);
            let bits = _mm256_load_si256(src.add(NIBBLES + VECTOR / 2 * half).cast());
            let place = match j {
                0 => _mm256_slli_epi16::<4>(bits),
                1 => _mm256_slli_epi16::<3>(bits),
                2 => _mm256_slli_epi16::<2>(bits),
                3 => _mm256_slli_epi16::<1>(bits),
                4 => bits,
                5 => _mm256_srli_epi16::<1>(bits),
                6 => _mm256_srli_epi16::<2>(bits),
                _ => _mm256_srli_epi16::<3>(bits),
            };
            _mm256_or_si256(nibbles, _mm256_and_si256(place, _mm256_set1_epi8(16)))
        }
    }
}

impl Quants for Bits6 {
    const BYTES: usize = NIBBLES + 2 * VECTOR;
    // 4 products of 63 · 127 are below 2^15.
    #[cfg(target_arch = "x86_64")]
    const PAIRS: usize = 2;

    #[inline(always)]
    fn pack(dst: &mut [u8], row: usize, quants: &[u8; SUB_BLOCK]) {
        pack_nibbles(dst, row, quants);
        for p in 0..2 {
            let plane = gather_bits::<4>(quants, 4 * p, 2);
            dst[NIBBLES + VECTOR * p + 4 * row..][..4].copy_from_slice(&plane);
        }
    }
    #[inline(always)]
    fn unpack(src: &[u8], row: usize) -> [u8; SUB_BLOCK] {
        let mut quants = unpack_nibbles(src, row);
        for p in 0..2 {
            let plane = word(&src[NIBBLES + VECTOR * p..], row);
            spread_bits::<4>(&mut quants, 4 * p, 2, plane);
        }
        quants
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn unpack_avx512(src: *const u8) -> [__m512i; 8] {
        // SAFETY: as the caller vouches.
        unsafe {
            let mut vectors = nibbles_avx512(src);
            let upper = _mm512_set1_epi8(48);
            for plane in 0..2 {
                let pairs = _mm512_load_si512(src.add(NIBBLES + VECTOR * plane).cast());
                let places = [
                    _mm512_slli_epi16::<4>(pairs),
                    _mm512_slli_epi16::<2>(pairs),
                    pairs,
                    _mm512_srli_epi16::<2>(pairs),
                ];
                for (j, place) in places.into_iter().enumerate() {
                    vectors[4 * plane + j] = and_or(place, upper, vectors[4 * plane + j]);
                }
            }
            vectors
        }
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn unpack_avx2(src: *const u8, j: usize, half: usize) -> __m256i {
        // SAFETY: as the caller vouches.
        unsafe {
            let nibbles = nibbles_avx2(src, j, half);
            let plane = src.add(NIBBLES + VECTOR * (j / 4) + VECTOR / 2 * half);
            let pairs = _mm256_load_si256(plane.cast());
            let place = match j % 4 {
                0 => _mm256_slli_epi16::<4>(pairs),
                1 => _mm256_slli_epi16::<2>(pairs),
                2 => pairs,
                _ => _mm256_srli_epi16::<2>(pairs),
            };
            _mm256_or_si256(nibbles, _mm256_and_si256(place, _mm256_set1_epi8(48)))
        }
    }
}

impl Quants for Bits8 {
    const BYTES: usize = 8 * VECTOR;
    // 2 products of 128 · 127 are below 2^15.
    #[cfg(target_arch = "x86_64")]
    const PAIRS: usize = 1;
    #[cfg(target_arch = "x86_64")]
    const EIGHT_BITS: bool = true;

    #[inline(always)]
    fn pack(dst: &mut [u8], row: usize, quants: &[u8; SUB_BLOCK]) {
        for (j, four) in quants.as_chunks::<4>().0.iter().enumerate() {
            dst[VECTOR * j + 4 * row..][..4].copy_from_slice(four);
        }
    }
    #[inline(always)]
    fn unpack(src: &[u8], row: usize) -> [u8; SUB_BLOCK] {
        std::array::from_fn(|k| src[place(row, k)])
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn unpack_avx512(src: *const u8) -> [__m512i; 8] {
        // SAFETY: as the caller vouches.
        unsafe {
            let mut vectors = [_mm512_setzero_si512(); 8];
            for (j, vector) in vectors.iter_mut().enumerate() {
                *vector = _mm512_load_si512(src.add(VECTOR * j).cast());
            }
            vectors
        }
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn unpack_avx2(src: *const u8, j: usize, half: usize) -> __m256i {
        // SAFETY: as the caller vouches.
        unsafe { _mm256_load_si256(src.add(VECTOR * j + VECTOR / 2 * half).cast()) }
    }
}
