//! Tokens as text for clients.

use std::sync::Arc;

use text::{Detokenizer, DetokenizerOptions, TokenId, Tokenizer};

/// The text of a token: its bytes where they are whole characters, and otherwise `bytes:` and the bytes in
/// hexadecimal, as `bytes:\xe2\x82`.
pub(crate) fn token_text(tokenizer: &Tokenizer, token: TokenId) -> String {
    let bytes = tokenizer.token_bytes(token);
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let escaped: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("bytes:{escaped}")
        }
    }
}

/// Where tokens begin in a text, in characters.
#[derive(Debug)]
pub(crate) struct Offsets {
    detokenizer: Detokenizer<Arc<Tokenizer>>,
    characters: usize,
}

impl Offsets {
    /// For tokens that begin a text (`at_start`), or go on from one of so many characters.
    pub(crate) fn new(tokenizer: &Arc<Tokenizer>, at_start: bool, characters: usize) -> Self {
        let options = DetokenizerOptions {
            at_text_start: at_start,
            ..DetokenizerOptions::default()
        };
        Self {
            detokenizer: Detokenizer::new(Arc::clone(tokenizer), options),
            characters,
        }
    }

    /// Where the next token begins.
    pub(crate) fn push(&mut self, token: TokenId) -> usize {
        let begin = self.characters;
        self.characters += self.detokenizer.push(token).chars().count();
        begin
    }
}
