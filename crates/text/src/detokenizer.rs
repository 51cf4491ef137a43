//! Text from token ids as they come.

use std::ops::Deref;

use crate::{TokenId, Tokenizer};

/// What a [`Detokenizer`] shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DetokenizerOptions {
    /// Show control, unknown and unused tokens by their names; otherwise they have no text.
    pub show_control: bool,
    /// The tokens begin a text, rather than continue one: for vocabularies that put a space before every
    /// text, that space is dropped.
    pub at_text_start: bool,
}

/// Turns tokens into text one at a time.
///
/// What it gives is always whole characters. At most an incomplete character (3 bytes) is held back.
/// All it gives together equals [`String::from_utf8_lossy`] of all the tokens' bytes.
#[derive(Clone, Debug)]
pub struct Detokenizer<T> {
    tokenizer: T,
    show_control: bool,
    /// A space at the very start is still to be dropped.
    drops_space: bool,
    /// Bytes not yet given out: the start of a character.
    pending: Vec<u8>,
    text: String,
}

impl<T: Deref<Target = Tokenizer>> Detokenizer<T> {
    /// For the tokens of `tokenizer`, which may be borrowed or shared.
    #[must_use]
    pub fn new(tokenizer: T, options: DetokenizerOptions) -> Self {
        Self {
            show_control: options.show_control,
            drops_space: options.at_text_start && tokenizer.adds_space_prefix(),
            tokenizer,
            pending: Vec::new(),
            text: String::new(),
        }
    }

    /// Takes the next token; returns the text that is now certain, possibly none.
    pub fn push(&mut self, id: TokenId) -> &str {
        self.text.clear();
        if self.show_control || !self.tokenizer.is_control(id) {
            let mut bytes = self.tokenizer.token_bytes(id);
            if self.drops_space && !bytes.is_empty() {
                self.drops_space = false;
                bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            }
            self.pending.extend_from_slice(bytes);
            self.take_certain();
        }
        &self.text
    }

    /// No more tokens come; returns what was held back, as U+FFFD.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.text.push(char::REPLACEMENT_CHARACTER);
            self.pending.clear();
        }
        &self.text
    }

    /// Moves all but an incomplete last character from `pending` to `text`.
    fn take_certain(&mut self) {
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    self.text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    self.text
                        .push_str(std::str::from_utf8(valid).unwrap_or_default());
                    rest = after;
                    match error.error_len() {
                        Some(length) => {
                            self.text.push(char::REPLACEMENT_CHARACTER);
                            rest = &rest[length..];
                        }
                        None => break,
                    }
                }
            }
        }
        let kept = rest.len();
        self.pending.drain(..self.pending.len() - kept);
    }
}
