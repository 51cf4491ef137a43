//! What the formats of 256 values share.

use super::SUB_BLOCK;

/// The low (`high` = 0) or high (`high` = 1) nibbles of 32 bytes.
#[inline]
pub(super) fn nibbles(bytes: &[u8], high: usize) -> [u8; SUB_BLOCK] {
    let mut quants = [0; SUB_BLOCK];
    for (quant, &byte) in quants.iter_mut().zip(&bytes[..SUB_BLOCK]) {
        *quant = byte >> (4 * high) & 15;
    }
    quants
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
