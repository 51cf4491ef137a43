//! What a file says about its tokenizer.

use crate::{TokenId, TokenizerError};

/// A tokenizer as stored: the `tokenizer.*` keys of a GGUF file.
///
/// `Option` fields are keys that a file may leave out; [`Tokenizer::new`](crate::Tokenizer::new) knows
/// what their absence means.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenizerSpec {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece).
    pub model: String,
    /// `tokenizer.ggml.pre`: the pre-tokenizer's name; needed for `gpt2`.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`: the tokens as stored (byte-level alphabet, U+2581, `<0xNN>`).
    pub tokens: Vec<Vec<u8>>,
    /// `tokenizer.ggml.scores`: one per token; needed for `llama`.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`, one per token: 1 normal, 2 unknown, 3 control, 4 user-defined,
    /// 5 unused, 6 byte. Empty means that all are normal.
    pub types: Vec<i32>,
    /// `tokenizer.ggml.merges`: `left SPACE right`, best first; needed for `gpt2`.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`: begins a text.
    pub bos: Option<TokenId>,
    /// `tokenizer.ggml.eos_token_id`: ends a text.
    pub eos: Option<TokenId>,
    /// `tokenizer.ggml.eot_token_id`: ends a turn.
    pub eot: Option<TokenId>,
    /// `tokenizer.ggml.eom_token_id`: ends a message.
    pub eom: Option<TokenId>,
    /// `tokenizer.ggml.unknown_token_id`: stands for what has no token.
    pub unk: Option<TokenId>,
    /// `tokenizer.ggml.padding_token_id`.
    pub pad: Option<TokenId>,
    /// `tokenizer.ggml.add_bos_token`. Absent: yes for `llama` and for the Llama 3 pre-tokenizer.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`. Absent: no.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`. Absent: yes for `llama`, no for `gpt2`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.ggml.remove_extra_whitespaces`; not supported.
    pub remove_extra_whitespaces: Option<bool>,
    /// Whether `tokenizer.ggml.precompiled_charsmap` is there and not empty; not supported.
    pub has_charsmap: bool,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

/// The type of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenizerSpec {
    /// Every token's type.
    ///
    /// # Errors
    /// Another number of types than of tokens, or a type out of range.
    pub(crate) fn token_types(&self) -> Result<Vec<TokenType>, TokenizerError> {
        if self.types.is_empty() {
            return Ok(vec![TokenType::Normal; self.tokens.len()]);
        }
        if self.types.len() != self.tokens.len() {
            return Err(TokenizerError::LengthMismatch {
                what: "token types",
                found: self.types.len(),
                tokens: self.tokens.len(),
            });
        }
        let read = |(id, &found): (usize, &i32)| match found {
            1 => Ok(TokenType::Normal),
            2 => Ok(TokenType::Unknown),
            3 => Ok(TokenType::Control),
            4 => Ok(TokenType::UserDefined),
            5 => Ok(TokenType::Unused),
            6 => Ok(TokenType::Byte),
            _ => Err(TokenizerError::BadTokenType { id, found }),
        };
        self.types.iter().enumerate().map(read).collect()
    }

    /// Checks that every special id is a token.
    pub(crate) fn check_ids(&self) -> Result<(), TokenizerError> {
        let tokens = self.tokens.len();
        for (key, id) in [
            ("bos_token_id", self.bos),
            ("eos_token_id", self.eos),
            ("eot_token_id", self.eot),
            ("eom_token_id", self.eom),
            ("unknown_token_id", self.unk),
            ("padding_token_id", self.pad),
        ] {
            if let Some(id) = id
                && id as usize >= tokens
            {
                return Err(TokenizerError::IdOutOfRange { key, id, tokens });
            }
        }
        Ok(())
    }
}
