//! Reading a [`TokenizerSpec`] from a GGUF file.

use weights::gguf::{Gguf, GgufError};

use crate::{Tokenizer, TokenizerError, TokenizerSpec};

/// A file's tokenizer cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A key is missing or has another type.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The keys don't make a tokenizer.
    #[error("{file}: {error}")]
    Tokenizer {
        /// The file.
        file: String,
        /// What is wrong.
        error: TokenizerError,
    },
}

impl TokenizerSpec {
    /// Reads the `tokenizer.*` keys.
    ///
    /// # Errors
    /// `tokenizer.ggml.model` or `tokenizer.ggml.tokens` is missing, or a key has another type. Whether
    /// the keys fit together is checked by [`Tokenizer::new`].
    pub fn from_gguf(file: &Gguf) -> Result<Self, GgufError> {
        let keys = file.metadata();
        let id = |name: &str| keys.opt_u32(&format!("tokenizer.ggml.{name}_token_id"));
        let flag = |name: &str| keys.opt_bool(&format!("tokenizer.ggml.{name}"));
        let merges = keys.opt_str_array("tokenizer.ggml.merges")?;
        let scores = keys.opt_f32_array("tokenizer.ggml.scores")?;
        let types = keys.opt_i32_array("tokenizer.ggml.token_type")?;
        let charsmap = keys.opt_array("tokenizer.ggml.precompiled_charsmap")?;
        Ok(Self {
            model: keys.get_str("tokenizer.ggml.model")?.to_owned(),
            pre: keys.opt_str("tokenizer.ggml.pre")?.map(str::to_owned),
            tokens: keys
                .get_bytes_array("tokenizer.ggml.tokens")?
                .map(<[u8]>::to_vec)
                .collect(),
            scores: scores.map(Iterator::collect).unwrap_or_default(),
            types: types.map(Iterator::collect).unwrap_or_default(),
            merges: merges
                .map(|m| m.map(str::to_owned).collect())
                .unwrap_or_default(),
            bos: id("bos")?,
            eos: id("eos")?,
            eot: id("eot")?,
            eom: id("eom")?,
            unk: id("unknown")?,
            pad: id("padding")?,
            add_bos: flag("add_bos_token")?,
            add_eos: flag("add_eos_token")?,
            add_space_prefix: flag("add_space_prefix")?,
            remove_extra_whitespaces: flag("remove_extra_whitespaces")?,
            has_charsmap: charsmap.is_some_and(|c| !c.is_empty()),
            chat_template: keys.opt_str("tokenizer.chat_template")?.map(str::to_owned),
        })
    }
}

impl Tokenizer {
    /// The tokenizer of a GGUF file.
    ///
    /// # Errors
    /// See [`TokenizerSpec::from_gguf`] and [`Tokenizer::new`]; the error names the file.
    pub fn from_gguf(file: &Gguf) -> Result<Self, LoadError> {
        let spec = TokenizerSpec::from_gguf(file)?;
        Self::new(spec).map_err(|error| LoadError::Tokenizer {
            file: file.path().display().to_string(),
            error,
        })
    }
}
