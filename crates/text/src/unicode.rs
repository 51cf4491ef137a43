//! The character classes that pre-tokenizers are written in.
//!
//! `\p{N}` and `\s` are the standard library's `is_numeric` (general categories Nd, Nl, No) and
//! `is_whitespace` (White_Space). The standard library has no `\p{L}`: `is_alphabetic` also holds for
//! letter-like numbers and many combining marks, so letters come from the regex crate's tables.

use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};

/// One bit per code point: general category L.
static LETTERS: LazyLock<Box<[u64]>> = LazyLock::new(|| {
    let mut bits = vec![0_u64; 0x11_0000 / 64].into_boxed_slice();
    if let Ok(hir) = regex_syntax::parse(r"\p{L}")
        && let HirKind::Class(Class::Unicode(class)) = hir.kind()
    {
        for range in class.ranges() {
            for code in u32::from(range.start())..=u32::from(range.end()) {
                bits[code as usize / 64] |= 1 << (code % 64);
            }
        }
    }
    bits
});

/// `\p{L}`.
pub(crate) fn is_letter(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphabetic();
    }
    let code = u32::from(c);
    LETTERS[code as usize / 64] >> (code % 64) & 1 == 1
}

/// `\p{N}`.
pub(crate) fn is_number(c: char) -> bool {
    c.is_numeric()
}

/// `\s`.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace()
}

/// `[\r\n]`.
pub(crate) fn is_newline(c: char) -> bool {
    matches!(c, '\r' | '\n')
}

/// `[^\s\p{L}\p{N}]`.
pub(crate) fn is_other(c: char) -> bool {
    !is_space(c) && !is_letter(c) && !is_number(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_general_category_l_only() {
        for c in ['a', 'é', 'ß', '中', 'あ', 'ع', 'ह', 'ª', 'ʰ'] {
            assert!(is_letter(c), "{c}");
        }
        // Combining marks, a vowel sign, a letter-like number, an emoji, a digit, a space.
        for c in [
            '\u{301}', '\u{93E}', 'Ⅷ', '🙂', '٣', '1', ' ', '_', '\u{200D}',
        ] {
            assert!(!is_letter(c), "{c}");
        }
    }

    #[test]
    fn the_three_classes_never_overlap() {
        for c in '\0'..=char::MAX {
            let classes = [is_letter(c), is_number(c), is_space(c), is_other(c)];
            assert_eq!(
                classes.iter().filter(|&&b| b).count(),
                1,
                "{:#x}",
                u32::from(c)
            );
        }
    }
}
