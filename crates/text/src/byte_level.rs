//! The byte-level alphabet of GPT-2: every byte is written as one printable character.
//!
//! Bytes that are printable in Latin-1 stand for themselves; the other 68 are numbered upwards from
//! U+0100 in byte order. (Radford et al. 2019, the `bytes_to_unicode` table published with GPT-2.)

/// Whether a byte stands for itself.
const fn is_own_character(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The character for each byte.
const CHARACTERS: [char; 256] = {
    let mut table = ['\0'; 256];
    let mut next = 0x100_u32;
    let mut byte = 0;
    while byte < 256 {
        table[byte] = if is_own_character(byte as u8) {
            byte as u8 as char
        } else {
            let Some(character) = char::from_u32(next) else {
                panic!("the alphabet ends at U+0143")
            };
            next += 1;
            character
        };
        byte += 1;
    }
    table
};

/// The character that stands for `byte`.
pub(crate) fn character(byte: u8) -> char {
    CHARACTERS[usize::from(byte)]
}

/// The byte that `character` stands for.
fn byte(character: char) -> Option<u8> {
    let code = u32::from(character);
    match u8::try_from(code) {
        Ok(byte) => is_own_character(byte).then_some(byte),
        // The alphabet's tail is U+0100..=U+0143: short enough to search.
        Err(_) if code <= 0x143 => {
            let at = CHARACTERS.iter().position(|&c| c == character)?;
            u8::try_from(at).ok()
        }
        Err(_) => None,
    }
}

/// The bytes a stored token stands for. A token with any character outside the alphabet stands for its
/// own UTF-8 (the rule of the reference decoder), and so does one that is not UTF-8.
pub(crate) fn decode(token: &[u8]) -> Vec<u8> {
    std::str::from_utf8(token)
        .ok()
        .and_then(|text| text.chars().map(byte).collect())
        .unwrap_or_else(|| token.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_the_round_trip_under_its_own_character() {
        let mut seen = std::collections::HashSet::new();
        for value in 0..=255_u8 {
            assert!(seen.insert(character(value)));
            assert_eq!(byte(character(value)), Some(value));
        }
        assert_eq!(character(b' '), 'Ġ');
        assert_eq!(character(b'\n'), 'Ċ');
        assert_eq!(character(0xAD), '\u{143}');
    }

    #[test]
    fn a_token_outside_the_alphabet_stands_for_itself() {
        assert_eq!(decode("Ġa".as_bytes()), b" a");
        assert_eq!(decode("<｜x｜>".as_bytes()), "<｜x｜>".as_bytes());
        assert_eq!(decode(b"a b"), b"a b");
        assert_eq!(decode(b"\xff"), b"\xff");
    }
}
