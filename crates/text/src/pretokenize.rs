//! Pre-tokenizers: how text is cut into words before byte-level BPE merges inside each word.
//!
//! Each is published with its model as a regular expression; here they are scanners that read the text
//! once, so that no text takes more than linear time. The expressions stand above their scanners.

use crate::unicode::{is_letter, is_newline, is_number, is_other, is_space};

/// A pre-tokenizer, by the GGUF key `tokenizer.ggml.pre`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreTokenizer {
    /// GPT-2's expression.
    Gpt2,
    /// Each digit (`\p{N}`) alone, then GPT-2's expression on what lies between.
    DigitsGpt2,
    /// Qwen2's expression: Llama 3's with digits alone.
    Qwen2,
    /// Llama 3's expression: digits in groups of up to three.
    Llama3,
}

/// Every name known, with what it stands for.
pub(crate) const NAMES: [(&str, PreTokenizer); 8] = [
    ("default", PreTokenizer::Gpt2),
    ("gpt-2", PreTokenizer::Gpt2),
    ("llama-bpe", PreTokenizer::Llama3),
    ("llama-v3", PreTokenizer::Llama3),
    ("llama3", PreTokenizer::Llama3),
    ("qwen2", PreTokenizer::Qwen2),
    ("smollm", PreTokenizer::DigitsGpt2),
    ("starcoder", PreTokenizer::DigitsGpt2),
];

impl PreTokenizer {
    /// The pre-tokenizer of that name.
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|(n, _)| *n == name).map(|&(_, pre)| pre)
    }

    /// Whether the reference tokenizer first brings text to NFC.
    pub(crate) fn normalizes_to_nfc(self) -> bool {
        self == Self::Qwen2
    }

    /// Whether a word that is itself a token is taken whole, without merging.
    pub(crate) fn ignores_merges(self) -> bool {
        self == Self::Llama3
    }

    /// The words of `text`, in order; their concatenation is `text`.
    pub(crate) fn words(self, text: &str) -> Words<'_> {
        Words {
            pre: self,
            rest: text,
            segment: 0,
        }
    }
}

/// The iterator of [`PreTokenizer::words`].
pub(crate) struct Words<'a> {
    pre: PreTokenizer,
    rest: &'a str,
    /// Bytes of `rest` before the next digit, for [`PreTokenizer::DigitsGpt2`]. Kept between words, for
    /// searching it anew at each word would take quadratic time.
    segment: usize,
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let first = self.rest.chars().next()?;
        let length = match self.pre {
            PreTokenizer::Gpt2 => gpt2(self.rest),
            PreTokenizer::Qwen2 => llama3(self.rest, 1),
            PreTokenizer::Llama3 => llama3(self.rest, 3),
            PreTokenizer::DigitsGpt2 => {
                if self.segment == 0 {
                    self.segment = run(self.rest, |c| !is_number(c));
                }
                if self.segment == 0 {
                    first.len_utf8()
                } else {
                    let length = gpt2(&self.rest[..self.segment]);
                    self.segment -= length;
                    length
                }
            }
        };
        let (word, rest) = self.rest.split_at(length);
        self.rest = rest;
        Some(word)
    }
}

/// Bytes of the longest prefix whose characters all satisfy `class`.
fn run(text: &str, class: impl Fn(char) -> bool) -> usize {
    text.find(|c| !class(c)).unwrap_or(text.len())
}

/// The first word of non-empty `text` under
/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`, in bytes.
fn gpt2(text: &str) -> usize {
    for contraction in ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"] {
        if text.starts_with(contraction) {
            return contraction.len();
        }
    }
    let space = usize::from(text.starts_with(' '));
    let body = &text[space..];
    for class in [is_letter, is_number, is_other] {
        let length = run(body, class);
        if length > 0 {
            return space + length;
        }
    }
    blanks(text)
}

/// The first word of non-empty `text` under
/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,D}| ?[^\s\p{L}\p{N}]+[\r\n]*|`
/// `\s*[\r\n]+|\s+(?!\S)|\s+`, in bytes.
fn llama3(text: &str, digits: usize) -> usize {
    if let Some(length) = contraction_any_case(text) {
        return length;
    }
    let mut characters = text.chars();
    let first = characters.next().unwrap_or_default();
    if is_letter(first) {
        return run(text, is_letter);
    }
    if is_number(first) {
        let group = text.chars().take(digits).take_while(|&c| is_number(c));
        return group.map(char::len_utf8).sum();
    }
    if !is_newline(first) && characters.next().is_some_and(is_letter) {
        let lead = first.len_utf8();
        return lead + run(&text[lead..], is_letter);
    }
    let space = usize::from(first == ' ');
    let marks = run(&text[space..], is_other);
    if marks > 0 {
        let end = space + marks;
        return end + run(&text[end..], is_newline);
    }
    let spaces = &text[..run(text, is_space)];
    match spaces.rfind(is_newline) {
        Some(last) => last + 1,
        None => blanks(text),
    }
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)` at the start of `text`, in bytes. `ſ` is a case of `s`.
fn contraction_any_case(text: &str) -> Option<usize> {
    let mut characters = text.strip_prefix('\'')?.chars();
    let first = characters.next()?;
    let second = characters.next().map(|c| c.to_ascii_lowercase());
    match (first.to_ascii_lowercase(), second) {
        ('s' | 'ſ' | 't' | 'm' | 'd', _) => Some(1 + first.len_utf8()),
        ('r' | 'v', Some('e')) | ('l', Some('l')) => Some(3),
        _ => None,
    }
}

/// `\s+(?!\S)|\s+`: a run of spaces, without its last character if something follows and it is not
/// alone.
fn blanks(text: &str) -> usize {
    let length = run(text, is_space);
    if length == text.len() {
        return length;
    }
    let last = text[..length].chars().next_back().map_or(0, char::len_utf8);
    if last < length { length - last } else { length }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(pre: PreTokenizer, text: &str) -> Vec<&str> {
        pre.words(text).collect()
    }

    #[test]
    fn known_splits() {
        let text = "I'll  pay 1234$\n\n  now";
        assert_eq!(
            words(PreTokenizer::Gpt2, text),
            ["I", "'ll", " ", " pay", " 1234", "$", "\n\n ", " now"]
        );
        assert_eq!(
            words(PreTokenizer::DigitsGpt2, text),
            [
                "I", "'ll", " ", " pay", " ", "1", "2", "3", "4", "$", "\n\n ", " now"
            ]
        );
        assert_eq!(
            words(PreTokenizer::Qwen2, text),
            [
                "I", "'ll", " ", " pay", " ", "1", "2", "3", "4", "$\n\n", " ", " now"
            ]
        );
        assert_eq!(
            words(PreTokenizer::Llama3, text),
            [
                "I", "'ll", " ", " pay", " ", "123", "4", "$\n\n", " ", " now"
            ]
        );
    }

    #[test]
    fn case_matters_to_gpt2_only() {
        assert_eq!(words(PreTokenizer::Gpt2, "I'LL"), ["I", "'", "LL"]);
        assert_eq!(
            words(PreTokenizer::Llama3, "I'LLx'ſ"),
            ["I", "'LL", "x", "'ſ"]
        );
    }

    proptest! {
        #[test]
        fn words_are_not_empty_and_concatenate_to_the_text(
            text in "[ \\r\\n\\ta-c'sSlL0-9.é中\u{301}🙂]{0,40}"
        ) {
            for (_, pre) in NAMES {
                let words = words(pre, &text);
                prop_assert!(words.iter().all(|w| !w.is_empty()));
                prop_assert_eq!(words.concat(), text.clone());
            }
        }
    }
}
