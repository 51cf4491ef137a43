//! What the formats of 256 values share.

use super::SUB_BLOCK;

/// Of each of 32 bytes the bits of `mask`, after a shift to the right.
#[inline]
pub(super) fn pick(bytes: &[u8], shift: usize, mask: u8) -> [u8; SUB_BLOCK] {
    let mut picked = [0; SUB_BLOCK];
    let masks = u64::from_le_bytes([mask; 8]);
    // Eight bytes at a time; what the shift brings in from the next byte is masked away.
    for (picked, eight) in picked.chunks_exact_mut(8).zip(bytes.as_chunks::<8>().0) {
        let word = u64::from_le_bytes(*eight) >> shift & masks;
        picked.copy_from_slice(&word.to_le_bytes());
    }
    picked
}

/// Adds `high`, whose bytes are below 16, to the quants, above their lower four bits.
#[inline]
pub(super) fn add_upper(quants: &mut [u8; SUB_BLOCK], high: &[u8; SUB_BLOCK]) {
    let eights = quants.as_chunks_mut::<8>().0;
    for (eight, high) in eights.iter_mut().zip(high.as_chunks::<8>().0) {
        let both = u64::from_le_bytes(*eight) | u64::from_le_bytes(*high) << 4;
        *eight = both.to_le_bytes();
    }
}

/// The 6-bit scale and minimum of sub-block `sub`, out of the 12 bytes that hold eight of each.
///
/// The first four are the low six bits of bytes 0 to 3 and 4 to 7. Of the other four, bytes 8 to 11 hold
/// the low four bits (scale in the low nibble) and the top two bits of bytes 0 to 7 the rest.
#[inline]
pub(super) fn scale_and_min(bytes: &[u8], sub: usize) -> [u8; 2] {
    if sub < 4 {
        [bytes[sub] & 63, bytes[sub + 4] & 63]
    } else {
        let low = bytes[sub + 4];
        [
            low & 15 | bytes[sub - 4] >> 6 << 4,
            low >> 4 | bytes[sub] >> 6 << 4,
        ]
    }
}
