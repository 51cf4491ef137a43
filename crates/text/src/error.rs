//! What can be wrong with a vocabulary.

use std::{collections::HashMap, hash::Hash};

use crate::TokenId;

/// A tokenizer cannot be built from what the file says.
#[derive(Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A key that is needed is not there.
    #[error("{key} is missing from the file: {why}")]
    MissingKey {
        /// The GGUF key.
        key: &'static str,
        /// What it is needed for.
        why: &'static str,
    },
    /// A key has a value of the wrong type or out of range.
    #[error("{key} is {found}; expected {expected}")]
    BadKey {
        /// The GGUF key.
        key: &'static str,
        /// What it holds.
        found: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// The kind of tokenizer is not known.
    #[error(
        "tokenizer.ggml.model is {found:?}; known are \"gpt2\" (byte-level BPE) and \"llama\" (SentencePiece)"
    )]
    UnknownModel {
        /// What the file says.
        found: String,
    },
    /// The pre-tokenizer is not known.
    #[error("tokenizer.ggml.pre is {found:?}; known are {known}")]
    UnknownPreTokenizer {
        /// What the file says.
        found: String,
        /// The names known.
        known: String,
    },
    /// The file asks for something that is not implemented and would change the tokens.
    #[error("{key} is set, but {what} is not supported")]
    Unsupported {
        /// The GGUF key.
        key: &'static str,
        /// What it asks for.
        what: &'static str,
    },
    /// The vocabulary is empty.
    #[error("tokenizer.ggml.tokens is empty")]
    NoTokens,
    /// An array that goes with the tokens has another length.
    #[error("the vocabulary has {tokens} tokens, but {found} {what}")]
    LengthMismatch {
        /// The array.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The number of tokens.
        tokens: usize,
    },
    /// A token's type is out of range.
    #[error("token {id} has type {found}; types are 1 (normal) to 6 (byte)")]
    BadTokenType {
        /// The token.
        id: usize,
        /// Its type.
        found: i32,
    },
    /// A token's score is not a finite number.
    #[error("token {id} has score {score}, which is not finite")]
    BadScore {
        /// The token.
        id: usize,
        /// Its score.
        score: f32,
    },
    /// Two tokens have the same text, so that encoding is not defined.
    #[error("tokens {first} and {second} are both {text:?}")]
    DuplicateToken {
        /// The text.
        text: String,
        /// The lower id.
        first: TokenId,
        /// The higher id.
        second: TokenId,
    },
    /// A special token's id is not in the vocabulary.
    #[error("tokenizer.ggml.{key} is {id}, but the vocabulary has {tokens} tokens")]
    IdOutOfRange {
        /// The last part of the GGUF key.
        key: &'static str,
        /// The id.
        id: TokenId,
        /// The number of tokens.
        tokens: usize,
    },
    /// A merge cannot be used.
    #[error("merge {index} ({merge:?}) {problem}")]
    BadMerge {
        /// Its place in the list.
        index: usize,
        /// The merge as stored.
        merge: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A token of type "byte" is not of the form `<0xNN>`.
    #[error("token {id} has type 6 (byte) but its text is {text:?}, not <0x00> to <0xFF>")]
    BadByteToken {
        /// The token.
        id: TokenId,
        /// Its text.
        text: String,
    },
    /// Only some bytes have a token.
    #[error("the vocabulary has byte tokens for {count} of the 256 bytes; all or none are needed")]
    IncompleteByteTokens {
        /// How many there are.
        count: usize,
    },
    /// A character outside the vocabulary could not be written in any way.
    #[error("the vocabulary has neither byte tokens nor tokenizer.ggml.unknown_token_id")]
    NoFallback,
    /// There is no memory for a part of it.
    #[error("cannot allocate {bytes} bytes for {what} of the vocabulary; free some memory")]
    OutOfMemory {
        /// What it is for.
        what: &'static str,
        /// Bytes asked for, about.
        bytes: usize,
    },
    /// The special tokens are too many or too long to search for.
    #[error("the {count} special tokens hold too much text to search for")]
    TooManySpecial {
        /// How many there are.
        count: usize,
    },
}

impl TokenizerError {
    pub(crate) fn duplicate(text: &[u8], first: TokenId, second: TokenId) -> Self {
        Self::DuplicateToken {
            text: String::from_utf8_lossy(text).into_owned(),
            first,
            second,
        }
    }
}

/// An empty map with room for `count` entries; `what` they are is named in the error.
///
/// # Errors
/// There is no memory for it.
pub(crate) fn map_of<K: Eq + Hash, V>(
    what: &'static str,
    count: usize,
) -> Result<HashMap<K, V>, TokenizerError> {
    let mut map = HashMap::new();
    map.try_reserve(count)
        .map_err(|_| TokenizerError::OutOfMemory {
            what,
            bytes: count.saturating_mul(size_of::<(K, V)>()),
        })?;
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_too_large_are_errors_with_the_bytes() {
        let error = map_of::<u64, u64>("tokens", usize::MAX / 64).map(|map| map.len());
        let bytes = usize::MAX / 64 * 16;
        let what = "tokens";
        assert_eq!(error, Err(TokenizerError::OutOfMemory { what, bytes }));
        assert!(map_of::<u64, u64>("tokens", 3).is_ok_and(|map| map.capacity() >= 3));
    }
}
